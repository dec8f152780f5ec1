"""The ONNX reader: small networks with changes in all fields of the format, including external data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fuzz.mutation import mutate_bytes, mutate_message
from harness.errors import NetworkError
from harness.network.model_references import load_network
from harness.network.zoo.graph_builder import GraphBuilder

_WEIGHTS_BYTES = 4096


def read(data: bytes, folder: Path) -> bool:
    """Read a file in a folder that also has a file of weights, and a link to a file outside."""
    weights = folder / "weights.bin"
    if not weights.exists():
        weights.write_bytes(bytes(_WEIGHTS_BYTES))
        (folder / "link.bin").symlink_to("/etc/hostname")
    path = folder / "network.onnx"
    path.write_bytes(data)
    try:
        load_network(str(path), {"N": 2})
    except NetworkError:
        return False
    return True


def seeds() -> list[bytes]:
    """Return models with convolutions, attention, computed shapes, external weights, a function, a free dimension."""
    models = [_convolutions(), _movements(), _shapes(), _external(), _function()]
    return [model.SerializeToString(deterministic=True) for model in models]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Change fields of the model, including operators; sometimes change bytes."""
    import onnx
    from google.protobuf.message import DecodeError

    if draw.random() < 0.1:
        return mutate_bytes(data, draw)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutate_bytes(data, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        if draw.random() < 0.25 and model.graph.node:
            draw.choice(model.graph.node).op_type = draw.choice(_operators())
        else:
            mutate_message(model, draw)
    return bytes(model.SerializeToString())


def _operators() -> list[str]:
    from onnx import defs

    return sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == ""})


def _convolutions() -> Any:
    import numpy as np
    from onnx import numpy_helper

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
    from onnx import TensorProto

    graph = GraphBuilder("external", 4)
    x = graph.input("x", [1, 8])
    graph.output("y", graph.node("Gemm", "gemm", x, "w", "b"), [1, 16])
    model = graph.model()
    for name, dims, offset, length in (("w", (8, 16), 0, 512), ("b", (16,), 512, 64)):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(tensor)
    return model


def _function() -> Any:
    from onnx import helper

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
