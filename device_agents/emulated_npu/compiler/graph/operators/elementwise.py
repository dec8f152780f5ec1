"""Elementwise operators: arithmetic, comparisons, logic, selection and functions of one variable.

PiecewiseLinear is the operator of an activation that a user gives as a table. It is not of ONNX: its domain is
`harness`. Its attributes `breakpoints` and `values` have one number for each point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import FLOATS, converted, scalar_of
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary

DOMAIN, PIECEWISE_LINEAR = "harness", "PiecewiseLinear"
FEWEST_POINTS, MOST_POINTS = 2, 1024
_INTEGER_BOUNDS = {
    DataType.INT8: (-(2**7), 2**7 - 1),
    DataType.UINT8: (0, 2**8 - 1),
    DataType.INT32: (-(2**31), 2**31 - 1),
    DataType.INT64: (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True)
class _Unary:
    """A function of one variable: its parameters are attributes of the node, with their defaults."""

    activation: Activation
    alpha: tuple[str, float] = ("", 0.0)
    beta: tuple[str, float] = ("", 0.0)

    def __call__(self, build: Builder, node: OnnxNode) -> None:
        alpha, beta = (node.attribute(*parameter) for parameter in (self.alpha, self.beta))
        build.map(build.view(node.inputs[0]), build.result(), self.activation, alpha, beta)


_ACTIVATIONS = ["Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish"]
_FUNCTIONS = ["Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Floor", "Ceil", "Round", "Sign", "Not"]
_TRIGONOMETRY = ["Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"]
"""Operators without parameters, by the names of `Activation`."""

_UNARY: Mapping[str, Handler] = {
    **{operator: _Unary(Activation[operator.upper()]) for operator in (*_ACTIVATIONS, *_FUNCTIONS, *_TRIGONOMETRY)},
    "LeakyRelu": _Unary(Activation.LEAKY_RELU, ("alpha", 0.01)),
    "HardSigmoid": _Unary(Activation.HARD_SIGMOID, ("alpha", 0.2), ("beta", 0.5)),
    "HardSwish": _Unary(Activation.HARD_SWISH),
    "Swish": _Unary(Activation.SWISH, ("alpha", 1.0)),
    "Elu": _Unary(Activation.ELU, ("alpha", 1.0)),
    "Selu": _Unary(Activation.SELU, ("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    "Celu": _Unary(Activation.CELU, ("alpha", 1.0)),
    "ThresholdedRelu": _Unary(Activation.THRESHOLDED_RELU, ("alpha", 1.0)),
    "Neg": _Unary(Activation.NEGATE),
}
_BINARY = {
    "Add": Binary.ADD,
    "Sub": Binary.SUBTRACT,
    "Mul": Binary.MULTIPLY,
    "Div": Binary.DIVIDE,
    "Equal": Binary.EQUAL,
    "Less": Binary.LESS,
    "LessOrEqual": Binary.LESS_EQUAL,
    "Greater": Binary.GREATER,
    "GreaterOrEqual": Binary.GREATER_EQUAL,
    "And": Binary.AND,
    "Or": Binary.OR,
    "Xor": Binary.XOR,
}
_VARIADIC = {"Sum": Binary.ADD, "Mean": Binary.ADD, "Max": Binary.MAXIMUM, "Min": Binary.MINIMUM}


def _gelu(build: Builder, node: OnnxNode) -> None:
    tanh = (node.attribute("approximate") or b"none") == b"tanh"
    build.map(build.view(node.inputs[0]), build.result(), Activation.GELU_TANH if tanh else Activation.GELU)


def clip(build: Builder, node: OnnxNode) -> None:
    """Add a Clip: bounds are attributes or inputs; computed bounds become a maximum and a minimum."""
    source, kind = build.view(node.inputs[0]), build.type(node.outputs[0])
    lowest, highest = _INTEGER_BOUNDS.get(kind.dtype, (float("-inf"), float("inf")))
    bounds = [node.attribute("min", lowest), node.attribute("max", highest)]
    unknown = []
    for place in (1, 2):
        if node.input(place) and build.known(node.input(place)) is None:
            unknown.append(place)
        elif node.input(place):
            bounds[place - 1] = build.number(node.input(place), "bound")
    for place in unknown:
        output = build.result() if place == unknown[-1] else build.temporary("low", kind.shape, kind.dtype)
        build.binary(Binary.MAXIMUM if place == 1 else Binary.MINIMUM, source, build.view(node.inputs[place]), output)
        source = output
    if not unknown:
        build.map(source, build.result(), Activation.CLIP, *bounds)


def linear(op: str, scalar: float, scalar_first: bool) -> tuple[float, float] | None:
    """Return factor and offset of x op scalar (or scalar op x); None if this is not a linear function of x."""
    if op == "Add":
        return 1.0, scalar
    if op == "Sub":
        return (-1.0, scalar) if scalar_first else (1.0, -scalar)
    if op == "Mul":
        return scalar, 0.0
    if op == "Div" and not scalar_first and scalar != 0:
        return 1.0 / scalar, 0.0
    return None


def _arithmetic(build: Builder, node: OnnxNode) -> None:
    """Add a function of two operands; a known scalar becomes part of the layer's settings."""
    kind = build.type(node.outputs[0])
    for place, other in ((1, 0), (0, 1)):
        constant = build.constant(node.inputs[place])
        scalar = scalar_of(constant) if constant is not None and kind.dtype in FLOATS else None
        settings = linear(node.op, scalar, place == 0) if scalar is not None else None
        if settings is not None:
            source = views.expanded(build.view(node.inputs[other]), kind.shape)
            build.map(source, build.result(), Activation.SCALE, *settings)
            return
    first, second = (build.view(name) for name in node.inputs)
    build.binary(_BINARY[node.op], first, second, build.result())


