"""Reductions along axes: sums, means, extremes, norms and the index of the largest element."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.normalisation import axes_mask
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

_REDUCTIONS = {
    "ReduceSum": Reduction.SUM,
    "ReduceMean": Reduction.MEAN,
    "ReduceMax": Reduction.MAXIMUM,
    "ReduceMin": Reduction.MINIMUM,
    "ReduceProd": Reduction.PRODUCT,
    "ReduceSumSquare": Reduction.SUM_SQUARE,
    "ReduceL1": Reduction.L1,
    "ReduceL2": Reduction.L2,
}


def _axes(build: Builder, node: OnnxNode, rank: int) -> tuple[int, ...]:
    """Return the axes to reduce, from the attribute or the input; without either, all axes or none."""
    given = node.attribute("axes")
    if given is None and node.input(1):
        given = build.required(node.inputs[1], "axes").reshape(-1).tolist()
    if given:
        return tuple(int(axis) % rank for axis in given)
    return () if node.attribute("noop_with_empty_axes", 0) else tuple(range(rank))


def _kept(build: Builder, source: View, axes: tuple[int, ...]) -> View:
    """Return a new value for the result, viewed with axes of size 1 where the source is reduced."""
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(source.shape))
    return views.divided(build.result(), shape)


def _reduced(build: Builder, source: View, output: View, axes: tuple[int, ...], mode: Reduction) -> None:
    build.layer(Function.REDUCE, [source], output, Settings(axes=axes_mask(axes, len(source.axes)), mode=mode))


def _reduce(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    axes = _axes(build, node, len(source.axes))
    if not axes:
        build.bind(node.outputs[0], source)
        return
    _reduced(build, source, _kept(build, source, axes), axes, _REDUCTIONS[node.op])


def _log_sum(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    axes = _axes(build, node, len(source.axes))
    output = _kept(build, source, axes)
    total = build.temporary("sum", output.shape, build.dtype(source))
    _reduced(build, source, total, axes, Reduction.SUM)
    build.map(total, output, Activation.LOG)


def _log_sum_exp(build: Builder, node: OnnxNode) -> None:
    """Add log(sum(exp(x - max))) + max, so that nothing overflows."""
    source = build.view(node.inputs[0])
    dtype, axes = build.dtype(source), _axes(build, node, len(source.axes))
    output = _kept(build, source, axes)
    largest, total = (build.temporary(name, output.shape, dtype) for name in ("max", "sum"))
    _reduced(build, source, largest, axes, Reduction.MAXIMUM)
    below = build.combined("below", Binary.SUBTRACT, source, largest)
    _reduced(build, build.mapped("exp", below, Activation.EXP), total, axes, Reduction.SUM)
    build.binary(Binary.ADD, build.mapped("log", total, Activation.LOG), largest, output)


def _argmax(build: Builder, node: OnnxNode) -> None:
    """Add an ArgMax or ArgMin; the last of several equal elements is the first in reverse."""
    source = build.view(node.inputs[0])
    axis = node.attribute("axis", 0) % len(source.axes)
    axes, size = (axis,), source.shape[axis]
    last = node.attribute("select_last_index", 0)
    if last:
        source = views.sliced(source, axis, size - 1, size, -1)
    if node.op == "ArgMin":
        source = build.mapped("negated", source, Activation.NEGATE)
    output = _kept(build, source, axes)
    place = build.temporary("place", output.shape, DataType.INT64) if last else output
    _reduced(build, source, place, axes, Reduction.ARGMAX)
    if last:
        build.binary(Binary.SUBTRACT, build.fixed("end", size - 1, DataType.INT64), place, output)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ArgMax": _argmax,
    "ArgMin": _argmax,
}
