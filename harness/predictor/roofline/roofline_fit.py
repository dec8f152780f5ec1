"""The roofline that a predictor corrects: launch, memory, weights, and the fastest of several tiled kernels.

    latency = launch + (kernel^p + memory^p + weights^p)^(1/p)
    kernel  = softest minimum over tiles of: waves * (start + turns * turn)
    memory  = bytes of activations * seconds_per_byte
    weights = bytes of weights * seconds_per_byte, at their own rate: they come from more distant memory

p is the overlap of the three, from 1 (one after the other) up. All constants are fitted to logarithms of latencies
with a robust loss. Each has a value for the device and, shrunk towards zero, an offset for each class of operators and
for each variant of one (kernel, stride); an unseen operator gets the offsets of its coarser classes. Latency grows
with every size of a layer by construction, because waves, turns and bytes do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.features.layer_features import classes_of
from harness.predictor.roofline.device_tiling import DeviceTiling

_CHOICE = 12.0
_HUBER = 0.05
_PULL_DEVICE = 3e-3
_PULL_OFFSET = 0.1
_PULL_OVERLAP = 0.02
_USUAL_OVERLAP = 0.5
_FASTEST, _SLOWEST = 0.95, 0.05
_DEVICE = ""
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

    `table` has one row per name, (names, constants): the device's values, then offsets of classes and variants. The
    constants are start and turn of each tile, memory per byte, weights per byte, launch. `overlap` is log(p - 1).
    """

    tiling: DeviceTiling
    names: tuple[str, ...]
    table: Floats
    overlap: float

    def terms(self, arrays: LayerArrays) -> RooflineTerms:
        """Return the roofline of some layers; unseen names add no offset."""
        place = {name: index for index, name in enumerate(self.names)}
        constants = _membership(arrays, place) @ self.table
        return _forward(_Inputs(self.tiling, arrays), np.asarray(constants), self.overlap).terms


