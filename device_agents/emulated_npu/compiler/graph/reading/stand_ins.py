"""Decompose nodes that the compiler has no handler for into nodes of ONNX."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import NodeProto

from device_agents.emulated_npu.compiler.graph.reading import (
    attention,
    fused,
    packed_weights,
    quantised,
    sampled,
    scattered,
)
from device_agents.emulated_npu.compiler.graph.reading.body import Stand
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import RUNTIME, ValueType

_BODIES: Mapping[tuple[str, str], Stand] = {
    **quantised.BODIES,
    ("", "GridSample"): sampled.grid_sample,
    **{
        (RUNTIME, operator): stand
        for bodies in (fused.BODIES, attention.BODIES, packed_weights.BODIES)
        for operator, stand in bodies.items()
    },
}


def defines(node: NodeProto) -> bool:
    """Return whether a node can be decomposed; one on maps with channels last cannot."""
    by_rows = any(item.name == "channels_last" and item.i for item in node.attribute)
    return (node.domain, node.op_type) in _BODIES and not by_rows


def stand_in(node: NodeProto, constants: Collection[str], types: Mapping[str, ValueType]) -> Stand | None:
    """Return the function that adds the decomposition of a node, or None for a node that needs none."""
    if quantised.has_computed_zero(node, constants, types):
        return quantised.moved_product
    if not node.domain and node.op_type in scattered.BODIES:
        return scattered.BODIES[node.op_type] if scattered.is_computed(node, constants) else None
    return _BODIES[node.domain, node.op_type] if defines(node) else None
