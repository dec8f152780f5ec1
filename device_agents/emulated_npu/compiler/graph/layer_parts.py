"""Parts of a layer: the layer that computes only an interval of the output."""

from __future__ import annotations

from dataclasses import replace

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, View
from device_agents.emulated_npu.compiler.graph.regions import (
    Region,
    input_channels,
    is_windowed,
    read_region,
    size_of,
    whole,
    window_interval,
)
from device_agents.emulated_npu.unit_commands import Function


def channel_axis(layer: HardwareLayer) -> int:
    """Return the axis of the output to which weights and scales of a layer belong."""
    return len(layer.output.axes) - 1 if layer.matrix else 1


def depth_axis(layer: HardwareLayer) -> int:
    """Return the axis of the first input over which the layer sums."""
    return len(layer.inputs[0].axes) - 1 if layer.matrix else 1


def reduced_channels(layer: HardwareLayer) -> int:
    """Return the number of input channels that one output channel sums over."""
    return layer.inputs[0].axes[depth_axis(layer)].size // layer.groups


def output_channels(layer: HardwareLayer) -> int:
    """Return the number of output channels (columns of a matrix product)."""
    return layer.output.axes[channel_axis(layer)].size


def part_of(layer: HardwareLayer, axis: int, low: int, high: int) -> HardwareLayer:
    """Return the layer that computes only the indices [low, high) of the output's `axis`, with unchanged results.

    The layer must be able to compute them independently (`can_cut`; a depthwise multiplier by whole input channels, a
    grouped convolution by whole groups or inside one). Raises ValueError if their windows hold only padding after the
    input, which leading padding cannot express.
    """
    region = list(whole(layer.output.shape))
    region[axis] = (low, high)
    part = replace(
        layer,
        inputs=tuple(_input_part(layer, place, tuple(region)) for place in range(len(layer.inputs))),
        output=views.sliced(layer.output, axis, low, high - low),
        residual=None if layer.residual is None else views.sliced(layer.residual, axis, low, high - low),
    )
    if is_windowed(layer) and axis >= 2:
        return _padded_part(layer, part, axis, low, high)
    if axis != channel_axis(layer) or not layer.function.multiplies:
        return part
    weights, scale = layer.weights, layer.scale_shift
    return replace(
        part,
        weights=None if weights is None else constant_part(weights, 1 if layer.matrix else 0, low, high),
        scale_shift=None if scale is None else constant_part(scale, 1, low, high),
        groups=max(1, layer.groups * (high - low) // output_channels(layer)),
    )


def _input_part(layer: HardwareLayer, place: int, region: Region) -> View:
    """Return the part of an input that a region of the output needs."""
    view = layer.inputs[place]
    needed = list(read_region(layer, place, region))
    if layer.function is Function.DEPTHWISE and place == 0:
        needed[1] = input_channels(layer, region[1])
    for axis, interval in enumerate(needed):
        size = size_of(interval)
        if size == 0:  # windows lie in the leading padding: one index marks its end
            size = min(1, view.axes[axis].size)
        if (interval[0], size) != (0, view.axes[axis].size):
            view = views.sliced(view, axis, interval[0], size)
    return view


def _padded_part(layer: HardwareLayer, part: HardwareLayer, axis: int, low: int, high: int) -> HardwareLayer:
    """Return the part with the padding of its first window before the first index that it reads."""
    first, last = window_interval(layer, axis, (low, high))
    start = max(0, first)
    if start >= layer.inputs[0].axes[axis].size:
        raise ValueError(f"{layer.name} reads only padding from {low} on")
    pad = list(layer.settings.pad)
    pad[axis - len(layer.output.axes) + 3] = start - first if last > 0 else -first
    return replace(part, settings=replace(layer.settings, pad=(pad[0], pad[1], pad[2])))


def constant_part(constant: LazyConstant, axis: int, low: int, high: int) -> LazyConstant:
    """Return the indices [low, high) of an axis of a constant."""
    if (low, high) == (0, constant.shape[axis]):
        return constant
    shape = list(constant.shape)
    shape[axis] = high - low
    index = (slice(None),) * axis + (slice(low, high),)
    name = f"{constant.name}[{':, ' * axis}{low}:{high}]"
    return derived(name, shape, constant.dtype, (constant,), lambda array: array[index])
