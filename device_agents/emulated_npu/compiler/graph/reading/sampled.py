"""GridSample: pixels at the positions of a grid, picked from a table, weighted and added.

The nodes compute numbers of pixels and their weights from the grid; those of a constant grid are constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from device_agents.emulated_npu.compiler.graph.constants import FLOATS
from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decomposition
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import DataType

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of modes before opset 20."""
_CUBIC = -0.75
_TAPS: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "linear": {0: (-1.0, 1.0), 1: (1.0, 0.0)},
    "cubic": {
        -1: (_CUBIC, -2 * _CUBIC, _CUBIC, 0.0),
        0: (_CUBIC + 2, -_CUBIC - 3, 0.0, 1.0),
        1: (-_CUBIC - 2, 2 * _CUBIC + 3, -_CUBIC, 0.0),
        2: (-_CUBIC, _CUBIC, 0.0, 0.0),
    },
}
"""By mode and distance of a tap: its weight as a polynomial of the fraction of the position, highest power first."""

Tap = tuple[str, str]
"""Whole number of an element along an axis, and its weight; "" is a weight of one."""


@dataclass(frozen=True)
class _Axis:
    """An axis of the map, as the nodes of `found` read positions on it."""

    found: Decomposition
    size: int
    mode: str
    padding: str
    align_corners: bool

    def taps(self, positions: str) -> list[Tap]:
        """Return the taps of normalised positions, in the order of operations of runtimes."""
        place = self._op("Add", positions, 1.0)
        if self.align_corners:
            place = self._op("Mul", self._op("Mul", place, 0.5), self.size - 1.0)
        else:
            place = self._op("Mul", self._op("Sub", self._op("Mul", place, float(self.size)), 1.0), 0.5)
        if self.mode == "nearest":
            place = self.found.compute("Round", [place])
        if self.mode != "cubic":  # there each tap is moved inside, not the position
            place = self._inside(place)
        first = self.found.compute("Floor", [place])
        if self.mode == "nearest":
            return [self._tap(first, "")]
        fraction = self.found.compute("Sub", [place, first])
        return [
            self._tap(self._op("Add", first, float(offset)), self._polynomial(factors, fraction))
            for offset, factors in _TAPS[self.mode].items()
        ]

    def _op(self, op: str, tensor: str, number: float) -> str:
        return self.found.compute(op, [tensor, self.found.constant(np.array(number, np.float32))])

    def _polynomial(self, factors: Sequence[float], fraction: str) -> str:
        value = self._op("Mul", fraction, factors[0])
        for factor in factors[1:-1]:
            value = self.found.compute("Mul", [self._op("Add", value, factor), fraction])
        return self._op("Add", value, factors[-1])

    def _bounded(self, place: str) -> str:
        bounds = (self.found.constant(np.array(bound, np.float32)) for bound in (0.0, self.size - 1.0))
        return self.found.compute("Clip", [place, *bounds])

    def _inside(self, place: str) -> str:
        """Move positions beyond the ends onto the map, if the padding mode does so."""
        if self.padding == "border":
            return self._bounded(place)
        return self._reflected(place) if self.padding == "reflection" else place

    def _reflected(self, place: str) -> str:
        """Reflect positions at both ends, as often as it takes."""
        low = 0.0 if self.align_corners else -0.5
        span = self.size - 1.0 - 2 * low
        if span <= 0:
            return self._op("Mul", place, 0.0)
        moved = self._op("Sub", place, low)
        times = self.found.compute("Floor", [self._op("Div", moved, 2 * span)])
        rest = self.found.compute("Sub", [moved, self._op("Mul", times, 2 * span)])
        back = self._op("Add", self._op("Mul", rest, -1.0), 2 * span)
        return self._op("Add", self.found.compute("Min", [rest, back]), low)

    def _tap(self, index: str, weight: str) -> Tap:
        if self.padding == "reflection":
            index = self.found.compute("Floor", [self._reflected(index)])
        bounded = self._bounded(index)
        if self.padding == "zeros":
            hit = self.found.compute("Equal", [index, bounded])
            inside = self.found.compute("Cast", [hit], {"to": TensorProto.FLOAT})
            weight = self.found.compute("Mul", [weight, inside]) if weight else inside
        return self.found.compute("Cast", [bounded], {"to": TensorProto.INT64}), weight


def grid_sample(found: Decomposition) -> None:
    """Decompose GridSample along one to three axes."""
    shape = found.shape(0, 3, 4, 5)
    grid, (batch, channels, *sizes) = found.shape(1, len(shape)), shape
    if grid[0] != batch or grid[-1] != len(sizes):
        raise found.invalid(f"A grid of shape {list(grid)} does not fit a map of shape {list(shape)}")
    given, kind = found.attributes(), found.types[found.required(0)].dtype
    mode, padding = (
        (given.get(name) or default).decode(errors="replace")
        for name, default in (("mode", b"linear"), ("padding_mode", b"zeros"))
    )
    mode = _MODES.get(mode, mode)
    if mode not in (*_TAPS, "nearest") or padding not in ("zeros", "border", "reflection"):
        raise found.unsupported(f"Mode {mode[:40]!r} with padding {padding[:40]!r} is not supported")
    if kind not in FLOATS and (mode != "nearest" or kind is DataType.BOOL):
        raise found.unsupported(f"It samples elements of type {kind.name.lower()} in mode {mode!r}")
    positions = found.compute("Cast", [found.required(1)], {"to": TensorProto.FLOAT})
    taps = []
    for place, size in enumerate(sizes):
        axis = _Axis(found, size, mode, padding, bool(given.get("align_corners", 0)))
        along = found.sliced(positions, len(sizes) + 1, len(sizes) - 1 - place, len(sizes) - place)  # x comes first
        taps.append(axis.taps(found.reshaped(along, grid[:-1])))
    last = (0, *range(2, len(shape)), 1)
    table = found.reshaped(found.transposed(found.required(0), last), (batch * math.prod(sizes), channels))
    total = picked(found, table, sizes, taps, grid[:-1])
    found.bound(found.transposed(total, (0, len(shape) - 1, *range(1, len(shape) - 1))))


def picked(
    found: Decomposition, table: str, sizes: Sequence[int], taps: Sequence[Sequence[Tap]], shape: Sequence[int]
) -> str:
    """Return the weighted sum (shape..., channels) of rows of a table of pixels, by the taps along each axis."""
    numbers = np.arange(shape[0]).reshape((-1, *[1] * (len(shape) - 1)))
    several = [(found.integers(numbers), "")]
    for size, along in zip(sizes, taps, strict=True):
        base = [(found.compute("Mul", [row, found.integers(size)]), weight) for row, weight in several]
        several = [
            (found.compute("Add", [row, index]), found.compute("Mul", [weight, factor]) if weight else factor)
            for row, weight in base
            for index, factor in along
        ]
    rows = found.joined([found.reshaped(row, (1, *shape)) for row, _ in several], 0)
    pixels = found.compute("Gather", [table, rows], {"axis": 0})
    if several[0][1]:
        weights = found.joined([found.reshaped(weight, (1, *shape, 1)) for _, weight in several], 0)
        kind = helper.np_dtype_to_tensor_dtype(NUMPY_TYPES[found.types[found.required(0)].dtype])
        pixels = found.compute("Mul", [pixels, found.compute("Cast", [weights], {"to": kind})])
    total = found.reduced("ReduceSum", pixels, 0) if len(several) > 1 else pixels
    return found.compute("Squeeze", [total, found.integers([0])])
