"""Large weights are checked by their type and size; everything else about a file is checked as before."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from harness.errors import InvalidNetwork
from harness.network.reading.read import parse_model

EDGE = 256


def _model() -> ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, EDGE]) for name in "xy")
    weights = numpy_helper.from_array(np.ones((EDGE, EDGE), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _weights(model: ModelProto) -> TensorProto:
    return model.graph.initializer[0]


def _twice(model: ModelProto) -> None:
    model.graph.initializer.append(_weights(model))


def _sparse_too(model: ModelProto) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[EDGE, EDGE])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "at"))


CHANGES: dict[str, Callable[[ModelProto], object]] = {
    "too few bytes": lambda model: setattr(_weights(model), "raw_data", bytes(4 * EDGE * EDGE - 4)),
    "two kinds of values": lambda model: _weights(model).float_data.append(1.0),
    "no element type": lambda model: setattr(_weights(model), "data_type", 0),
    "no name": lambda model: setattr(_weights(model), "name", ""),
    "text as bytes": lambda model: setattr(_weights(model), "data_type", TensorProto.STRING),
    "twice": _twice,
    "sparse as well": _sparse_too,
    "written by a node as well": lambda model: model.graph.node.append(helper.make_node("Relu", ["x"], ["w"])),
    "a dimension below zero": lambda model: _weights(model).dims.__setitem__(0, -EDGE),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_the_checker_refuses_is_refused(case: str) -> None:
    """A file with large weights that ONNX's checker rejects is rejected here."""
    model = _model()
    parse_model("n", "n", model.SerializeToString())
    CHANGES[case](model)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    with pytest.raises(InvalidNetwork):
        parse_model("n", "n", model.SerializeToString())


def test_the_checker_sees_no_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checker copies and parses does not grow with the weights, and the model keeps them."""
    seen: list[int] = []
    check = onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: (seen.append(model.ByteSize()), check(model)))
    file = parse_model("n", "n", _model().SerializeToString())
    assert seen[0] < 1000
    assert file.model == _model()
