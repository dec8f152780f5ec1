"""About how long nodes take to compile and to run, relative to each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from harness.network.network import Network, TensorType

_EACH_NODE = 2 << 20
"""What any node takes to compile or to run, as multiply-adds that take as long."""


def products_of(op: str, read: Sequence[TensorType], written: TensorType) -> int:
    """Return the multiply-adds of an operator, 0 for one that is neither a convolution nor a matrix product."""
    if "Conv" in op and len(read) > 1:
        weights = max(read[1:], key=lambda one: one.elements)
        map_of_taps = read[0] if "Transpose" in op else written
        return map_of_taps.elements * math.prod(weights.shape[1:])
    if ("MatMul" in op or "Gemm" in op) and read[0].shape:
        return written.elements * read[0].shape[-1]
    return 0


def products_of_network(network: Network) -> list[int]:
    """Return the multiply-adds of each node of a network."""
    types = network.types
    return [
        products_of(node.op, [types[name] for name in node.inputs if name], types[node.results[0]])
        for node in network.nodes
    ]


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
