"""The vector unit's windows: pooling and depthwise convolution, tap by tap over whole slices.

The order of the taps is fixed and taps outside are left out, so an output does not depend on the other outputs of the
command.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from device_agents.emulated_npu.execution.activations import activate, activate_own
from device_agents.emulated_npu.execution.integer_values import centred, multiplies_integers, scaled_sums
from device_agents.emulated_npu.execution.matrix_unit import epilogue
from device_agents.emulated_npu.execution.operand_checks import (
    check_temporary,
    check_window,
    fault,
    outputs_inside,
    taps_inside,
)
from device_agents.emulated_npu.execution.vector_unit import check_number, check_types, computing
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command
from device_agents.emulated_npu.unit_settings import Triple

# Lines of about this many elements are computed together, so that they stay in the processor's cache.
_BLOCK_ELEMENTS = 1 << 15
# Pooling iterates over the taps along each side of its window.
_LONGEST_SIDE = 1 << 18


def pool_max(command: Command, target: Array, first: Array) -> Array:
    """POOL_MAX; padding is below every number, so a window entirely outside gives the lowest value."""
    _check_pool(command, target, first)
    x = computing(first)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    for axis in (2, 1, 0):
        x = _fold(command, x, axis, target.shape[axis], np.maximum, lowest)
    return activate(x, command.settings)


def pool_average(command: Command, target: Array, first: Array) -> Array:
    """POOL_AVERAGE over the inputs inside, or with `mode` 1 over the whole window; a window outside gives 0."""
    _check_pool(command, target, first)
    settings = command.settings
    if settings.mode not in (0, 1):
        raise fault(command, f"there is no mode {settings.mode}")
    x = computing(first)
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    outputs = cast(Triple, target.shape[:3])
    counts = _counts(command, outputs, cast(Triple, first.shape[:3]), x.dtype)
    for axis in (2, 1, 0):
        x = _fold(command, x, axis, outputs[axis], np.add, 0)
    return activate_own(np.divide(x, counts), settings)


def _check_pool(command: Command, target: Array, first: Array) -> None:
    if target.ndim != 4 or first.ndim != 4 or target.shape[3] != first.shape[3]:
        raise fault(command, f"dims {target.shape} from {first.shape}")
    check_types(command, target, first)
    check_number(command, first)
    check_window(command, target.size * max(command.settings.kernel))
    if max(command.settings.kernel) > _LONGEST_SIDE:
        raise fault(command, f"a window of {command.settings.kernel}; the limit is {_LONGEST_SIDE} along a side")


def _fold(command: Command, x: Array, axis: int, outputs: int, combine: np.ufunc, neutral: float) -> Array:
    """Combine the taps of one axis; maximum and sum of a box are computed axis by axis."""
    settings = command.settings
    kernel, stride, dilation, pad = (
        item[axis] for item in (settings.kernel, settings.stride, settings.dilation, settings.pad)
    )
    size = x.shape[axis]
    if (kernel, stride, pad, outputs) == (1, 1, 0, size):
        return x
    shape = (*x.shape[:axis], outputs, *x.shape[axis + 1 :])
    check_temporary(command, *shape)
    result = np.full(shape, neutral, x.dtype)
    before: tuple[slice, ...] = (slice(None),) * axis
    for tap in taps_inside(kernel, dilation, pad, size, (outputs - 1) * stride):
        low, high = outputs_inside(outputs, size, stride, tap * dilation - pad)
        if low < high:
            start = low * stride + tap * dilation - pad
            part = x[(*before, slice(start, start + (high - low - 1) * stride + 1, stride))]
            into = result[(*before, slice(low, high))]
            combine(into, part, out=into)
    return result


def _counts(command: Command, outputs: Triple, sizes: Triple, dtype: np.dtype[Any]) -> Array:
    """Return the divisor of every window sum, in dims that broadcast to (D, H, W, C)."""
    settings = command.settings
    if settings.mode == 1:
        kd, kh, kw = settings.kernel
        return np.full((1, 1, 1, 1), float(kd * kh * kw), dtype)
    sides = []
    for axis in range(3):
        ones = np.ones(tuple(sizes[axis] if other == axis else 1 for other in range(4)), dtype)
        sides.append(_fold(command, ones, axis, outputs[axis], np.add, 0))
    return np.asarray(np.maximum(sides[0] * sides[1] * sides[2], 1))


def depthwise(
    command: Command, target: Array, first: Array, second: Array, third: Array | None, fourth: Array | None
) -> Array:
    """DEPTHWISE: return every channel convolved with its own window; dims (D, H, W, C, m)."""
    if (target.ndim, first.ndim, second.ndim) != (5, 5, 5):
        raise fault(command, f"ranks {target.ndim}, {first.ndim} and {second.ndim} instead of 5")
    if not target.shape[3:] == first.shape[3:] == second.shape[3:] or second.shape[:3] != command.settings.kernel:
        raise fault(command, f"dims {target.shape} from {first.shape} by {second.shape}")
    check_window(command, target.size * (second.size // (second.shape[3] * second.shape[4])))
    if multiplies_integers(command, first, second):
        x, weights = centred(command, first, second, fourth, np.dtype(np.int32))
        sums = _weighted(command, x, weights, target.shape)
        return epilogue(command, scaled_sums(command, sums, target, fourth), target, third, None)
    check_types(command, first, second)
    check_number(command, first)
    x, weights = computing(first), computing(second)
    if x.dtype.itemsize == 1:
        x, weights = x.astype(np.int32), weights.astype(np.int32)
    return epilogue(command, _weighted(command, x, weights, target.shape), target, third, fourth)


def _weighted(command: Command, x: Array, weights: Array, shape: tuple[int, ...]) -> Array:
    sums = np.zeros(shape, x.dtype)
    height = shape[1]
    lines = max(1, _BLOCK_ELEMENTS // (shape[2] * shape[3] * shape[4]))
    for d in range(shape[0]):
        for h in range(0, height, lines):
            _weigh_lines(command, x, weights, sums, (d, h, min(height, h + lines)))
    return sums


def _weigh_lines(command: Command, x: Array, weights: Array, sums: Array, block: tuple[int, int, int]) -> None:
    """Add the products of all taps to `sums` in lines [first, end) of a plane; `block` is (plane, first, end)."""
    settings = command.settings
    (sd, sh, sw), (pd, ph, pw), (ad, ah, aw) = settings.stride, settings.dilation, settings.pad
    kd, kh, kw = settings.kernel
    depth, height, width = x.shape[:3]
    plane, first, end = block
    columns = sums.shape[2]
    products = np.empty((end - first, *sums.shape[2:]), sums.dtype)
    spans = [outputs_inside(columns, width, sw, tap * pw - aw) for tap in range(kw)]
    for td in range(kd):
        at = plane * sd + td * pd - ad
        if not 0 <= at < depth:
            continue
        for th in range(kh):
            offset = first * sh + th * ph - ah
            low, high = outputs_inside(end - first, height, sh, offset)
            if low >= high:
                continue
            top = low * sh + offset
            rows = x[at, top : top + (high - low - 1) * sh + 1 : sh]
            for tw, (left, right) in enumerate(spans):
                if left < right:
                    start = left * sw + tw * pw - aw
                    part = rows[:, start : start + (right - left - 1) * sw + 1 : sw]
                    some = products[: high - low, left:right]
                    np.multiply(part, weights[td, th, tw], out=some)
                    into = sums[plane, first + low : first + high, left:right]
                    np.add(into, some, out=into)
