"""Functions of one variable, for MAP and for the epilogue of other commands.

They compute in the type of the argument: float32 or float64, and integers or booleans if ONNX defines it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_settings import Activation, Settings

# Minimax polynomials by N. Juffa for the error function in float32; ONNX Runtime uses the same. Highest power first.
_ERF_SMALL = (-5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1, 1.28379151e-1)
_ERF_LARGE = (1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1, 6.34846687e-1, 1.28717512e-1)
_ERF_SPLIT = 0.921875
_ERF_ONE = 3.925  # beyond this the error function is 1 in float32

_erf_exact = np.frompyfunc(math.erf, 1, 1)


def erf(values: Array) -> Array:
    """Return the error function; its absolute error is below 1e-7 in float32, float64 is exact to the last place."""
    if values.dtype == np.float64:
        return np.asarray(_erf_exact(values), np.float64)
    magnitude = np.abs(values)
    square = values * values
    near = _polynomial(_ERF_SMALL, square)
    near *= values
    near += values
    clipped = np.minimum(magnitude, np.float32(_ERF_ONE))
    far = _polynomial(_ERF_LARGE, clipped)
    far *= clipped
    far += clipped
    np.exp(-far, out=far)
    np.subtract(1, far, out=far)
    return np.where(magnitude <= _ERF_SPLIT, near, np.copysign(far, values))


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= x
        result += np.float32(coefficient)
    return result


def _sigmoid(x: Array) -> Array:
    # If exp overflows, 1 / infinity is the correct 0.
    return np.asarray(1 / (1 + np.exp(-x)))


def _hard_sigmoid(x: Array, slope: float, offset: float) -> Array:
    return np.asarray(np.maximum(0, np.minimum(1, slope * x + offset)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0))


def _exponential_tail(x: Array) -> Array:
    """Return exp(x) - 1 for negative x, else 0."""
    return np.asarray(np.expm1(np.minimum(x, 0)))


def _clip(x: Array, low: float, high: float) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.minimum(np.maximum(x, low), high))
    return np.asarray(np.minimum(np.maximum(x, _whole(low, x.dtype)), _whole(high, x.dtype)))


def _whole(bound: float, dtype: np.dtype[Any]) -> int:
    """Return the bound as a number of an integer type; infinity becomes the largest value."""
    ends = np.iinfo(dtype)
    if not bound > ends.min:
        return int(ends.min)
    return int(bound) if bound < ends.max else int(ends.max)


_Function = Callable[[Array, Settings], Array]

_OF_ANY_NUMBER: dict[Activation, _Function] = {
    Activation.RELU: lambda x, _: np.maximum(x, 0),
    Activation.CLIP: lambda x, s: _clip(x, s.alpha, s.beta),
    Activation.NEGATE: lambda x, _: np.negative(x),
    Activation.ABS: lambda x, _: np.abs(x),
    Activation.SIGN: lambda x, _: np.sign(x),
}

_OF_FLOATS: dict[Activation, _Function] = {
    Activation.LEAKY_RELU: lambda x, s: np.where(x >= 0, x, s.alpha * x),
    Activation.SIGMOID: lambda x, _: _sigmoid(x),
    Activation.TANH: lambda x, _: np.tanh(x),
    Activation.HARD_SIGMOID: lambda x, s: _hard_sigmoid(x, s.alpha, s.beta),
    Activation.HARD_SWISH: lambda x, _: x * _hard_sigmoid(x, 1 / 6, 0.5),
    Activation.SWISH: lambda x, s: x * _sigmoid(s.alpha * x),
    Activation.GELU: lambda x, _: 0.5 * x * (1 + erf(np.asarray(x * math.sqrt(0.5)))),
    Activation.GELU_TANH: lambda x, _: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    Activation.ELU: lambda x, s: np.where(x >= 0, x, s.alpha * _exponential_tail(x)),
    Activation.SELU: lambda x, s: s.beta * np.where(x > 0, x, s.alpha * _exponential_tail(x)),
    Activation.SOFTPLUS: lambda x, _: _softplus(x),
    Activation.ERF: lambda x, _: erf(x),
    Activation.EXP: lambda x, _: np.exp(x),
    Activation.LOG: lambda x, _: np.log(x),
    Activation.SQRT: lambda x, _: np.sqrt(x),
    Activation.RECIPROCAL: lambda x, _: 1 / x,
    Activation.FLOOR: lambda x, _: np.floor(x),
    Activation.CEIL: lambda x, _: np.ceil(x),
    Activation.ROUND: lambda x, _: np.rint(x),
    Activation.SOFTSIGN: lambda x, _: x / (1 + np.abs(x)),
    Activation.MISH: lambda x, _: x * np.tanh(_softplus(x)),
    Activation.SIN: lambda x, _: np.sin(x),
    Activation.COS: lambda x, _: np.cos(x),
    Activation.TAN: lambda x, _: np.tan(x),
    Activation.ASIN: lambda x, _: np.arcsin(x),
    Activation.ACOS: lambda x, _: np.arccos(x),
    Activation.ATAN: lambda x, _: np.arctan(x),
    Activation.SINH: lambda x, _: np.sinh(x),
    Activation.COSH: lambda x, _: np.cosh(x),
    Activation.ASINH: lambda x, _: np.arcsinh(x),
    Activation.ACOSH: lambda x, _: np.arccosh(x),
    Activation.ATANH: lambda x, _: np.arctanh(x),
    Activation.SCALE: lambda x, s: s.alpha * x + s.beta,
    Activation.CELU: lambda x, s: np.maximum(x, 0) + s.alpha * _exponential_tail(x / np.asarray(s.alpha, x.dtype)),
    Activation.THRESHOLDED_RELU: lambda x, s: np.where(x > s.alpha, x, np.zeros((), x.dtype)),
}


def activate(values: Array, settings: Settings) -> Array:
    """Return `settings.activation` of every element; without an activation, the argument itself.

    Raises ExecutionFault if the function is not defined for the type.
    """
    activation = settings.activation
    if activation is Activation.NONE:
        return values
    kind = values.dtype.kind
    if kind == "b":
        if activation is Activation.NOT:
            return np.logical_not(values)
    elif activation is Activation.NOT and kind != "f":
        return np.invert(values)
    elif activation in _OF_ANY_NUMBER:
        return _OF_ANY_NUMBER[activation](values, settings)
    elif activation in _OF_FLOATS and kind == "f":
        return _OF_FLOATS[activation](values, settings)
    raise ExecutionFault(f"{activation.name} of {values.dtype.name}", "the function is not defined for this type")


def activate_own(values: Array, settings: Settings) -> Array:
    """Return the same as `activate`, possibly in the memory of `values`, which the caller must not use again."""
    if settings.activation is Activation.RELU and values.dtype.kind != "b":
        return np.maximum(values, 0, out=values)
    return activate(values, settings)
