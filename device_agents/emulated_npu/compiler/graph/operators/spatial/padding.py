"""Pad: fills or copies the border of a tensor part by part; every element is written once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Settings


def pad_amounts(build: Builder, node: OnnxNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the elements added (negative: removed) before and after each axis."""
    pads = node.attribute("pads") or build.required(node.input(1), "padding").tolist()
    axes = build.required(node.input(3), "axes").tolist() if node.input(3) else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = int(pads[place]), int(pads[place + len(axes)])
    return tuple(before), tuple(after)


def pad(build: Builder, node: OnnxNode) -> None:
    """Add a Pad by a constant, or by the tensor's own elements (edge, reflect, wrap)."""
    source = build.view(node.inputs[0])
    before, after = pad_amounts(build, node, len(source.axes))
    source = _cropped(node, source, before, after)
    before, after = (tuple(max(0, amount) for amount in amounts) for amounts in (before, after))
    if not any(before) and not any(after):
        build.bind(node.outputs[0], source)
        return
    mode = (node.attribute("mode") or b"constant").decode()
    if mode == "constant":
        value = node.attribute("value", 0.0)
        if node.input(2):
            value = float(build.number(node.inputs[2], "padding value"))
        pad_constant(build, source, build.result(), before, value)
    elif mode in _MIRRORS:
        _pad_by_itself(build, node, source, (before, after), _MIRRORS[mode])
    else:
        raise unsupported(node, f"Mode {mode[:40]!r} is not supported")


def _cropped(node: OnnxNode, source: View, before: Sequence[int], after: Sequence[int]) -> View:
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        if first < 0 or last < 0:
            size = source.shape[axis] + min(0, first) + min(0, last)
            if size < 1:
                raise unsupported(node, f"It removes all {source.shape[axis]} elements of axis {axis}")
            source = views.sliced(source, axis, max(0, -first), size)
    return source


def pad_constant(build: Builder, source: View, output: View, before: Sequence[int], value: float) -> None:
    """Add layers that write `source` into `output` after `before` elements of every axis, and the value around it."""
    for axis, first in enumerate(before):
        size = source.shape[axis]
        for start, count in ((0, first), (first + size, output.shape[axis] - first - size)):
            if count:
                border = views.sliced(output, axis, start, count)
                build.layer(Function.FILL, [], border, Settings(alpha=value))
        output = views.sliced(output, axis, first, size)
    build.copy(source, output)


def pad_by_zeros(build: Builder, source: View, before: Sequence[int], after: Sequence[int]) -> View:
    """Return a feature map with zeros around its spatial axes, as a new value."""
    sizes = [size + sum(pads) for size, *pads in zip(source.shape[2:], before, after, strict=True)]
    larger = build.temporary("padded", (*source.shape[:2], *sizes), build.dtype(source))
    pad_constant(build, source, larger, (0, 0, *before), 0.0)
    return larger


def _edge(view: View, axis: int, count: int, leading: bool) -> View:
    size = view.shape[axis]
    single = views.sliced(view, axis, 0 if leading else size - 1, 1)
    return views.expanded(single, (*view.shape[:axis], count, *view.shape[axis + 1 :]))


def _reflect(view: View, axis: int, count: int, leading: bool) -> View:
    return views.sliced(view, axis, count if leading else view.shape[axis] - 2, count, -1)


def _wrap(view: View, axis: int, count: int, leading: bool) -> View:
    return views.sliced(view, axis, view.shape[axis] - count if leading else 0, count)


_MIRRORS: Mapping[str, Callable[[View, int, int, bool], View]] = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}


def _pad_by_itself(
    build: Builder,
    node: OnnxNode,
    source: View,
    pads: tuple[Sequence[int], Sequence[int]],
    mirror: Callable[[View, int, int, bool], View],
) -> None:
    """Pad one axis after the other, each into a separate value."""
    axes = [axis for axis in range(len(source.axes)) if pads[0][axis] or pads[1][axis]]
    for axis in axes:
        first, last = pads[0][axis], pads[1][axis]
        size = source.shape[axis]
        if mirror is not _edge and max(first, last) > size - (mirror is _reflect):
            raise unsupported(node, f"It pads axis {axis} by more elements than the axis has")
        shape = (*source.shape[:axis], first + size + last, *source.shape[axis + 1 :])
        target = build.result() if axis == axes[-1] else build.temporary(f"{axis}", shape, build.dtype(source))
        for start, count, leading in ((0, first, True), (first + size, last, False)):
            if count:
                build.copy(mirror(source, axis, count, leading), views.sliced(target, axis, start, count))
        build.copy(source, views.sliced(target, axis, first, size))
        source = target


HANDLERS: Mapping[str, Handler] = {"Pad": pad}
