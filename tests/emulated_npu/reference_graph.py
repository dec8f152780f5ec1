"""A slow and simple interpreter of graphs of hardware layers: whole arrays through views, from the definitions.

It shares nothing with the functional machine, and checks that importing and folding keep the values of a network.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from scipy.special import erf

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, LazyConstant, View
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings


def run_graph(graph: Graph, inputs: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of the network; raise AssertionError for a value written twice or read too early."""
    return _Interpreter(graph, weights).run(inputs)


class _Interpreter:
    def __init__(self, graph: Graph, weights: Mapping[str, Array]) -> None:
        self._graph = graph
        self._weights = weights
        self._arrays: dict[str, Array] = {}
        self._written: dict[str, Array] = {}
        for name, value in graph.values.items():
            assert sorted(value.order) == list(range(len(value.shape))), name
            if value.constant is not None:
                self._arrays[name] = self._values(value.constant)
            else:
                self._arrays[name] = np.zeros(value.shape, NUMPY_TYPES[value.dtype])
            self._written[name] = np.full(value.shape, value.kind != "activation")

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for name in self._graph.inputs:
            self._arrays[name][...] = inputs[name]
        for layer in self._graph.layers:
            self._execute(layer)
        for name in self._graph.outputs:
            assert self._written[name].all(), f"{name} is not complete"
        return {name: self._arrays[name] for name in self._graph.outputs}

    def _values(self, constant: LazyConstant) -> Array:
        array = np.array(constant.compute(*(self._weights[name] for name in constant.sources)))
        assert array.shape == constant.shape, constant.name
        assert array.dtype == NUMPY_TYPES[constant.dtype], constant.name
        return array

    def _execute(self, layer: HardwareLayer) -> None:
        for view in layer.reads:
            assert _seen(self._written[view.value], view).all(), f"{layer.name} reads what is not written"
        written = _seen(self._written[layer.output.value], layer.output)
        assert not written.any(), f"{layer.name} writes twice"
        written[...] = True
        inputs = [_seen(self._arrays[view.value], view) for view in layer.inputs]
        output = _seen(self._arrays[layer.output.value], layer.output)
        result = np.asarray(self._computed(layer, inputs, output))
        assert result.shape == output.shape, f"{layer.name}: {result.shape} for {output.shape}"
        output[...] = result

    def _computed(self, layer: HardwareLayer, inputs: list[Array], output: Array) -> Array:
        settings, function = layer.settings, layer.function
        if function == Function.FILL:
            return np.full(output.shape, settings.alpha)
        if function == Function.GATHER:
            return inputs[0][inputs[1]]
        if function in (Function.COPY, Function.REDUCE, Function.SOFTMAX):
            assert settings.activation == Activation.NONE
            result = _PLAIN[function](inputs, settings)
            return result.astype(output.dtype)
        if function in (Function.CONVOLVE, Function.DEPTHWISE):
            result = self._product(layer, inputs, output)
        elif function in (Function.POOL_MAX, Function.POOL_AVERAGE):
            result = _pooled(inputs[0], output.shape, settings, function)
        else:
            result = _PLAIN[function](inputs, settings)
        return activated(result, settings)

    def _product(self, layer: HardwareLayer, inputs: list[Array], output: Array) -> Array:
        # OpenBLAS may raise the invalid flag for lanes that it does not keep; callers compare the values.
        with np.errstate(invalid="ignore"):
            if layer.matrix:
                second = inputs[1] if layer.weights is None else self._values(layer.weights)
                result = inputs[0] @ second
            else:
                assert layer.weights is not None
                result = _convolved(inputs[0], self._values(layer.weights), output.shape, layer)
        if layer.scale_shift is not None:
            axis = -1 if layer.matrix else 1
            shape = [1] * result.ndim
            shape[axis] = -1
            scale, shift = (row.reshape(shape) for row in self._values(layer.scale_shift))
            result = result * scale + shift
        if layer.residual is not None:
            result = result + _seen(self._arrays[layer.residual.value], layer.residual)
        return result


