"""Refused networks: each error says what, why and the next step."""

from collections.abc import Callable

import pytest
from onnx import ModelProto, TensorProto, helper
from onnx_models import model_of, node, prepared

from harness.errors import NetworkError

ROW = (1, 8)


def _of_another_domain() -> ModelProto:
    magic = helper.make_node("Magic", ["x"], ["y"], domain="acme")
    model = model_of([magic], {"x": ROW})
    model.opset_import.add(domain="acme", version=1)
    return model


def _with_input(kind: int | None) -> ModelProto:
    model = model_of([node("Identity", "x", "h"), node("Abs", "h", "y")], {"x": ROW}, types={"x": kind or 1})
    if kind is None:
        model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, ROW)))
    return model


REFUSED: dict[str, Callable[[], ModelProto]] = {
    "operator of a domain that nobody has": _of_another_domain,
    "circle": lambda: model_of([node("Add", "x b", "a"), node("Relu", "a", "b")], {"x": ROW}, ["b"]),
    "tensor that two nodes write": lambda: model_of([node("Relu", "x", "y"), node("Tanh", "x", "y")], {"x": ROW}),
    "text": lambda: _with_input(TensorProto.STRING),
    "bfloat16": lambda: _with_input(TensorProto.BFLOAT16),
    "sequence": lambda: _with_input(None),
    "no operator": lambda: model_of([node("Identity", "x", "y")], {"x": ROW}),
    "output of no node": lambda: model_of([node("Relu", "x", "y")], {"x": ROW}, ["y", "z"]),
    "shapes that do not fit": lambda: model_of([node("Add", "x k", "y")], {"x": ROW}, constants={"k": [1.0] * 3}),
}


@pytest.mark.parametrize("build", REFUSED.values(), ids=REFUSED)
def test_each_refusal_has_a_reason_and_a_next_step(build: Callable[[], ModelProto]) -> None:
    """Whatever a network is refused for, its error has a reason and says what to do about it."""
    with pytest.raises(NetworkError) as refused:
        prepared(build())
    assert refused.value.why and refused.value.next_step, str(refused.value)


def test_the_error_for_a_circle_names_its_tensor_and_node() -> None:
    """The error for nodes that read from each other names one of them and the tensor that it waits for."""
    with pytest.raises(
        NetworkError, match=r"Node .*\(Add\) reads 'b', which is no input, no weight and no earlier result"
    ):
        prepared(REFUSED["circle"]())


def test_a_graph_needs_no_name() -> None:
    """Files without a name of the graph, which runtimes do not read, are read as well."""
    model = model_of([node("Relu", "x", "y")], {"x": ROW})
    model.graph.name = ""
    assert [one.op for one in prepared(model).nodes] == ["Relu"]
