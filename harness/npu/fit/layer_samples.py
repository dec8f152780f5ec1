"""The measured layers that a machine is fitted to, by column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.errors import CoverageError
from harness.lut.layer_work import sizes_of
from harness.lut.table import Entry, Lut
from harness.network.layers import OUTSIDE
from harness.predictor.features.key_features import describe
from harness.predictor.features.key_parser import parse_key
from harness.predictor.features.layer_arrays import LayerArrays, layer_arrays
from harness.predictor.features.layer_features import LayerFeatures

FEWEST_LAYERS = 12
"""Layers below which nothing is fitted."""
_WARM = "warm"
PRODUCTS, WINDOWS = "products of matrices", "convolutions over windows"
"""Rate classes of what fills an array of multipliers: convolutions of one tap and products with weights, and other
convolutions. Those have other algorithms on many devices, such as Winograd's, or transforms."""
_PRODUCTS = ("mac/conv/dense", "mac/conv/grouped", "mac/product/weights")
_MOVERS = "move/"
_BIASED = "BatchNormalization"


@dataclass(frozen=True)
class LayerSamples:
    """Layers with their latencies, one entry per layer in every column.

    `classes` name the code of each layer, such as `mac/conv/dense`, `rate_classes` the rate that it computes at. `keys`
    are digests of layer keys: one layer in two contexts is one key. `biased` layers also add a bias. `latency_s` is the
    remainder of a table's entry, which may be negative.
    """

    labels: tuple[str, ...]
    keys: tuple[str, ...]
    arrays: LayerArrays
    rate_classes: tuple[str, ...]
    biased: Mask
    latency_s: Floats
    stderr_s: Floats

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class of code of each layer."""
        return self.arrays.operators

    @property
    def in_array(self) -> Mask:
        """Whether a layer is a product of matrices with weights, which fills an array of multipliers."""
        return np.array([one.startswith(_PRODUCTS) for one in self.classes], dtype=np.bool_)

    @property
    def weight_bytes(self) -> Floats:
        """Bytes of weights, (layers,)."""
        return self.arrays.weight_bytes

    @property
    def feature_bytes(self) -> Floats:
        """Bytes of inputs and results, (layers,); 0 where operations are proportional to them: their rate has both."""
        moves = np.array([one.startswith(_MOVERS) for one in self.classes], dtype=np.bool_)
        return np.where(moves, 0.0, self.arrays.moved_bytes - self.arrays.weight_bytes)

    @property
    def operations(self) -> Floats:
        """Multiply-adds of each layer, or operations if it has no products, bias included, (layers,)."""
        outputs = self.arrays.rows * self.arrays.sizes["out_channels"]
        return np.asarray(self.arrays.macs + outputs * self.biased)

    def of_class(self, name: str) -> Ints:
        """Return the positions of the layers of a class of code."""
        return np.flatnonzero(np.array(self.classes) == name)

    def take(self, index: Ints) -> LayerSamples:
        """Return the layers at these positions, which may repeat."""
        return LayerSamples(
            tuple(self.labels[at] for at in index),
            tuple(self.keys[at] for at in index),
            self.arrays.take(index),
            tuple(self.rate_classes[at] for at in index),
            self.biased[index],
            self.latency_s[index],
            self.stderr_s[index],
        )


def samples_of(table: Lut) -> LayerSamples:
    """Return the layers of a table as their own probes measured them; raises CoverageError for fewer than twelve.

    Entries of neighbourhoods are shares of a chain, and layers that read from outside the network also transfer their
    inputs: both are left out unless the table has no others. Layers that take no time, without any error, show no rate.
    """
    described = [
        (entry, describe(entry.signature, entry.context, warm=entry.visit == _WARM))
        for entry in table.entries
        if entry.remainder_stderr_s > 0
    ]
    known = [(entry, layer) for entry, layer in described if layer is not None]
    alone = [(entry, layer) for entry, layer in known if "@" not in entry.context]
    inside = [(entry, layer) for entry, layer in alone if OUTSIDE not in entry.context.split(",")]
    chosen = next((some for some in (inside, alone) if len(some) >= FEWEST_LAYERS), known)
    if len(chosen) < FEWEST_LAYERS:
        raise CoverageError(
            f"{table.name} has too few layers to fit a machine",
            why=f"It has {len(chosen)} layers of known size; at least {FEWEST_LAYERS} are required",
            next_step=f"Measure more: harness profile --device {table.device} --space builtin:machine, then harness lut"
            f" build --device {table.device}",
        )
    return _columns(chosen)


def _columns(chosen: Sequence[tuple[Entry, LayerFeatures]]) -> LayerSamples:
    entries = [entry for entry, _ in chosen]
    arrays = layer_arrays([layer for _, layer in chosen])
    return LayerSamples(
        tuple(f"{entry.op} {sizes_of(entry.signature)}" for entry, _ in chosen),
        tuple(entry.key for entry in entries),
        arrays,
        rate_classes(arrays),
        np.array([_is_biased(entry) for entry in entries]),
        np.array([entry.remainder_s for entry in entries]),
        np.array([entry.remainder_stderr_s for entry in entries]),
    )


def rate_classes(arrays: LayerArrays) -> tuple[str, ...]:
    """Return the rate class of each layer: PRODUCTS or WINDOWS, else the class of code."""
    return tuple(
        (PRODUCTS if taps == 1 else WINDOWS) if one.startswith(_PRODUCTS) else one
        for one, taps in zip(arrays.operators, arrays.taps, strict=True)
    )


def _is_biased(entry: Entry) -> bool:
    """Return whether a convolution adds a bias, its own or that of a normalisation after it."""
    parsed = parse_key(entry.signature)
    if parsed is None or parsed.operators[0].op != "Conv":
        return False
    return len(parsed.operators[0].tensors) > 2 or _BIASED in entry.op


def fitted_classes(layers: LayerSamples, fewest: int) -> tuple[str, ...]:
    """Return the rate classes with at least `fewest` different layers, that with most multiply-adds first."""
    keys: defaultdict[str, set[str]] = defaultdict(set)
    work: defaultdict[str, float] = defaultdict(float)
    for name, key, macs in zip(layers.rate_classes, layers.keys, layers.arrays.macs, strict=True):
        keys[name].add(key)
        work[name] += float(macs)
    enough = [name for name in keys if len(keys[name]) >= fewest]
    return tuple(sorted(enough, key=lambda name: (-work[name], name)))
