"""ONNX files that the ONNX checker accepts and that no runtime could run: one sentence, and no number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

from harness.errors import InvalidNetwork
from harness.network.model_references import load_network

_FLOAT = TensorProto.FLOAT


def _model(*nodes: NodeProto, shape: tuple[int, ...] = (4, 4), **constants: np.ndarray[Any, Any]) -> ModelProto:
    """Return a model that reads `x` and writes `y`; the shape of `y` is left open."""
    values = [helper.make_tensor_value_info(name, _FLOAT, size) for name, size in (("x", shape), ("y", ["any"]))]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "g", values[:1], values[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _referring(model: ModelProto, node: NodeProto) -> ModelProto:
    """Let the only attribute of a node of the model refer to an attribute of a function that does not exist."""
    node.attribute[0].ref_attr_name = "slope\x1b[31m"
    return model


def _reference() -> ModelProto:
    model = _model(helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5))
    return _referring(model, model.graph.node[0])


def _folded_reference() -> ModelProto:
    model = _model(
        helper.make_node("Cast", ["k"], ["c"], to=_FLOAT), helper.make_node("Add", ["x", "c"], ["y"]), k=np.ones(4, int)
    )
    return _referring(model, model.graph.node[0])


def _quantised(axis: int) -> ModelProto:
    steps = {"s": np.ones(7, np.float32), "z": np.zeros(7, np.int8)}
    nodes = [
        helper.make_node(f"{op}Linear", [at, "s", "z"], [to], axis=axis)
        for op, at, to in (("Quantize", "x", "q"), ("Dequantize", "q", "y"))
    ]
    return _model(*nodes, **steps)


def _convolution(mode: str | bytes) -> ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode)
    return _model(node, shape=(1, 3, 8, 8), w=np.ones((4, 3, 3, 3), np.float32))


CASES: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "reference outside of functions": (_reference, r"not inside a function.*'alpha' refers to 'slope\\x1b\[31m'"),
    "reference of a constant": (_folded_reference, "not inside a function.*'to' refers"),
    "axis whose lower half is 0": (
        lambda: _model(helper.make_node("Concat", ["x", "x"], ["y"], axis=1 << 62)),
        f"axis is {1 << 62}, which no tensor has",
    ),
    "least axis": (
        lambda: _model(helper.make_node("Softmax", ["x"], ["y"], axis=-(1 << 63))),
        f"axis is -{1 << 63}, which no tensor has",
    ),
    "scales along no axis": (lambda: _quantised(77), "axis is 77; its input has 2 dimensions"),
    "unknown padding": (lambda: _convolution("SAME"), "auto_pad is 'SAME'; it must be NOTSET, .* or VALID"),
    "padding that is no text": (lambda: _convolution(b"\xff\x1b[31m"), r"auto_pad is '.\\x1b\[31m'"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_checker_lets_pass_is_refused_by_the_name_of_the_node(case: str, tmp_path: Path) -> None:
    """A file that ONNX's checker accepts, with an attribute that no node can have, names the node and the attribute."""
    build, why = CASES[case]
    model = build()
    checker.check_model(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidNetwork, match=rf"(?s)Node .*{why}"):
        load_network(str(tmp_path / "m.onnx"), {})


@pytest.mark.parametrize("mode", ["", "SAME_LOWER"])
def test_paddings_that_runtimes_know_are_read(mode: str, tmp_path: Path) -> None:
    """An empty padding is that of the default, as in ONNX Runtime."""
    (tmp_path / "m.onnx").write_bytes(_convolution(mode).SerializeToString())
    size = 8 if mode else 6
    assert load_network(str(tmp_path / "m.onnx"), {}).types["y"].shape == (1, 4, size, size)


def test_external_data_behind_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    """A link that leads to itself, as the file of the weights or as a folder before it, is an error of the file."""
    (tmp_path / "circle").symlink_to("circle")
    model = _convolution("VALID")
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    entry = weights.external_data.add(key="location")
    for location in ("circle", "circle/weights"):
        entry.value = location
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(InvalidNetwork, match="External data of tensor 'w' is refused"):
            load_network(str(tmp_path / "m.onnx"), {})
