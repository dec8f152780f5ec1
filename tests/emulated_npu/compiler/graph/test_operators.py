"""Products, norms, reductions, movement and picking become layers and views that compute what ONNX Runtime does."""

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_models import functions, imported, model, node, values

from device_agents.emulated_npu.emulator_errors import UnsupportedOperator


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


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_reductions_of_integers_leave_other_places_alone(reduction: str, kind: type[np.generic]) -> None:
    """A reduction of constant integers changes only the places that have updates, however small or large these are."""
    x, last = np.arange(6).reshape(3, 2).astype(kind), int(np.iinfo(kind).max)
    constants = {"i": np.array([[1, 1], [1, 1]], np.int64), "u": np.array([[1, 2], [last, 0]], kind)}
    made = node("ScatterElements", "x i u", "y", reduction=reduction)
    imported(model([made], {"x": x}, constants, opset=18), {"x": x})


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
