"""The roofline that a predictor corrects: launch, memory, weights, and the fastest of several tiled kernels.

    latency = launch + (kernel^p + memory^p + weights^p)^(1/p)
    kernel  = softest minimum over tiles of: waves * (start + turns * turn), times a factor of the class
    memory  = bytes of activations * seconds_per_byte
    weights = bytes of weights * seconds_per_byte, at their own rate: they come from more distant memory

p is the overlap of the three, from 1 (one after the other) up. Start and turn belong to the device's tiles. Launch,
both rates and the factor of the kernel have a value for the device and, shrunk towards zero, offsets: for each class of
operators, for each variant of one (kernel, stride, dilation), for how channels fill vectors, for readers of feature
maps, and for warm layers. An unseen operator gets the offsets of its coarser classes. Latency grows with every size of
a layer by construction, because waves, turns and bytes do; channels that fill vectors better may be faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints
from harness.predictor.features.layer_arrays import WIDEST, LayerArrays, filled_vectors
from harness.predictor.features.layer_features import CODE_LEVELS, classes_of, code_of
from harness.predictor.roofline.device_tiling import DeviceTiling

DEVICE = ""
SIDES = 4
"""Constants that a class has an offset for: kernel, memory, weights, launch."""
_CHOICE = 12.0
_NOTHING = -200.0
"""Logarithm of the seconds for no weights."""


@dataclass(frozen=True)
class RooflineTerms:
    """Logarithms of seconds: the roofline and its terms; `tiles` is (layers, tiles), the others (layers,)."""

    latency: Floats
    kernel: Floats
    memory: Floats
    weights: Floats
    tiles: Floats


@dataclass(frozen=True)
class Roofline:
    """Fitted logarithms of seconds.

    `tile_constants` are start and turn of each tile, (2 * tiles,). `table` has one row per name, (names, SIDES): the
    device's values, then offsets of classes and variants. `overlap` is log(p - 1).
    """

    tiling: DeviceTiling
    tile_constants: Floats
    names: tuple[str, ...]
    table: Floats
    overlap: float

    def terms(self, arrays: LayerArrays) -> RooflineTerms:
        """Return the roofline of some layers; unseen names add no offset."""
        place = {name: index for index, name in enumerate(self.names)}
        rows = [[place[name] for name in level if name in place] for level in names_of(arrays)]
        sides = np.array([self.table[row].sum(axis=0) for row in rows]).reshape(-1, SIDES)
        return forward(Inputs.of(self.tiling, arrays), self.tile_constants, sides, self.overlap).terms


@dataclass(frozen=True)
class Inputs:
    """The quantities of some layers that their roofline depends on; `turns` are those of all waves."""

    waves: Floats
    turns: Floats
    turn_macs: Floats
    log_bytes: Floats
    log_weights: Floats

    @classmethod
    def of(cls, tiling: DeviceTiling, arrays: LayerArrays) -> Inputs:
        """Return the quantities of layers on a device with this tiling."""
        waves = tiling.waves(arrays)
        area = np.array([rows * columns * together for rows, columns, together in tiling.tiles], dtype=np.float64)
        weights = np.where(arrays.weight_bytes > 0.0, np.log(np.maximum(arrays.weight_bytes, 1.0)), _NOTHING)
        turn_macs = area * tiling.depth * tiling.units
        bytes_ = np.log(arrays.moved_bytes - arrays.weight_bytes)
        return cls(waves, waves * tiling.turns(arrays)[:, None], turn_macs, bytes_, weights)


@dataclass(frozen=True)
class State:
    """Terms, and the gradients of log latency: by constants of tiles, by sides, and by overlap; (layers, …)."""

    terms: RooflineTerms
    by_tile: Floats
    by_side: Floats
    by_overlap: Floats


def forward(inputs: Inputs, tile_constants: Floats, sides: Floats, overlap: float) -> State:
    """Return the roofline of layers with these constants, and its gradients."""
    count = inputs.waves.shape[1]
    starts = np.exp(tile_constants[:count]) * inputs.waves
    turns = np.exp(tile_constants[count:]) * inputs.turns
    together = starts + turns
    tiles = np.log(together) + sides[:, :1]
    choice = -_CHOICE * tiles
    peak = choice.max(axis=1, keepdims=True)
    weight = np.exp(choice - peak)
    total = weight.sum(axis=1, keepdims=True)
    kernel = -(peak + np.log(total))[:, 0] / _CHOICE
    memory, weights = inputs.log_bytes + sides[:, 1], inputs.log_weights + sides[:, 2]
    power = 1.0 + np.exp(overlap)
    parts = np.stack([kernel, memory, weights], axis=1)
    longest = parts.max(axis=1, keepdims=True)
    share = np.exp(power * (parts - longest))
    sum_of_shares = share.sum(axis=1, keepdims=True)
    joined = (longest + np.log(sum_of_shares) / power)[:, 0]
    share /= sum_of_shares
    latency = np.logaddexp(joined, sides[:, 3])
    run_share = np.exp(joined - latency)
    by_kernel = run_share * share[:, 0]
    weight *= by_kernel[:, None] / total / together
    by_side = np.column_stack([run_share[:, None] * share, 1.0 - run_share])
    by_overlap = run_share * ((share * parts).sum(axis=1) - joined) * (power - 1.0) / power
    terms = RooflineTerms(latency, kernel, memory, weights, tiles)
    return State(terms, np.hstack([weight * starts, weight * turns]), by_side, by_overlap)


def names_of(arrays: LayerArrays) -> list[tuple[str, ...]]:
    """Return the names whose offsets each layer has: the device, its classes, its variant, and its state."""
    found = []
    inputs, outputs = _channels(arrays)
    # Fewer input channels than a vector holds, as in first layers, are not what fills it.
    few = ~arrays.channelwise & (inputs < WIDEST)
    together = np.where(few, outputs, np.gcd(inputs, outputs))
    filled = filled_vectors(np.where(arrays.channelwise, arrays.groups, together))
    for at, (path, variant) in enumerate(zip(arrays.paths, arrays.variants, strict=True)):
        classes = classes_of(path)
        coarse = classes[: CODE_LEVELS - 1]
        maps = [f"{name} of maps" for name in coarse[-1:] if arrays.sizes["maps"][at]]
        warm = [f"{name} warm" for name in coarse if arrays.sizes["warm"][at]]
        vector = f"{code_of(path)} by {filled[at]:.0f}" + (" of few" if few[at] else "")
        found.append(tuple(dict.fromkeys((DEVICE, *classes, " ".join(map(str, variant)), vector, *maps, *warm))))
    return found


def _channels(arrays: LayerArrays) -> tuple[Ints, Ints]:
    """Return the input and output channels of a group."""
    return arrays.group_channels.astype(np.int64), arrays.columns.astype(np.int64)
