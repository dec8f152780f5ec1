"""A layer divided by its output channels into layers whose weights fit the weight buffer."""

from __future__ import annotations

from dataclasses import replace

from device_agents.emulated_npu.compiler.layers import Constant, Layer, View
from device_agents.emulated_npu.compiler.weights import output_channels, reduced_channels, stored_taps
from device_agents.emulated_npu.machine import Machine


def slice_outputs(layer: Layer, machine: Machine, budget_bytes: int) -> tuple[Layer, ...]:
    """Layers of at most `budget_bytes` of weights each that together are the layer; itself if it cannot be divided."""
    if layer.weights is None or layer.groups != 1:
        return (layer,)
    column_bytes = stored_taps(layer, machine) * reduced_channels(layer) * machine.data_type.bytes + 8
    columns = machine.mfu.columns
    count = budget_bytes // column_bytes // columns * columns
    channels = output_channels(layer)
    if count == 0 or count >= channels:
        return (layer,)
    return tuple(_slice(layer, low, min(low + count, channels)) for low in range(0, channels, count))


def _slice(layer: Layer, low: int, high: int) -> Layer:
    axis = len(layer.output.axes) - 1 if layer.matrix else 1
    return replace(
        layer,
        output=_part(layer.output, axis, low, high),
        weights=_columns(layer.fixed_weights, 1 if layer.matrix else 0, low, high),
        scale_shift=None if layer.scale_shift is None else _columns(layer.scale_shift, 1, low, high),
        residual=None if layer.residual is None else _part(layer.residual, axis, low, high),
    )


def _part(view: View, axis: int, low: int, high: int) -> View:
    walked = view.axes[axis]
    start = list(view.start)
    if walked.base is not None:
        start[walked.base] += walked.step * low
    axes = list(view.axes)
    axes[axis] = replace(walked, size=high - low)
    return View(view.value, tuple(start), tuple(axes))


def _columns(constant: Constant, axis: int, low: int, high: int) -> Constant:
    shape = list(constant.shape)
    shape[axis] = high - low
    index = (slice(None),) * axis + (slice(low, high),)
    compute = constant.compute
    return Constant(
        f"{constant.name}[{low}:{high}]",
        tuple(shape),
        constant.dtype,
        constant.sources,
        lambda *arrays: compute(*arrays)[index],
    )