def fit_roofline(
    arrays: LayerArrays, latency_s: Floats, tiling: DeviceTiling, *, noise: Floats | None = None, iterations: int = 400
) -> Roofline:
    """Fit the roofline of a tiling to measured latencies; `noise` is the relative standard error of each."""
    names = tuple(dict.fromkeys([_DEVICE, *sorted({name for level in _levels(arrays) for name in level})]))
    members = _membership(arrays, {name: index for index, name in enumerate(names)})
    columns = csr_matrix(members.T)
    inputs = _Inputs(tiling, arrays)
    start = _start(inputs, arrays, latency_s)
    pull = np.where(np.arange(len(names)) == 0, _PULL_DEVICE, _PULL_OFFSET)[:, None]
    log_latency = np.log(latency_s)
    scale = np.hypot(_HUBER, np.zeros(len(arrays)) if noise is None else noise)
    weight = _HUBER**2 / scale / len(arrays)

    def loss(variables: Floats) -> tuple[float, Floats]:
        offsets, overlap = variables[:-1].reshape(-1, start.size), float(variables[-1])
        state = _forward(inputs, np.asarray(start + members @ offsets), overlap)
        error = (state.terms.latency - log_latency) / scale
        bend = np.sqrt(1.0 + error**2)
        slope = weight * error / bend / scale
        drawn = pull * offsets / len(arrays)
        away = _PULL_OVERLAP * (overlap - _USUAL_OVERLAP) / len(arrays)
        value = weight @ (bend - 1.0) + np.sum(drawn * offsets) + away * (overlap - _USUAL_OVERLAP)
        gradient = np.asarray(columns @ (slope[:, None] * state.gradient)) + 2.0 * drawn
        return float(value), np.append(gradient, slope @ state.overlap + 2.0 * away)

    first = np.append(np.zeros(len(names) * start.size), _USUAL_OVERLAP)
    with np.errstate(all="ignore"):  # the line search retracts a step that overflows
        found = minimize(loss, first, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    table = found.x[:-1].reshape(-1, start.size)
    table[0] += start
    return Roofline(tiling, names, table, float(found.x[-1]))


class _Inputs:
    """The quantities of some layers that their roofline depends on."""

    def __init__(self, tiling: DeviceTiling, arrays: LayerArrays) -> None:
        self.waves = tiling.waves(arrays)
        self.turns = self.waves * tiling.turns(arrays)[:, None]
        self.area = np.array([rows * columns * together for rows, columns, together in tiling.tiles], dtype=np.float64)
        self.turn_macs = self.area * tiling.depth * tiling.units
        self.log_bytes = np.log(arrays.moved_bytes - arrays.weight_bytes)
        self.log_weights = np.where(arrays.weight_bytes > 0.0, np.log(np.maximum(arrays.weight_bytes, 1.0)), _NOTHING)


@dataclass(frozen=True)
class _State:
    terms: RooflineTerms
    gradient: Floats
    overlap: Floats


def _forward(inputs: _Inputs, constants: Floats, overlap: float) -> _State:
    """Return terms, and gradients of log latency: by constants, (layers, constants), and by overlap, (layers,)."""
    count = inputs.waves.shape[1]
    starts = np.exp(constants[:, :count]) * inputs.waves
    turns = np.exp(constants[:, count : 2 * count]) * inputs.turns
    tiles = np.log(starts + turns)
    choice = -_CHOICE * tiles
    peak = choice.max(axis=1, keepdims=True)
    weight = np.exp(choice - peak)
    total = weight.sum(axis=1, keepdims=True)
    kernel = -(peak + np.log(total))[:, 0] / _CHOICE
    memory, weights = inputs.log_bytes + constants[:, -3], inputs.log_weights + constants[:, -2]
    power = 1.0 + np.exp(overlap)
    parts = np.stack([kernel, memory, weights], axis=1)
    longest = parts.max(axis=1, keepdims=True)
    share = np.exp(power * (parts - longest))
    sum_of_shares = share.sum(axis=1, keepdims=True)
    joined = (longest + np.log(sum_of_shares) / power)[:, 0]
    share /= sum_of_shares
    latency = np.logaddexp(joined, constants[:, -1])
    run_share = np.exp(joined - latency)
    weight *= (run_share * share[:, 0])[:, None] / total / (starts + turns)
    sides = np.column_stack([run_share[:, None] * share[:, 1:], 1.0 - run_share])
    by_overlap = run_share * ((share * parts).sum(axis=1) - joined) * (power - 1.0) / power
    terms = RooflineTerms(latency, kernel, memory, weights, tiles)
    return _State(terms, np.hstack([weight * starts, weight * turns, sides]), by_overlap)


def _start(inputs: _Inputs, arrays: LayerArrays, latency_s: Floats) -> Floats:
    """Return the constants to start from: the best rates and the shortest times in the data."""
    shortest_s = float(np.quantile(latency_s, _SLOWEST))
    mac_s = 1.0 / float(np.quantile(arrays.macs / latency_s, _FASTEST))
    byte_s = 1.0 / float(np.quantile(arrays.moved_bytes / latency_s, _FASTEST))
    start = np.full(inputs.area.size, np.log(shortest_s / 4.0))
    sides = [np.log(byte_s), np.log(byte_s), np.log(shortest_s / 2.0)]
    return np.concatenate([start, np.log(inputs.turn_macs * mac_s), sides])


def _levels(arrays: LayerArrays) -> list[tuple[str, ...]]:
    """Return the names whose offsets each layer has: the device, classes from coarse to fine, its variant."""
    variants = [" ".join(map(str, variant)) for variant in arrays.variants]
    return [(_DEVICE, *classes_of(path), variant) for path, variant in zip(arrays.paths, variants, strict=True)]


def _membership(arrays: LayerArrays, place: dict[str, int]) -> csr_matrix:
    """Return which layer has which names, (layers, names)."""
    pairs = [
        (layer, place[name])
        for layer, level in enumerate(_levels(arrays))
        for name in dict.fromkeys(level)
        if name in place
    ]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return csr_matrix((np.ones(rows.size), (rows, columns)), shape=(len(arrays), len(place)))
