"""Operators that ONNX does not define but ONNX Runtime does: in its own domains, and two in ONNX's domain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_RUNTIME_DOMAIN = "com.microsoft"
RUNTIME_DOMAINS = frozenset({_RUNTIME_DOMAIN, "com.microsoft.nchwc"})
"""Domains of ONNX Runtime: quantised operators, and those of files that it has optimised."""
_IN_ONNX_DOMAIN = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that the runtime has in ONNX's domain in all opsets: its optimizers write them into files."""


def defined(op: str, version: int, domain: str) -> bool:
    """Return whether ONNX or ONNX Runtime defines an operator."""
    from onnx import defs

    return domain in RUNTIME_DOMAINS or defs.has(op, version, domain) or (not domain and op in _IN_ONNX_DOMAIN)


@contextlib.contextmanager
def checkable(model: ModelProto, nodes: Iterable[NodeProto]) -> Iterator[None]:
    """Move all operators of the runtime to its own domain for a while: there, ONNX's checker lets them pass."""
    from onnx import defs

    version = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    moved = [node for node in nodes if node.op_type in _IN_ONNX_DOMAIN and not node.domain]
    moved = [node for node in moved if not defs.has(node.op_type, version, "")]
    is_stated = any(entry.domain == _RUNTIME_DOMAIN for entry in model.opset_import)
    for node in moved:
        node.domain = _RUNTIME_DOMAIN
    if moved and not is_stated:
        model.opset_import.add(domain=_RUNTIME_DOMAIN, version=1)
    try:
        yield
    finally:
        for node in moved:
            node.domain = ""
        if moved and not is_stated:
            model.opset_import.pop()
