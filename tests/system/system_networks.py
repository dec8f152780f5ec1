"""Networks for the tests of the command line, small and written by onnx.helper."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
MEMORY_BYTES = 8 << 30
"""More than a command takes for networks as small as these."""
Shape = Sequence[int | str | None]


def save(model: ModelProto | bytes, path: Path) -> Path:
    """Writes a model without letting onnx check it."""
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def weights(name: str, shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> TensorProto:
    """A seeded initializer."""
    values = np.random.default_rng(seed).normal(size=tuple(shape))
    return numpy_helper.from_array((values * 10 if "int" in dtype else values).astype(dtype), name)


def value(name: str, shape: Shape | None, dtype: int = FLOAT) -> object:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[NodeProto],
    *,
    inputs: Sequence[object],
    outputs: Sequence[object],
    initializers: Sequence[TensorProto] = (),
    opset: int = 17,
    name: str = "g",
    domains: Sequence[str] = (),
) -> ModelProto:
    """A model of these parts, unchecked."""
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def convolutions(
    *,
    x: str = "x",
    a: str = "a",
    y: str = "y",
    names: Sequence[str] = ("c1", "r1", "c2", "r2", "p"),
    w1: str = "w1",
    batch: int | str | None = 1,
    size: int = 16,
    channels: int = 48,
) -> ModelProto:
    """Two convolutions with activations, and a pooling."""
    nodes = [
        helper.make_node("Conv", [x, w1], [a], name=names[0], pads=[1] * 4),
        helper.make_node("Relu", [a], ["b"], name=names[1]),
        helper.make_node("Conv", ["b", "w2"], ["c"], name=names[2], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["d"], name=names[3]),
        helper.make_node("MaxPool", ["d"], [y], name=names[4], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return model(
        nodes,
        inputs=[value(x, [batch, 3, size, size])],
        outputs=[value(y, [batch, channels, size // 2, size // 2])],
        initializers=[weights(w1, (channels, 3, 3, 3)), weights("w2", (channels, channels, 3, 3), seed=1)],
    )


def single(
    operator: str,
    shape: Shape,
    out_shape: Shape | None = None,
    dtype: int = FLOAT,
    *,
    initializers: Sequence[TensorProto] = (),
    out_dtype: int | None = None,
    opset: int = 17,
    **attributes: object,
) -> ModelProto:
    """One operator between x and y; initializers are its further inputs."""
    node = helper.make_node(operator, ["x", *(one.name for one in initializers)], ["y"], name="n", **attributes)
    outputs = [value("y", shape if out_shape is None else out_shape, dtype if out_dtype is None else out_dtype)]
    return model([node], inputs=[value("x", shape, dtype)], outputs=outputs, initializers=initializers, opset=opset)


def nodes_of(*described: tuple[object, ...]) -> list[object]:
    """Nodes of these operators, inputs and outputs, with names of their own."""
    return [helper.make_node(*node, name=f"n{index}") for index, node in enumerate(described)]


def chain(
    *described: tuple[object, ...], initializers: tuple[TensorProto, ...] = (), y: tuple[object, ...] = (1, 8)
) -> ModelProto:
    """A model of these nodes between x and y."""
    return model(
        nodes_of(*described), inputs=[value("x", [1, 8])], outputs=[value("y", list(y))], initializers=initializers
    )
