"""About how long nodes take to compile and to run, relative to each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.network.einsum import einsum_product
from harness.network.key import attribute_value
from harness.network.network import Network, Node, TensorType
from harness.network.operator_kinds import GATES, weight_slot

if TYPE_CHECKING:
    from onnx import AttributeProto

_EACH_NODE = 2 << 20
"""What any node takes to compile or to run, as multiply-adds that take as long."""
GROUPED = "GroupQueryAttention"
HEADS = ("num_heads", "kv_num_heads")
"""Attributes of a GroupQueryAttention."""
Shape = tuple[int, ...]


def products_of(op: str, attributes: Iterable[AttributeProto], read: Sequence[TensorType], written: TensorType) -> int:
    """Return the multiply-adds of an operator, 0 for one that multiplies no matrices or whose sizes are not known."""
    if "Conv" in op and len(read) > 1:
        weights = read[weight_slot(op)]
        map_of_taps = read[0] if "Transpose" in op else written
        return map_of_taps.elements * math.prod(weights.shape[1:])
    if ("MatMul" in op or "Gemm" in op) and read[0].shape:
        shape = read[0].shape
        return written.elements * shape[-2 if len(shape) > 1 and _value(attributes, "transA", 0) else -1]
    named = {one.name: attribute_value(one) for one in attributes} if op in ("Einsum", GROUPED) else {}
    return products_of_read(op, named, [one.shape for one in read]) or 0


def products_of_read(op: str, attributes: Mapping[str, Any], shapes: Sequence[Shape | None]) -> int | None:
    """Return the multiply-adds of an operator from the shapes of its inputs; None if it has none, or a size is unknown.

    `attributes` are at least those of an Einsum and of a GroupQueryAttention; attention is counted with
    all new positions.
    """
    if op == "Einsum":
        operands = [shape for shape in shapes if shape is not None]
        found = einsum_product(attributes.get("equation", ""), operands) if len(operands) == len(shapes) else None
        return None if found is None else found.macs
    known = [shape for shape in shapes[:3] if shape is not None]
    if len(known) < len(shapes[:3]):
        return None
    if op in GATES and len(known) == 3 and len(known[0]) == 3:
        data, weights, recurrent = known
        return math.prod(data[:2]) * (math.prod(weights) + math.prod(recurrent))
    if op == GROUPED and len(known) > 1 and len(known[0]) == 3 != len(known[1]):  # columns of one: heads of Q, K and V
        queries, keys = (attributes.get(name, 0) for name in HEADS)
        return 2 * math.prod(known[0]) * known[0][1] * queries // (queries + 2 * keys) if queries > 0 <= keys else None
    if op.endswith("Attention") and len(known) > 1 and min(map(len, known[:2])) > 1:
        return _of_attention(*known[:2])
    if op.endswith("Attention") and len(known) == 1 and len(known[0]) == 5:  # (batch, rows, heads, Q K V, size)
        return 2 * math.prod(known[0]) // 3 * known[0][1]
    return None


def _of_attention(data: Shape, second: Shape) -> int:
    """Return the multiply-adds of attention between queries and keys, or with the weights that make both and values."""
    if len(second) > 2:  # of five axes, keys and values are packed: (batch, rows, heads, K V, size)
        return 2 * math.prod(data) * second[1 if len(second) == 5 else -2]
    made = math.prod(data[:-1]) * second[1]
    return made * data[-1] + 2 * made // 3 * data[-2]


def _value(attributes: Iterable[AttributeProto], name: str, default: Any) -> Any:
    return next((attribute_value(one) for one in attributes if one.name == name), default)


def products_of_network(network: Network) -> list[int]:
    """Return the multiply-adds of each node of a network."""
    return [_products_of_node(network, node) for node in network.nodes]


def _products_of_node(network: Network, node: Node) -> int:
    read = [network.types[name] for name in node.inputs if name]
    return products_of(node.op, node.proto.attribute, read, network.types[node.results[0]])


def compile_effort(products: Iterable[int]) -> float:
    """Return about how long nodes with these multiply-adds take to compile: the more, the more tiles to plan."""
    return sum(math.sqrt(_EACH_NODE + one) for one in products)


def networks_effort(networks: Iterable[Network]) -> float:
    """Return about how long networks take to compile, one after the other."""
    return sum(compile_effort(products_of_network(network)) for network in networks)


def side_by_side(efforts: Iterable[float]) -> float:
    """Return about how long models take that are compiled on two cores or more: no less than the longest one."""
    known = list(efforts)
    return max(*known, sum(known) / 2) if known else 0.0


def run_effort(products: Iterable[int]) -> float:
    """Return about how long nodes with these multiply-adds take to run."""
    return sum(_EACH_NODE + one for one in products) / _EACH_NODE