def _seen(array: Array, view: View) -> Array:
    """Return a writable view of an array; assert that its elements lie within the array."""
    low, high = list(view.start), list(view.start)
    for axis in view.axes:
        if axis.base is not None:
            far = (axis.size - 1) * axis.step
            low[axis.base] += min(far, 0)
            high[axis.base] += max(far, 0)
    assert len(view.start) == array.ndim
    assert all(0 <= first <= last < size for first, last, size in zip(low, high, array.shape, strict=True)), view
    origin = array[(*(slice(start, start + 1) for start in view.start), ...)]
    strides = [0 if axis.base is None else array.strides[axis.base] * axis.step for axis in view.axes]
    return as_strided(origin, view.shape, strides)


def _windows(array: Array, output: tuple[int, ...], settings: Settings, filler: float) -> Array:
    """Return windows (N, C, spatial of the output..., kernel...) of an array (N, C, spatial...)."""
    count = array.ndim - 2
    kernel, stride, dilation, pad = (
        triple[3 - count :] for triple in (settings.kernel, settings.stride, settings.dilation, settings.pad)
    )
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    needed = [(size - 1) * step + span for size, step, span in zip(output[2:], stride, reach, strict=True)]
    behind = [max(0, want - before - have) for want, before, have in zip(needed, pad, array.shape[2:], strict=True)]
    padded = np.pad(array, [(0, 0), (0, 0), *zip(pad, behind, strict=True)], constant_values=filler)
    windows = sliding_window_view(padded, reach, axis=tuple(range(2, 2 + count)))
    steps = [slice(0, (size - 1) * step + 1, step) for size, step in zip(output[2:], stride, strict=True)]
    return windows[(slice(None), slice(None), *steps, *(slice(None, None, step) for step in dilation))]


def _convolved(array: Array, weights: Array, output: tuple[int, ...], layer: HardwareLayer) -> Array:
    count = array.ndim - 2
    assert layer.settings.kernel[3 - count :] == weights.shape[2:]
    depthwise = layer.function == Function.DEPTHWISE
    assert layer.groups == array.shape[1] if depthwise else layer.groups < max(2, array.shape[1])
    windows = _windows(array, output, layer.settings, 0.0)
    results = []
    for part, own in zip(np.split(windows, layer.groups, 1), np.split(weights, layer.groups), strict=True):
        axes = (1, *range(2 + count, 2 + 2 * count))
        results.append(np.moveaxis(np.tensordot(part, own, (axes, (1, *range(2, 2 + count)))), -1, 1))
    return np.concatenate(results, 1)


def _pooled(array: Array, output: tuple[int, ...], settings: Settings, function: Function) -> Array:
    count = array.ndim - 2
    axes = tuple(range(-count, 0))
    if function == Function.POOL_MAX:
        lowest = -np.inf if array.dtype.kind == "f" else np.iinfo(array.dtype).min
        return _windows(array, output, settings, lowest).max(axes)
    total = _windows(array, output, settings, 0.0).sum(axes)
    if settings.mode == 1:
        return (total / math.prod(settings.kernel)).astype(array.dtype)
    return (total / _windows(np.ones_like(array), output, settings, 0.0).sum(axes)).astype(array.dtype)


def _binary(inputs: list[Array], settings: Settings) -> Array:
    first, second = inputs
    mode = Binary(settings.mode)
    if mode == Binary.DIVIDE and first.dtype.kind in "iu":
        return np.trunc(first / second).astype(first.dtype)
    if mode == Binary.PRELU:
        return np.where(first >= 0, first, first * second)
    return _BINARY[mode](first, second)