def _variadic(build: Builder, node: OnnxNode) -> None:
    """Add a Sum, Mean, Max or Min of any number of operands, two at a time."""
    kind = build.type(node.outputs[0])
    total, *rest = (build.view(name) for name in node.inputs)
    count = len(node.inputs)
    if not rest:
        build.bind(node.outputs[0], total)
        return
    for place, view in enumerate(rest):
        last = place == len(rest) - 1 and node.op != "Mean"
        output = build.result() if last else build.temporary(f"{place}", kind.shape, kind.dtype)
        build.binary(_VARIADIC[node.op], total, view, output)
        total = output
    if node.op == "Mean":
        build.map(total, build.result(), Activation.SCALE, 1 / count, 0.0)


def power(build: Builder, node: OnnxNode) -> None:
    """Add a Pow; known exponents 2 and 0.5 become simpler functions."""
    source, kind = build.view(node.inputs[0]), build.type(node.outputs[0])
    constant = build.constant(node.inputs[1])
    exponent = scalar_of(constant) if constant is not None else None
    same_shape = source.shape == kind.shape
    if exponent == 2 and same_shape:
        build.binary(Binary.MULTIPLY, source, source, build.result())
    elif exponent == 0.5 and same_shape and kind.dtype in FLOATS:
        build.map(source, build.result(), Activation.SQRT)
    else:
        build.binary(Binary.POWER, source, _as_type(build, node.inputs[1], kind.dtype), build.result())


def _as_type(build: Builder, tensor: str, dtype: DataType) -> View:
    """Return the tensor in another element type; a computed tensor is copied."""
    kind, constant = build.type(tensor), build.constant(tensor)
    if constant is not None:
        return build.constant_view(converted(constant, dtype))
    if kind.dtype == dtype:
        return build.view(tensor)
    target = build.temporary("converted", kind.shape, dtype)
    build.copy(build.view(tensor), target)
    return target


def _modulo(build: Builder, node: OnnxNode) -> None:
    """Add a Mod: with `fmod` its sign is that of the dividend, else that of the divisor."""
    first, second = (build.view(name) for name in node.inputs)
    floor = Binary.FLOOR_MODULO if build.dtype(first) in FLOATS else Binary.MODULO
    build.binary(Binary.TRUNCATED_MODULO if node.attribute("fmod", 0) else floor, first, second, build.result())


def _prelu(build: Builder, node: OnnxNode) -> None:
    build.binary(Binary.PRELU, build.view(node.inputs[0]), build.view(node.inputs[1]), build.result())


def _shrink(build: Builder, node: OnnxNode) -> None:
    """Add a Shrink: numbers beyond lambd move by the bias towards zero, those between become zero."""
    source, output = build.view(node.inputs[0]), build.result()
    dtype, bias, limit = build.dtype(source), node.attribute("bias", 0.0), node.attribute("lambd", 0.5)
    if dtype not in FLOATS:
        raise unsupported(node, f"Its element type is {dtype.name.lower()}; only numbers with fractions shrink")
    rest = views.expanded(build.fixed("zero", np.zeros(()), dtype), output.shape)
    for name, mode, end, sign in (("above", Binary.GREATER, limit, -1.0), ("below", Binary.LESS, -limit, 1.0)):
        beyond = build.combined(name, mode, source, build.fixed(f"{name} limit", end, dtype), DataType.BOOL)
        moved = build.mapped(f"moved {name}", source, Activation.SCALE, 1.0, sign * bias)
        chosen = output if name == "below" else build.temporary("chosen", output.shape, dtype)
        build.layer(Function.WHERE, [beyond, moved, rest], chosen)
        rest = chosen


