"""Every operator becomes layers and views that compute what ONNX Runtime does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from reference_graph import run_graph
from small_models import Array, functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator

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


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], Array, Array]:
    """Draw attributes, input and weights of a convolution with a non-empty result."""
    count = draw(st.integers(1, 3))
    sizes = [draw(st.integers(3, 8)) for _ in range(count)]
    kernel = [draw(st.integers(1, 3)) for _ in range(count)]
    groups, inputs, outputs = draw(st.sampled_from(((1, 3, 4), (2, 4, 6), (4, 4, 4), (3, 3, 6), (1, 1, 2))))
    attributes: dict[str, Any] = {"group": groups, "strides": [draw(st.integers(1, 3)) for _ in range(count)]}
    padding = draw(st.sampled_from(("pads", "VALID", "SAME_UPPER", "SAME_LOWER")))
    if padding == "pads":
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * count)]
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in range(count)]
    else:
        attributes["auto_pad"] = padding
    weights = values((outputs, inputs // groups, *kernel), 1)
    spans = zip(sizes, kernel, attributes.get("dilations", [1] * count), strict=True)
    assume(all((width - 1) * step < size for size, width, step in spans))
    return attributes, values((draw(st.integers(1, 2)), inputs, *sizes)), weights


@given(convolutions(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_convolutions(case: tuple[dict[str, Any], Array, Array], bias: bool) -> None:
    """Groups, strides, dilations and every form of padding over one to three axes; one layer with its bias.

    Only padding that holds whole windows takes layers of its own.
    """
    attributes, x, weights = case
    constants = {"w": weights} | ({"b": values(weights.shape[:1], 2)} if bias else {})
    graph = imported(
        model([node("Conv", " ".join(("x", *constants)), "y", **attributes)], {"x": x}, constants), {"x": x}
    )
    assert functions(graph)[-1] == ("DEPTHWISE" if attributes["group"] == x.shape[1] > 1 else "CONVOLVE")
    reaches = zip(weights.shape[2:] * 2, attributes.get("dilations", [1] * (x.ndim - 2)) * 2, strict=True)
    within = all(
        pad <= (width - 1) * step for pad, (width, step) in zip(attributes.get("pads", []), reaches, strict=False)
    )
    assert len(graph.layers) == 1 or not within


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("constant", [(), ("w",), ("b",)], ids=str)
def test_convolutions_by_computed_weights(groups: int, constant: tuple[str, ...]) -> None:
    """Weights or a bias that the network computes make a matrix product of the windows, with padding and strides."""
    feeds = {"x": values((1, 4, 6, 5)), "w": values((4, 4 // groups, 3, 2), 1), "b": values((4,), 2)}
    attributes = {"group": groups, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 0, 2]}
    constants = {name: feeds.pop(name) for name in constant}
    imported(model([node("Conv", "x w b", "y", **attributes)], feeds, constants), feeds)
    if "b" in feeds and "w" in feeds:
        inputs = {name: feeds[name] for name in ("x", "w")}
        imported(model([node("Conv", "x w", "y", **attributes)], inputs), inputs)


@given(st.data(), st.sampled_from(("MaxPool", "AveragePool")), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_pooling(data: st.DataObject, op: str, count: int) -> None:
    """Pooling works with strides, padding counted or not, and partial last windows."""
    numbers = st.integers(1, 3)
    kernel, strides = ([data.draw(numbers) for _ in range(count)] for _ in range(2))
    sizes = [data.draw(st.integers(size, 7)) for size in kernel]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if data.draw(st.booleans()):
        attributes["pads"] = [data.draw(st.integers(0, size - 1)) for _ in range(2) for size in kernel]
        ceil = data.draw(st.booleans())
        if op == "AveragePool":
            attributes["count_include_pad"] = data.draw(st.integers(0, 1))
            ceil = ceil and not attributes["count_include_pad"]  # there runtimes disagree on the divisor
        attributes["ceil_mode"] = int(ceil)
    elif data.draw(st.booleans()):
        fits = all(size >= stride for size, stride in zip(kernel, strides, strict=True))  # else ONNX Runtime refuses
        attributes["auto_pad"] = data.draw(
            st.sampled_from(("SAME_UPPER", "SAME_LOWER", "VALID") if fits else ("VALID",))
        )
    x = values((1, 2, *sizes))
    imported(model([node(op, "x", "y", **attributes)], {"x": x}, opset=22), {"x": x})


def test_average_pooling_that_counts_padding_but_not_what_hangs_over() -> None:
    """With ceil_mode the divisor is the part of the window within the padded map."""
    x = values((1, 2, 6, 6))
    attributes = {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": [1, 1, 1, 1],
        "ceil_mode": 1,
        "count_include_pad": 1,
    }
    proto = model([node("AveragePool", "x", "y", **attributes)], {"x": x}, opset=19)
    assert "FILL" in functions(imported(proto, {"x": x}))


def test_a_last_window_behind_the_map_is_refused() -> None:
    """A last window behind the map is refused: before opset 22 the standard and runtimes disagree on it."""
    x = values((1, 1, 5, 5))
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    with pytest.raises(UnsupportedOperator, match="'y'"):
        imported(model([node("MaxPool", "x", "y", **attributes)], {"x": x}), {"x": x})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("spatial", [(5,), (4, 3), (2, 3, 4)])
def test_global_pooling(op: str, spatial: tuple[int, ...]) -> None:
    """Global pooling works on maps of one to three axes."""
    x = values((2, 3, *spatial))
    imported(model([node(op, "x", "y")], {"x": x}), {"x": x})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling_a_single_element_is_a_slice(op: str) -> None:
    """Pooling with a window of one element and strides is a view between layers."""
    x = values((1, 2, 7, 5))
    nodes = [node(op, "x", "t", kernel_shape=[1, 1], strides=[3, 2]), node("Relu", "t", "y")]
    graph = imported(model(nodes, {"x": x}), {"x": x})
    assert functions(graph) == ["MAP"]
    assert graph.free_nodes == ("t",)


def test_response_normalisation() -> None:
    """LRN works with windows of three and five channels."""
    x = values((1, 7, 3, 2))
    for size in (3, 5):
        imported(model([node("LRN", "x", "y", size=size, alpha=0.3, beta=0.6, bias=1.5)], {"x": x}), {"x": x})


@pytest.mark.parametrize("transposes", list(itertools.product((0, 1), repeat=2)))
@pytest.mark.parametrize("term", [None, (), (5,), (1, 5), (3, 1), (3, 5)])
def test_gemm(transposes: tuple[int, int], term: tuple[int, ...] | None) -> None:
    """Gemm works with transposed operands, factors, and a third operand of any shape, constant or computed."""
    a = values((4, 3) if transposes[0] else (3, 4))
    b = values((5, 4) if transposes[1] else (4, 5), 1)
    attributes = {"transA": transposes[0], "transB": transposes[1], "alpha": 0.5, "beta": 1.5}
    c = {} if term is None else {"c": values(term, 2)}
    proto = node("Gemm", " ".join(("a", "b", *c)), "y", **attributes)
    for constants, feeds in (({"b": b, **c}, {"a": a}), ({}, {"a": a, "b": b, **c}), ({"a": a}, {"b": b, **c})):
        imported(model([proto], feeds, constants), feeds)


PRODUCTS = [
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 2, 3, 4), (1, 1, 4, 5)),
]


@pytest.mark.parametrize("shapes", PRODUCTS)
def test_matrix_products(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """MatMul works with vectors, matrices and broadcast batches, and either operand constant or none."""
    a, b = values(shapes[0]), values(shapes[1], 1)
    proto = [node("MatMul", "a b", "y")]
    imported(model(proto, {"a": a, "b": b}), {"a": a, "b": b})
    imported(model(proto, {"a": a}, {"b": b}), {"a": a})
    imported(model(proto, {"b": b}, {"a": a}), {"b": b})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 11), (2, 11), (-1, 12)])
def test_softmax(op: str, axis: int, opset: int) -> None:
    """Softmax works along one axis, and before opset 13 along all axes from it on."""
    x = values((2, 3, 4))
    imported(model([node(op, "x", "y", axis=axis)], {"x": x}, opset=opset), {"x": x})


def test_normalisations() -> None:
    """Layer, instance, group, batch and RMS normalisation match ONNX Runtime."""
    x = values((2, 4, 3, 5))
    channels = {"s": values((4,), 1), "b": values((4,), 2)}
    layer = {"s": values((3, 5), 1), "b": values((3, 5), 2)}
    batch = channels | {"m": values((4,), 3), "v": values((4,), 4, 0.5, 2)}
    imported(model([node("LayerNormalization", "x s b", "y", axis=2)], {"x": x}, layer), {"x": x})
    imported(model([node("LayerNormalization", "x s", "y", axis=-2)], {"x": x}, layer), {"x": x})
    imported(model([node("InstanceNormalization", "x s b", "y")], {"x": x}, channels), {"x": x})
    imported(model([node("BatchNormalization", "x s b m v", "y")], {"x": x}, batch), {"x": x})
    imported(model([node("BatchNormalization", "x s b m v", "y")], {"x": x, **batch}), {"x": x, **batch})
    imported(model([node("MeanVarianceNormalization", "x", "y")], {"x": x}), {"x": x})
    imported(model([node("GroupNormalization", "x s b", "y", num_groups=2)], {"x": x}, channels, opset=21), {"x": x})
    imported(model([node("RMSNormalization", "x s", "y", axis=-2)], {"x": x}, layer, opset=23), {"x": x})


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], None])
def test_reductions(op: str, keep: int, axes: list[int] | None) -> None:
    """Reductions work along any axes, kept or dropped, given as an attribute or an input."""
    x = values((2, 3, 4), low=0.1)
    given_axes = {} if axes is None else {"axes": axes}
    if op != "ReduceSum":
        imported(model([node(op, "x", "y", keepdims=keep, **given_axes)], {"x": x}, opset=12), {"x": x})
    constants = {name: np.array(value, np.int64) for name, value in given_axes.items()}
    imported(
        model([node(op, " ".join(("x", *constants)), "y", keepdims=keep)], {"x": x}, constants, opset=18), {"x": x}
    )


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_extremes(op: str) -> None:
    """ArgMax and ArgMin return the first or the last of several equal elements."""
    x = np.round(values((3, 6, 2)))
    for keep in (0, 1):
        imported(model([node(op, "x", "y", axis=1, keepdims=keep)], {"x": x}), {"x": x})
        imported(model([node(op, "x", "y", axis=1, keepdims=keep, select_last_index=1)], {"x": x}), {"x": x})


MOVES: list[tuple[str, str, dict[str, Any], dict[str, list[int]]]] = [
    ("Reshape", "x k", {}, {"k": [3, 8]}),
    ("Reshape", "x k", {}, {"k": [0, -1]}),
    ("Reshape", "x k", {}, {"k": [8, 3]}),
    ("Reshape", "x k", {}, {"k": [1, 2, 3, 2, 2]}),
    ("Flatten", "x", {"axis": 2}, {}),
    ("Transpose", "x", {"perm": [2, 0, 1]}, {}),
    ("Transpose", "x", {}, {}),
    ("Unsqueeze", "x k", {}, {"k": [0, 3]}),
    ("Slice", "x s e a d", {}, {"s": [3, -1], "e": [-100, 1000], "a": [2, 1], "d": [-2, 1]}),
    ("Slice", "x s e", {}, {"s": [0, 1], "e": [2, 9223372036854775807]}),
    ("Expand", "x k", {}, {"k": [5, 1, 1, 4]}),
    ("Tile", "x k", {}, {"k": [2, 1, 3]}),
    ("Gather", "x k", {"axis": 1}, {"k": [2, 0, -1]}),
    ("Gather", "x k", {"axis": 2}, {"k": [3, 2, 1]}),
    ("Gather", "x k", {"axis": 0}, {"k": [0, 0, 1, 1]}),
    ("Identity", "x", {}, {}),
    ("Dropout", "x", {}, {}),
    ("Pad", "x k", {}, {"k": [1, 0, 2, 0, 1, 3]}),
    ("Pad", "x k", {}, {"k": [0, -1, 2, 0, 1, -2]}),
    ("Pad", "x k", {"mode": "edge"}, {"k": [1, 0, 2, 0, 1, 3]}),
    ("Pad", "x k", {"mode": "reflect"}, {"k": [1, 2, 3, 0, 0, 2]}),
]


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("between", [True, False])
def test_movement(move: tuple[str, str, dict[str, Any], dict[str, list[int]]], between: bool) -> None:
    """Data movement works between two layers, and alone between the network's input and output."""
    op, inputs, attributes, numbers = move
    x = values((2, 3, 4))
    constants = {name: np.array(value, np.int64) for name, value in numbers.items()}
    if between:
        nodes = [node("Relu", "x0", "x"), node(op, inputs, "t", **attributes), node("Sigmoid", "t", "y")]
        imported(model(nodes, {"x0": x}, constants), {"x0": x})
    else:
        imported(model([node(op, inputs, "y", **attributes)], {"x": x}, constants), {"x": x})


