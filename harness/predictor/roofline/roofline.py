"""The roofline that a predictor corrects: launch, memory, weights, and the fastest of several tiled kernels.

    latency = launch * parts + work + second
    work    = (kernel^p + memory^p + weights^p)^(1/p)
    second  = soft minimum of start-up and alone * work, where processors share the work of a layer; 0 elsewhere
    kernel  = soft minimum over tiles of: waves * (start + turns * turn), times a factor of the class;
              copying windows for a product of each group counts as turns
    memory  = bytes of activations * seconds_per_byte
    weights = bytes of weights * seconds_per_byte, at their own rate: they come from more distant memory

p is the overlap of the three, from 1 (one after the other) up. Several threads share the work of a layer only if that
is worth a second start-up: waking the others, waiting for them, and reading what they wrote. Smaller layers take as
long as one processor needs *alone*. Start and turn belong to the device's tiles. Launch, start-up, both rates and the
factor of the kernel have a value for the device, and offsets from it that are shrunk towards zero. There is an offset
for each class of operators, each variant of one (kernel, stride, dilation), how channels fill vectors, readers of
feature maps, and warm layers. An unseen operator gets the offsets of its coarser classes, an unseen window those of the
windows next to it. Latency grows with every size of a layer by construction, because waves, turns and bytes do;
channels that fill vectors better may be faster.
"""

from __future__ import annotations

import bisect
import functools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.features.offset_names import COLD_WEIGHTS, WARM, window_of
from harness.predictor.roofline.device_tiling import DeviceTiling