def _binarizer(build: Builder, node: OnnxNode) -> None:
    """Add a Binarizer of ONNX's domain for machine learning: 1 above the threshold, else 0."""
    source = build.view(node.inputs[0])
    limit = build.fixed("threshold", node.attribute("threshold", 0.0), build.dtype(source))
    build.copy(build.combined("above", Binary.GREATER, source, limit, DataType.BOOL), build.result())


def _is_nan(build: Builder, node: OnnxNode) -> None:
    """Add an IsNaN: only what is not a number differs from itself."""
    source = build.view(node.inputs[0])
    same = build.combined("same", Binary.EQUAL, source, source, DataType.BOOL)
    build.map(same, build.result(), Activation.NOT)


def _is_infinite(build: Builder, node: OnnxNode) -> None:
    """Add an IsInf of both signs, or of one."""
    source = build.view(node.inputs[0])
    dtype = build.dtype(source)
    positive, negative = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    if positive and negative:
        source = build.mapped("magnitude", source, Activation.ABS)
    wanted = (float("inf") if positive else float("-inf")) if positive or negative else float("nan")
    build.binary(Binary.EQUAL, source, build.fixed("infinity", wanted, dtype), build.result())


def _where(build: Builder, node: OnnxNode) -> None:
    output = build.result()
    build.layer(Function.WHERE, [views.expanded(build.view(name), output.shape) for name in node.inputs], output)


def _trilu(build: Builder, node: OnnxNode) -> None:
    """Add a Trilu of constant diagonal: zeros below it, or above it."""
    output = build.result()
    diagonal = int(build.number(node.inputs[1], "diagonal")) if node.input(1) else 0
    upper = bool(node.attribute("upper", 1))
    rows, columns = output.shape[-2:]
    kept = np.tri(rows, columns, diagonal - upper, dtype=bool) != upper
    parts = build.fixed("kept", kept, DataType.BOOL), build.fixed("zero", np.zeros(()), build.dtype(output))
    mask, rest = (views.expanded(part, output.shape) for part in parts)
    build.layer(Function.WHERE, [mask, build.view(node.inputs[0]), rest], output)


def _cast(build: Builder, node: OnnxNode) -> None:
    source, kind = build.view(node.inputs[0]), build.type(node.outputs[0])
    if build.dtype(source) == kind.dtype:
        build.bind(node.outputs[0], source)
    else:
        build.copy(source, build.result())


def _piecewise_linear(build: Builder, node: OnnxNode) -> None:
    """Add a TABLE, which reads its points from NB; raises UnsupportedOperator for points that define no function."""
    source, dtype = build.view(node.inputs[0]), build.type(node.outputs[0]).dtype
    breakpoints, values = (list(node.attribute(name) or ()) for name in ("breakpoints", "values"))
    if dtype not in FLOATS:
        raise unsupported(node, f"It is a function of {dtype.name.lower()}; only floating point is supported")
    if len(breakpoints) != len(values) or not FEWEST_POINTS <= len(values) <= MOST_POINTS:
        why = f"It has {len(breakpoints)} breakpoints and {len(values)} values"
        raise unsupported(node, f"{why}; as many of both are needed, from {FEWEST_POINTS} to {MOST_POINTS}")
    points = np.array([breakpoints, values], NUMPY_TYPES[dtype])
    if not np.isfinite(points).all() or not (np.diff(points[0]) > 0).all():
        raise unsupported(node, f"Its points are not finite, or its breakpoints do not ascend in {dtype.name.lower()}")
    build.layer(Function.TABLE, [source, build.fixed("table", points, dtype)], build.result())


_OTHERS: dict[str, Any] = {
    "Gelu": _gelu,
    "Clip": clip,
    "Pow": power,
    "Mod": _modulo,
    "PRelu": _prelu,
    "Shrink": _shrink,
    "Binarizer": _binarizer,
    "IsNaN": _is_nan,
    "IsInf": _is_infinite,
    "Where": _where,
    "Trilu": _trilu,
    "Cast": _cast,
    "CastLike": _cast,
    PIECEWISE_LINEAR: _piecewise_linear,
}
HANDLERS: Mapping[str, Handler] = {
    **_UNARY,
    **dict.fromkeys(_BINARY, _arithmetic),
    **dict.fromkeys(_VARIADIC, _variadic),
    **_OTHERS,
}
