"""The operators of ONNX: each family is a module whose HANDLERS add the layers and views of a node.

To add a family, write its module and add its name to `_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from onnx import NodeProto

from device_agents.emulated_npu.compiler.graph.drafts import Handler
from device_agents.emulated_npu.compiler.graph.operators.elementwise import DOMAIN, PIECEWISE_LINEAR

_FAMILIES = (
    "spatial.convolution",
    "spatial.transposed_convolution",
    "spatial.pooling",
    "matrix",
    "einsum",
    "elementwise",
    "normalisation",
    "reduction",
    "movement",
    "indexing",
    "spatial.padding",
    "spatial.resize",
    "recurrent",
    "selection",
    "sequences",
    "transforms",
    "quantisation",
)
OPERATORS: Mapping[str, Handler] = {
    operator: handler
    for family in _FAMILIES
    for operator, handler in import_module(f"{__name__}.{family}").HANDLERS.items()
}
IN_PART: Mapping[str, Callable[[NodeProto], bool]] = {"LayerNormalization": lambda node: not any(node.output[1:])}
"""Operators with handlers that compile only some nodes; ONNX's functions define the others."""
DOMAINS: Mapping[str, str] = {"Binarizer": "ai.onnx.ml", PIECEWISE_LINEAR: DOMAIN}
"""The domains of operators that are not in the default domain."""
