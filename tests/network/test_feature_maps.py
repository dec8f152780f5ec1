"""Which tensors of a network are feature maps, and how the contexts of layers name them."""

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

from harness.network.layers import context_of, cut
from harness.network.model_references import load_network
from harness.network.network import Network

MAP, POOLED = (1, 8, 6, 6), (1, 8, 1, 1)


def network_of(folder: Path, nodes: list[NodeProto], shapes: dict[str, tuple[int, ...]]) -> Network:
    """Return a network of these nodes that reads the map `x`; its last tensor is the result."""
    weights = [
        numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w"),
        numpy_helper.from_array(np.ones((8, 1, 1), np.float32), "scale"),
        numpy_helper.from_array(np.array([1, 8, 36]), "flat"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "maps", values[:1], values[-1:], weights)
    path = folder / "maps.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load_network(str(path))


@pytest.mark.parametrize(
    ("node", "is_map"),
    [
        (helper.make_node("Relu", ["c"], ["y"]), True),
        (helper.make_node("Mul", ["c", "scale"], ["y"]), True),
        (helper.make_node("PRelu", ["c", "scale"], ["y"]), False),
        (helper.make_node("Concat", ["c", "c"], ["y"], axis=1), True),
        (helper.make_node("Concat", ["c", "c"], ["y"], axis=2), False),
        (helper.make_node("GlobalAveragePool", ["c"], ["y"]), True),
        (helper.make_node("GlobalAveragePool", ["x"], ["y"]), False),
        (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1]), True),
        (helper.make_node("Add", ["c", "x"], ["y"]), False),
        (helper.make_node("Concat", ["c", "x"], ["y"], axis=1), False),
        (helper.make_node("Relu", ["x"], ["y"]), False),
        (helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]), False),
        (helper.make_node("Softmax", ["c"], ["y"], axis=1), False),
        (helper.make_node("Reshape", ["c", "flat"], ["y"]), False),
    ],
    ids=lambda value: value.op_type if isinstance(value, NodeProto) else str(value),
)
def test_operators_that_keep_the_layout_write_feature_maps(tmp_path: Path, node: NodeProto, is_map: bool) -> None:
    """A result is a feature map if a convolution or pool writes it, or an operator that keeps the layout of maps."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), node, helper.make_node("Abs", ["y"], ["z"])]
    network = network_of(tmp_path, nodes, {"x": MAP, "z": _shape_of(node)})
    (last,) = [tensor for tensor, writer in network.producers.items() if writer.op == node.op_type]
    assert (last in network.feature_maps) is is_map


def test_contexts_name_feature_maps(tmp_path: Path) -> None:
    """A layer reads from outside, from a feature map, or from another result."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Add", ["c", "x"], ["a"], "add"),
        helper.make_node("Softmax", ["c"], ["s"], "softmax", axis=1),
        helper.make_node("Mul", ["s", "a"], ["y"], "mul"),
    ]
    network = network_of(tmp_path, nodes, {"x": MAP, "y": MAP})
    contexts = {layer.op: context_of(network, layer) for layer in cut(network, ())}
    assert contexts["Conv"] == "outside"
    assert sorted(contexts["Add"].split(",")) == ["map", "outside"]
    assert (contexts["Softmax"], contexts["Mul"]) == ("map", "chip,chip")


def _shape_of(node: NodeProto) -> tuple[int, ...]:
    axis = next((item.i for item in node.attribute if item.name == "axis"), None)
    shapes = {"GlobalAveragePool": POOLED, "Transpose": (1, 6, 6, 8), "Reshape": (1, 8, 36)}
    if node.op_type == "Concat":
        return (1, 16, 6, 6) if axis == 1 else (1, 8, 12, 6)
    return shapes.get(node.op_type, MAP)
