"""Fit a roofline to measured latencies, by gradient descent on logarithms with a robust loss.

Importing this module loads an optimiser, which takes longer than a prediction: only training does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array

from harness.array_types import Floats, Mask
from harness.predictor.features.layer_arrays import LayerArrays, index_of
from harness.predictor.features.layer_features import moves_bytes
from harness.predictor.features.offset_names import DEVICE
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.roofline import NOTHING, SIDES, LayerQuantities, Roofline, forward

_HUBER = 0.05
_PULL_DEVICE = 3e-3
_PULL_OFFSET = 0.05
_FINER = 2.0
"""Finer classes are drawn to their coarser ones more strongly, so that these hold what classes have in common."""
_PULL_SHAPE = 0.02
_USUAL_OVERLAP, _USUAL_ALONE = 0.5, 0.0
_ADDED_UP, _PULL_ADDED_UP = -1.0, 5.0
"""The overlap of devices whose parts add up, and how strongly it is drawn there.

Layers alone hardly show it: a fit that is free to choose hides bytes behind products, and predicts networks worse.
"""
_FASTEST, _SLOWEST = 0.95, 0.05
_FOLD = 0.25
_SAME_UNIT = 2.0
"""An operator runs on the unit of products if the logarithm of its fastest layer is within this of theirs."""
ITERATIONS = 150
_UNSURE = 1.0
"""The noise above which a layer shows no rate."""
_KERNEL, _MEMORY = 0, 1
_MOSTLY = 0.5
_LOADING = 4.0
"""A layer that takes so many times as long as the shortest ones shows how fast its weights are loaded."""


def fit_roofline(
    arrays: LayerArrays,
    latency_s: Floats,
    tiling: DeviceTiling,
    *,
    noise: Floats | None = None,
    iterations: int = ITERATIONS,
) -> Roofline:
    """Fit the roofline of a tiling to measured latencies; `noise` is the relative standard error of each."""
    names = (DEVICE, *sorted({name for level in arrays.names for name in level} - {DEVICE}))
    members = _members(arrays, names)
    layers_of = csr_array(members.T)
    inputs = LayerQuantities.of(tiling, arrays)
    sure = np.ones(len(arrays), dtype=bool) if noise is None or noise.min() > _UNSURE else noise <= _UNSURE
    first_tiles, first_table = _start(inputs, arrays, tiling, names, latency_s, sure)
    split = first_tiles.size
    pulls = [_PULL_DEVICE, *(_PULL_OFFSET * _FINER ** name.count("/") for name in names[1:])]
    overlap, pull_overlap = (_ADDED_UP, _PULL_ADDED_UP) if tiling.adds_up else (_USUAL_OVERLAP, _PULL_SHAPE)
    pull, pull_tiles, pull_shape = (
        np.array(one) / len(arrays)
        for one in (np.array(pulls)[:, None], _PULL_DEVICE, np.array([pull_overlap, _PULL_SHAPE]))
    )
    usual_shape = np.array([overlap, _USUAL_ALONE if tiling.shares_work else NOTHING])
    log_latency = np.log(latency_s)
    scale = np.hypot(_HUBER, np.zeros(len(arrays)) if noise is None else noise)
    weight = np.full(len(arrays), _HUBER / len(arrays))

    def loss(variables: Floats) -> tuple[float, Floats]:
        tiles, offsets, shape = variables[:split], variables[split:-2].reshape(-1, SIDES), variables[-2:]
        constants = first_tiles + tiles
        state = forward(inputs, constants, members @ (first_table + offsets), *shape.tolist())
        error = (state.latency - log_latency) / scale
        bend = np.sqrt(1.0 + error**2)
        slope = weight * error / bend / scale
        drawn, drawn_tiles = pull * offsets, pull_tiles * tiles
        away = pull_shape * (shape - usual_shape)
        value = weight @ (bend - 1.0) + np.sum(drawn * offsets) + drawn_tiles @ tiles
        gradient = np.empty_like(variables)
        gradient[:split] = state.by_tile(inputs, constants, slope) + 2.0 * drawn_tiles
        gradient[split:-2] = (layers_of @ (slope[:, None] * state.by_side) + 2.0 * drawn).ravel()
        gradient[-2:] = np.array([slope @ state.by_overlap, slope @ state.by_alone]) + 2.0 * away
        return float(value + away @ (shape - usual_shape)), gradient

    first = np.append(np.zeros(split + len(names) * SIDES), usual_shape)
    with np.errstate(all="ignore"):  # the line search retracts a step that overflows
        found = minimize(loss, first, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    table = first_table + found.x[split:-2].reshape(-1, SIDES)
    table = _centred(table, names, members.sum(axis=0))
    return Roofline(tiling, found.x[:split] + first_tiles, names, table, *found.x[-2:].tolist())


def _centred(table: Floats, names: Sequence[str], layers: Floats) -> Floats:
    """Return offsets in which a class has the common part of its finer names, so that unseen ones get it as well.

    `layers` counts the layers of each name. Only names of which each layer of the class has exactly one are centred:
    the constants of learnt layers stay the same.
    """
    table, finer = table.copy(), defaultdict[tuple[str, str], list[int]](list)
    for place, name in enumerate(names[1:], 1):
        finer[_class_and_kind(name)].append(place)
    for (coarse, _), own in sorted(finer.items(), key=lambda one: -one[0][0].count("/")):
        above = names.index(coarse)
        if layers[own].sum() == layers[above]:
            common = layers[own] @ table[own] / layers[above]
            table[own] -= common
            table[above] += common
    return table


def _class_and_kind(name: str) -> tuple[str, str]:
    """Return the class that a name is an offset to, and what distinguishes it from other names of that class."""
    head, _, rest = name.partition(" ")
    if not rest:
        return name.rpartition("/")[0], ""
    first = rest.split()[0]
    return head, "window" if first.isdigit() else first


def _members(arrays: LayerArrays, names: Sequence[str]) -> csr_array:
    """Return which layer has which name, (layers, names)."""
    place = {name: index for index, name in enumerate(names)}
    columns = [place[name] for level in arrays.names for name in level]
    ends = np.cumsum([0, *(len(level) for level in arrays.names)])
    return csr_array((np.ones(len(columns)), columns, ends), shape=(len(arrays), len(names)))


def _start(
    inputs: LayerQuantities,
    arrays: LayerArrays,
    tiling: DeviceTiling,
    names: Sequence[str],
    latency_s: Floats,
    sure: Mask,
) -> tuple[Floats, Floats]:
    """Return the constants of tiles and names to start from: the best rates and the shortest times of `sure` layers.

    Layers whose time is not beyond its error, as of what moves nothing on the device, show no rate. Weights start at
    the rate of layers that mostly read weights. They may come from a memory a thousand times slower than that of maps:
    the rate of maps would be too small a part of any latency for the fit to correct it. Layers that take hardly longer
    than the shortest ones show no such rate. A single tile starts in less time than almost any layer has for each of
    its waves. With more, a tile of one pixel would at first take longer than the layers, and the fit would then explain
    all time by bytes. The waves of an array that holds its weights are long, and only products show its rate. Layers
    that compute each channel separately, and some operators, run on another unit that is far faster or slower.
    Convolutions on bytes move their map far more slowly than the fastest layers, the more so if they unfold it. A fit
    that began with the fastest rate would explain their time by products alone. If scatters compare places, a fit
    without a start for them would explain their time by bytes.
    """
    shortest_s = float(np.quantile(latency_s[sure], _SLOWEST))
    products = sure & ~arrays.channelwise
    products = products if tiling.holds_weights and products.any() else sure
    mac_s = 1.0 / float(np.quantile((arrays.macs / latency_s)[products], _FASTEST))
    byte_s = 1.0 / float(np.quantile((arrays.moved_bytes / latency_s)[sure], _FASTEST))
    loads = sure & (arrays.weight_bytes > _MOSTLY * arrays.moved_bytes) & (latency_s > _LOADING * shortest_s)
    rates = arrays.weight_bytes[loads] / (latency_s[loads] - shortest_s)
    weight_s = 1.0 / float(np.quantile(rates, _FASTEST)) if loads.any() else byte_s
    waves = inputs.waves[:, products] if inputs.turn_macs.size == 1 else np.ones((inputs.turn_macs.size, 1))
    wave_s = np.quantile(latency_s[products] / waves, _FOLD if tiling.holds_weights else _SLOWEST, axis=1) / 4.0
    constants = np.log(np.concatenate([wave_s, inputs.turn_macs * mac_s]))
    table = np.zeros((len(names), SIDES))
    table[0] = [0.0, np.log(byte_s), np.log(weight_s), np.log(shortest_s / 2.0), np.log(shortest_s)]
    for name in sorted({name for name in arrays.operators if moves_bytes(name)}):
        own = index_of(arrays, name)
        table[names.index(name), _MEMORY] = np.log(np.min(latency_s[own] / arrays.moved_bytes[own]) / byte_s)
    slower = (
        np.log(latency_s) - forward(inputs, constants, np.zeros((len(arrays), SIDES)), _USUAL_OVERLAP, NOTHING).kernel
    )
    if tiling.compares_places:
        paths = np.where(arrays.scattered_rows > 0.0, arrays.paths, "")
        for name in sorted(set(paths.tolist()) - {""}):
            table[names.index(name), _KERNEL] = np.median(slower[paths == name])
    if not tiling.holds_weights:
        return constants, table
    for name in sorted(set(arrays.operators)):
        least = np.quantile(slower[index_of(arrays, name)], _SLOWEST)
        table[names.index(name), _KERNEL] = np.sign(least) * max(abs(least) - _SAME_UNIT, 0.0)
    return constants, table
