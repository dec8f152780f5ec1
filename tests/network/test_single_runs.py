"""Nodes of constants are computed on the host: nodes that differ in names and sizes alone share a session."""

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper
from onnx_models import model_of, node, prepared

from harness.errors import InvalidNetwork
from harness.network.network import Network

_SHAPE = (1, 8)


def _folded(nodes: list[NodeProto], constants: dict[str, Any], wanted: list[str]) -> Network:
    """Return a network that adds to its input what the nodes compute, reduced to one number each."""
    sums: list[NodeProto] = []
    last = "x"
    for number, name in enumerate(wanted):
        sums.append(node("Cast", name, f"float{number}", to=1))
        sums.append(node("ReduceSum", f"float{number}", f"one{number}", keepdims=0))
        sums.append(node("Add", f"{last} one{number}", f"sum{number}" if number < len(wanted) - 1 else "y"))
        last = f"sum{number}"
    return prepared(model_of([*nodes, *sums], {"x": _SHAPE}, constants=constants))


def test_equal_nodes_of_other_sizes_types_and_values_have_their_own_results() -> None:
    """Nodes of one operator share a session and no result: their sizes, ranks, types, values and attributes count."""
    arrays = {
        "a": np.arange(6, dtype=np.int64),
        "b": np.arange(4, dtype=np.int64) + 10,
        "c": np.arange(6, dtype=np.int64).reshape(2, 3),
        "d": np.arange(6, dtype=np.float32),
        "e": np.arange(6, dtype=np.int64) * 7,
    }
    nodes = [node("Gather", f"{name} at", f"{name}0", axis=0) for name in arrays]
    nodes.append(node("Gather", "c at", "f0", axis=1))
    network = _folded(nodes, {**arrays, "at": np.array([1])}, [f"{name}0" for name in (*arrays, "f")])
    for name, array in arrays.items():
        found = network.constants[f"{name}0"].value
        assert found is not None
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array[[1]])
    np.testing.assert_array_equal(network.constants["f0"].value, arrays["c"][:, [1]])


def test_targets_of_equal_nodes_give_their_own_shapes() -> None:
    """Types of nodes that differ in a constant of sizes alone are inferred for each."""
    targets = {"s": [2, 12], "t": [24], "u": [2, 3, 4]}
    nodes = [node("Reshape", f"x {name}", f"{name}0") for name in targets]
    network = prepared(
        model_of(nodes, {"x": (4, 6)}, [f"{name}0" for name in targets], {n: np.array(v) for n, v in targets.items()})
    )
    assert {name: list(network.types[f"{name}0"].shape) for name in targets} == targets


@pytest.mark.parametrize(
    ("attribute", "wanted"),
    [
        ({"value": numpy_helper.from_array(np.array([[1.5, 2]], np.float16))}, np.array([[1.5, 2]], np.float16)),
        ({"value_int": 3}, np.array(3, np.int64)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
        ({"value_float": 2.5}, np.array(2.5, np.float32)),
        ({"value_floats": [2.5, 3.5]}, np.array([2.5, 3.5], np.float32)),
    ],
)
def test_constants_have_the_values_of_the_file(attribute: dict[str, Any], wanted: np.ndarray[Any, Any]) -> None:
    """A Constant has the value, shape and element type that it states, in each of its forms."""
    network = _folded([helper.make_node("Constant", [], ["k"], **attribute)], {}, ["k"])
    found = network.constants["k"].value
    assert found is not None
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_constant_without_its_data_is_refused() -> None:
    """A constant whose data are shorter than its shape is an error that names the node."""
    tensor = numpy_helper.from_array(np.ones(4, np.float32))
    tensor.raw_data = tensor.raw_data[:7]
    with pytest.raises(InvalidNetwork, match=r"'broken' .*damaged|not valid ONNX"):
        _folded([helper.make_node("Constant", [], ["k"], "broken", value=tensor)], {}, ["k"])


def test_a_resize_to_given_sizes_has_its_values() -> None:
    """Constants that a file resizes, as position embeddings are, have the runtime's values."""
    table = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    resize = node("Resize", "table _ _ sizes", "resized", mode="linear")
    network = _folded([resize], {"table": table, "sizes": np.array([1, 1, 8, 8])}, ["resized"])
    found = network.constants["resized"].value
    assert found is not None
    assert found.shape == (1, 1, 8, 8)
    np.testing.assert_allclose(found.mean(), table.mean(), rtol=1e-6)
