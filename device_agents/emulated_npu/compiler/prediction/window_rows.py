"""Convolutions whose windows are summed row by row: the matrix unit has a column for each row of the window.

A convolution with few output channels leaves most columns of the matrix unit idle. Its rows apart, it is a convolution
with windows of one row, whose output channels are those of each row of the window; the vector unit then adds these up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, LazyConstant, Value, View
from device_agents.emulated_npu.compiler.graph.regions import whole
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import cut_weights, weight_operand
from device_agents.emulated_npu.compiler.planning.chains.layer_commands import Buffers, commands_of, convolve
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, dense_strides
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.timing.cost.command_cost import costs_of
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Space
from device_agents.emulated_npu.unit_settings import PLAIN, Binary, Settings

_PICTURE = (0, 2, 3, 1)
_WORTH = 0.9
"""The part of a layer's time on the units that its rows apart may take: they need more of NB."""


def with_rows_apart(graph: Graph, machine: Machine) -> Graph | None:
    """Return the graph with the windows of some convolutions summed row by row; None if that is faster for none."""
    values, layers = dict(graph.values), list[HardwareLayer]()
    for layer in graph.layers:
        apart, added = _apart(layer) if _can_be_apart(layer, graph, machine) else ([], {})
        if apart and _time_ps(apart, {**values, **added}, machine) < _WORTH * _time_ps([layer], values, machine):
            values.update(added)
            layers.extend(apart)
        else:
            layers.append(layer)
    if len(layers) == len(graph.layers):
        return None
    return replace(graph, values=values, layers=tuple(replace(one, index=at) for at, one in enumerate(layers)))


def _can_be_apart(layer: HardwareLayer, graph: Graph, machine: Machine) -> bool:
    """Return whether the columns have room for the rows of a window, and the sums of rows keep their precision."""
    settings = layer.settings
    if layer.function is not Function.CONVOLVE or layer.matrix or layer.weights is None or layer.groups > 1:
        return False
    if len(layer.output.axes) != len(_PICTURE) or settings.kernel[1] == 1 or settings.stride[1] > 1:
        return False
    is_float = layer.factor_type is DataType.FLOAT32 and graph.values[layer.output.value].dtype is DataType.FLOAT32
    return is_float and not settings.quantises and 2 * layer.output.shape[1] <= machine.mfu.columns


def _apart(layer: HardwareLayer) -> tuple[list[HardwareLayer], dict[str, Value]]:
    """Return the layers in place of a convolution, the last one under its name, and the values between them."""
    shape, (_, rows, columns) = layer.output.shape, layer.settings.kernel
    batch, channels, height, width = shape
    step, values, layers = layer.settings.dilation[1], dict[str, Value](), list[HardwareLayer]()

    def value(what: str, *sizes: int) -> View:
        name = f"{layer.name}/{what}"
        values[name] = Value(name, sizes, DataType.FLOAT32, _PICTURE, "activation")
        return views.whole(name, sizes)

    every = value("rows", batch, rows * channels, height + (rows - 1) * step, width)
    window = replace(
        layer,
        name=f"{layer.name} (rows)",
        nodes=(),
        output=every,
        settings=replace(layer.settings, kernel=(1, 1, columns), activation=PLAIN.activation),
        weights=_rows_as_channels(layer.fixed_weights),
        scale_shift=_shifted_once(layer.scale_shift, rows),
        residual=None,
    )
    parts = [
        views.sliced(views.sliced(every, 1, row * channels, channels), 2, row * step, height) for row in range(rows)
    ]
    total, *rest = parts if layer.residual is None else [*parts, layer.residual]
    given, add = layer.settings, Settings(mode=int(Binary.ADD))
    for place, part in enumerate(rest, 1):
        target = layer.output if part is rest[-1] else value(f"sum{place}", *shape)
        name = f"{layer.name} (sum {place})"
        layers.append(HardwareLayer(-1, name, (), Function.BINARY, (total, part), target, add))
        total = target
    activated = replace(add, activation=given.activation, alpha=given.alpha, beta=given.beta, gamma=given.gamma)
    last = replace(layers[-1], name=layer.name, nodes=layer.nodes, settings=activated)
    return [window, *layers[:-1], last], values


def _rows_as_channels(weights: LazyConstant) -> LazyConstant:
    """Return weights (M, C, rows, columns) as (rows * M, C, 1, columns)."""
    outputs, channels, rows, columns = weights.shape

    def moved(array: Array) -> Array:
        return np.moveaxis(array, 2, 0)

    return derived(f"{weights.name}.rows", (rows * outputs, channels, 1, columns), weights.dtype, (weights,), moved)


def _shifted_once(scale_shift: LazyConstant | None, rows: int) -> LazyConstant | None:
    """Return scale and shift (2, M) for the channels of all rows: the sums of the first one are shifted."""
    if scale_shift is None:
        return None
    count, outputs = scale_shift.shape

    def repeated(array: Array) -> Array:
        unshifted = np.stack([array[0], np.zeros_like(array[0])])  # a product with 0 makes NaN of infinite shifts
        return np.concatenate([array, *[unshifted] * (rows - 1)], axis=1)

    name = f"{scale_shift.name}.rows{rows}"
    return derived(name, (count, rows * outputs), scale_shift.dtype, (scale_shift,), repeated)


def _time_ps(layers: list[HardwareLayer], values: dict[str, Value], machine: Machine) -> int:
    """Return the time of layers on the units, each computed at once."""
    costs = costs_of(machine)
    return sum(costs.cost(command).duration_ps for one in layers for command in _commands(one, values, machine))


def _commands(layer: HardwareLayer, values: dict[str, Value], machine: Machine) -> Iterator[Command]:
    def buffer(name: str) -> Buffer:
        sizes = values[name].shape
        return Buffer(Space.NB, 0, machine.data_type, (0,) * len(sizes), dense_strides(sizes, _PICTURE, 4))

    buffers = Buffers(buffer(layer.output.value), tuple(buffer(view.value) for view in layer.reads), {})
    region = whole(layer.output.shape)
    if layer.function is not Function.CONVOLVE:
        yield from commands_of(layer, region, buffers)
        return
    for block in cut_weights(layer, machine, machine.sb_bytes):
        yield from convolve(layer, region, block, buffers, weight_operand(layer, block, machine, 0), machine.mfu)
