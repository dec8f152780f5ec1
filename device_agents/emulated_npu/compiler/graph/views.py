"""Algebra of views: slices, permutations, broadcasts and reshapes of a value that move no data (S2.5).

The axes of a view advance along axes of its value; several advance along the same axis if that was divided. All
functions return new views. Functions that may be impossible return None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import View, ViewAxis

UNIT = ViewAxis(1)


def whole(name: str, shape: Sequence[int]) -> View:
    """Return the view of all of a value, with its own axes."""
    return View(name, (0,) * len(shape), tuple(ViewAxis(size, axis) for axis, size in enumerate(shape)))


def is_whole(view: View, shape: Sequence[int]) -> bool:
    """Return whether the view is all of a value of that shape, with its own axes in their order."""
    if view.shape != tuple(shape) or any(view.start):
        return False
    return all(axis.size == 1 or (axis.base, axis.step) == (base, 1) for base, axis in enumerate(view.axes))


def permuted(view: View, permutation: Sequence[int]) -> View:
    """Permute axes: axis i of the result is axis `permutation[i]` of the view."""
    return replace(view, axes=tuple(view.axes[axis] for axis in permutation))


def sliced(view: View, axis: int, start: int, size: int, step: int = 1) -> View:
    """Return the `size` elements along `axis` at start, start + step, ...; the step may be negative."""
    old = view.axes[axis]
    origin = list(view.start)
    if old.base is not None:
        origin[old.base] += start * old.step
    axes = (*view.axes[:axis], ViewAxis(size, old.base, old.step * step), *view.axes[axis + 1 :])
    return View(view.value, tuple(origin), axes)


def with_axis(view: View, axis: int, size: int = 1) -> View:
    """Insert an axis before axis `axis`, along which everything repeats."""
    return replace(view, axes=(*view.axes[:axis], ViewAxis(size), *view.axes[axis:]))


def expanded(view: View, shape: Sequence[int]) -> View:
    """Return the view broadcast to `shape` as in numpy and ONNX: axes align at the end, axes of size 1 repeat."""
    missing = len(shape) - len(view.axes)
    axes = [ViewAxis(size) for size in shape[:missing]]
    for axis, size in zip(view.axes, shape[missing:], strict=True):
        axes.append(axis if axis.size == size else ViewAxis(size))
    return replace(view, axes=tuple(axes))


def unrepeated(view: View, kept: int) -> View:
    """Return the view with one element along each axis that repeats, except axis `kept`."""
    axes = enumerate(view.axes)
    return replace(view, axes=tuple(ViewAxis(1) if own.base is None and at != kept else own for at, own in axes))


def reshaped(view: View, shape: Sequence[int]) -> View | None:
    """Return the elements in the same (row-major) order with a different shape; None if that is not a view.

    Axes can always be divided. They merge if they advance along the same axis of the value without a gap.
    """
    if view.shape == tuple(shape):
        return view
    axes = [axis for axis in view.axes if axis.size != 1]
    sizes = [size for size in shape if size != 1]
    found: list[ViewAxis] = []
    for old, new in _groups([axis.size for axis in axes], sizes):
        run = _merged(axes[old])
        if run is None:
            return None
        found.extend(_parts(run, sizes[new]))
    rest = iter(found)
    return replace(view, axes=tuple(UNIT if size == 1 else next(rest) for size in shape))


def compacted(several: Sequence[View]) -> list[View]:
    """Return views of one shape without axes of size 1; neighbouring axes that merge in all views become one."""
    kept = [place for place, size in enumerate(several[0].shape) if size != 1]
    columns: list[list[ViewAxis]] = []
    for place in kept:
        column = [view.axes[place] for view in several]
        merged = [_merged(pair) for pair in zip(columns[-1], column, strict=True)] if columns else [None]
        found = [axis for axis in merged if axis is not None]
        if len(found) == len(several):
            columns[-1] = found
        else:
            columns.append(column)
    return [replace(view, axes=tuple(column[place] for column in columns)) for place, view in enumerate(several)]


def divided(view: View, shape: Sequence[int]) -> View:
    """Return the view with axes divided, and axes of size 1 added or removed: this is always a view."""
    found = reshaped(view, shape)
    if found is None:
        raise ValueError(f"{view.shape} does not divide into {tuple(shape)}")
    return found


def common_shape(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the finest shape whose axes divide into both of two shapes with equal numbers of elements."""
    sizes = [size for size in first if size != 1]
    others = [size for size in second if size != 1]
    return tuple(math.prod(sizes[group]) for group, _ in _groups(sizes, others))


def composed(outer: View, inner: View) -> View:
    """Return the view `outer` of a value that lies in another value as `inner`, as a view of that other value."""
    start = list(inner.start)
    for offset, axis in zip(outer.start, inner.axes, strict=True):
        if axis.base is not None:
            start[axis.base] += offset * axis.step
    return View(inner.value, tuple(start), tuple(_through(axis, inner) for axis in outer.axes))


def _through(axis: ViewAxis, inner: View) -> ViewAxis:
    if axis.base is None or inner.axes[axis.base].base is None:
        return ViewAxis(axis.size)
    under = inner.axes[axis.base]
    return ViewAxis(axis.size, under.base, axis.step * under.step)


def home(view: View, shape: Sequence[int], target: View) -> View | None:
    """Return where a value of that shape must lie for its `view` to become `target`, a view of another value.

    None unless the view is the whole value with its axes permuted and axes of size 1 added or removed.
    """
    walked = {axis.base: place for axis, place in zip(view.axes, target.axes, strict=True) if axis.size != 1}
    steady = all(axis.size == 1 or (axis.base is not None and axis.step == 1) for axis in view.axes)
    sizes = {axis.base: axis.size for axis in view.axes if axis.size != 1}
    if not steady or any(view.start) or len(sizes) != sum(axis.size != 1 for axis in view.axes):
        return None
    if any(size != 1 and sizes.get(base) != size for base, size in enumerate(shape)):
        return None
    return replace(target, axes=tuple(walked.get(base, UNIT) for base in range(len(shape))))


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[slice, slice]]:
    """Return the smallest runs of axes with equal products; the sizes must be above 1."""
    groups = []
    left = right = 0
    while left < len(old):
        first, second = left, right
        have, want = old[left], new[right]
        left, right = left + 1, right + 1
        while have != want:
            if have < want:
                have, left = have * old[left], left + 1
            else:
                want, right = want * new[right], right + 1
        groups.append((slice(first, left), slice(second, right)))
    return groups


def _merged(axes: Sequence[ViewAxis]) -> ViewAxis | None:
    """Return one axis that advances as these nested axes do, the last one fastest; None if there is none."""
    run = axes[-1]
    for axis in reversed(axes[:-1]):
        if axis.base != run.base or (axis.base is not None and axis.step != run.step * run.size):
            return None
        run = ViewAxis(run.size * axis.size, run.base, run.step)
    return run


def _parts(run: ViewAxis, sizes: Sequence[int]) -> list[ViewAxis]:
    axes = []
    step = run.step
    for size in reversed(sizes):
        axes.append(ViewAxis(size, run.base, step if run.base is not None else 1))
        step *= size
    return axes[::-1]