def test_gather_by_computed_indices() -> None:
    """Gather picks rows of a constant table, and elements along a middle axis of a feature map."""
    indices = np.array([[3, 0], [1, 1]], np.int64)
    table = values((5, 3))
    assert functions(imported(model([node("Gather", "w i", "y")], {"i": indices}, {"w": table}), {"i": indices})) == [
        "GATHER"
    ]
    feeds = {"x": values((2, 4, 3)), "i": indices}
    imported(model([node("Gather", "x i", "y", axis=1)], feeds), feeds)


ELEMENTS: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("GatherElements", {"axis": 1}, [[[0, 1, 2, -1], [3, -4, 0, 0]]]),
    ("GatherElements", {"axis": 2}, [[[0, 3], [1, 1], [-1, -4]], [[0, 0], [2, 1], [3, 3]]]),
    ("GatherND", {}, [[[1, 2], [0, -3]], [[-1, 0], [1, 1]]]),
    ("GatherND", {}, [[0, 1, 2], [1, -1, -4]]),
    ("GatherND", {"batch_dims": 1}, [[[1, 2], [0, -3]], [[-1, 0], [1, 1]]]),
]


@pytest.mark.parametrize(("op", "attributes", "indices"), ELEMENTS)
def test_gather_of_elements_and_of_rows(op: str, attributes: dict[str, Any], indices: list[Any]) -> None:
    """Constant and computed indices along one axis or several pick what ONNX Runtime picks, also from the end."""
    x, picked = values((2, 4, 4)), np.array(indices, np.int64)
    nodes = [node("Relu", "x0", "x"), node(op, "x i", "y", **attributes)]
    imported(model(nodes, {"x0": x}, {"i": picked}), {"x0": x})
    imported(model(nodes, {"x0": x, "i": picked}), {"x0": x, "i": picked})