SIDES = 5
"""Constants that a class has an offset for: kernel, memory, weights, launch, start-up of sharing."""
_CHOICE = 12
"""Times of tiles are compared by this power: a tile twice as slow has a share of 1 / 4096."""
_ALTERNATIVES = 3.0
"""Sharing and its alternative are compared by this power: operators differ in the size from which they share."""
NOTHING = -200.0
"""Logarithm of no seconds."""
_ALL_SIDES, _WITHOUT_WEIGHTS = np.ones(SIDES), np.array([1.0, 1.0, 0.0, 1.0, 1.0])


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
    device's values, then offsets of classes and variants. `overlap` is log(p - 1), `alone` that of the factor by which
    one processor alone takes longer than all, minus 1; it is `NOTHING` where none share.
    """

    tiling: DeviceTiling
    tile_constants: Floats
    names: tuple[str, ...]
    table: Floats
    overlap: float
    alone: float

    def terms(self, arrays: LayerArrays) -> RooflineTerms:
        """Return the roofline of some layers.

        Unseen names add no offset. An unseen window has the offsets of the nearest one of its class, or interpolates
        between a smaller and a larger one: small windows may be limited by something else than large ones.
        """
        rows = [[part for name in level for part in self._offsets(name)] for level in arrays.names]
        parts = [part for row in rows for part in row]
        sides = np.zeros((len(rows), SIDES))
        layers = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        weights = np.array([weight for _, weight in parts]).reshape(-1, SIDES)
        np.add.at(sides, layers, weights * self.table[[index for index, _ in parts]])
        found = forward(LayerQuantities.of(self.tiling, arrays), self.tile_constants, sides, self.overlap, self.alone)
        tiles = np.log(found.tiles_s).T + sides[:, :1]
        return RooflineTerms(found.latency, found.kernel, found.memory, found.weights, tiles)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @functools.cached_property
    def _windows(self) -> dict[str, list[tuple[float, int]]]:
        """The windows of each class, stride and dilation: logarithms of their taps, and rows of the table."""
        found = defaultdict[str, list[tuple[float, int]]](list)
        for index, name in enumerate(self.names):
            if window := window_of(name):
                found[window[0]].append((window[1], index))
        return {name: sorted(own) for name, own in found.items()}

    def _offsets(self, name: str) -> list[tuple[int, Floats]]:
        """Return the rows of the table that a name adds, and their weights by side."""
        sides = _ALL_SIDES
        if name.endswith(COLD_WEIGHTS):
            name, sides = name.removesuffix(COLD_WEIGHTS) + WARM, _WITHOUT_WEIGHTS
        if name in self._places:
            return [(self._places[name], sides)]
        window = window_of(name)
        if window is None or window[0] not in self._windows:
            return []
        taps, rows = (list(column) for column in zip(*self._windows[window[0]], strict=True))
        at = bisect.bisect(taps, window[1])
        if at in (0, len(taps)):
            return [(rows[max(at - 1, 0)], sides)]
        share = (window[1] - taps[at - 1]) / (taps[at] - taps[at - 1])
        return [(rows[at - 1], (1.0 - share) * sides), (rows[at], share * sides)]


@dataclass(frozen=True)
class LayerQuantities:
    """The quantities of some layers that their roofline depends on.

    `waves` and the `turns` of all waves are (tiles, layers), and the others (layers,). `log_parts` is that of how many
    tensors a layer joins or divides.
    """

    waves: Floats
    turns: Floats
    turn_macs: Floats
    log_bytes: Floats
    log_weights: Floats
    log_parts: Floats

    @classmethod
    def of(cls, tiling: DeviceTiling, arrays: LayerArrays) -> LayerQuantities:
        """Return the quantities of layers on a device with this tiling."""
        waves = np.ascontiguousarray(tiling.waves(arrays).T)
        area = np.array([rows * columns * together for rows, columns, together in tiling.tiles], dtype=np.float64)
        weights = np.where(arrays.weight_bytes > 0.0, np.log(np.maximum(arrays.weight_bytes, 1.0)), NOTHING)
        turn_macs = area * tiling.depth * tiling.units
        # The windows of products stay in the cache of a core.
        of_windows = np.where(arrays.copy_macs > 0.0, arrays.unfolded_bytes, 0.0)
        bytes_ = np.log(arrays.moved_bytes - arrays.weight_bytes - of_windows)
        turns = waves * tiling.turns(arrays) + arrays.copy_macs / turn_macs[:, None]
        # Another unit computes each channel separately: it fills no array.
        waves = np.where(arrays.channelwise & tiling.holds_weights, 0.0, waves)
        return cls(waves, turns, turn_macs, bytes_, weights, np.log(arrays.sizes["parts"]))


@dataclass(frozen=True)
class RooflineGradient:
    """The roofline of some layers with given constants, and what its gradients need.

    `latency`, `kernel`, `memory` and `weights` are logarithms of seconds. `tiles_s` are the seconds of tiles before the
    factors of classes, and `choice` the share of each in the kernel, both (tiles, layers). `by_side`, `by_overlap` and
    `by_alone` are derivatives of the latency, (layers, SIDES) and (layers,).
    """

    latency: Floats
    kernel: Floats
    memory: Floats
    weights: Floats
    tiles_s: Floats
    choice: Floats
    by_side: Floats
    by_overlap: Floats
    by_alone: Floats

    def by_tile(self, inputs: LayerQuantities, tile_constants: Floats, slope: Floats) -> Floats:
        """Return the derivative by the constants of tiles of a loss with this slope by latency."""
        start, turn = np.exp(tile_constants).reshape(2, -1)
        part = self.choice / self.tiles_s * (slope * self.by_side[:, 0])
        return np.concatenate([start * _sums(part, inputs.waves), turn * _sums(part, inputs.turns)])


def forward(
    inputs: LayerQuantities, tile_constants: Floats, sides: Floats, overlap: float, alone: float
) -> RooflineGradient:
    """Return the roofline of layers with these constants."""
    start, turn = np.exp(tile_constants).reshape(2, -1, 1)
    tiles_s = start * inputs.waves + turn * inputs.turns
    fastest_s = tiles_s.min(axis=0)
    choice = _power(fastest_s / tiles_s)
    total = choice.sum(axis=0)
    choice /= total
    kernel = np.log(fastest_s) - np.log(total) / _CHOICE + sides[:, 0]
    memory, weights = inputs.log_bytes + sides[:, 1], inputs.log_weights + sides[:, 2]
    power = 1.0 + np.exp(overlap)
    parts = np.stack([kernel, memory, weights])
    longest = parts.max(axis=0)
    share = np.exp(power * (parts - longest))
    sum_of_shares = share.sum(axis=0)
    joined = longest + np.log(sum_of_shares) / power
    share /= sum_of_shares
    serial, start_up = joined + alone, sides[:, 4]
    second = -np.logaddexp(-_ALTERNATIVES * serial, -_ALTERNATIVES * start_up) / _ALTERNATIVES
    launch = sides[:, 3] + inputs.log_parts
    latency = np.logaddexp(np.logaddexp(joined, second), launch)
    second_share = np.exp(second - latency)
    serial_share = second_share * np.exp(_ALTERNATIVES * (second - serial))
    run_share = np.exp(joined - latency) + serial_share
    by_launch, by_start_up = np.exp(launch - latency), second_share - serial_share
    by_side = np.column_stack([*(run_share * share), by_launch, by_start_up])
    by_overlap = run_share * ((share * parts).sum(axis=0) - joined) * (power - 1.0) / power
    return RooflineGradient(
        latency, kernel, memory, weights, tiles_s, choice, by_side, by_overlap, by_alone=serial_share
    )


def _power(ratio: Floats) -> Floats:
    """Return the power `_CHOICE`, by products: the logarithms and exponentials of a power take most of a fit."""
    third = ratio * ratio * ratio
    sixth = third * third
    return sixth * sixth


def _sums(part: Floats, amounts: Floats) -> Floats:
    """Return the sum over layers of the products, (tiles,)."""
    return np.asarray(np.einsum("tl,tl->t", part, amounts))
