"""The axis of a layer's output that each kind of split divides, and the intervals of the parts (S2.7)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.compiler.graph.regions import (
    Interval,
    can_cut,
    is_windowed,
    multiplier,
    takes_pictures,
    window_interval,
)
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.unit_commands import Function

SplitKind = Literal["batch", "rows", "outputs", "inputs"]
SPLIT_KINDS: tuple[SplitKind, ...] = get_args(SplitKind)

_RANK_WITH_BATCH = 3


class CannotSplit(EmulatorError):
    """A layer has no such axis, or works along it."""


def cut_axis_of(layer: HardwareLayer, values: Mapping[str, Value], kind: SplitKind) -> int:
    """Return the axis of the output that a split of `kind` (not "inputs") divides; raises CannotSplit.

    - batch: the pictures of a map; the longest batch axis of a product of matrices; else the first of three or more
      axes.
    - rows: the longest spatial axis of a map; the rows of a matrix product; else the longest axis that is neither
      batch nor outputs.
    - outputs: output channels or columns; else the innermost axis in memory.
    """
    axis = _axis(layer, values, kind)
    if axis is None:
        raise CannotSplit(f"{layer.name} cannot be split by {kind}", "its output has no such axis")
    if layer.output.axes[axis].size == 1:
        raise CannotSplit(f"{layer.name} cannot be split by {kind}", "its output has one index along that axis")
    if not can_cut(layer, axis) and not (axis == 1 and multiplier(layer) > 1):
        raise CannotSplit(f"{layer.name} cannot be split by {kind}", f"{layer.function.name} works along that axis")
    return axis


def _axis(layer: HardwareLayer, values: Mapping[str, Value], kind: SplitKind) -> int | None:
    rank = len(layer.output.axes)
    if takes_pictures(layer):
        return {"batch": 0, "outputs": channel_axis(layer)}.get(kind, _longest(layer, range(2, rank)))
    if layer.matrix:
        return {"rows": rank - 2 if rank > 1 else None, "outputs": rank - 1}.get(kind, _longest(layer, range(rank - 2)))
    if layer.function is Function.GATHER:
        indices = len(layer.inputs[1].axes)
        if kind == "outputs":
            return _longest(layer, range(indices, rank))
        return _longest(layer, range(indices)) if kind == "rows" else (0 if indices > 1 else None)
    innermost = _innermost(layer, values)
    batch = 0 if rank >= _RANK_WITH_BATCH and innermost != 0 else None
    if kind == "outputs":
        return innermost
    return batch if kind == "batch" else _longest(layer, (a for a in range(rank) if a not in (batch, innermost)))


def _longest(layer: HardwareLayer, axes: Iterable[int]) -> int | None:
    """Return the longest of some axes, the outermost of equally long ones."""
    return max(axes, key=lambda axis: layer.output.axes[axis].size, default=None)


def _innermost(layer: HardwareLayer, values: Mapping[str, Value]) -> int | None:
    """Return the innermost axis of the output in memory, of those with more than one index."""
    order = values[layer.output.value].order
    varying = [axis for axis, walked in enumerate(layer.output.axes) if walked.size != 1]

    def depth(axis: int) -> tuple[int, int]:
        return order.index(layer.output.base(axis)), -abs(layer.output.axes[axis].step)

    return max(varying, key=depth, default=None)


def parts_along(layer: HardwareLayer, axis: int, shares: Sequence[int]) -> tuple[Interval, ...]:
    """Return an interval of the output's `axis` for each share, see `proportional_parts`; fewer on shorter axes.

    The outputs of an input channel of a depthwise multiplier stay together. A part of a grouped convolution consists
    of whole groups or lies in one group. Windows that contain only padding after the input belong to the part before.
    """
    size = layer.output.axes[axis].size
    if layer.function is Function.DEPTHWISE and axis == 1:
        return proportional_parts(size, shares, multiplier(layer))
    if layer.function is Function.CONVOLVE and axis == channel_axis(layer) and layer.groups > 1:
        per_group = size // layer.groups
        if len(shares) <= layer.groups:
            return proportional_parts(size, shares, per_group)
        inside = proportional_parts(per_group, [1] * (len(shares) // layer.groups))
        starts = range(0, size, per_group)
        return tuple((start + low, start + high) for start in starts for low, high in inside)
    found = proportional_parts(size, shares)
    if not is_windowed(layer) or axis == 1 or axis == 0:
        return found
    length = layer.inputs[0].axes[axis].size
    seeing = [interval for interval in found if window_interval(layer, axis, interval)[0] < length]
    if not seeing:
        return ((0, size),)
    return (*seeing[:-1], (seeing[-1][0], size))


def proportional_parts(size: int, shares: Sequence[int], unit: int = 1) -> tuple[Interval, ...]:
    """Divide [0, size) into at most one interval of whole units for each share, within a unit of its proportion.

    The last interval may end within a unit. With fewer units than shares, only the first shares count. Cores wait for
    the part that takes longest, so parts in proportion to their speeds are best. Parts of whole rounds of the matrix
    unit are no better on equal cores: the largest of p parts of n takes ceil(ceil(n / p) / columns) rounds, which
    equals ceil(ceil(n / columns) / p), the rounds of the largest part in whole rounds.
    """
    units = ceil_div(size, unit)
    sums = [0, *itertools.accumulate(shares[: max(1, units)])]
    bounds = [min(size, units * share // sums[-1] * unit) for share in sums]
    return tuple((low, high) for low, high in itertools.pairwise(bounds) if low < high)
