"""The integers that an input of a network may have: indices of a table, lengths of sequences, masks."""

from collections.abc import Iterator, Set

from harness.network.effort import GROUPED
from harness.network.network import BYTES, Network, Node

_INDEX_READERS = frozenset({"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"})
_VIEWS = frozenset({"Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten"})
_COUNTS = _VIEWS | {"ReduceSum", "Sub"}
"""Operators that compute lengths of sequences from a mask."""
_LENGTHS = {GROUPED: 5, "LSTM": 4, "GRU": 4, "RNN": 4}
"""The place of the input that has the lengths of sequences."""
MASK_INTEGERS = (0, 2)
"""The least integer of a mask, and the first above all."""


def integer_range(network: Network, tensor: str) -> tuple[int, int] | None:
    """Return the least of the integers that a tensor may have, and the first above all; None if no reader limits them.

    Indices lie within their table. Sequences have the length of the data, because their time depends on it. Bytes that
    a Cast reads may be a mask or become an index, as other integers may.
    """
    if (number := _of_whole_sequences(network, tensor, _COUNTS - {"ReduceSum"})) is not None:
        return number, number + 1
    if _of_whole_sequences(network, tensor, _COUNTS) is not None:
        return 1, 2
    bounds: list[int] = []
    readers = list(_readers_behind(network, tensor, _VIEWS))
    for node, read in readers:
        if node.op in _INDEX_READERS and node.inputs[1] == read:
            given = {item.name: item.i for item in node.proto.attribute}
            shape, first = network.types[node.inputs[0]].shape, given.get("batch_dims", 0)
            indexed = shape[first : first + network.types[read].shape[-1]] if node.op.endswith("ND") else shape
            bounds.append(min(indexed) if node.op.endswith("ND") else shape[given.get("axis", 0)])
    if bounds:
        return 0, min(bounds)
    is_cast = network.types[tensor].dtype in BYTES and any(node.op == "Cast" for node, _ in readers)
    return MASK_INTEGERS if is_cast else None


def _readers_behind(network: Network, tensor: str, passed: Set[str]) -> Iterator[tuple[Node, str]]:
    """Yield the nodes that read a tensor, or what `passed` operators make of it, each with what it reads."""
    waiting, made = [tensor], {tensor}
    for read in waiting:
        for node in network.readers(read):
            yield node, read
            if node.op in passed and node.outputs[0] not in made:
                made.add(node.outputs[0])
                waiting.append(node.outputs[0])


def _of_whole_sequences(network: Network, tensor: str, passed: Set[str]) -> int | None:
    """Return the length of whole sequences if a tensor, or what `passed` operators make of it, has lengths."""
    for node, read in _readers_behind(network, tensor, passed):
        place = _LENGTHS.get(node.op, 0)
        if place and read in node.inputs[place : place + 1]:
            return _last_place(network, node) if node.op == GROUPED else _steps(network, node)
    return None


def _last_place(network: Network, attention: Node) -> int | None:
    total = network.constants.get(attention.inputs[6])
    return None if total is None or total.value is None else int(total.value.reshape(-1)[0]) - 1


def _steps(network: Network, recurrent: Node) -> int:
    layout = recurrent.attribute("layout")
    return network.types[recurrent.inputs[0]].shape[0 if layout is None else layout.i]
