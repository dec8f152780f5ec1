"""Tensors without elements, such as the past of a decoder at its first step: constants that take no time."""

import numpy as np
import pytest
from onnx import NodeProto
from onnx_models import model_of, node, prepared, run_assembled, run_plain

from harness.errors import UnsupportedNetwork
from harness.network.assemble import assemble_network
from harness.network.layers import cut

WEIGHT = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


@pytest.mark.parametrize("length", [0, 3])
def test_a_decoder_is_read_with_any_past(length: int) -> None:
    """The network that is measured computes what the file does, whether the past has tokens or none."""
    nodes = [node("Concat", "past x", "all", axis=1), node("Identity", "past", "kept"), node("MatMul", "all w", "y")]
    model = model_of(nodes, {"past": (2, "past", 4), "x": (2, 6, 4)}, constants={"w": WEIGHT})
    network = prepared(model, {"past": length})
    assert [one.op for one in network.nodes] == ["Concat", "MatMul"]
    feeds, (found,) = run_assembled(assemble_network(network))
    empty = {"past": np.empty((2, 0, 4), np.float32)}
    given = {**empty, **dict(zip(network.inputs, feeds, strict=True))}
    assert np.array_equal(found, run_plain(model, given, ["y"])["y"])


def test_what_reads_only_empty_tensors_takes_no_time() -> None:
    """Operators on a tensor without elements are free, and the rest of the network is measured."""
    nodes = [node("Slice", "x none none", "a"), node("Exp", "a", "b"), node("Concat", "b x", "y", axis=0)]
    network = prepared(model_of(nodes, {"x": (2, 4)}, constants={"none": np.array([0])}))
    assert ([one.op for one in network.nodes], network.inputs) == (["Concat"], ("x",))
    assert {one.reason for one in network.free} == {"empty", "constant"}


def test_an_empty_part_of_a_split_is_a_constant_for_its_readers() -> None:
    """A Split with an empty part returns only the others to layers, and what reads the part reads a constant."""
    nodes = [
        node("Split", "x sizes", "a b", axis=0),
        node("ScatterElements", "b places a", "s", axis=0),
        node("Relu", "s", "y"),
    ]
    constants = {"sizes": np.array([0, 8]), "places": np.zeros((0, 4), np.int64)}
    model = model_of(nodes, {"x": (8, 4)}, constants=constants, outputs=("y", "a"))
    network = prepared(model)
    assert all(network.types[name].elements for one in cut(network, ()) for name in one.graph.outputs)
    feeds, (found,) = run_assembled(assemble_network(network))
    assert np.array_equal(found, run_plain(model, dict(zip(network.inputs, feeds, strict=True)), ["y"])["y"])


@pytest.mark.parametrize(
    "end",
    [node("Relu", "x", "y"), node("ReduceSum", "x axis", "y"), node("MatMul", "x w", "y")],
    ids=lambda n: n.op_type,
)
def test_a_network_of_empty_inputs_has_nothing_to_measure(end: NodeProto) -> None:
    """If nothing depends on a tensor with elements, the error states that nothing takes time."""
    constants = {"axis": np.array([0]), "w": np.ones((4, 3), np.float32)}
    with pytest.raises(UnsupportedNetwork, match="no node takes time"):
        prepared(model_of([end], {"x": (0, 4)}, constants=constants))