_BINARY: Mapping[Binary, Callable[..., Array]] = {
    Binary.ADD: np.add,
    Binary.SUBTRACT: np.subtract,
    Binary.MULTIPLY: np.multiply,
    Binary.DIVIDE: np.divide,
    Binary.POWER: np.power,
    Binary.MAXIMUM: np.maximum,
    Binary.MINIMUM: np.minimum,
    Binary.EQUAL: np.equal,
    Binary.LESS: np.less,
    Binary.LESS_EQUAL: np.less_equal,
    Binary.GREATER: np.greater,
    Binary.GREATER_EQUAL: np.greater_equal,
    Binary.AND: np.logical_and,
    Binary.OR: np.logical_or,
    Binary.XOR: np.logical_xor,
    Binary.MODULO: np.mod,
    Binary.FLOOR_MODULO: lambda a, b: a - b * np.floor(a / b),
    Binary.TRUNCATED_MODULO: np.fmod,
}


def _axes(settings: Settings, array: Array) -> tuple[int, ...]:
    return tuple(axis for axis in range(array.ndim) if settings.axes >> axis & 1)


def _reduced(inputs: list[Array], settings: Settings) -> Array:
    (array,) = inputs
    axes = _axes(settings, array)
    if settings.mode == Reduction.ARGMAX:
        return np.expand_dims(array.argmax(axes[0]), axes[0])
    functions: Mapping[int, Callable[[Array], Array]] = {
        Reduction.SUM: lambda x: x.sum(axes, keepdims=True),
        Reduction.MEAN: lambda x: x.mean(axes, keepdims=True),
        Reduction.MAXIMUM: lambda x: x.max(axes, keepdims=True),
        Reduction.MINIMUM: lambda x: x.min(axes, keepdims=True),
        Reduction.PRODUCT: lambda x: x.prod(axes, keepdims=True),
        Reduction.SUM_SQUARE: lambda x: (x * x).sum(axes, keepdims=True),
        Reduction.L1: lambda x: np.abs(x).sum(axes, keepdims=True),
        Reduction.L2: lambda x: np.sqrt((x * x).sum(axes, keepdims=True)),
    }
    return functions[settings.mode](array)


def _softmax(inputs: list[Array], settings: Settings) -> Array:
    (array,) = inputs
    axes = _axes(settings, array)
    below = array - array.max(axes, keepdims=True)
    if settings.mode == 1:
        return below - np.log(np.exp(below).sum(axes, keepdims=True))
    return np.exp(below) / np.exp(below).sum(axes, keepdims=True)


def _normalised(inputs: list[Array], settings: Settings) -> Array:
    array, *factors = inputs
    axes = _axes(settings, array)
    difference = array - array.mean(axes, keepdims=True)
    result = difference / np.sqrt((difference**2).mean(axes, keepdims=True) + settings.alpha)
    if factors:
        result = result * factors[0]
    return result + factors[1] if len(factors) > 1 else result


