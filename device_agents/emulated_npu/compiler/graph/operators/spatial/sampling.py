"""GridSample by constant grids, and AffineGrid.

The positions of a grid are known, and so are the elements that each result is a sum of, and their weights: elements are
picked from a table of pixels, scaled and added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived, known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.operators.normalisation import axes_mask
from device_agents.emulated_npu.compiler.graph.operators.spatial.interpolation import cubic_taps
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Binary, DataType, Function, Reduction, Settings

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of modes before opset 20."""
_CUBIC = -0.75


@dataclass(frozen=True)
class _Sampling:
    """How a grid is read: mode, padding (zeros, border, reflection), and whether -1 and 1 are centres of corners."""

    mode: str
    padding: str
    align_corners: bool

    def along(self, positions: Array, size: int) -> list[tuple[Array, Array]]:
        """Return index and weight of each tap along an axis, for normalised positions in float32, as runtimes do."""
        one, half = np.float32(1), np.float32(2)
        if self.align_corners:
            place, low, high = (positions + one) / half * np.float32(size - 1), 0.0, size - 1.0
        else:
            place, low, high = ((positions + one) * np.float32(size) - one) / half, -0.5, size - 0.5
        place = np.rint(place) if self.mode == "nearest" else place
        if self.mode != "cubic":  # as in runtimes: there each tap is moved inside, not the position
            place = self._inside(place, low, high, size)
        if self.mode == "nearest":
            return [self._tap(np.trunc(place), np.ones_like(place), (low, high), size)]
        first = np.floor(place)
        fraction = (place - first).astype(np.float64)
        taps = cubic_taps(fraction, _CUBIC) if self.mode == "cubic" else {0: 1 - fraction, 1: fraction}
        return [self._tap(first + offset, weight, (low, high), size) for offset, weight in taps.items()]

    def _inside(self, place: Array, low: float, high: float, size: int) -> Array:
        """Move positions beyond the ends onto the map, if the padding mode does so."""
        if self.padding == "border":
            return np.asarray(np.where((place < low) | (place > high), np.clip(place, 0, np.float32(size - 1)), place))
        return _reflected(place, low, high) if self.padding == "reflection" else place

    def _tap(self, index: Array, weight: Array, ends: tuple[float, float], size: int) -> tuple[Array, Array]:
        if self.padding == "zeros":
            weight = weight * ((index >= 0) & (index < size))
        elif self.padding == "reflection":
            index = np.trunc(_reflected(index, *ends))
        return np.clip(index, 0, size - 1).astype(np.int64), weight

    def taps(self, grid: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
        """Return rows of a table of pixels and their weights, both (taps, N, results...); the grid has x first."""
        axes = [self.along(grid[..., -1 - axis], size) for axis, size in enumerate(sizes)]
        batch = np.arange(len(grid)).reshape(-1, *[1] * (grid.ndim - 2))
        rows, weights = [], []
        for several in itertools.product(*axes):
            row, weight = batch, np.ones(grid.shape[:-1])
            for (index, factor), size in zip(several, sizes, strict=True):
                row, weight = row * size + index, weight * factor
            rows.append(row)
            weights.append(weight)
        return np.stack(rows), np.stack(weights)


def _reflected(place: Array, low: float, high: float) -> Array:
    """Return positions outside of two ends reflected at them, as often as it takes."""
    span = high - low
    if span <= 0:
        return np.zeros_like(place)
    beyond = np.where(place < low, low - place, place - high)
    times = np.trunc(beyond / span)
    rest = beyond - times * span
    is_even = times % 2 == 0
    inside = np.where((place < low) == is_even, low + rest, high - rest)
    return np.asarray(np.where((place < low) | (place > high), inside, place), place.dtype)


def _grid_sample(build: Builder, node: OnnxNode) -> None:
    """Add a GridSample by a constant grid: picked pixels (taps, N, results..., C), scaled and added."""
    source = build.view(node.inputs[0])
    how, grid = _sampling(node), build.parameter(node.inputs[1], "grid")
    batch, channels, *sizes = source.shape
    if len(grid.shape) != len(source.axes) or grid.shape[0] != batch or grid.shape[-1] != len(sizes):
        raise unsupported(node, f"A grid of shape {list(grid.shape)} does not fit a map of shape {list(source.shape)}")
    name, count = node.outputs[0], _TAPS[how.mode] ** len(sizes)
    shape = (count, *grid.shape[:-1])
    rows, weights = (
        build.constant_view(
            derived(f"{name}.{what}", shape, dtype, (grid,), lambda array, part=part: how.taps(array, sizes)[part])
        )
        for part, (what, dtype) in enumerate((("rows", DataType.INT64), ("weights", build.dtype(source))))
    )
    last = (0, *range(2, len(source.axes)), 1)
    table = build.reshape(views.permuted(source, last), (batch * math.prod(sizes), channels), f"{name}.pixels")
    target = views.with_axis(views.permuted(build.result(), last), 0)
    is_weighted = how.mode != "nearest" or how.padding == "zeros"
    picked = build.temporary("picked", (*shape, channels), build.dtype(source)) if is_weighted else target
    build.layer(Function.GATHER, [table, rows], picked)
    if is_weighted:
        scaled = build.temporary("scaled", picked.shape, build.dtype(source)) if count > 1 else target
        build.binary(Binary.MULTIPLY, picked, views.with_axis(weights, len(shape)), scaled)
        if count > 1:
            mask = axes_mask((0,), len(scaled.axes))
            build.layer(Function.REDUCE, [scaled], target, Settings(axes=mask, mode=Reduction.SUM))


def _sampling(node: OnnxNode) -> _Sampling:
    mode = (node.attribute("mode") or b"linear").decode()
    mode = _MODES.get(mode, mode)
    padding = (node.attribute("padding_mode") or b"zeros").decode()
    if mode not in _TAPS or padding not in ("zeros", "border", "reflection"):
        raise unsupported(node, f"Mode {mode[:40]!r} with padding {padding[:40]!r} is not supported")
    return _Sampling(mode, padding, bool(node.attribute("align_corners", 0)))


def _affine_grid(build: Builder, node: OnnxNode) -> None:
    """Add an AffineGrid of constant size: theta (N, axes, axes + 1) times all positions of a grid."""
    theta = build.view(node.inputs[0])
    sizes = [int(size) for size in build.required(node.inputs[1], "size").reshape(-1)[2:]]
    if theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise unsupported(node, f"A theta of shape {list(theta.shape)} does not fit {len(sizes)} axes")
    positions = [_positions(size, bool(node.attribute("align_corners", 0))) for size in sizes]
    grid = np.stack([*np.meshgrid(*positions, indexing="ij")[::-1], np.ones(sizes)])  # x first
    name, count = node.outputs[0], math.prod(sizes)
    weights = known(f"{name}.positions", grid.reshape(-1, count), DataType.FLOAT32)
    product = build.temporary("product", (theta.shape[0], len(sizes), count), build.dtype(theta))
    build.layer(Function.CONVOLVE, [theta], product, weights=weights, matrix=True)
    found = views.divided(product, (theta.shape[0], len(sizes), *sizes))
    build.bind(name, views.permuted(found, (0, *range(2, len(sizes) + 2), 1)))


def _positions(size: int, align_corners: bool) -> Array:
    """Return the normalised positions of the elements of an axis; -1 and 1 are its ends."""
    if align_corners:
        return np.linspace(-1.0, 1.0, size)
    return (2.0 * np.arange(size) + 1.0) / size - 1.0


HANDLERS: Mapping[str, Handler] = {"GridSample": _grid_sample, "AffineGrid": _affine_grid}
