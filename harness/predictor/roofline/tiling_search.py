"""Search for a device's tiling: units, depth, channel padding and tiles, judged by rooflines on held-out layers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.errors import HarnessError
from harness.parallel import FEWER_CORES, cores, may_fork, results
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.roofline.device_tiling import ALL_TILES, DeviceTiling, work_on_map
from harness.predictor.roofline.roofline import RooflineTerms
from harness.predictor.roofline.roofline_fit import fit_roofline
from harness.predictor.roofline.tile_refetch import times_loaded

_MOST_SAMPLES = 1000
_FEWEST_SAMPLES = 12
_MOST_UNITS = 1024
_DEPTHS = (1, 8, 16, 32, 64)
_CHANNELS = (1, 4, 8, 16, 32)
_PER_OCTAVE = 4
_REFINEMENTS = (0.08, 0.04, 0.02, 0.01, 0.0)
_ITERATIONS, _STRICT_ITERATIONS = 25, 60
_LEAST_SHARE = 0.005
_STREAMED_DEPTHS, _STREAMED_COLUMNS = (1, 16, 32), (1, 8, 16, 32, 64)
_HELD = (8, 16, 32, 64, 128, 256)
_SEARCHED_TILES = tuple(tile for tile in ALL_TILES if tile[2] == 1)
_MOST_FOLDS, _FINAL_FOLDS = 2, 4
_HALF_LOSS, _HALF_FACTOR = 0.1, 0.5
_SURE_SIGMAS, _LIKELY_SIGMAS, _NOTICEABLY = 2.0, 1.0, 0.0075
"""A difference of losses counts if it is more than so many standard errors, and more than fits of one tiling differ."""
_PADDED = 0.9
"""Layers whose `work_on_map` is smaller show whether taps beside the map take time."""
_PRODUCT_SHARES = (0.0, 0.125, 0.5, 1.0)
_BUFFERS = tuple(1 << power for power in range(16, 23))
_AGAIN = 1.5
_FEWEST_JUDGED = 5
_SHARED = 12
"""From this many candidates on, several processes judge them: starting processes takes as long as judging a few."""


def find_tiling(arrays: LayerArrays, latency_s: Floats, seed: int, noise: Floats | None = None) -> DeviceTiling:
    """Return the tiling whose roofline is nearest to layers that it was not fitted to.

    Searches units on a grid of quarter octaves, then finer and with better fits about the best; then depth and channel
    padding in turn; then drops tiles that are rarely the fastest. Layers that compute each channel separately have no
    part in it: their work has no tiles. A device of n units with two tiles each may be found as 2 n units, which
    predicts the same. A tiling that processes one pixel at a time is taken unless tiles are better by more than two
    standard errors, and one that holds no weights likewise. The parts of a processor add up unless held-out layers are
    better, by more than one standard error, without.
    """
    products = np.flatnonzero(~arrays.channelwise)
    order = np.random.default_rng(seed).permutation(products)[:_MOST_SAMPLES]
    if order.size < _FEWEST_SAMPLES:
        return _streamed()[-1]
    judge, strict = (_Judge(arrays, latency_s, order, count, noise) for count in (_ITERATIONS, _STRICT_ITERATIONS))
    final = _Judge(arrays, latency_s, order, _STRICT_ITERATIONS, noise, _FINAL_FOLDS)
    exponents = range(int(_PER_OCTAVE * np.log2(_MOST_UNITS)) + 1)
    coarse = sorted({round(2 ** (exponent / _PER_OCTAVE)) for exponent in exponents})
    best = judge.best([DeviceTiling(units, 32, 8, _SEARCHED_TILES) for units in coarse])
    for spread in _REFINEMENTS:
        step = max(1, round(spread * best.units))
        near = (best.units - step, best.units, best.units + step)
        best = strict.best([replace(best, units=units) for units in near if units >= 1])
    best = judge.best([replace(best, depth=depth) for depth in _DEPTHS])
    best = judge.best([replace(best, channels=channels) for channels in _CHANNELS])
    streamed = final.usual(final.best(_streamed()), final.best(_held()))
    best = final.usual(streamed, judge.pruned(replace(best, tiles=ALL_TILES)))
    best = final.best([replace(best, channels=channels) for channels in _CHANNELS])
    everything = np.random.default_rng(seed).permutation(len(arrays))[:_MOST_SAMPLES]
    final = _Judge(arrays, latency_s, everything, _STRICT_ITERATIONS, noise, _FINAL_FOLDS)
    best = final.usual(best, replace(best, shares_work=True))
    best = with_moved_bytes(best, arrays, latency_s, everything, noise)
    return best if best.holds_weights else final.usual(replace(best, adds_up=True), best, _LIKELY_SIGMAS)


def with_moved_bytes(
    tiling: DeviceTiling, arrays: LayerArrays, latency_s: Floats, order: Ints, noise: Floats | None = None
) -> DeviceTiling:
    """Return the tiling with what its layers in `order` move: copied windows, a share of products, a buffer of maps.

    Each question is answered by the layers that show it. Convolutions show whether an array computes several pixels
    where few channels leave it idle, from windows that it reads in place. Layers that may copy their windows show
    whether and where to they do, and what fills the vectors of their product; wide windows on large maps show the
    buffer; transposed convolutions the share of their product; scatters whether they compare places, and picked rows
    whether their table moves first; and windows with many taps beside the map whether those take time. A tiling starts
    with the answers of ONNX Runtime. For the share and the taps it starts with values between those of all devices, so
    that none is far off if too few layers show it. Another answer is taken if it predicts held-out layers of the
    question better by more than one standard error. A buffer needs two, because the best of many may be better by
    chance; so does the answer that no windows are copied, which is asked after where copies go. For taps beside the map
    any noticeable difference counts, because very few layers have many.
    """
    in_place: dict[str, Any] = {"packs_pixels": True, "copies_windows": False}
    packs = np.any(replace(tiling, **in_place).waves(arrays) != tiling.waves(arrays), axis=1)
    wide = times_loaded(arrays, _BUFFERS[0]) >= _AGAIN
    by_channels, in_memory = {"pixels_fill_vectors": False}, {"copies_to_memory": True}
    questions: list[tuple[Mask, float, list[dict[str, Any]]]] = [
        (packs & tiling.holds_weights, _LIKELY_SIGMAS, [in_place]),
        (arrays.multiplied, _LIKELY_SIGMAS, [{"channels_alone": True}]),
        (arrays.copies, _LIKELY_SIGMAS, [by_channels, in_memory, in_memory | by_channels]),
        (arrays.copies, _SURE_SIGMAS, [{"copies_windows": False, "copies_to_memory": False}]),
        (arrays.scattered_rows > 0.0, _LIKELY_SIGMAS, [{"compares_places": True}]),
        (arrays.table_bytes > 0.0, _LIKELY_SIGMAS, [{"stores_tables": True}]),
        (arrays.sums_products, _LIKELY_SIGMAS, [{"product_share": share} for share in _PRODUCT_SHARES]),
        (wide, _SURE_SIGMAS, [{"buffer_bytes": size} for size in _BUFFERS]),
        (work_on_map(arrays) < _PADDED, 0.0, [{"skips_padding": share} for share in (0.0, 1.0)]),
    ]
    for judged, sigmas, answers in questions:
        if np.count_nonzero(judged[order]) >= _FEWEST_JUDGED:
            judge = _Judge(arrays, latency_s, order, _STRICT_ITERATIONS, noise, _FINAL_FOLDS, judged)
            tiling = judge.usual(tiling, judge.best([replace(tiling, **answer) for answer in answers]), sigmas)
    return tiling


def _streamed() -> list[DeviceTiling]:
    """Return tilings of one unit that processes one pixel at a time: vector units and systolic arrays."""
    sizes = itertools.product(_STREAMED_DEPTHS, _STREAMED_COLUMNS)
    return [DeviceTiling(1, depth, 1, ((1, columns, 1),)) for depth, columns in sizes]


def _held() -> list[DeviceTiling]:
    """Return tilings of square arrays that hold their weights."""
    return [DeviceTiling(1, size, 1, ((1, size, 1),), holds_weights=True) for size in _HELD]


class _Judge:
    """Errors of rooflines on held-out layers; judges each candidate once.

    Without a number of `folds`, uses cross-validation over all layers if there are few, one part of them if there are
    many, at the same cost. Only the `judged` layers count, all by default: of few layers, large errors count more.
    """

    def __init__(
        self,
        arrays: LayerArrays,
        latency_s: Floats,
        order: Ints,
        iterations: int,
        noise: Floats | None = None,
        folds: int | None = None,
        judged: Mask | None = None,
    ) -> None:
        count = folds or max(1, min(_MOST_FOLDS, _MOST_SAMPLES // order.size))
        parts = [order[place :: max(count, 2)] for place in range(count)]
        asked = [part if judged is None else part[judged[part]] for part in parts]
        self._folds = [(np.setdiff1d(order, part), own) for part, own in zip(parts, asked, strict=True)]
        self._arrays, self._latency_s, self._iterations = arrays, latency_s, iterations
        self._half_loss = _HALF_LOSS if judged is None else _HALF_FACTOR
        self._noise = np.zeros(len(arrays)) if noise is None else noise
        self._found: dict[DeviceTiling, Floats] = {}

    def best(self, candidates: list[DeviceTiling]) -> DeviceTiling:
        """Return the candidate with the lowest mean loss; many are judged on all cores."""
        new = [one for one in dict.fromkeys(candidates) if one not in self._found]
        jobs = cores() if len(new) >= _SHARED and may_fork() else 1
        judged = results(lambda at: self._losses(new[at]), len(new), jobs, next_step=FEWER_CORES, error=HarnessError)
        self._found.update(zip(new, judged, strict=True))
        return min(candidates, key=lambda one: float(self._losses(one).mean()))

    def usual(self, tiling: DeviceTiling, other: DeviceTiling, sigmas: float = _SURE_SIGMAS) -> DeviceTiling:
        """Return a tiling unless the other's mean loss is noticeably less, by more than so many standard errors."""
        less = self._losses(tiling) - self._losses(other)
        return tiling if less.mean() <= max(_NOTICEABLY, sigmas * less.std() / np.sqrt(less.size)) else other

    def pruned(self, tiling: DeviceTiling) -> DeviceTiling:
        """Return the tiling without the tiles that are rarely the fastest."""
        fastest = []
        for fitted, held_out in self._folds:
            fastest.append(np.argmin(self._terms(tiling, fitted, held_out).tiles, axis=1))
        count = np.bincount(np.concatenate(fastest), minlength=len(tiling.tiles))
        share = count / count.sum()
        kept = tuple(tile for tile, part in zip(tiling.tiles, share, strict=True) if part >= _LEAST_SHARE)
        return replace(tiling, tiles=kept)

    def _losses(self, tiling: DeviceTiling) -> Floats:
        if tiling not in self._found:
            self._found[tiling] = np.concatenate([self._losses_of(tiling, *fold) for fold in self._folds])
        return self._found[tiling]

    def _losses_of(self, tiling: DeviceTiling, fitted: Ints, held_out: Ints) -> Floats:
        """Return losses from 0 to 1, half at an error of `_half_loss`: outliers do not depend on the tiling."""
        error = np.abs(self._terms(tiling, fitted, held_out).latency - np.log(self._latency_s[held_out]))
        return np.asarray(error / (error + np.hypot(self._half_loss, self._noise[held_out])))

    def _terms(self, tiling: DeviceTiling, fitted: Ints, held_out: Ints) -> RooflineTerms:
        """Fit a roofline to some layers, and return its terms for others."""
        arrays, latency_s, noise = self._arrays.take(fitted), self._latency_s[fitted], self._noise[fitted]
        described = tiling.described(arrays)
        roofline = fit_roofline(described, latency_s, tiling, noise=noise, iterations=self._iterations)
        return roofline.terms(tiling.described(self._arrays.take(held_out)))
