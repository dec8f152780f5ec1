"""Recognises operators that files spell out in several nodes (m:n mapping, S3.6).

GELU (exact and by tanh), swish and hard-swish, layer normalisation, and padding before a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

from device_agents.emulated_npu.compiler.graph.constants import scalar_of, value_of
from device_agents.emulated_npu.compiler.graph.operators.normalisation import RECOGNISED
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, ParsedModel
from device_agents.emulated_npu.compiler.graph.recognition.expressions import (
    Apply,
    Either,
    Expressions,
    Match,
    Pattern,
    ProductOf,
    SumOf,
    Variable,
)

_X = Variable()
_CUBE = Either(
    (
        Apply("Pow", _X, numbers=(3.0,)),
        ProductOf(1.0, (_X, _X, _X)),
        ProductOf(1.0, (_X, Apply("Pow", _X, numbers=(2.0,)))),
    )
)
_SQUARE = Either((Apply("Pow", _X, numbers=(2.0,)), ProductOf(1.0, (_X, _X))))
_CUBIC = 0.044715
_ROOT = math.sqrt(2 / math.pi)
_INNER = Either(
    (
        ProductOf(_ROOT, (SumOf(0.0, (_X, Either((ProductOf(_CUBIC, (_X, _X, _X)), ProductOf(_CUBIC, (_CUBE,)))))),)),
        ProductOf(_ROOT, (_X, SumOf(1.0, (Either((ProductOf(_CUBIC, (_X, _X)), ProductOf(_CUBIC, (_SQUARE,)))),)))),
    )
)
_RELU6 = Either(
    (
        Apply("Clip", SumOf(3.0, (_X,)), numbers=(0.0, 6.0)),
        Apply("Clip", SumOf(3.0, (_X,)), attributes={"min": 0.0, "max": 6.0}),
    )
)
ACTIVATIONS: Sequence[tuple[str, dict[str, Any], Pattern]] = (
    ("Gelu", {}, ProductOf(0.5, (_X, SumOf(1.0, (Apply("Erf", ProductOf(math.sqrt(0.5), (_X,))),))))),
    ("Gelu", {"approximate": b"tanh"}, ProductOf(0.5, (_X, SumOf(1.0, (Apply("Tanh", _INNER),))))),
    ("Swish", {}, ProductOf(1.0, (_X, Apply("Sigmoid", _X)))),
    ("HardSwish", {}, ProductOf(1.0, (_X, Apply("HardSigmoid", _X, attributes={"alpha": 1 / 6, "beta": 0.5})))),
    ("HardSwish", {}, ProductOf(1 / 6, (_X, _RELU6))),
)
Merged = tuple[OnnxNode, Set[str]]
"""One node that replaces several, and the names of these."""

_HINTS = frozenset({"Erf", "Tanh", "Sigmoid", "HardSigmoid", "Clip"})


def recognise(source: ParsedModel) -> ParsedModel:
    """Return the model with the recognised nodes merged; it computes the same values."""
    for step in (_activations, _layer_normalisations, _paddings):
        source = step(source)
    return source


def _activations(source: ParsedModel) -> ParsedModel:
    if _HINTS.isdisjoint(node.op for node in source.nodes):
        return source
    found = Expressions(source)

    def read(root: OnnxNode) -> Merged | None:
        for op, attributes, pattern in ACTIVATIONS:
            for match in pattern.matches(found, root.outputs[0], Match()):
                if match.variable:
                    return OnnxNode(op, root.name, (), (match.variable,), root.outputs, attributes), match.nodes
        return None

    return _replaced(source, frozenset({"Mul", "Div"}), read)


def _replaced(source: ParsedModel, roots: frozenset[str], read: Callable[[OnnxNode], Merged | None]) -> ParsedModel:
    """Merge the nodes of each pattern that `read` finds at a root, if nothing else reads the inner nodes."""
    by_name = {node.name: node for node in source.nodes}
    replacement: dict[str, OnnxNode] = {}
    gone: set[str] = set()
    for root in reversed(source.nodes):
        if root.op not in roots or root.name in gone:
            continue
        candidate = read(root)
        if candidate is None:
            continue
        node, members = candidate
        if gone.isdisjoint(members) and _closed(source, root, [by_name[name] for name in members]):
            names = tuple(name for part in source.nodes if part.name in members for name in part.names)
            replacement[root.name] = replace(node, names=names)
            gone |= members
    if not gone:
        return source
    kept = (node for node in source.nodes if node.name in replacement or node.name not in gone)
    return replace(source, nodes=tuple(replacement.get(node.name, node) for node in kept))


def _closed(source: ParsedModel, root: OnnxNode, members: Sequence[OnnxNode]) -> bool:
    """Return whether only members read the outputs of the members before the root."""
    names = {node.name for node in members}
    inner = [output for node in members if node.name != root.name for output in node.outputs]
    return source.producers[root.outputs[0]].name in names and all(
        output not in source.outputs and all(reader.name in names for reader in source.readers.get(output, ()))
        for output in inner
    )


def _layer_normalisations(source: ParsedModel) -> ParsedModel:
    if not any(node.op == "ReduceMean" for node in source.nodes):
        return source
    found = Expressions(source)

    def read(root: OnnxNode) -> Merged | None:
        """Read the normalisation that ends at this root: at most a Mul and an Add follow its division."""
        division: OnnxNode | None = root
        for _ in range(2):
            if division is not None and division.op in ("Mul", "Add"):
                computed = [name for name in division.inputs if name not in source.constants]
                division = source.producers.get(computed[0]) if len(computed) == 1 else None
        if division is None or division.op != "Div":
            return None
        core = _normalised(source, found, division)
        merged = None if core is None else _with_factors(source, found, *core)
        return merged if merged is not None and merged[0].name == root.name else None

    return _replaced(source, frozenset({"Div", "Mul", "Add"}), read)


def _normalised(source: ParsedModel, found: Expressions, division: OnnxNode) -> Merged | None:
    """Match (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon), with the same axes everywhere."""
    difference, root = (source.producers.get(name) for name in division.inputs)
    if difference is None or root is None or (difference.op, root.op) != ("Sub", "Sqrt"):
        return None
    total = found.flat(root.inputs[0], "Add")
    variance = source.producers.get(total.operands[0]) if len(total.operands) == 1 else None
    mean = source.producers.get(difference.inputs[1])
    if variance is None or mean is None or mean.inputs[0] != difference.inputs[0]:
        return None
    axes = _mean_axes(source, mean)
    square = source.producers.get(variance.inputs[0])
    if axes is None or axes != _mean_axes(source, variance) or square is None:
        return None
    members = {node.name for node in (division, difference, root, variance, mean, square)} | total.nodes
    for base in _bases_of_square(found, square):
        again = source.producers.get(base)
        if base != difference.outputs[0]:
            if again is None or again.op != "Sub" or again.inputs[0] != difference.inputs[0]:
                continue
            other = source.producers.get(again.inputs[1])
            if other is None or other.inputs[0] != mean.inputs[0] or _mean_axes(source, other) != axes:
                continue
            members |= {again.name, other.name}
        attributes = {"axes": axes, "epsilon": total.number}
        return OnnxNode(RECOGNISED, division.name, (), difference.inputs[:1], division.outputs, attributes), members
    return None


def _bases_of_square(found: Expressions, node: OnnxNode) -> list[str]:
    if node.op == "Pow" and found.number(node.inputs[1]) == 2:
        return [node.inputs[0]]
    return [node.inputs[0]] if node.op == "Mul" and node.inputs[0] == node.inputs[1] else []


def _integers(source: ParsedModel, node: OnnxNode, name: str, place: int) -> list[int] | None:
    """Return an attribute, or in newer opsets the constant input at that place; None if neither is known."""
    given: list[int] | None = node.attribute(name)
    if given is None and node.input(place) in source.constants:
        value = value_of(source.constants[node.inputs[place]])
        given = None if value is None else value.tolist()
    return given


def _mean_axes(source: ParsedModel, node: OnnxNode) -> tuple[int, ...] | None:
    """Return the axes of a ReduceMean that keeps dimensions, counted from the start; None for another node."""
    if node.op != "ReduceMean" or not node.attribute("keepdims", 1) or node.inputs[0] not in source.types:
        return None
    axes = _integers(source, node, "axes", 1)
    rank = len(source.types[node.inputs[0]].shape)
    return tuple(sorted(int(axis) % rank for axis in axes)) if axes else None


def _with_factors(source: ParsedModel, found: Expressions, node: OnnxNode, members: Set[str]) -> Merged:
    """Add a constant scale and shift if they follow."""
    shape = source.types[node.inputs[0]].shape
    for op in ("Mul", "Add"):
        output = node.outputs[0]
        readers = source.readers.get(output, [])
        if len(readers) != 1 or readers[0].op != op or not found.is_inner(output):
            break
        (factor,) = (name for name in readers[0].inputs if name != output)
        if factor not in source.constants or source.types[readers[0].outputs[0]].shape != shape:
            break
        node = replace(node, name=readers[0].name, inputs=(*node.inputs, factor), outputs=readers[0].outputs)
        members = members | {readers[0].name}
    return node, members


def _paddings(source: ParsedModel) -> ParsedModel:
    """Merge zero padding of spatial axes into the only reader, if that is a convolution or an average pooling."""
    if not any(node.op == "Pad" for node in source.nodes):
        return source

    def read(root: OnnxNode) -> Merged | None:
        pad = source.producers.get(root.inputs[0])
        if pad is None or pad.op != "Pad" or len(source.readers[root.inputs[0]]) != 1:
            return None
        pads = _zero_padding(source, pad)
        attributes = None if pads is None else _with_padding(root, pads)
        if attributes is None:
            return None
        merged = replace(root, inputs=(pad.inputs[0], *root.inputs[1:]), attributes=attributes)
        return merged, {pad.name, root.name}

    return _replaced(source, frozenset({"Conv", "AveragePool"}), read)


def _zero_padding(source: ParsedModel, pad: OnnxNode) -> list[int] | None:
    """Return the pads of the spatial axes of a Pad by zeros; None if it crops or pads anything else."""
    if (pad.attribute("mode") or b"constant") != b"constant" or pad.attribute("value", 0.0) != 0 or pad.input(3):
        return None
    if pad.input(2) and (pad.input(2) not in source.constants or scalar_of(source.constants[pad.input(2)]) != 0):
        return None
    pads = _integers(source, pad, "pads", 1)
    if pads is None or any(amount < 0 for amount in pads):
        return None
    rank = len(pads) // 2
    outside = (*pads[:2], *pads[rank : rank + 2])
    return None if any(outside) else [*pads[2:rank], *pads[rank + 2 :]]


def _with_padding(window: OnnxNode, pads: list[int]) -> dict[str, Any] | None:
    """Return the attributes of a window with these pads added; None if that would change results."""
    if (window.attribute("auto_pad") or b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    own = list(window.attribute("pads") or [0] * len(pads))
    attributes = {name: value for name, value in window.attributes.items() if name != "auto_pad"}
    attributes["pads"] = [first + second for first, second in zip(own, pads, strict=True)]
    if window.op == "AveragePool":
        counts = window.attribute("count_include_pad", 0)
        kernel = window.attribute("kernel_shape") * 2
        if window.attribute("ceil_mode", 0) or (any(own) and not counts):
            return None
        if any(pad >= size for pad, size in zip(attributes["pads"], kernel, strict=True)):
            return None  # some windows would hold only padding
        attributes["count_include_pad"] = 1
    return attributes
