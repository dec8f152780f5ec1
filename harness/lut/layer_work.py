"""The work of layers, and what bounds them: arithmetic, or moving weights or feature maps.

A table shows the roofs of its device: the highest rates of multiply-adds, of bytes of weights and of bytes of feature
maps that its layers reach. A layer is bound by the work that takes most of its latency at these rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.array_types import Floats
from harness.errors import UsageError
from harness.lut.table import Entry, Lut
from harness.network.network import PARTIAL_READS
from harness.predictor.features.key_features import features_of
from harness.predictor.features.key_parser import KeyOperator, MalformedKey, ParsedKey, Tensor, macs_of, parse_key

MULTIPLIES = "mac/"
"""How the class of a convolution or matrix product begins."""
BoundName = Literal["arithmetic", "weights", "features"]
_NAMES: tuple[BoundName, ...] = ("arithmetic", "weights", "features")
_FEWEST = 20
"""Layers below which a table shows no roofs."""
_MOST = 2000
"""Entries that the roofs are taken from: enough for three rates."""
_SHOWN_INPUTS = 2
"""Different shapes that the sizes of a layer list at most."""
_LARGEST_ERROR = 0.1
"""The largest standard error, as a fraction, of a latency that shows a rate."""
_ROOF = 0.99
"""The quantile of the rates that is the roof: noise makes single layers faster."""
_LEAST_SHARE, _LEAST_RATIO = 0.5, 2.0
"""What bounds a layer takes at least this share of its latency, and this many times as long as any other work."""


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


def sizes_of(signature: str) -> str:
    """Return the shapes of a layer's inputs and result, and its window, such as `1x3x224x224 -> 1x64x112x112 k7x7`.

    Equal inputs are shown once, and of the others two. It is empty for a text that is not a key of this version.
    """
    try:
        parsed = parse_key(signature)
    except (MalformedKey, UsageError):  # as in `describe`
        return ""
    if parsed is None:
        return ""
    read = list(dict.fromkeys(map(_shape, parsed.inputs)))
    windows = [one.attributes["kernel_shape"] for one in parsed.operators if "kernel_shape" in one.attributes]
    window = "".join(windows[:1]).replace(",", "x")
    sizes = f"{', '.join(read[:_SHOWN_INPUTS])}{', …' * (len(read) > _SHOWN_INPUTS)} -> {_shape(parsed.outputs[0])}"
    return sizes + (f" k{window}" if window.strip("1x") else "")


def _shape(tensor: Tensor) -> str:
    return "?" if tensor.shape is None else "x".join(map(str, tensor.shape)) or "1"


def _work(layer: ParsedKey) -> KeyWork:
    features = features_of(layer)
    macs = sum(macs_of(operator) or 0 for operator in layer.operators) or None
    if macs is None and features.operator.startswith(MULTIPLIES):
        macs = features.macs
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


@dataclass(frozen=True)
class LayerWork:
    """The multiply-adds of a layer, None without or if they are not known; the bytes it moves; and what bounds it.

    Bytes are of inputs, weights and outputs, each counted once and in its own type.

    `bound` is None where it is not known: the table has too few layers, no work takes most of the latency, or two take
    about equally long. It is also None if the layer multiplies nothing, because its arithmetic and bytes grow alike.
    """

    macs: int | None
    moved_bytes: int
    bound: BoundName | None


@dataclass(frozen=True)
class WorkedLayer:
    """A layer by the text of its key, and its latency, None if that is unknown."""

    signature: str
    latency_s: float | None


@dataclass(frozen=True)
class DeviceRoofs:
    """The highest rates per second of multiply-adds, bytes of weights and bytes of feature maps; None if not shown."""

    rates: Floats | None

    @classmethod
    def of(cls, table: Lut) -> DeviceRoofs:
        """Return the roofs that a table shows.

        In a neighbourhood, other layers may hide a part of a layer's work, so these entries show no roof.
        """
        step = -(-len(table.entries) // _MOST) or 1
        alone = [one for one in table.entries[::step] if "@" not in one.context]
        sure = [one for one in alone if one.resolved and one.stderr_s < _LARGEST_ERROR * one.latency_s]
        worked = [(work_of(one.signature), one.latency_s) for one in sure]
        rows = np.array([np.array(_amounts(work)) / latency_s for work, latency_s in worked if work is not None])
        if len(rows) < _FEWEST:
            return cls(None)
        return cls(np.array([np.quantile(rates[rates > 0], _ROOF) if rates.any() else np.inf for rates in rows.T]))

    def works(self, layers: Sequence[WorkedLayer]) -> tuple[LayerWork | None, ...]:
        """Return the work of layers; None for keys of other versions."""
        return tuple(self._work(one, work_of(one.signature)) for one in layers)

    def _work(self, known: WorkedLayer, work: KeyWork | None) -> LayerWork | None:
        if work is None:
            return None
        amounts = _amounts(work)
        bound = None
        if work.macs is not None and self.rates is not None and known.latency_s:
            shares = np.array(amounts) / self.rates / known.latency_s
            second, first = np.sort(shares)[-2:]
            if first >= max(_LEAST_SHARE, _LEAST_RATIO * second):
                bound = _NAMES[int(np.argmax(shares))]
        return LayerWork(work.macs, work.weight_bytes + work.feature_bytes, bound)


def entry_works(table: Lut, entries: Sequence[Entry]) -> tuple[LayerWork | None, ...]:
    """Return the work of entries of a table."""
    return DeviceRoofs.of(table).works([WorkedLayer(one.signature, one.latency_s) for one in entries])


def _amounts(work: KeyWork) -> tuple[float, float, float]:
    return float(work.macs or 0), float(work.weight_bytes), float(work.feature_bytes)
