"""Splits a layer over cores, one slice for each core (S2.7).

A kind of split divides an axis of the layer's output into intervals. A slice is a layer that computes its interval of
the same output value, from views of the inputs and parts of the weights. If the sum over input channels is split, every
core stores a partial sum, and the cores share the sum of these by rows or columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    Graph,
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    ViewAxis,
)
from device_agents.emulated_npu.compiler.graph.layer_parts import (
    channel_axis,
    constant_part,
    depth_axis,
    part_of,
    reduced_channels,
)
from device_agents.emulated_npu.compiler.graph.regions import (
    Interval,
    can_cut,
    is_windowed,
    multiplier,
    takes_pictures,
    window_interval,
)
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import MAX_RANK, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

Slices = tuple[tuple[HardwareLayer, ...], ...]
SplitKind = Literal["batch", "rows", "outputs", "inputs"]
SPLIT_KINDS: tuple[SplitKind, ...] = get_args(SplitKind)
_RANK_WITH_BATCH = 3


@dataclass(frozen=True)
class LayerSplit:
    """A layer in slices. `phases[p][c]` lists the layers that core c computes in sequence in phase p.

    A phase reads what cores have computed in earlier phases; within a phase, cores read nothing of each other. A phase
    may have fewer entries than there are cores. `values` are the values that the split adds.
    """

    kind: SplitKind | None
    phases: tuple[Slices, ...]
    values: Mapping[str, Value]


@dataclass(frozen=True)
class SplitGraph:
    """A graph of slices, with the core, the original layer and the phase of each; phases count through the graph.

    `slices` has the places of the slices of each original layer.
    """

    graph: Graph
    cores: tuple[int, ...]
    origins: tuple[int, ...]
    phases: tuple[int, ...]
    slices: tuple[range, ...]


def unsplit(layer: HardwareLayer) -> LayerSplit:
    """Return the split that leaves all of a layer on the first core."""
    return LayerSplit(None, (((layer,),),), {})


def split_layer(
    layer: HardwareLayer, values: Mapping[str, Value], kind: SplitKind, shares: Sequence[int]
) -> LayerSplit:
    """Return a layer in at most one slice for each share, nearly in their proportion (see `proportional_parts`).

    Raises CannotSplit if the layer has no such axis, works along it, or has only one index of it.
    """
    if kind == "inputs":
        return _by_inputs(layer, values, shares)
    axis = cut_axis_of(layer, values, kind)
    intervals = parts_along(layer, axis, shares)
    if len(intervals) == 1:
        raise CannotSplit(f"{layer.name} cannot be split by {kind}", "one part of it needs the others")
    slices = tuple((_named(part_of(layer, axis, *interval), kind, interval),) for interval in intervals)
    return LayerSplit(kind, (slices,), {})


def split_graph(graph: Graph, splits: Mapping[int, LayerSplit]) -> SplitGraph:
    """Return a graph with the layers of these indices split; other layers run on the first core."""
    values = dict(graph.values)
    found: list[tuple[HardwareLayer, int, int, int]] = []
    slices: list[range] = []
    phase = 0
    for place, layer in enumerate(graph.layers):
        split = splits.get(place) or unsplit(layer)
        values.update(split.values)
        first = len(found)
        for cores in split.phases:
            found.extend((part, core, place, phase) for core, own in enumerate(cores) for part in own)
            phase += 1
        slices.append(range(first, len(found)))
    layers = tuple(replace(part, index=index) for index, (part, *_) in enumerate(found))
    return SplitGraph(
        graph=replace(graph, values=values, layers=layers),
        cores=tuple(core for _, core, _, _ in found),
        origins=tuple(origin for _, _, origin, _ in found),
        phases=tuple(phase for *_, phase in found),
        slices=tuple(slices),
    )


def _named(part: HardwareLayer, kind: SplitKind, interval: Interval) -> HardwareLayer:
    return replace(part, name=f"{part.name} [{kind} {interval[0]}:{interval[1]}]")


def _by_inputs(layer: HardwareLayer, values: Mapping[str, Value], shares: Sequence[int]) -> LayerSplit:
    """Split a layer into partial products over input channels, then their sum with residual and activation.

    Scale and shift are linear and come before the sum: every part is scaled, and one part is shifted.
    """
    intervals: Sequence[Interval] = ()
    if layer.function is not Function.CONVOLVE:
        why = f"{layer.function.name} makes no sum of products over input channels"
    elif layer.settings.quantises:
        why = "its sums stay on the matrix unit until they are quantised"
    elif layer.groups > 1:
        why = "it has groups, each with its own input channels"
    elif len(layer.output.axes) + 1 > MAX_RANK:
        why = f"its partial results would have more than {MAX_RANK} axes"
    else:
        depth = reduced_channels(layer)
        intervals = proportional_parts(depth, shares)
        why = f"it has {depth} input channel{'s' if depth > 1 else ''}"
    if len(intervals) < 2:
        raise CannotSplit(f"{layer.name} cannot be split by inputs", why)
    partial = _partial_value(layer, values, len(intervals))
    products = tuple((_product(layer, partial, place, interval),) for place, interval in enumerate(intervals))
    new = {partial.name: partial}
    return LayerSplit("inputs", (products, _split_sums(_summing(layer, partial, new), shares)), new)


def _partial_value(layer: HardwareLayer, values: Mapping[str, Value], count: int) -> Value:
    """Return the value of the partial results, stacked along a new first axis."""
    rank = len(layer.output.axes)
    # Channels or columns are innermost, as in feature maps and matrices.
    order = [axis for axis in range(rank) if axis != channel_axis(layer)] + [channel_axis(layer)]
    name = f"{layer.output.value}\x00partial{layer.index}"
    dtype = values[layer.output.value].dtype
    return Value(name, (count, *layer.output.shape), dtype, (0, *(axis + 1 for axis in order)), "activation")


def _product(layer: HardwareLayer, partial: Value, place: int, interval: Interval) -> HardwareLayer:
    low, high = interval
    first = views.sliced(layer.inputs[0], depth_axis(layer), low, high - low)
    others = tuple(views.sliced(view, len(view.axes) - 2, low, high - low) for view in layer.inputs[1:])
    axes = tuple(ViewAxis(size, axis + 1) for axis, size in enumerate(layer.output.shape))
    start = (place, *(0 for _ in axes))
    weights, scale = layer.weights, layer.scale_shift
    part = replace(
        layer,
        inputs=(first, *others),
        output=View(partial.name, start, axes),
        weights=None if weights is None else constant_part(weights, 0 if layer.matrix else 1, low, high),
        scale_shift=None if scale is None else (scale if place == 0 else _unshifted(scale)),
        residual=None,
        settings=replace(layer.settings, activation=Activation.NONE, alpha=0.0, beta=0.0, gamma=0.0),
    )
    return _named(part, "inputs", interval)


def _unshifted(scale_shift: LazyConstant) -> LazyConstant:
    def without_shift(array: Array) -> Array:
        kept: Array = array * np.array([[1], [0]], array.dtype)
        return kept

    name = f"{scale_shift.name}[unshifted]"
    return derived(name, scale_shift.shape, scale_shift.dtype, (scale_shift,), without_shift)


def _summing(layer: HardwareLayer, partial: Value, new: dict[str, Value]) -> tuple[HardwareLayer, ...]:
    """Return the layers that compute the output from the partial results, before they are split."""
    settings = layer.settings
    epilogue = Settings(activation=settings.activation, alpha=settings.alpha, beta=settings.beta, mode=int(Binary.ADD))

    def step(function: Function, inputs: tuple[View, ...], output: View, settings: Settings) -> HardwareLayer:
        name = f"{layer.name} {function.name.lower()}"
        return HardwareLayer(layer.index, name, (), function, inputs, output, settings)  # the products have the nodes

    def reduction(target: View) -> HardwareLayer:
        source, axes = views.whole(partial.name, partial.shape), Settings(axes=1, mode=int(Reduction.SUM))
        return step(Function.REDUCE, (source,), views.with_axis(target, 0), axes)

    if layer.residual is None and settings.activation is Activation.NONE:
        return (reduction(layer.output),)
    name = f"{layer.output.value}\x00sum{layer.index}"
    total = Value(name, layer.output.shape, partial.dtype, tuple(axis - 1 for axis in partial.order[1:]), "activation")
    new[name] = total
    summed = views.whole(name, total.shape)
    if layer.residual is None:
        last = step(Function.MAP, (summed,), layer.output, replace(epilogue, mode=0))
    else:
        last = step(Function.BINARY, (summed, layer.residual), layer.output, epilogue)
    return reduction(summed), last


def _split_sums(sums: tuple[HardwareLayer, ...], shares: Sequence[int]) -> Slices:
    """Return the part of all these layers for each core, along the longest axis of the output.

    The axis is counted from the end, because a reduction has one more axis in front.
    """
    shape = sums[-1].output.shape[int(sums[-1].function is Function.REDUCE) :]
    longest = shape.index(max(shape)) - len(shape)

    def part(one: HardwareLayer, interval: Interval) -> HardwareLayer:
        return _named(part_of(one, len(one.output.axes) + longest, *interval), "inputs", interval)

    intervals = proportional_parts(shape[longest], shares)
    return tuple(tuple(part(one, interval) for one in sums) for interval in intervals)


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
