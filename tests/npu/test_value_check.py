"""The comparison of the emulator's values with ONNX Runtime's."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.unit_commands import DataType
from harness.errors import HarnessError, InputError
from harness.network.model_references import load_network
from harness.npu import value_check
from harness.npu.loading import CompiledModel, compile_network, network_model
from harness.npu.npu_options import DEFAULT

NAN, INFINITY = float("nan"), float("inf")


def _error(ours: list[float], theirs: list[float]) -> float:
    return value_check._relative_error("y", np.array(ours, np.float32), np.array(theirs, np.float32))


@pytest.mark.parametrize(
    ("ours", "theirs", "error"),
    [
        ([1, 2], [1, 2], 0.0),
        ([1, 2.5], [1, 2], 0.25),  # 0.5 over the largest reference, 2
        ([0.25, 0], [0, 0], 0.25),  # a reference of zeros has no scale
        ([NAN, 3], [NAN, 4], 0.25),
        ([INFINITY, -INFINITY], [INFINITY, -INFINITY], 0.0),
    ],
)
def test_error_is_relative_to_the_largest_reference(ours: list[float], theirs: list[float], error: float) -> None:
    """The error is the largest difference over the largest finite reference value."""
    assert _error(ours, theirs) == error


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1], [NAN]), ([NAN], [1]), ([INFINITY], [-INFINITY]), ([1, 2], [1])], ids=str
)
def test_values_that_only_one_side_has_are_a_bug(ours: list[float], theirs: list[float]) -> None:
    """Different shapes, and values that are finite on one side only, raise the error of a bug."""
    with pytest.raises(HarnessError, match="Output 'y'") as caught:
        _error(ours, theirs)
    assert caught.value.exit_code == 1


def test_only_float32_machines_have_values() -> None:
    """Other machines are named in a note; float32 machines cause none."""
    edge = load_preset("edge")
    notes: list[str] = []
    assert value_check.has_values(edge, notes.append) and notes == []
    assert not value_check.has_values(replace(edge, data_type=DataType.INT8), notes.append)
    assert len(notes) == 1 and "int8" in notes[0]


def _relu() -> CompiledModel:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 4, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "relu")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return compile_network(network_model(load_network(model), {}), load_preset("edge"), DEFAULT)


def test_a_difference_above_the_tolerance_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that differ from ONNX Runtime's are reported with the tolerance."""
    source = _relu()
    notes: list[str] = []
    assert value_check.check_values(source, notes.append).max_rel_error == 0.0 and notes == []
    monkeypatch.setattr(value_check, "_onnxruntime", lambda *_: {"y": np.ones((1, 2, 4, 4), np.float32)})
    error = value_check.check_values(source, notes.append).max_rel_error
    assert error > value_check.TOLERANCE and "at most 0.0001 is expected" in notes[0]


def test_a_network_without_a_reference_does_not_pass() -> None:
    """A network that ONNX Runtime cannot run is an error with its reason and a way to run it without values."""
    source = _relu()
    proto = onnx.load_model_from_string(source.model.content)
    proto.graph.node[0].domain = "of.nobody"
    proto.opset_import.append(helper.make_opsetid("of.nobody", 1))
    unknown = replace(source, model=replace(source.model, content=proto.SerializeToString()))
    with pytest.raises(InputError, match=r"cannot be checked.*of\.nobody.*--no-values") as caught:
        value_check.check_values(unknown, [].append)
    assert caught.value.exit_code == 3


def _compiled(
    nodes: list[onnx.NodeProto], output: str, tensors: list[TensorProto], made: Sequence[int] = (1, 32)
) -> CompiledModel:
    """Return a network on 32 numbers; `made` is the shape of its output."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32])
    y = helper.make_tensor_value_info(output, TensorProto.FLOAT, made)
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return compile_network(network_model(load_network(model), {}), load_preset("edge"), DEFAULT)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize(("scale", "attributes"), [(0.1, {}), (np.full((2, 32), 0.1), {"axis": 0, "block_size": 16})])
def test_weights_of_four_bits_have_values(kind: int, scale: float | np.ndarray, attributes: dict[str, int]) -> None:
    """The emulator unpacks them as ONNX Runtime does, with one scale and zero point or those of each block."""
    weights = helper.make_tensor("w", kind, (32, 32), np.arange(32 * 32) % 7)
    zero = helper.make_tensor("z", kind, np.shape(scale), np.arange(np.size(scale)) % 5)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], "numbers", **attributes),
        helper.make_node("MatMul", ["x", "d"], ["y"], "product"),
    ]
    source = _compiled(nodes, "y", [weights, zero, numpy_helper.from_array(np.asarray(scale, np.float32), "s")])
    assert value_check.check_values(source, [].append).max_rel_error < value_check.TOLERANCE


def test_zero_points_that_two_products_share_have_a_reference() -> None:
    """ONNX Runtime opens a session also where it could not convert a shared zero point twice."""
    weights = np.arange(32 * 32).reshape(32, 32) % 250 - 125  # ONNX Runtime converts weights that could saturate
    arrays = {"w0": weights, "w1": weights + 1, "signed": np.array(0), "unsigned": np.array(128)}
    tensors = [
        numpy_helper.from_array(array.astype(np.uint8 if name == "unsigned" else np.int8), name)
        for name, array in arrays.items()
    ]
    nodes = []
    for at, read in enumerate(("x", "y0")):
        nodes += [
            helper.make_node("QuantizeLinear", [read, "s", "unsigned"], [f"q{at}"], f"to integers {at}"),
            helper.make_node("DequantizeLinear", [f"q{at}", "s", "unsigned"], [f"n{at}"], f"to numbers {at}"),
            helper.make_node("DequantizeLinear", [f"w{at}", "s", "signed"], [f"d{at}"], f"weights {at}"),
            helper.make_node("MatMul", [f"n{at}", f"d{at}"], [f"p{at}"], f"product {at}"),
            helper.make_node("QuantizeLinear", [f"p{at}", "s", "unsigned"], [f"r{at}"], f"result {at}"),
            helper.make_node("DequantizeLinear", [f"r{at}", "s", "unsigned"], [f"y{at}"], f"numbers {at}"),
        ]
    source = _compiled(nodes, "y1", [*tensors, numpy_helper.from_array(np.array(0.1, np.float32), "s")])
    assert value_check.check_values(source, [].append).max_rel_error < value_check.QUANTISED_TOLERANCE


def test_networks_are_compared_as_they_are() -> None:
    """The reference has no fusions: ONNX Runtime would fuse a pad into the pool behind it and refuse that pool."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["u"], "rank 3"),
        helper.make_node("Pad", ["u", "pads"], ["a"], "pad"),
        helper.make_node("MaxPool", ["a"], ["m"], "pool", kernel_shape=[2]),
        helper.make_node("Squeeze", ["m", "axes"], ["y"], "rank 2"),
    ]
    constants = {"axes": [0], "pads": [0, 0, 9, 0, 0, 9]}
    tensors = [numpy_helper.from_array(np.array(values), name) for name, values in constants.items()]
    source = _compiled(nodes, "y", tensors, (1, 49))
    assert value_check.check_values(source, [].append).max_rel_error < value_check.TOLERANCE


def test_weights_that_are_inputs_as_well_have_a_reference() -> None:
    """Weights that a caller may replace, as exporters list them on request, are compared like others."""
    sizes = {"x": [4, 64], "w": [64, 64], "y": [4, 64]}
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items())
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g", [x, w], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    source = compile_network(network_model(load_network(model), {}), load_preset("edge"), DEFAULT)
    assert value_check.check_values(source, [].append).max_rel_error < value_check.TOLERANCE
