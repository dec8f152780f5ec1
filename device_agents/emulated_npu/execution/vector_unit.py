"""The vector unit, element by element and along axes; vector_windows.py has the windows.

float16 is computed in float32, float64 and integers in their own type, integers as in ONNX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from device_agents.emulated_npu.execution.activations import activate, activate_own
from device_agents.emulated_npu.execution.operand_checks import fault
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command
from device_agents.emulated_npu.unit_settings import Binary, Reduction

_FEWEST_BREAKPOINTS = 2


def computing(array: Array) -> Array:
    """Return the array in the type of computation: float16 as float32, any byte but 0 as true."""
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype.kind == "b":
        return np.asarray(array.view(np.uint8) != 0)
    return array


def check_dims(command: Command, target: Array, *sources: Array) -> None:
    """Raise ExecutionFault if a source has other dims than the target."""
    for source in sources:
        if source.shape != target.shape:
            raise fault(command, f"dims {source.shape} and {target.shape}")


def check_types(command: Command, *arrays: Array) -> None:
    """Raise ExecutionFault if the arrays do not all have the same type."""
    if any(array.dtype != arrays[0].dtype for array in arrays[1:]):
        raise fault(command, f"types {', '.join(array.dtype.name for array in arrays)}")


def check_number(command: Command, array: Array) -> None:
    """Raise ExecutionFault for booleans."""
    if array.dtype.kind == "b":
        raise fault(command, "booleans are not numbers")


def check_floating(command: Command, *arrays: Array) -> None:
    """Raise ExecutionFault unless the arrays are floating point and of one type."""
    check_types(command, *arrays)
    if arrays[0].dtype.kind != "f":
        raise fault(command, f"{arrays[0].dtype.name} is not floating point")


def transfer(command: Command, target: Array, first: Array) -> Array:
    """LOAD and STORE: return the same elements."""
    check_dims(command, target, first)
    check_types(command, target, first)
    return first


def gather(command: Command, target: Array, first: Array, second: Array) -> Array:
    """GATHER: return the rows of `first` that `second` names; negative indices count from the end, as in ONNX."""
    check_types(command, target, first)
    if second.ndim != 1 or second.dtype.kind != "i" or first.ndim == 0:
        raise fault(command, f"indices of rank {second.ndim} and type {second.dtype.name}")
    if target.shape != (len(second), *first.shape[1:]):
        raise fault(command, f"dims {target.shape} from rows of {first.shape[1:]} and {len(second)} indices")
    rows = len(first)
    if second.min() < -rows or second.max() >= rows:
        raise fault(command, f"an index is outside of the {rows} rows")
    return np.asarray(first[second])


def copy(command: Command, target: Array, first: Array) -> Array:
    """COPY: return the same elements, converted to the target's type as in ONNX's Cast."""
    check_dims(command, target, first)
    return first if first.dtype == target.dtype else computing(first)


def fill(command: Command, target: Array) -> Array:
    """FILL: return alpha everywhere."""
    return np.broadcast_to(np.float64(command.settings.alpha), target.shape)


def apply_map(command: Command, target: Array, first: Array) -> Array:
    """MAP: return the activation of every element."""
    check_dims(command, target, first)
    return activate(computing(first), command.settings)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    quotient = np.floor_divide(a, b)
    remainder = a - quotient * b
    return np.asarray(quotient + ((remainder != 0) & ((a < 0) != (b < 0))))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b.astype(a.dtype, copy=False)))
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def _modulo(a: Array, b: Array) -> Array:
    """Return the remainder, with the sign of the dividend for floats and of the divisor for integers."""
    return np.asarray(np.fmod(a, b) if a.dtype.kind == "f" else np.mod(a, b))


_BinaryFunction = Callable[[Array, Array], Array]

_ARITHMETIC: dict[int, _BinaryFunction] = {
    Binary.ADD: np.add,
    Binary.SUBTRACT: np.subtract,
    Binary.MULTIPLY: np.multiply,
    Binary.DIVIDE: _divide,
    Binary.POWER: _power,
    Binary.MAXIMUM: np.maximum,
    Binary.MINIMUM: np.minimum,
    Binary.MODULO: _modulo,
    Binary.PRELU: lambda a, b: np.where(a >= 0, a, a * b),
    Binary.FLOOR_MODULO: np.mod,
    Binary.TRUNCATED_MODULO: np.fmod,
}
_COMPARISON: dict[int, _BinaryFunction] = {
    Binary.EQUAL: np.equal,
    Binary.LESS: np.less,
    Binary.LESS_EQUAL: np.less_equal,
    Binary.GREATER: np.greater,
    Binary.GREATER_EQUAL: np.greater_equal,
}
_LOGIC: dict[int, _BinaryFunction] = {Binary.AND: np.bitwise_and, Binary.OR: np.bitwise_or, Binary.XOR: np.bitwise_xor}


def binary(command: Command, target: Array, first: Array, second: Array) -> Array:
    """BINARY: return the function of two variables that `mode` names; logic of integers works on their bits."""
    check_dims(command, target, first, second)
    mode = command.settings.mode
    if mode != Binary.POWER:
        check_types(command, first, second)
    a, b = computing(first), computing(second)
    if mode in _ARITHMETIC:
        check_number(command, a)
        check_number(command, b)
        values = _ARITHMETIC[mode](a, b)
    elif mode in _COMPARISON:
        values = _COMPARISON[mode](a, b)
    elif mode in _LOGIC and a.dtype.kind != "f":
        values = _LOGIC[mode](a, b)
    else:
        raise fault(command, f"there is no mode {mode} for {a.dtype.name}")
    return activate_own(np.asarray(values), command.settings)


def affine(command: Command, target: Array, first: Array, second: Array, third: Array) -> Array:
    """AFFINE: return first * second + third."""
    check_dims(command, target, first, second, third)
    check_types(command, first, second, third)
    check_number(command, first)
    values = np.asarray(computing(first) * computing(second))
    values += computing(third)
    return activate_own(values, command.settings)


def where(command: Command, target: Array, first: Array, second: Array, third: Array) -> Array:
    """WHERE: return second where first is true, else third."""
    check_dims(command, target, first, second, third)
    check_types(command, second, third)
    if first.dtype.kind != "b":
        raise fault(command, f"the condition is {first.dtype.name}")
    return activate(np.where(computing(first), computing(second), computing(third)), command.settings)


def axes_of(command: Command, rank: int) -> tuple[int, ...]:
    """Return the axes of the mask in the settings; raise ExecutionFault for a missing axis or an empty mask."""
    mask = command.settings.axes
    if not 0 < mask < 1 << rank:
        raise fault(command, f"the axes {mask:#b} of rank {rank}")
    return tuple(axis for axis in range(rank) if mask >> axis & 1)


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    total = np.add.reduce(x, axis=axes, keepdims=True)
    count = x.size // total.size
    return np.asarray(total / count if x.dtype.kind == "f" else _divide(total, np.asarray(count, total.dtype)))


def _norm(x: Array, axes: tuple[int, ...]) -> Array:
    squares = np.square(x if x.dtype.kind == "f" else x.astype(np.float64))
    return np.asarray(np.sqrt(np.add.reduce(squares, axis=axes, keepdims=True)))


_Reduce = Callable[[Array, tuple[int, ...]], Any]

_REDUCTIONS: dict[int, _Reduce] = {
    Reduction.SUM: lambda x, axes: np.add.reduce(x, axis=axes, keepdims=True),
    Reduction.MEAN: _mean,
    Reduction.MAXIMUM: lambda x, axes: np.maximum.reduce(x, axis=axes, keepdims=True),
    Reduction.MINIMUM: lambda x, axes: np.minimum.reduce(x, axis=axes, keepdims=True),
    Reduction.PRODUCT: lambda x, axes: np.multiply.reduce(x, axis=axes, keepdims=True),
    Reduction.SUM_SQUARE: lambda x, axes: np.add.reduce(np.square(x), axis=axes, keepdims=True),
    Reduction.L1: lambda x, axes: np.add.reduce(np.abs(x), axis=axes, keepdims=True),
    Reduction.L2: _norm,
    Reduction.ARGMAX: lambda x, axes: np.argmax(x, axis=axes[0], keepdims=True),
}


def reduce(command: Command, target: Array, first: Array) -> Array:
    """REDUCE: reduce by `mode` along the axes of the mask; ARGMAX takes one axis and the first of equal maxima."""
    axes, mode = axes_of(command, first.ndim), command.settings.mode
    dims = tuple(1 if axis in axes else size for axis, size in enumerate(first.shape))
    if target.shape != dims:
        raise fault(command, f"dims {target.shape} of {first.shape} along {axes}")
    if mode not in _REDUCTIONS:
        raise fault(command, f"there is no mode {mode}")
    if mode == Reduction.ARGMAX:
        if target.dtype != np.int64 or len(axes) != 1:
            raise fault(command, f"ARGMAX to {target.dtype.name} along {axes}")
    else:
        check_types(command, target, first)
    if mode not in (Reduction.MAXIMUM, Reduction.MINIMUM):
        check_number(command, first)
    return np.asarray(_REDUCTIONS[mode](computing(first), axes))


def softmax(command: Command, target: Array, first: Array) -> Array:
    """SOFTMAX, or its logarithm with `mode` 1; the maximum is subtracted first."""
    check_dims(command, target, first)
    check_floating(command, target, first)
    mode = command.settings.mode
    if mode not in (0, 1):
        raise fault(command, f"there is no mode {mode}")
    axes = axes_of(command, first.ndim)
    x = computing(first)
    shifted = np.asarray(x - np.maximum.reduce(x, axis=axes, keepdims=True))
    powers = np.exp(shifted)
    total = np.add.reduce(powers, axis=axes, keepdims=True)
    return np.asarray(shifted - np.log(total) if mode else powers / total)


def normalize(command: Command, target: Array, first: Array, second: Array | None, third: Array | None) -> Array:
    """NORMALIZE to mean 0 and variance 1 along the axes, then scale and shift; the variance is of centred values."""
    check_dims(command, target, *(item for item in (first, second, third) if item is not None))
    check_floating(command, *(item for item in (target, first, second, third) if item is not None))
    axes = axes_of(command, first.ndim)
    x = computing(first)
    values = np.asarray(x - _mean(x, axes))
    values /= np.sqrt(_mean(np.square(values), axes) + command.settings.alpha)
    if second is not None:
        values *= computing(second)
    if third is not None:
        values += computing(third)
    return activate_own(values, command.settings)


def local_response(command: Command, target: Array, first: Array) -> Array:
    """LRN across the last axis: return x / (gamma + alpha / size * sum of squares around it) ** beta, as in ONNX."""
    check_dims(command, target, first)
    check_floating(command, target, first)
    settings = command.settings
    size = settings.mode
    if not 1 <= size < 1 << 31 or first.ndim == 0:
        raise fault(command, f"a window of {size} channels of rank {first.ndim}")
    x = computing(first)
    squares = np.square(x)
    total = squares.copy()
    channels = x.shape[-1]
    for step in range(1, min(channels, size - 1 - (size - 1) // 2 + 1)):
        total[..., :-step] += squares[..., step:]
        if step <= (size - 1) // 2:
            total[..., step:] += squares[..., :-step]
    base = np.asarray(settings.gamma + settings.alpha / size * total)
    return activate(cast(Array, x / np.power(base, settings.beta)), settings)


def piecewise_linear(command: Command, target: Array, first: Array, second: Array) -> Array:
    """TABLE: return the function of every element; the first and the last segment continue without end."""
    check_dims(command, target, first)
    check_floating(command, first)
    check_floating(command, second)
    if second.ndim != 2 or len(second) != 2 or second.shape[1] < _FEWEST_BREAKPOINTS:
        raise fault(command, f"a table of dims {second.shape}")
    x, (breakpoints, values) = computing(first), computing(second)
    widths = np.diff(breakpoints)
    if not (widths > 0).all():
        raise fault(command, "the breakpoints of the table do not ascend")
    slopes = np.diff(values) / widths
    segment = np.clip(np.searchsorted(breakpoints, x, side="right") - 1, 0, slopes.size - 1)
    found = np.asarray(x - breakpoints[segment])
    found *= slopes[segment]
    found += values[segment]
    return activate_own(found, command.settings)
