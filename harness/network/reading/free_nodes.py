"""Nodes that only rename what they read, so that they take no time."""

from __future__ import annotations

import contextlib
from collections.abc import Set

from harness.errors import UnsupportedType
from harness.network.network import Node
from harness.network.node_inference import Operands, output_types


def free_reason(node: Node, operands: Operands, read: Set[str]) -> str:
    """Return why the node only renames its first input; an empty string if it does more.

    `read` are all tensors that the network reads or returns.
    """
    if not read.isdisjoint(name for name in node.outputs[1:] if name):
        return ""
    if node.op == "Identity":
        return "identity"
    if node.op == "Dropout" and _is_inference(node, operands):
        return "dropout at inference"
    if node.op == "Cast":
        with contextlib.suppress(UnsupportedType):
            (kind,) = output_types(node, operands).values()
            return "cast to the same type" if kind == operands.types[node.inputs[0]] else ""
    return ""


def _is_inference(node: Node, operands: Operands) -> bool:
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    mode = operands.constants.get(node.inputs[2])
    return mode is not None and mode.value is not None and mode.value.size == 1 and not mode.value.any()
