"""An ONNX model as the compiler reads it: the nodes that compute, the types of all tensors, and constants."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant
from device_agents.emulated_npu.emulator_errors import InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.unit_commands import DataType

RUNTIME = "com.microsoft"
"""The domain of ONNX Runtime's operators; the names of its other domains begin with it."""


@dataclass(frozen=True)
class ValueType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: DataType


@dataclass(frozen=True)
class OnnxNode:
    """One ONNX node, or several recognised as one operator; `names` lists all nodes that it represents.

    An absent optional input or output has the name "". `part_of` is the operator of the model's node if this node
    belongs to the function that defines it, else "".
    """

    op: str
    name: str
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    part_of: str = ""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the attribute's value, or the default if the node does not have it."""
        return self.attributes.get(name, default)

    def input(self, index: int) -> str:
        """Return the name of an input, "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(frozen=True)
class ParsedModel:
    """A model: `nodes` in topological order, without constant and unused nodes (`free` lists their names).

    `other_types` has the names of element types that the compiler does not support, by tensor. `origins` has the name
    of the model's node for each node that belongs to its function or branch.
    """

    nodes: tuple[OnnxNode, ...]
    types: Mapping[str, ValueType]
    other_types: Mapping[str, str]
    constants: Mapping[str, LazyConstant]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    free: tuple[str, ...]
    node_count: int
    origins: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def readers(self) -> Mapping[str, list[OnnxNode]]:
        """The nodes that read each tensor; a node that reads it twice is listed twice."""
        found: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    @functools.cached_property
    def producers(self) -> Mapping[str, OnnxNode]:
        """The node that writes each tensor."""
        return {name: node for node in self.nodes for name in node.outputs if name}


IN_INFERENCE_MODE = "Export the network in inference mode; in PyTorch, call model.eval() first"
"""The advice for operators in training mode."""


def unsupported(node: OnnxNode, why: str, step: str = "") -> UnsupportedOperator:
    """Return the error for a node that cannot be compiled."""
    step = step or "Export the network without it, or with fixed shapes and constant parameters"
    return UnsupportedOperator(f"Node {shown(node)} cannot be compiled", why, step)


def shown(node: OnnxNode) -> str:
    """Return name and operator of a node for messages."""
    whole = f", part of {node.part_of[:80]}" if node.part_of else ""
    return f"{node.name[:80]!r} ({node.op[:80]}{whole})"


def untyped(tensor: str, element_type: str, node: OnnxNode | None) -> InvalidModel:
    """Return the error for a tensor without a type; `element_type` names its unsupported type, if it has one."""
    place = f" at node {shown(node)}" if node is not None else ""
    what = f"Tensor {tensor[:80]!r}{place} cannot be compiled"
    if element_type:
        known = ", ".join(sorted(kind.name.lower() for kind in DataType))
        return InvalidModel(what, f"Its element type {element_type} is not supported", f"Export with one of {known}")
    return InvalidModel(what, "Its shape is not known before the network runs", "Export with fixed shapes")
