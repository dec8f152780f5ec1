"""Operators along a sequence: cumulative sums and products, and sequences in reverse."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Binary, Settings

_NEUTRAL: Mapping[Binary, float] = {Binary.ADD: 0.0, Binary.MULTIPLY: 1.0}


def _cumulative(mode: Binary) -> Handler:
    def handler(build: Builder, node: OnnxNode) -> None:
        """Add a cumulative sum or product: every step doubles the number of elements that a result has (Hillis)."""
        source, output = build.view(node.inputs[0]), build.result()
        axis = int(build.number(node.inputs[1], "axis")) % len(source.axes)
        size = source.shape[axis]
        if node.attribute("reverse", 0):
            source, output = (views.sliced(view, axis, size - 1, size, -1) for view in (source, output))
        if node.attribute("exclusive", 0):
            first = views.sliced(output, axis, 0, 1)
            build.layer(Function.FILL, [], first, Settings(alpha=_NEUTRAL[mode]))
            size -= 1
            if not size:
                return
            source, output = views.sliced(source, axis, 0, size), views.sliced(output, axis, 1, size)
        _doubled(build, source, output, axis, mode)

    return handler


def _doubled(build: Builder, source: View, output: View, axis: int, mode: Binary) -> None:
    """Combine elements with those 1, 2, 4, ... before them; the first elements have none before them."""
    size, reach = source.shape[axis], 1
    if size == 1:
        build.copy(source, output)
    while reach < size:
        last = 2 * reach >= size
        target = output if last else build.temporary(f"reach{reach}", source.shape, build.dtype(source))
        build.copy(views.sliced(source, axis, 0, reach), views.sliced(target, axis, 0, reach))
        rest = size - reach
        now, before = (views.sliced(source, axis, start, rest) for start in (reach, 0))
        build.binary(mode, now, before, views.sliced(target, axis, reach, rest))
        source, reach = target, 2 * reach


def _reverse_sequence(build: Builder, node: OnnxNode) -> None:
    """Add a ReverseSequence by constant lengths: the rows of a table are picked in a different order."""
    source = build.view(node.inputs[0])
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    if sorted((time, batch)) != [0, 1] or len(source.axes) < 2:
        raise unsupported(node, f"Its axes are {time} and {batch}; they must be 0 and 1")
    lengths = build.required(node.inputs[1], "sequence_lens").reshape(-1)
    steps, several = source.shape[time], source.shape[batch]
    if lengths.shape != (several,) or lengths.min() < 0 or lengths.max() > steps:
        raise unsupported(node, f"Its sequence_lens are not {several} numbers from 0 to {steps}")
    step = np.arange(steps).reshape(-1, 1)
    found = np.where(step < lengths, lengths - 1 - step, step)  # (time, batch)
    rows = found * several + np.arange(several)
    if time == 1:
        rows = (np.arange(several) * steps + found).T
    table = build.reshape(source, (steps * several, *source.shape[2:]), f"{node.outputs[0]}.rows")
    build.layer(Function.GATHER, [table, build.fixed("places", rows, DataType.INT64)], build.result())


HANDLERS: Mapping[str, Handler] = {
    "CumSum": _cumulative(Binary.ADD),
    "CumProd": _cumulative(Binary.MULTIPLY),
    "ReverseSequence": _reverse_sequence,
}
