"""Elementwise operators compute what ONNX Runtime does: functions, comparisons, logic, selection and types."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from reference_graph import run_graph
from small_models import functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model

UNARY = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.2},
    "Sigmoid": {},
    "Tanh": {},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "HardSwish": {},
    "Elu": {"alpha": 0.7},
    "Selu": {},
    "Celu": {"alpha": 1.5},
    "ThresholdedRelu": {"alpha": 0.3},
    "Softplus": {},
    "Softsign": {},
    "Mish": {},
    "Erf": {},
    "Exp": {},
    "Neg": {},
    "Abs": {},
    "Floor": {},
    "Ceil": {},
    "Round": {},
    "Sign": {},
    "Sin": {},
    "Cos": {},
}


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_variable(op: str) -> None:
    """Each function of one variable is a MAP with the attributes of the node."""
    x = values((2, 3, 4), low=-3, high=3)
    graph = imported(model([node(op, "x", "y", **UNARY[op])], {"x": x}, opset=18), {"x": x})
    assert functions(graph) == ["MAP"]


@pytest.mark.parametrize("op", ["Sqrt", "Log", "Reciprocal"])
def test_functions_of_a_positive_variable(op: str) -> None:
    """Functions with a restricted domain match ONNX Runtime: roots, logarithms and reciprocals."""
    x = values((3, 5), low=0.5, high=4)
    imported(model([node(op, "x", "y")], {"x": x}), {"x": x})


@pytest.mark.parametrize("op", ["Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh", "Acosh"])
def test_trigonometry(op: str) -> None:
    """Trigonometric and hyperbolic functions and their inverses match ONNX Runtime."""
    x = values((3, 5), low=1, high=3) if op == "Acosh" else values((3, 5), low=-0.95, high=0.95)
    assert functions(imported(model([node(op, "x", "y")], {"x": x}, opset=22), {"x": x})) == ["MAP"]


@pytest.mark.parametrize("flags", [{}, {"detect_negative": 0}, {"detect_positive": 0}], ids=str)
def test_infinities_and_what_is_not_a_number(flags: dict[str, int]) -> None:
    """IsInf finds infinities of the wanted signs, IsNaN what is not a number."""
    x = np.array([1, np.inf, -np.inf, np.nan, 0], np.float32)
    imported(model([node("IsInf", "x", "y", **flags)], {"x": x}), {"x": x})
    imported(model([node("IsNaN", "x", "y")], {"x": x}), {"x": x})


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_remainders(fmod: int, dtype: Any) -> None:
    """The remainder has the sign of the divisor, with fmod that of the dividend, for floats and integers."""
    a, b = np.array([7, -7, 9, -9, 4], dtype), np.array([2, 2, -4, -4, 4], dtype)
    graph = import_model(model([node("Mod", "a b", "y", fmod=fmod)], {"a": a, "b": b}, opset=13))
    found = run_graph(graph, {"a": a, "b": b}, {})["y"]
    np.testing.assert_array_equal(found, [1, -1, 1, -1, 0] if fmod else [1, 1, -3, -1, 0])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    """Both forms of the GELU operator match ONNX Runtime."""
    x = values((3, 5))
    imported(model([node("Gelu", "x", "y", approximate=approximate)], {"x": x}, opset=20), {"x": x})


@pytest.mark.parametrize(
    ("inputs", "dynamic"),
    [("x low high", ()), ("x low", ()), ("x - high", ()), ("x", ()), ("x low high", ("low", "high"))],
)
def test_clip(inputs: str, dynamic: tuple[str, ...]) -> None:
    """Clip works with each bound absent, constant or computed."""
    bounds = {"low": np.array(-0.5, np.float32), "high": np.array(1.0, np.float32)}
    feeds = {"x": values((3, 5)), **{name: bounds[name] for name in dynamic}}
    constants = {name: array for name, array in bounds.items() if name not in dynamic}
    imported(model([node("Clip", inputs, "y")], feeds, constants), feeds)


def test_clip_of_integers_keeps_what_floats_cannot_hold() -> None:
    """An absent bound of an integer Clip is the limit of the type."""
    x = np.array([-(2**31), -1, 5, 2**31 - 1], np.int32)
    imported(model([node("Clip", "x - high", "y")], {"x": x}, {"high": np.array(4, np.int32)}), {"x": x})


BROADCAST = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (2, 3)), ((1, 1, 1, 1), (3,))]


@pytest.mark.parametrize("shapes", BROADCAST)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Less", "GreaterOrEqual", "PRelu", "Min", "Max", "Mean"])
def test_functions_of_two_variables_broadcast(op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Functions of two variables broadcast computed and constant operands."""
    assume_shapes = shapes if op != "PRelu" else ((2, 3, 4), (3, 1))
    first, second = (values(shape, seed, 0.5, 2) for seed, shape in enumerate(assume_shapes))
    imported(model([node(op, "a b", "y")], {"a": first, "b": second}), {"a": first, "b": second})
    imported(model([node(op, "a b", "y")], {"a": first}, {"b": second}), {"a": first})
    if op != "PRelu":
        imported(model([node(op, "a b", "y")], {"b": second}, {"a": first}), {"b": second})


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_functions_of_many_variables(op: str, count: int) -> None:
    """Sum, Mean, Max and Min work with one, two and more operands."""
    feeds = {f"x{place}": values((2, 3), place) for place in range(count)}
    imported(model([node(op, " ".join(feeds), "y")], feeds), feeds)


@pytest.mark.parametrize("op", ["Div", "Mod", "Equal", "Add"])
def test_integers(op: str) -> None:
    """Arithmetic of int64 matches ONNX Runtime; division truncates toward zero."""
    a, b = np.array([7, -7, 9, 5], np.int64), np.array([2, 2, 3, 5], np.int64)
    if op == "Div":
        a = np.abs(a)
    imported(model([node(op, "a b", "y")], {"a": a, "b": b}), {"a": a, "b": b})


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    """Logic of booleans works with its negation as an epilogue or a layer."""
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    nodes = [node(op, "a b", "t"), node("Not", "t", "y")]
    imported(model(nodes, {"a": a, "b": b}), {"a": a, "b": b})


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0])
def test_powers(exponent: float) -> None:
    """Powers work with a constant exponent of any type, and with a tensor."""
    x = values((2, 3), low=0.5, high=2)
    imported(model([node("Pow", "x e", "y")], {"x": x}, {"e": np.array(exponent, np.float32)}), {"x": x})
    feeds = {"x": x, "e": np.array([1, 2, 3], np.int64)}
    imported(model([node("Pow", "x e", "y")], feeds), feeds)


def test_selection_and_types() -> None:
    """Where with a mask of numbers, and casts between types, match ONNX Runtime."""
    x = values((2, 3, 4))
    nodes = [
        node("Cast", "x", "i", to=TensorProto.INT32),
        node("Cast", "i", "m", to=TensorProto.BOOL),
        node("Where", "m x z", "y"),
    ]
    imported(model(nodes, {"x": x}, {"z": np.array([9.0], np.float32)}), {"x": x})


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, -2, 1, 9])
def test_triangles_of_matrices(upper: int, diagonal: int | None) -> None:
    """Trilu keeps either part of each matrix, with any diagonal."""
    x = values((2, 4, 5))
    constants = {} if diagonal is None else {"k": np.array(diagonal)}
    imported(model([node("Trilu", " ".join(["x", *constants]), "y", upper=upper)], {"x": x}, constants), {"x": x})