def test_scattering_to_constant_places() -> None:
    """ScatterElements and ScatterND write computed updates; reductions combine constant ones."""
    x, feeds = values((4, 3)), {"x": values((4, 3)), "u": values((2, 3), 1)}
    along, rows = np.array([[0, -1, 2], [1, 0, 3]], np.int64), np.array([[2], [-4]], np.int64)
    imported(model([node("ScatterElements", "x i u", "y")], feeds, {"i": along}, opset=18), feeds)
    imported(model([node("ScatterND", "x i u", "y")], feeds, {"i": rows}, opset=18), feeds)
    for reduction in ("add", "mul", "max", "min"):
        constants = {"i": np.array([[2], [2]], np.int64), "u": feeds["u"]}
        proto = model([node("ScatterND", "x i u", "y", reduction=reduction)], {"x": x}, constants, opset=18)
        imported(proto, {"x": x})


@pytest.mark.parametrize("axis", [0, -1])
def test_one_hot_codes(axis: int) -> None:
    """OneHot takes computed indices, also negative ones and ones outside; Hardmax finds the largest element."""
    indices = np.array([[1, -1], [0, 7]], np.int64)
    constants = {"depth": np.array(3, np.int64), "values": np.array([-1, 5], np.float32)}
    imported(model([node("OneHot", "i depth values", "y", axis=axis)], {"i": indices}, constants), {"i": indices})
    x = np.round(values((3, 4, 2)))
    for opset in (11, 13):
        imported(model([node("Hardmax", "x", "y", axis=axis % 3)], {"x": x}, opset=opset), {"x": x})


