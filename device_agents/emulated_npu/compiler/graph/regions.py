"""The part of its inputs that a layer reads for a part of its output, axis by axis, and the layers that compute it.

A region is a half-open interval on every axis of a value or a view.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.unit_commands import Function

Interval = tuple[int, int]
Region = tuple[Interval, ...]

EMPTY: Interval = (0, 0)


def whole(shape: tuple[int, ...]) -> Region:
    """Return the region that covers a shape."""
    return tuple((0, size) for size in shape)


def size_of(interval: Interval) -> int:
    """Return the number of indices in an interval; an empty interval may have its ends reversed."""
    low, high = interval
    return high - low if high > low else 0


def union(first: Interval, second: Interval) -> Interval:
    """Return the smallest interval that contains both; empty intervals are ignored."""
    if first[1] <= first[0]:
        return second
    if second[1] <= second[0]:
        return first
    return min(first[0], second[0]), max(first[1], second[1])


def intersection(first: Region, second: Region) -> Region:
    """Return the intersection of two regions of a value; intervals of an empty one may have their ends reversed."""
    return tuple((max(low, start), min(high, stop)) for (low, high), (start, stop) in zip(first, second, strict=True))


def is_empty(region: Sequence[Interval]) -> bool:
    """Return whether a region has no elements."""
    for low, high in region:  # noqa: SIM110 - a generator takes twice the time, and every pass asks
        if high <= low:
            return True
    return False


def overlap(first: Region, second: Region) -> bool:
    """Return whether two regions of the same value have an element in common."""
    return not is_empty(intersection(first, second))


def hull(regions: Iterable[Region]) -> Region:
    """Return the smallest region that contains all of one or more regions."""
    return tuple(functools.reduce(union, intervals) for intervals in zip(*regions, strict=True))


def is_windowed(layer: HardwareLayer) -> bool:
    """Return whether the layer slides a window over spatial axes (a matrix product does not)."""
    return layer.function.rule.has_window and not layer.matrix


def takes_pictures(layer: HardwareLayer) -> bool:
    """Return whether each command of the layer works on one picture of a map, channels innermost."""
    return is_windowed(layer) or layer.function is Function.LRN


def multiplier(layer: HardwareLayer) -> int:
    """Return the output channels per input channel of a depthwise convolution; 1 for all other layers."""
    if layer.function is not Function.DEPTHWISE:
        return 1
    return layer.output.axes[1].size // layer.inputs[0].axes[1].size


def window(layer: HardwareLayer, axis: int) -> tuple[int, int, int, int]:
    """Return kernel, stride, dilation and leading padding of a windowed layer along a spatial axis."""
    place = axis - len(layer.output.axes) + 3
    settings = layer.settings
    return settings.kernel[place], settings.stride[place], settings.dilation[place], settings.pad[place]


def window_interval(layer: HardwareLayer, axis: int, interval: Interval) -> Interval:
    """Return what a windowed layer reads along a spatial axis, including padding outside the input."""
    kernel, stride, dilation, pad = window(layer, axis)
    return interval[0] * stride - pad, (interval[1] - 1) * stride - pad + (kernel - 1) * dilation + 1


def can_cut(layer: HardwareLayer, axis: int) -> bool:
    """Return whether the layer can compute parts of its output along `axis` independently."""
    if layer.function.rule.works_along_axes and layer.settings.axes >> axis & 1:
        return False
    return axis != 1 or (layer.function is not Function.LRN and multiplier(layer) == 1)


def read_axis(layer: HardwareLayer, place: int, axis: int) -> int | None:
    """Return the axis of the view `layer.reads[place]` that an axis of the output follows; None if all is read."""
    if layer.residual is not None and place == len(layer.inputs):
        return axis
    if layer.function is Function.TABLE and place == 1:
        return None
    if layer.matrix:
        last = len(layer.output.axes) - 1
        skipped = last if place == 0 else last - 1
        return None if axis == skipped else axis
    if layer.function in (Function.CONVOLVE, Function.LRN) or multiplier(layer) > 1:
        return None if axis == 1 else axis
    if layer.function.rule.works_along_axes and layer.settings.axes >> axis & 1:
        return None
    if layer.function is Function.GATHER:
        rows = len(layer.inputs[0].axes) - 1
        return axis if place == 1 and axis < len(layer.output.axes) - rows else None
    return axis


def read_interval(layer: HardwareLayer, place: int, axis: int, interval: Interval) -> Interval:
    """Return the interval of `layer.reads[place]`, along `read_axis`, that an interval of the output needs."""
    if interval[1] <= interval[0]:
        return EMPTY
    view = layer.reads[place]
    if is_windowed(layer) and place == 0 and axis >= 2:
        low, high = window_interval(layer, axis, interval)
        size = view.axes[axis].size
        return min(max(0, low), size), max(0, min(size, high))
    return interval


def read_region(layer: HardwareLayer, place: int, region: Region) -> Region:
    """Return the region of the view `layer.reads[place]` that a region of the output needs."""
    view = layer.reads[place]
    needed = list(view.region)
    for axis, interval in enumerate(region):
        target = read_axis(layer, place, axis)
        if target is not None:
            needed[target] = read_interval(layer, place, axis, interval)
    if layer.function is Function.GATHER and place == 0:
        rows = len(view.axes) - 1
        needed[1:] = region[len(region) - rows :] if rows else []
    if layer.function is Function.CONVOLVE and not layer.matrix and place == 0 and layer.groups > 1:
        needed[1] = input_channels(layer, region[1])
    return tuple(needed)


def input_channels(layer: HardwareLayer, channels: Interval) -> Interval:
    """Return the input channels that output channels of a grouped or depthwise convolution read."""
    per_input = layer.inputs[0].axes[1].size // layer.groups
    per_output = layer.output.axes[1].size // layer.groups
    return channels[0] // per_output * per_input, ceil_div(channels[1], per_output) * per_input


def axis_reader(layer: HardwareLayer, place: int, axis: int, target: int) -> Callable[[Interval], Interval]:
    """Return the map from intervals of the output along `axis` to intervals of the value of `layer.reads[place]`.

    `target` is the axis of the view that `read_axis` returns; the other axes are read whole.
    """
    view = layer.reads[place]
    walked = view.axes[target]
    base = view.base(target)
    others = [one for index, one in enumerate(view.axes) if one.base == base and index != target]
    lowest = view.start[base] + sum(min(0, one.step * (one.size - 1)) for one in others)
    highest = view.start[base] + sum(max(0, one.step * (one.size - 1)) for one in others) + 1
    step, size = walked.step, walked.size
    windowed = is_windowed(layer) and place == 0 and axis >= 2
    kernel, stride, dilation, pad = window(layer, axis) if windowed else (1, 1, 1, 0)
    reach = (kernel - 1) * dilation + 1 - pad

    def read(interval: Interval) -> Interval:  # as read_interval, without its look-ups for every tile
        low, high = interval
        if high <= low:
            return EMPTY
        if windowed:
            low, high = low * stride - pad, (high - 1) * stride + reach
            if low < 0:
                low = 0
            if high > size:
                high = size
            if high <= low:
                return EMPTY
        if step > 0:
            return lowest + step * low, highest + step * (high - 1)
        return lowest + step * (high - 1), highest + step * low

    return read


def cut_axis(view: View, base: int) -> tuple[int, int] | None:
    """Return the axis of a view along which axis `base` of the value can be cut, and its step in indices of `base`.

    The view must cover an interval of the axis densely. If several axes of the view divide it (a reshape), the result
    is the outermost. None if there is no such axis.
    """
    walked = [place for place, axis in enumerate(view.axes) if axis.base == base]
    found = sorted(walked, key=lambda place: -view.axes[place].step)
    unit = 1
    for place in reversed(found):
        if view.axes[place].step != unit:
            return None
        unit *= view.axes[place].size
    return (found[0], view.axes[found[0]].step) if found else None


def layer_producers(graph: Graph) -> tuple[frozenset[int], ...]:
    """Return for every layer the layers that write some of its inputs."""
    writers: dict[str, list[tuple[int, Region]]] = {}
    for place, layer in enumerate(graph.layers):
        region = layer.output.value_region
        writers.setdefault(layer.output.value, []).append((place, region))
    found = []
    for layer in graph.layers:
        own: set[int] = set()
        for view in layer.reads:
            others = writers.get(view.value, ())
            needed = view.value_region if others else ()
            own.update(place for place, region in others if overlap(needed, region))
        found.append(frozenset(own))
    return tuple(found)
