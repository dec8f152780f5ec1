"""Reads of every second, third, ... element: a chain fetches only these elements.

A convolution with a kernel of one element and a stride reads a grid of its input. Where all layers of a chain read one
grid of a value from outside, the chain fetches it as a smaller separate value, densely, and the strides become 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value, View
from device_agents.emulated_npu.compiler.graph.regions import is_windowed
from device_agents.emulated_npu.compiler.graph.value_parts import Grid, whole_value
from device_agents.emulated_npu.compiler.planning.memory_places import stored_type
from device_agents.emulated_npu.machine import Machine

_ONE = (1, 1, 1)
_SPATIAL = 2


def with_sampled_reads(
    layers: Sequence[HardwareLayer], values: Mapping[str, Value], machine: Machine
) -> tuple[HardwareLayer, ...]:
    """Return the layers of a chain; those that read a grid of a value from outside read it as a separate value."""
    grids: dict[str, set[Grid | None]] = {}
    for layer in layers:
        for place, view in enumerate(layer.reads):
            grids.setdefault(view.value, set()).add(_grid(layer) if place == 0 else None)
    for layer in layers:
        for name in (layer.output.value, whole_value(layer.output.value)):
            grids.pop(name, None)
    found: dict[str, Grid] = {}
    for name, (grid, *others) in grids.items():
        if grid is not None and not others and _is_less(grid, values[name], machine):
            found[name] = grid
    return tuple(_sampled(layer, found) for layer in layers) if found else tuple(layers)


def _grid(layer: HardwareLayer) -> Grid | None:
    """Return the grid that a layer reads of its first input; None if it reads all elements between its windows."""
    settings, view = layer.settings, layer.inputs[0]
    if not is_windowed(layer) or settings.kernel != _ONE or any(settings.pad) or settings.stride == _ONE:
        return None
    starts, steps = [0] * len(view.start), [1] * len(view.start)
    for walked, stride in zip(view.axes[_SPATIAL:], settings.stride[-len(view.axes[_SPATIAL:]) :], strict=True):
        if walked.base is None or walked.step != 1 or sum(one.base == walked.base for one in view.axes) > 1:
            return None
        starts[walked.base], steps[walked.base] = view.start[walked.base] % stride, stride
    return Grid(tuple(starts), tuple(steps))


def _is_less(grid: Grid, value: Value, machine: Machine) -> bool:
    """Return whether memory moves less for a grid than for all elements, in whole bursts for each run of bytes.

    A matrix unit that packs strides treats them as channels: it reads all elements.
    """
    if machine.mfu.packing == "stride":
        return False
    sampled = max(place for place, axis in enumerate(value.order) if grid.steps[axis] > 1)
    inner = math.prod(value.shape[axis] for axis in value.order[sampled + 1 :])
    run_bytes = inner * stored_type(value.dtype, machine).bytes
    burst_bytes = max(machine.ddr.burst_bytes, machine.llc.burst_bytes, 1)
    return ceil_div(run_bytes, burst_bytes) * burst_bytes < run_bytes * grid.steps[value.order[sampled]]


def _sampled(layer: HardwareLayer, grids: dict[str, Grid]) -> HardwareLayer:
    if not layer.inputs or layer.inputs[0].value not in grids:
        return layer
    view = layer.inputs[0]
    grid = grids[view.value]
    start = tuple(first // step for first, step in zip(view.start, grid.steps, strict=True))
    sizes = zip(view.axes[_SPATIAL:], layer.output.axes[_SPATIAL:], strict=True)
    axes = (*view.axes[:_SPATIAL], *(replace(walked, size=windows.size) for walked, windows in sizes))
    read = View(grid.part(view.value), start, axes)
    return replace(layer, inputs=(read, *layer.inputs[1:]), settings=replace(layer.settings, stride=_ONE))