@pytest.mark.parametrize("condition", [[True, False, True], [True, True, False, True]])
def test_compression_by_a_constant_condition(condition: list[bool]) -> None:
    """Compress keeps the elements whose condition is true, as a slice or by a gather."""
    x, constants = values((2, 4)), {"c": np.array(condition)}
    proto = model([node("Compress", "x c", "y", axis=1)], {"x": x}, constants)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, sum(condition)]))
    imported(proto, {"x": x})


def test_gather_of_one_element_is_a_view() -> None:
    """A Gather with a scalar index picks a part and drops its axis."""
    x = values((2, 4, 3))
    nodes = [node("Gather", "x k", "t", axis=1), node("Relu", "t", "y")]
    assert functions(imported(model(nodes, {"x": x}, {"k": np.array(-1, np.int64)}), {"x": x})) == ["MAP"]


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("DepthToSpace", {"blocksize": 2}),
        ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", {"blocksize": 2}),
    ],
)
def test_depth_and_space(op: str, attributes: dict[str, Any]) -> None:
    """DepthToSpace and SpaceToDepth exchange blocks of a map and channels."""
    x = values((1, 8, 4, 6))
    assert functions(imported(model([node(op, "x", "y", **attributes)], {"x": x}), {"x": x})) == ["COPY"]


