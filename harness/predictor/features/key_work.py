"""The work of a layer from its key: its multiply-adds, and the bytes of weights and of feature maps that it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.errors import UsageError
from harness.network.network import PARTIAL_READS
from harness.predictor.features.key_features import features_of
from harness.predictor.features.key_parser import KeyOperator, MalformedKey, ParsedKey, Shape, Tensor, parse_key

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
MULTIPLIES = "mac/"
"""How the class of a convolution or matrix product begins."""


@dataclass(frozen=True)
class KeyWork:
    """What a layer does at least; `macs` is None for a layer that multiplies nothing or whose sizes are not known."""

    macs: int | None
    weight_bytes: int
    feature_bytes: int


def work_of(signature: str) -> KeyWork | None:
    """Return the work of the layer with this key (`LayerKey.text`); None if it is not a key of this version."""
    try:
        parsed = parse_key(signature)
        return None if parsed is None else _work(parsed)
    except (MalformedKey, UsageError):  # as in `describe`
        return None


def _work(layer: ParsedKey) -> KeyWork:
    features = features_of(layer)
    macs = features.macs if features.operator.startswith(MULTIPLIES) else None
    if macs is None:
        macs = sum(_macs(operator) or 0 for operator in layer.operators) or None
    written = sum(tensor.bytes for tensor in layer.outputs)
    read = [_read(layer, f"x{at}", tensor, written) for at, tensor in enumerate(layer.inputs)]
    constants = {
        (operator.label, slot): min(tensor.bytes, written) if _is_partial(operator, slot) else tensor.bytes
        for operator in layer.operators
        for slot, (name, tensor) in enumerate(zip(operator.reads, operator.tensors, strict=True))
        if name.startswith("c:")
    }
    return KeyWork(macs, sum(constants.values()), sum(read) + written)


def _read(layer: ParsedKey, name: str, tensor: Tensor, written: int) -> int:
    """Return the bytes that a layer reads of an input: of one that others pick from, no more than it writes."""
    places = [(one, slot) for one in layer.operators for slot, read in enumerate(one.reads) if read == name]
    picked = bool(places) and all(_is_partial(one, slot) for one, slot in places)
    return min(tensor.bytes, written) if picked else tensor.bytes


def _is_partial(operator: KeyOperator, slot: int) -> bool:
    return slot == 0 and operator.op in PARTIAL_READS


def _macs(operator: KeyOperator) -> int | None:
    """Return the multiply-adds of a product that has no features of its own; None if a size is not known."""
    shapes = [tensor.shape for tensor in operator.tensors]
    if operator.op in _RECURRENT and len(shapes) > 2:
        data, weights, recurrent = shapes[:3]
        if data is None or weights is None or recurrent is None or len(data) != 3:
            return None
        return math.prod(data[:2]) * (math.prod(weights) + math.prod(recurrent))
    if operator.op == "Einsum" and len(shapes) == 2:
        return _einsum_macs(operator.attributes.get("equation", ""), shapes)
    return None


def _einsum_macs(equation: str, shapes: list[Shape | None]) -> int | None:
    """Return the product of the sizes of all labels."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(shapes):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or not term.isalpha() or len(term) != len(shape):
            return None
        for label, size in zip(term, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return math.prod(sizes.values())
