"""Patterns of operators that a device executes as one: how they are written and read.

A pattern looks like `Conv/dense/16(x0);BatchNormalization(0);Relu(1)`: operators in canonical order, each with the
activations that it reads. `xN` is a tensor from outside, `N` the first result of the N-th operator, `N.1` its second.
Constants, and operators that only prepare constants, are left out. A pattern also says what else runtimes decide on. A
convolution has its kind and the alignment of its channels. A QuantizeLinear after a Relu has whether its integers reach
below zero: if not, the Relu changes nothing, and runtimes drop it. Conversions of other integers than bytes, or of the
result of a product with other weights, have the name of the type. Those after operators that only move elements have
whether the scale changes.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.network.key import attributes, canonical
from harness.network.network import Constant, Network, Node

MAX_ALIGNMENT = 16
_LOWEST = {"uint4": 0, "uint8": 0, "uint16": 0, "int4": -8, "int8": -128, "int16": -32768}
_MOVING = frozenset(
    {"MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Split", "Resize", "Pad"}
)
"""Operators whose results are elements of what they read: runtimes apply them to integers that stay the same."""
_PATTERN_NODE = re.compile(r"([A-Za-z0-9_/]+)\(([x0-9,.]*)\)\Z")
_KIND = re.compile(r"(Conv|BatchNormalization)/[a-z]*/?[0-9]+")
_READ = re.compile(r"x\d+|\d+(\.\d+)?")


@dataclass(frozen=True)
class PatternNode:
    """An operator and the activations that it reads: `x0`, `x1` … from outside, `0`, `1` … from inside."""

    op: str
    reads: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def parse_pattern(text: str) -> tuple[PatternNode, ...]:
    """Return the operators of a pattern, the sink last; raises ValueError if it is malformed."""
    nodes = []
    for position, part in enumerate(text.split(";")):
        found = _PATTERN_NODE.match(part)
        if not found:
            raise ValueError(f"{part!r} is not an operator of a fusion pattern")
        reads = tuple(found[2].split(",")) if found[2] else ()
        if not all(_READ.fullmatch(read) and (read[0] == "x" or position_of(read) < position) for read in reads):
            raise ValueError(f"{part!r} reads something that is not before it")
        nodes.append(PatternNode(found[1], reads))
    return tuple(nodes)


def position_of(read: str) -> int:
    """Return which operator of a pattern writes what another reads."""
    return int(read.partition(".")[0])


def label_of(position: int, slot: int) -> str:
    """Return how a pattern names a result of an operator."""
    return f"{position}.{slot}" if slot else str(position)


def pattern_of(network: Network, group: Sequence[Node]) -> str:
    """Return the pattern of a connected group of nodes with one sink."""
    sink = max(group, key=lambda node: node.index)
    graph = canonical(network, group, [sink.outputs[0]])
    labels: dict[str, str] = {name: f"x{index}" for index, name in enumerate(graph.inputs)}
    parts = []
    for position, node in enumerate(node for node in graph.nodes if not network.is_fixed(node)):
        labels.update((name, label_of(position, slot)) for slot, name in enumerate(node.outputs))
        reads = ",".join(labels[name] for name in network.activations(node))
        parts.append(f"{names_of(network, node)[0]}({reads})")
    return ";".join(parts)


def of_any_kind(pattern: str) -> str:
    """Return the pattern for convolutions of all kinds and alignments."""
    return _KIND.sub(r"\1", pattern)


def names_of(network: Network, node: Node) -> tuple[str, str]:
    """Return the names of an operator in patterns: with the properties that runtimes decide on, and for any of these.

    The properties are the kind of a convolution and the alignment of its channels, and what conversions convert.
    """
    integers = _integers(network, node)
    return _variant(network, node) + integers, node.op + integers


def _integers(network: Network, node: Node) -> str:
    """Return the end of the name of a conversion of other integers than bytes, empty for anything else."""
    if node.op not in ("QuantizeLinear", "DequantizeLinear"):
        return ""
    kinds = {network.types[node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]].dtype}
    writer = network.producers.get(node.inputs[0])
    if writer is not None and writer.op in _MOVING and not _scales_alike(network, writer, node):
        kinds.add("rescaled")
    if writer is not None and writer.op == "Relu":
        writer = network.producers.get(writer.inputs[0])
    weight = network.producers.get(writer.inputs[1]) if writer is not None and len(writer.inputs) > 1 else None
    if weight is not None and weight.op == "DequantizeLinear" and network.is_fixed(weight):
        kinds.add(network.types[weight.inputs[0]].dtype)
    return "".join(f"/{kind}" for kind in sorted(kinds - {"int8", "uint8"}))


def _scales_alike(network: Network, mover: Node, quantise: Node) -> bool:
    """Return whether integers before and after an operator stand for the same numbers, so that it can move integers."""
    read = network.producers.get(mover.inputs[0])
    interpolates = mover.op == "Resize" and attributes(network, mover).get("mode", "nearest") != "nearest"
    if read is None or read.op != "DequantizeLinear" or interpolates:
        return False
    pairs = itertools.zip_longest(read.inputs[1:], quantise.inputs[1:], fillvalue="")
    return all(one == other or _equal(network.constants.get(one), network.constants.get(other)) for one, other in pairs)


def _equal(one: Constant | None, other: Constant | None) -> bool:
    if one is None or other is None or one.value is None or other.value is None:
        return False
    return one.value.shape == other.value.shape and bool((one.value == other.value).all())


def _variant(network: Network, node: Node) -> str:
    if node.op == "BatchNormalization":
        return f"BatchNormalization/{_alignment(network.types[node.outputs[0]].shape)}"
    if node.op == "QuantizeLinear" and (rectifier := network.producers.get(node.inputs[0])) and rectifier.op == "Relu":
        return f"QuantizeLinear/{'positive' if _starts_at_zero(network, node) else 'signed'}"
    if node.op != "Conv":
        return node.op
    group = attributes(network, node).get("group", 1)
    channels = network.types[node.inputs[0]].shape[1]
    kind = "dense" if group == 1 else "depthwise" if group == channels else "grouped"
    if kind == "grouped":
        per_group = network.types[node.inputs[1]].shape
        return f"Conv/grouped/{min(_alignment((1, size)) for size in per_group[:2])}"
    return f"Conv/{kind}/{_alignment(network.types[node.outputs[0]].shape)}"


def _starts_at_zero(network: Network, quantise: Node) -> bool:
    """Return whether the smallest integer that a QuantizeLinear writes stands for zero."""
    kind = network.types[quantise.outputs[0]].dtype
    if len(quantise.inputs) < 3:
        return kind.startswith("u")
    zero = network.constants.get(quantise.inputs[2])
    return zero is not None and zero.value is not None and bool((zero.value == _LOWEST.get(kind)).all())


def _alignment(shape: tuple[int, ...]) -> int:
    channels = shape[1] if len(shape) > 1 else 1
    return max(size for size in (1, 2, 4, 8, MAX_ALIGNMENT) if channels % size == 0)