def _response_normalised(inputs: list[Array], settings: Settings) -> Array:
    (array,) = inputs
    size, channels = settings.mode, array.shape[1]
    total = np.zeros_like(array)
    for channel in range(channels):
        first, last = max(0, channel - (size - 1) // 2), min(channels, channel + size // 2 + 1)
        total[:, channel] = (array[:, first:last] ** 2).sum(1)
    return array / (settings.gamma + settings.alpha / size * total) ** settings.beta


def _of_table(inputs: list[Array], _: Settings) -> Array:
    array, (at, values) = inputs
    slopes = np.diff(values) / np.diff(at)
    below, above = np.minimum(array - at[0], 0) * slopes[0], np.maximum(array - at[-1], 0) * slopes[-1]
    return np.interp(array, at, values).astype(array.dtype) + below + above


_PLAIN: Mapping[Function, Callable[[list[Array], Settings], Array]] = {
    Function.COPY: lambda inputs, _: inputs[0],
    Function.MAP: lambda inputs, _: inputs[0],
    Function.BINARY: _binary,
    Function.AFFINE: lambda inputs, _: inputs[0] * inputs[1] + inputs[2],
    Function.WHERE: lambda inputs, _: np.where(*inputs),
    Function.REDUCE: _reduced,
    Function.SOFTMAX: _softmax,
    Function.NORMALIZE: _normalised,
    Function.LRN: _response_normalised,
    Function.TABLE: _of_table,
}


def activated(x: Array, settings: Settings) -> Array:
    """Return the activation of the settings, in the type of x."""
    a, b = settings.alpha, settings.beta
    if settings.activation == Activation.NONE:
        return x
    with np.errstate(all="ignore"):
        return np.asarray(_ACTIVATIONS[settings.activation](x, a, b)).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


_ACTIVATIONS: Mapping[Activation, Callable[[Array, float, float], Any]] = {
    Activation.RELU: lambda x, *_: np.maximum(x, 0),
    Activation.LEAKY_RELU: lambda x, a, _: np.where(x < 0, a * x, x),
    Activation.CLIP: lambda x, a, b: np.minimum(np.maximum(x, a), b),
    Activation.SIGMOID: lambda x, *_: _sigmoid(x),
    Activation.TANH: lambda x, *_: np.tanh(x),
    Activation.HARD_SIGMOID: lambda x, a, b: np.clip(a * x + b, 0, 1),
    Activation.HARD_SWISH: lambda x, *_: x * np.clip(x / 6 + 0.5, 0, 1),
    Activation.SWISH: lambda x, a, _: x * _sigmoid(a * x),
    Activation.GELU: lambda x, *_: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    Activation.GELU_TANH: lambda x, *_: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.ELU: lambda x, a, _: np.where(x < 0, a * np.expm1(x), x),
    Activation.SELU: lambda x, a, b: b * np.where(x < 0, a * np.expm1(x), x),
    Activation.CELU: lambda x, a, _: np.maximum(x, 0) + np.minimum(0, a * np.expm1(x / a)),
    Activation.THRESHOLDED_RELU: lambda x, a, _: np.where(x > a, x, 0),
    Activation.SOFTPLUS: lambda x, *_: _softplus(x),
    Activation.SOFTSIGN: lambda x, *_: x / (1 + np.abs(x)),
    Activation.MISH: lambda x, *_: x * np.tanh(_softplus(x)),
    Activation.ERF: lambda x, *_: erf(x),
    Activation.EXP: lambda x, *_: np.exp(x),
    Activation.LOG: lambda x, *_: np.log(x),
    Activation.SQRT: lambda x, *_: np.sqrt(x),
    Activation.RECIPROCAL: lambda x, *_: 1 / x,
    Activation.NEGATE: lambda x, *_: -x,
    Activation.ABS: lambda x, *_: np.abs(x),
    Activation.FLOOR: lambda x, *_: np.floor(x),
    Activation.CEIL: lambda x, *_: np.ceil(x),
    Activation.ROUND: lambda x, *_: np.round(x),
    Activation.SIGN: lambda x, *_: np.sign(x),
    Activation.NOT: lambda x, *_: np.logical_not(x),
    Activation.SIN: lambda x, *_: np.sin(x),
    Activation.COS: lambda x, *_: np.cos(x),
    Activation.TAN: lambda x, *_: np.tan(x),
    Activation.ASIN: lambda x, *_: np.arcsin(x),
    Activation.ACOS: lambda x, *_: np.arccos(x),
    Activation.ATAN: lambda x, *_: np.arctan(x),
    Activation.SINH: lambda x, *_: np.sinh(x),
    Activation.COSH: lambda x, *_: np.cosh(x),
    Activation.ASINH: lambda x, *_: np.arcsinh(x),
    Activation.ACOSH: lambda x, *_: np.arccosh(x),
    Activation.ATANH: lambda x, *_: np.arctanh(x),
    Activation.SCALE: lambda x, a, b: a * x + b,
}
