"""Inputs that are one number decide what a network computes: --dim gives their values, and they are constants then."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_models import FLOAT, model_of, network_of, node, prepared, run_assembled, run_plain

from harness.errors import NetworkError, UnsupportedNetwork, UsageError
from harness.network.assemble import assemble_network
from harness.network.network_list import load_networks

SHAPE = (2, 3)


def choosing(rank: int) -> ModelProto:
    """Return a model whose input `cached`, a Boolean, selects one of two operators."""

    def branch(op: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info("r", FLOAT, SHAPE)
        return helper.make_graph([helper.make_node(op, ["x"], ["r"])], op, [], [result])

    choice = helper.make_node("If", ["cached"], ["z"], then_branch=branch("Exp"), else_branch=branch("Neg"))
    types = {"cached": TensorProto.BOOL}
    return model_of([choice, node("Abs", "z", "y")], {"x": SHAPE, "cached": (1,) * rank}, types=types)


def repeating(kind: int = TensorProto.INT64) -> ModelProto:
    """Return a model that doubles its input as often as its input `steps` states."""
    result = helper.make_tensor_value_info("w", FLOAT, SHAPE)
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("Identity", ["go"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("v", FLOAT, SHAPE),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, ()), result],
    )
    nodes = [node("Cast", "steps", "times", to=TensorProto.INT64), helper.make_node("Loop", ["times", "", "x"], ["y"])]
    nodes[1].attribute.append(helper.make_attribute("body", body))
    return model_of(nodes, {"x": SHAPE, "steps": ()}, types={"steps": kind})


@given(st.booleans(), st.integers(0, 1))
def test_a_given_boolean_selects_its_branch(cached: bool, rank: int) -> None:
    """The network of a given Boolean has the branch and the values of the file with that input, and no such input."""
    model = choosing(rank)
    network = prepared(model, {"cached": int(cached)})
    assert [one.op for one in network.nodes] == ["Exp" if cached else "Neg", "Abs"]
    assert network.inputs == ("x",)
    (x,), (ours,) = run_assembled(assemble_network(network))
    theirs = run_plain(model, {"x": x, "cached": np.full((1,) * rank, cached)}, ["y"])
    np.testing.assert_array_equal(ours, theirs["y"])


@given(st.integers(1, 6))
def test_a_given_number_is_how_often_a_loop_runs(steps: int) -> None:
    """A Loop whose length is an input is read as its iterations where the length is given."""
    model = repeating()
    (x,), (ours,) = run_assembled(assemble_network(prepared(model, {"steps": steps})))
    np.testing.assert_array_equal(ours, run_plain(model, {"x": x, "steps": np.array(steps)}, ["y"])["y"])


def lookups() -> list[NodeProto]:
    """Return nodes whose input `n` states how many rows of a table are read."""
    return [node("Range", "zero n one", "r"), node("Gather", "table r", "g", axis=0), node("MatMul", "g x", "y")]


def test_a_given_number_may_be_a_size() -> None:
    """A size that the inputs decide is known where its input is given."""
    constants = {"zero": np.array(0), "one": np.array(1), "table": np.ones((9, 2), np.float32)}
    inputs, types = {"x": SHAPE, "n": ()}, {"n": TensorProto.INT64}
    network = network_of(lookups(), inputs, constants=constants, types=types, dims={"n": 4})
    assert network.types["y"].shape == (4, 3)
    with pytest.raises(NetworkError, match="Give 'n' a value"):
        network_of(lookups(), inputs, constants=constants, types=types)


@pytest.mark.parametrize(("model", "name"), [(choosing(1), "cached"), (repeating(), "steps")])
def test_the_error_names_the_input_that_decides(model: ModelProto, name: str) -> None:
    """Control flow that depends on one number is refused with the input that decides it; no part need be exported."""
    with pytest.raises(UnsupportedNetwork) as raised:
        prepared(model)
    assert (raised.value.unset, raised.value.next_step) == ((name,), "")


@pytest.mark.parametrize(
    ("model", "dims", "why", "step"),
    [
        (
            repeating(TensorProto.UINT8),
            {"steps": 300},
            "300 is not a valid uint8 value",
            "from 0 to 255",
        ),
        (choosing(0), {"cached": 2}, "2 is not a valid bool value", "from 0 to 1"),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(
    model: ModelProto, dims: dict[str, int], why: str, step: str
) -> None:
    """A number outside the range of the input's type is an error, not another number, and the range is stated."""
    with pytest.raises(UnsupportedNetwork, match=why) as raised:
        prepared(model, dims)
    assert step in raised.value.next_step


def test_inputs_whose_values_can_be_given_are_known_names(tmp_path: Path) -> None:
    """`--dim` accepts the name of such an input as it accepts that of a dimension."""
    onnx.save(choosing(0), tmp_path / "choosing.onnx")
    (network,) = load_networks([str(tmp_path / "choosing.onnx")], {"cached": 1})
    assert network.inputs == ("x",)
    with pytest.raises(
        UsageError, match=r"dimension or an input named 'size'.*inputs of choosing that can have a value: cached"
    ):
        load_networks([str(tmp_path / "choosing.onnx")], {"cached": 1, "size": 2})