@given(
    st.sampled_from(("nearest", "linear", "cubic")),
    st.sampled_from(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")),
    st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=60, deadline=None)
def test_resize(mode: str, coordinates: str, rounding: str, sizes: tuple[int, int]) -> None:
    """Resize works in all modes and coordinates, to any size."""
    assume(not (mode == "cubic" and 1 in sizes))
    x = values((1, 2, 3, 4))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = rounding
    constants = {"sizes": np.array((1, 2, *sizes), np.int64)}
    imported(model([node("Resize", "x - - sizes", "y", **attributes)], {"x": x}, constants), {"x": x})


@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 0.5, 0.5), (1, 1, 1.5, 2.5)])
def test_resize_by_scales(scales: tuple[float, ...]) -> None:
    """Resize and Upsample accept scales; whole factors only move data."""
    x = values((1, 2, 4, 6))
    constants = {"s": np.array(scales, np.float32)}
    nodes = [node("Resize", "x - s", "y", coordinate_transformation_mode="asymmetric", nearest_mode="floor")]
    graph = imported(model(nodes, {"x": x}, constants), {"x": x})
    assert ("CONVOLVE" in functions(graph)) == (1.5 in scales)
    if min(scales) >= 1:
        imported(model([node("Upsample", "x s", "y", mode="linear")], {"x": x}, constants, opset=9), {"x": x})


def test_resize_along_some_axes_keeping_the_aspect() -> None:
    """`axes` and `keep_aspect_ratio_policy` of opset 18."""
    x = values((1, 2, 4, 6))
    constants = {"k": np.array((8, 9), np.int64)}
    attributes = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    imported(model([node("Resize", "x - - k", "y", **attributes)], {"x": x}, constants, opset=18), {"x": x})


def test_what_is_constant_is_computed_on_the_host() -> None:
    """Shapes, ranges and arithmetic on constants become constants without layers."""
    x = values((2, 3, 4))
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "first"),
        node("Unsqueeze", "first zeros", "f"),
        node("Concat", "f minus", "shape", axis=0),
        node("Reshape", "x shape", "r"),
        node("ConstantOfShape", "shape2", "ones"),
        node("Mul", "ones w", "scaled"),
        node("Mul", "r scaled", "y"),
    ]
    constants = {
        "zero": np.array(0, np.int64),
        "zeros": np.array([0], np.int64),
        "minus": np.array([-1], np.int64),
        "shape2": np.array([12], np.int64),
        "w": values((12,), 1),
    }
    graph = imported(model(nodes, {"x": x}, constants), {"x": x})
    assert functions(graph)[-1] == "BINARY"
    assert {"s", "first", "f", "shape", "ones", "scaled"} <= set(graph.free_nodes)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("Relu", "x", "t"), node("NonMaxSuppression", "t t", "y")], "NonMaxSuppression"),
        ([node("Fancy", "x", "y", domain="org.example")], "org.example"),
    ],
)
def test_an_unknown_operator_is_named(nodes: list[Any], words: str) -> None:
    """The error for an unsupported node names the node and the operator."""
    x = values((1, 3, 4, 4))
    proto = model(nodes, {"x": x}, {"w": values((3, 2, 2, 2))})
    with pytest.raises(UnsupportedOperator, match="'y'") as caught:
        imported(proto, {"x": x})
    assert words in caught.value.what + caught.value.why
