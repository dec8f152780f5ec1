"""Small networks from which fuzzing starts, one for each part of the reader, and edited copies of them."""

import functools
import random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fuzz.edits import EDITS
from fuzz.edits.draft import edited
from fuzz.edits.tensors import WEIGHTS
from harness.network.zoo.graph_builder import GraphBuilder

_EDITED = 4
_EDITS_EACH = 6


@functools.cache
def plain() -> list[bytes]:
    """Return networks with convolutions, attention, computed shapes, external weights, a function, integers, time."""
    models = [_convolutions(), _movements(), _shapes(), _external(), _function(), _quantised(), _recurrent()]
    return [model.SerializeToString(deterministic=True) for model in models]


@functools.cache
def richer() -> list[bytes]:
    """Return the plain networks after a few edits each, which bring in most kinds of operators."""
    draw = random.Random(15)  # noqa: S311 - not a secret
    found: list[bytes] = []
    for content in plain():
        for _ in range(_EDITED):
            model = ModelProto.FromString(content)
            for _ in range(_EDITS_EACH):
                model = edited(model, draw, EDITS) or model
            found.append(model.SerializeToString(deterministic=True))
    return found


def _convolutions() -> Any:
    graph = GraphBuilder("convolutions", 1)
    x = graph.input("x", [1, 3, 8, 8])
    for index, width in enumerate((3, 4)):
        weight = numpy_helper.from_array(np.ones((4, width, 3, 3), np.float32))
        w = graph.node("Constant", f"w{index}", value=weight)
        x = graph.node("Conv", f"conv{index}", x, w, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        x = graph.node("Relu", f"relu{index}", x)
    x = graph.node("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    graph.output("y", x, [1, 4, 4, 4])
    return graph.model()


def _movements() -> Any:
    graph = GraphBuilder("movements", 2)
    x = graph.input("x", [2, 4, 8])
    keys = graph.node("Transpose", "transpose", x, perm=[0, 2, 1])
    scores = graph.node("Softmax", "softmax", graph.node("MatMul", "product", x, keys), axis=-1)
    mixed = graph.node("MatMul", "mixed", scores, x)
    both = graph.node("Concat", "both", mixed, x, axis=2)
    starts, ends = graph.constant("starts", [0, 2]), graph.constant("ends", [4, 9])
    cut = graph.node("Slice", "cut", both, starts, ends, graph.constant("axes", [1, 2]))
    wide = graph.node("Pad", "pad", cut, graph.constant("pads", [0, 0, 1, 0, 0, 1]))
    graph.output("y", graph.node("ReduceMean", "mean", wide, axes=[2], keepdims=0), [2, 4])
    return graph.model()


def _shapes() -> Any:
    graph = GraphBuilder("shapes", 3)
    x = graph.input("x", [2, 6])
    shape = graph.node("Shape", "shape", x)
    first = graph.node("Gather", "first", shape, graph.constant("zero", [0]), axis=0)
    wanted = graph.node("Concat", "wanted", first, graph.constant("rest", [3, 2]), axis=0)
    view = graph.node("Reshape", "view", x, wanted)
    ones = graph.node("ConstantOfShape", "ones", wanted)
    total = graph.node("Add", "total", view, graph.node("Expand", "wide", ones, wanted))
    graph.output("y", graph.node("Identity", "same", graph.node("Cast", "cast", total, to=1)), [2, 3, 2])
    model = graph.model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return model


def _external() -> Any:
    graph = GraphBuilder("external", 4)
    x = graph.input("x", [1, 8])
    graph.output("y", graph.node("Gemm", "gemm", x, "w", "b"), [1, 16])
    model = graph.model()
    for name, dims, offset, length in (("w", (8, 16), 0, 512), ("b", (16,), 512, 64)):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(tensor)
    return model


def _function() -> Any:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("HardSwish", ["s"], ["r"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("ours", "Twice", ["a"], ["r"], body, opsets)
    graph = GraphBuilder("function", 5)
    x = graph.input("x", [2, 6])
    graph.output("y", graph.node("Twice", "twice", x, domain="ours"), [2, 6])
    model = graph.model()
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("ours", 1))
    return model


def _quantised() -> Any:
    """Return a convolution between pairs of QuantizeLinear and DequantizeLinear, with quantised weights."""
    weights = {
        "scale": np.array(0.05, np.float32),
        "zero": np.array(0, np.int8),
        "w": np.ones((4, 3, 1, 1), np.int8),
        "b": np.ones(4, np.int32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["wd"]),
        helper.make_node("DequantizeLinear", ["b", "scale"], ["bd"]),
        helper.make_node("Conv", ["d", "wd", "bd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["e"]),
        helper.make_node("DequantizeLinear", ["e", "scale", "zero"], ["f"]),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    return _made("quantised", nodes, [1, 3, 4, 4], weights)


def _recurrent() -> Any:
    weights = {
        "w": np.ones((1, 8, 3), np.float32),
        "r": np.ones((1, 8, 2), np.float32),
        "axes": np.array([1]),
        "k": np.ones((2, 2), np.float32),
    }
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=2),
        helper.make_node("Squeeze", ["h", "axes"], ["s"]),
        helper.make_node("MatMul", ["s", "k"], ["m"]),
        helper.make_node("LayerNormalization", ["m", "k2"], ["y"]),
    ]
    return _made("recurrent", nodes, [4, 1, 3], {**weights, "k2": np.ones(2, np.float32)})


def _made(name: str, nodes: list[Any], shape: list[int], weights: dict[str, Any]) -> Any:
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    ends.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None]))
    initializers = [numpy_helper.from_array(value, tensor) for tensor, value in weights.items()]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
