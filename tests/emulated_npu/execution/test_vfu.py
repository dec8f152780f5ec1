"""The vector unit against ONNX Runtime, function by function."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper
from scratchpad import Array, of_onnx, result

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.execution.activations import erf
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 1 << 32)
INTEGERS = (np.int32, np.int64)


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    """Seeded float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def whole(shape: tuple[int, ...], seed: int, dtype: Any) -> Array:
    """Seeded integers of both signs, without zero."""
    values = np.random.default_rng(seed).integers(1, 20, shape)
    return (values * np.random.default_rng(seed + 1).choice([-1, 1], shape)).astype(dtype)


def close(ours: Array, theirs: Array, tolerance: float = 2e-6) -> None:
    """Return whether values are equal within float32's rounding, infinities and NaN included."""
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


PLAIN = [
    *("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "Gelu", "Erf", "Exp", "Log", "Sqrt"),
    *("Reciprocal", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
]
ACTIVATIONS: list[tuple[Activation, tuple[float, float], str, dict[str, Any]]] = [
    *((Activation[name.upper()], (0.0, 0.0), name, dict[str, Any]()) for name in PLAIN),
    (Activation.HARD_SWISH, (0, 0), "HardSwish", {}),
    (Activation.NEGATE, (0, 0), "Neg", {}),
    (Activation.GELU_TANH, (0, 0), "Gelu", {"approximate": "tanh"}),
    (Activation.LEAKY_RELU, (0.1, 0), "LeakyRelu", {"alpha": 0.1}),
    (Activation.HARD_SIGMOID, (0.2, 0.5), "HardSigmoid", {}),
    (Activation.ELU, (0.7, 0), "Elu", {"alpha": 0.7}),
    (Activation.SELU, (1.5, 1.1), "Selu", {"alpha": 1.5, "gamma": 1.1}),
    (Activation.CELU, (0.6, 0), "Celu", {"alpha": 0.6}),
    (Activation.THRESHOLDED_RELU, (0.4, 0), "ThresholdedRelu", {"alpha": 0.4}),
]
EDGES = np.array([0, -0.0, 0.5, 1.5, 2.5, -0.5, -3, 3, 10, -10, 88, -88, 100, -100], np.float32)


@pytest.mark.parametrize(("activation", "numbers", "operator", "attributes"), ACTIVATIONS)
def test_activations(
    activation: Activation, numbers: tuple[float, float], operator: str, attributes: dict[str, Any]
) -> None:
    """Every function of one variable equals ONNX Runtime's, on ordinary, half-integer and large arguments."""
    x = np.concatenate([normal((300,), 1, 3), EDGES])
    ours = result(Function.MAP, x.shape, x, settings=Settings(activation=activation, alpha=numbers[0], beta=numbers[1]))
    close(ours, of_onnx(operator, x, attributes=attributes))


def test_activations_without_an_operator_in_onnx_runtime() -> None:
    """SWISH and SCALE equal their formulas, CLIP its bounds, and NOT negates booleans."""
    x = normal((100,), 2, 3)

    def mapped(array: Array, activation: Activation, alpha: float = 0, beta: float = 0) -> Array:
        chosen = Settings(activation=activation, alpha=alpha, beta=beta)
        return result(Function.MAP, array.shape, array, settings=chosen, dtype=array.dtype)

    close(mapped(x, Activation.SWISH, 1.7), x / (1 + np.exp(-1.7 * x)))
    close(mapped(x, Activation.SCALE, 0.5, 3), (x * 0.5 + 3).astype(np.float32))
    close(mapped(x, Activation.CLIP, 0, 6), np.clip(x, 0, 6))
    np.testing.assert_array_equal(mapped(x > 0, Activation.NOT), x <= 0)
    np.testing.assert_array_equal(mapped(x > 0, Activation.NONE), x > 0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8])
def test_clip_of_integers(dtype: Any) -> None:
    """Bounds beyond the range of the type, also infinite ones, have no effect."""
    x = np.arange(0, 120, 7).astype(dtype)
    ours = result(
        Function.MAP,
        x.shape,
        x,
        settings=Settings(activation=Activation.CLIP, alpha=9.0, beta=math.inf),
        dtype=dtype,
    )
    np.testing.assert_array_equal(ours, np.maximum(x, 9))


def test_erf_is_accurate() -> None:
    """The absolute error is below 1e-7 in float32, and float64 is exact to the last place, over the whole range."""
    x = np.linspace(-6, 6, 20_001)
    exact = np.array([math.erf(value) for value in x])
    single = erf(x.astype(np.float32))
    of_single = np.array([math.erf(value) for value in x.astype(np.float32).tolist()])
    assert single.dtype == np.float32
    assert np.abs(single - of_single).max() < 1e-7
    np.testing.assert_array_equal(erf(x), exact)
    far = np.array([np.inf, -np.inf, np.nan], np.float32)
    ours = result(Function.MAP, (3,), far, settings=Settings(activation=Activation.ERF))
    np.testing.assert_array_equal(ours, [1, -1, np.nan])


FLOAT_BINARIES = {
    Binary.ADD: "Add",
    Binary.SUBTRACT: "Sub",
    Binary.MULTIPLY: "Mul",
    Binary.DIVIDE: "Div",
    Binary.MAXIMUM: "Max",
    Binary.MINIMUM: "Min",
    Binary.PRELU: "PRelu",
}
COMPARISONS = {
    Binary.EQUAL: "Equal",
    Binary.LESS: "Less",
    Binary.LESS_EQUAL: "LessOrEqual",
    Binary.GREATER: "Greater",
    Binary.GREATER_EQUAL: "GreaterOrEqual",
}
LOGIC = {Binary.AND: "And", Binary.OR: "Or", Binary.XOR: "Xor"}


@settings(max_examples=36)
@given(SHAPES, SEEDS, st.sampled_from(sorted(FLOAT_BINARIES)))
def test_arithmetic_of_floats(shape: tuple[int, ...], seed: int, mode: Binary) -> None:
    """Functions of two variables give ONNX Runtime's values bit for bit."""
    a, b = normal(shape, seed), normal(shape, seed + 1)
    np.testing.assert_array_equal(
        result(Function.BINARY, shape, a, b, settings=Settings(mode=mode)), of_onnx(FLOAT_BINARIES[mode], a, b)
    )


@settings(max_examples=36)
@given(
    SHAPES, SEEDS, st.sampled_from(sorted({*FLOAT_BINARIES, Binary.MODULO} - {Binary.PRELU})), st.sampled_from(INTEGERS)
)
def test_arithmetic_of_integers(shape: tuple[int, ...], seed: int, mode: Binary, dtype: Any) -> None:
    """Integers divide toward zero and their remainder takes the divisor's sign, as in ONNX Runtime."""
    a, b = whole(shape, seed, dtype), whole(shape, seed + 2, dtype)
    operator = "Mod" if mode is Binary.MODULO else FLOAT_BINARIES[mode]
    ours = result(Function.BINARY, shape, a, b, settings=Settings(mode=mode), dtype=dtype)
    np.testing.assert_array_equal(ours, of_onnx(operator, a, b))


def test_powers() -> None:
    """POWER works for positive floats, negative floats with whole exponents, and integers."""
    a, b = np.abs(normal((50,), 3)), normal((50,), 4)
    power = Settings(mode=Binary.POWER)
    close(result(Function.BINARY, (50,), a, b, settings=power), of_onnx("Pow", a, b))
    exponents = np.arange(-25, 25, dtype=np.int64) % 4
    close(result(Function.BINARY, (50,), b, exponents, settings=power), of_onnx("Pow", b, exponents))
    bases = np.arange(-25, 25, dtype=np.int64)
    ours = result(Function.BINARY, (50,), bases, exponents, settings=power, dtype=np.int64)
    np.testing.assert_array_equal(ours, of_onnx("Pow", bases, exponents))


def test_remainder_of_floats() -> None:
    """MODULO of floats takes the dividend's sign, which is ONNX's fmod."""
    a, b = normal((50,), 5, 9), normal((50,), 6)
    ours = result(Function.BINARY, (50,), a, b, settings=Settings(mode=Binary.MODULO))
    close(ours, of_onnx("Mod", a, b, attributes={"fmod": 1}))
    truncated = result(Function.BINARY, (50,), a, b, settings=Settings(mode=Binary.TRUNCATED_MODULO))
    np.testing.assert_array_equal(truncated, ours)
    floored = result(Function.BINARY, (50,), a, b, settings=Settings(mode=Binary.FLOOR_MODULO))
    assert np.all((floored == 0) | (np.sign(floored) == np.sign(b)))
    close(floored, np.where((ours != 0) & (np.sign(ours) != np.sign(b)), ours + b, ours))


@settings(max_examples=24)
@given(SHAPES, SEEDS, st.sampled_from(sorted(COMPARISONS)), st.sampled_from((np.float32, np.int32, np.int64)))
def test_comparisons(shape: tuple[int, ...], seed: int, mode: Binary, dtype: Any) -> None:
    """Comparisons give booleans; NaN equals nothing."""
    a = np.round(normal(shape, seed)).astype(dtype)
    b = np.round(normal(shape, seed + 1)).astype(dtype)
    if dtype == np.float32:
        a.flat[0] = np.nan
    ours = result(Function.BINARY, shape, a, b, settings=Settings(mode=mode), dtype=np.bool_)
    np.testing.assert_array_equal(ours, of_onnx(COMPARISONS[mode], a, b))


@pytest.mark.parametrize("mode", sorted(LOGIC))
def test_logic(mode: Binary) -> None:
    """AND, OR and XOR follow their truth tables; any byte but 0 is true."""
    a, b = np.array([0, 0, 1, 255], np.uint8).view(np.bool_), np.array([0, 2, 0, 3], np.uint8).view(np.bool_)
    ours = result(Function.BINARY, (4,), a, b, settings=Settings(mode=mode), dtype=np.bool_)
    plain_a, plain_b = np.array([False, False, True, True]), np.array([False, True, False, True])
    np.testing.assert_array_equal(ours, of_onnx(LOGIC[mode], plain_a, plain_b))


def test_affine_and_where() -> None:
    """AFFINE is first * second + third; WHERE chooses by its first operand; both end with the activation."""
    a, b, c = (normal((4, 7), seed) for seed in (7, 8, 9))
    relu = Settings(activation=Activation.RELU)
    close(result(Function.AFFINE, (4, 7), a, b, c, settings=relu), np.maximum(a * b + c, 0))
    np.testing.assert_array_equal(
        result(Function.WHERE, (4, 7), a > 0, b, c, settings=relu), np.maximum(np.where(a > 0, b, c), 0)
    )


REDUCTIONS = {
    Reduction.SUM: "ReduceSum",
    Reduction.MEAN: "ReduceMean",
    Reduction.MAXIMUM: "ReduceMax",
    Reduction.MINIMUM: "ReduceMin",
    Reduction.PRODUCT: "ReduceProd",
    Reduction.SUM_SQUARE: "ReduceSumSquare",
    Reduction.L1: "ReduceL1",
    Reduction.L2: "ReduceL2",
}


@given(SHAPES, SEEDS, st.data(), st.sampled_from(sorted(REDUCTIONS)), st.sampled_from((np.float32, np.int32)))
def test_reductions(shape: tuple[int, ...], seed: int, data: st.DataObject, mode: Reduction, dtype: Any) -> None:
    """Every reduction along every set of axes equals ONNX's, for floats and for integers, whose mean is truncated."""
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    x = normal(shape, seed) if dtype == np.float32 else whole(shape, seed, dtype) % 3
    dims = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    chosen = Settings(mode=mode, axes=sum(1 << axis for axis in axes))
    theirs = of_onnx(REDUCTIONS[mode], x, np.array(axes, np.int64))
    close(result(Function.REDUCE, dims, x, settings=chosen, dtype=dtype), theirs, 1e-5)


@settings(max_examples=24)
@given(SHAPES, SEEDS, st.data())
def test_argmax(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    """ARGMAX returns the first of equal maxima as INT64."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.round(normal(shape, seed))
    dims = tuple(1 if at == axis else size for at, size in enumerate(shape))
    chosen = Settings(mode=Reduction.ARGMAX, axes=1 << axis)
    ours = result(Function.REDUCE, dims, x, settings=chosen, dtype=np.int64)
    np.testing.assert_array_equal(ours, of_onnx("ArgMax", x, attributes={"axis": axis}))


@settings(max_examples=24)
@given(SHAPES, SEEDS, st.data(), st.booleans())
def test_softmax(shape: tuple[int, ...], seed: int, data: st.DataObject, logarithm: bool) -> None:
    """Softmax and its logarithm are correct along any axis, even if exponentials of the values overflow."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = normal(shape, seed, 100)
    chosen = Settings(mode=int(logarithm), axes=1 << axis)
    theirs = of_onnx("LogSoftmax" if logarithm else "Softmax", x, attributes={"axis": axis})
    close(result(Function.SOFTMAX, shape, x, settings=chosen), theirs, 1e-5)


@settings(max_examples=24)
@given(SHAPES, SEEDS, st.data())
def test_normalize(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    """Layer normalisation with scale and shift is correct for values far from zero."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = normal(shape, seed) + 10
    scale, shift = normal(shape[axis:], seed + 1), normal(shape[axis:], seed + 2)
    chosen = Settings(alpha=1e-5, axes=sum(1 << at for at in range(axis, len(shape))))
    theirs = of_onnx("LayerNormalization", x, scale, shift, attributes={"axis": axis, "epsilon": 1e-5})
    wide = (np.broadcast_to(scale, shape), np.broadcast_to(shift, shape))
    close(result(Function.NORMALIZE, shape, x, *wide, settings=chosen), theirs, 2e-4)


@settings(max_examples=24)
@given(st.integers(1, 9), SEEDS, st.integers(1, 9))
def test_local_response(channels: int, seed: int, size: int) -> None:
    """LRN follows ONNX's definition for windows of odd and even size, also wider than the channels."""
    x = normal((2, 3, 1, channels), seed, 3)
    sums = np.zeros_like(x)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels - 1, c + -(-(size - 1) // 2))
        sums[..., c] = np.sum(x[..., low : high + 1] ** 2, axis=-1)
    theirs = x / (1.5 + 0.3 / size * sums) ** 0.75
    if size % 2:  # ONNX Runtime refuses the others.
        attributes = {"alpha": 0.3, "beta": 0.75, "bias": 1.5, "size": size}
        close(of_onnx("LRN", x.transpose(0, 3, 1, 2), attributes=attributes).transpose(0, 2, 3, 1), theirs, 1e-5)
    chosen = Settings(alpha=0.3, beta=0.75, gamma=1.5, mode=size)
    close(result(Function.LRN, x.shape, x, settings=chosen), theirs, 1e-5)


CONVERSIONS = [(np.float32, np.int32), (np.float32, np.bool_), (np.int64, np.int32), (np.int32, np.float32)]
CONVERSIONS += [(np.bool_, np.float32), (np.float32, np.float16), (np.float16, np.float64), (np.int32, np.int8)]


@pytest.mark.parametrize(("source", "target"), CONVERSIONS)
def test_conversions(source: Any, target: Any) -> None:
    """COPY converts as ONNX's Cast: toward zero, and to booleans by comparison with zero."""
    x = np.array([0, 1, 2.7, -2.7, 100, -100.4, 0.2, 300]).astype(source)
    theirs = of_onnx("Cast", x, attributes={"to": int(_onnx_type(target))})
    np.testing.assert_array_equal(result(Function.COPY, x.shape, x, dtype=target), theirs)


def _onnx_type(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@settings(max_examples=18)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), SEEDS)
def test_gather(rows: int, count: int, width: int, seed: int) -> None:
    """GATHER returns rows by index; negative indices count from the end."""
    table = normal((rows, width), seed)
    index = np.random.default_rng(seed).integers(-rows, rows, count)
    np.testing.assert_array_equal(
        result(Function.GATHER, (count, width), table, index), of_onnx("Gather", table, index)
    )


def test_gather_outside_of_the_rows() -> None:
    """An index that names no row is a fault."""
    with pytest.raises(ExecutionFault, match="GATHER"):
        result(Function.GATHER, (1, 2), normal((3, 2), 0), np.array([3], np.int64))


def test_fill() -> None:
    """FILL writes alpha in the target's type."""
    assert result(Function.FILL, (2, 2), settings=Settings(alpha=2.75)).tolist() == [[2.75] * 2] * 2
    assert result(Function.FILL, (2,), settings=Settings(alpha=2.75), dtype=np.int8).tolist() == [2, 2]


def test_half_precision_is_computed_in_single() -> None:
    """A sum of squares that overflows float16 is correct after scaling down."""
    x = np.full((1, 64), 300, np.float16)
    ours = result(Function.REDUCE, (1, 1), x, settings=Settings(mode=Reduction.L2, axes=2), dtype=np.float16)
    assert ours.tolist() == [[2400]]


FAULTS: list[tuple[str, Function, tuple[int, ...], list[Array], Settings, Any]] = [
    ("dims", Function.BINARY, (2, 3), [normal((2, 3), 0), normal((3, 2), 0)], Settings(), np.float32),
    ("types", Function.BINARY, (2,), [normal((2,), 0), whole((2,), 0, np.int32)], Settings(), np.float32),
    ("mode 99", Function.BINARY, (2,), [normal((2,), 0)] * 2, Settings(mode=99), np.float32),
    ("mode 12", Function.BINARY, (2,), [normal((2,), 0)] * 2, Settings(mode=Binary.AND), np.float32),
    ("booleans", Function.BINARY, (2,), [np.ones(2, np.bool_)] * 2, Settings(), np.bool_),
    ("axes", Function.REDUCE, (1,), [normal((2,), 0)], Settings(), np.float32),
    ("axes", Function.REDUCE, (1,), [normal((2,), 0)], Settings(axes=2), np.float32),
    ("dims", Function.REDUCE, (2,), [normal((2,), 0)], Settings(axes=1), np.float32),
    ("ARGMAX", Function.REDUCE, (1,), [normal((2,), 0)], Settings(axes=1, mode=8), np.float32),
    ("floating", Function.SOFTMAX, (2,), [whole((2,), 0, np.int32)], Settings(axes=1), np.int32),
    ("missing", Function.AFFINE, (2,), [normal((2,), 0)], Settings(), np.float32),
    ("operands", Function.MAP, (2,), [normal((2,), 0)] * 2, Settings(), np.float32),
    ("not defined", Function.MAP, (2,), [whole((2,), 0, np.int32)], Settings(activation=Activation.TANH), np.int32),
    ("window", Function.LRN, (2,), [normal((2,), 0)], Settings(mode=0), np.float32),
    ("condition", Function.WHERE, (2,), [normal((2,), 0)] * 3, Settings(), np.float32),
]


@pytest.mark.parametrize(("why", "function", "shape", "sources", "chosen", "dtype"), FAULTS)
def test_operands_that_do_not_match(
    why: str, function: Function, shape: tuple[int, ...], sources: list[Array], chosen: Settings, dtype: Any
) -> None:
    """An invalid command is a fault that names the mismatch."""
    with pytest.raises(ExecutionFault) as caught:
        result(function, shape, *sources, settings=chosen, dtype=dtype)
    assert why in caught.value.what + caught.value.why
