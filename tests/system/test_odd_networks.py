"""Unusual valid networks: they go through the main job."""

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Harness
from onnx import ModelProto, TensorProto, helper
from system_networks import convolutions, model, save, value, weights


def _dead_input() -> ModelProto:
    changed = convolutions()
    changed.graph.input.append(value("unused", [1, 7]))
    return changed


def _initializers_as_inputs() -> ModelProto:
    changed = convolutions()
    changed.ir_version = 3
    changed.graph.input.extend(value(one.name, list(one.dims)) for one in changed.graph.initializer)
    return changed


def _dead_node() -> ModelProto:
    changed = convolutions()
    changed.graph.node.append(helper.make_node("Tanh", ["d"], ["nobody"], name="dead"))
    return changed


ODD: dict[str, Callable[[], ModelProto]] = {
    "duplicate node names": lambda: convolutions(names=["same"] * 5),
    "unnamed nodes": lambda: convolutions(names=[""] * 5),
    "input that feeds nothing": _dead_input,
    "initializers listed as inputs": _initializers_as_inputs,
    "node that feeds nothing": _dead_node,
}


@pytest.mark.usefixtures("devices_in_process")
def test_odd_but_valid_networks_work(harness: Harness, tmp_path: Path) -> None:
    """Unusual valid networks go through profile, table, estimate and validate with full coverage."""
    networks = [save(build(), tmp_path / f"{name}.onnx") for name, build in ODD.items()]
    harness("profile", *networks, "--device", "null01", "--runs", "4").assert_ok()
    harness("lut", "build", "--device", "null01").assert_ok()
    estimated = harness("estimate", *networks, "--device", "null01", "--json").assert_ok().json["networks"]
    assert [found["name"] for found in estimated] == list(ODD)
    for found in estimated:
        assert found["latency_s"] > 0 and found["coverage"]["unknown"] == 0
        assert all(layer["name"] for layer in found["layers"]), f"a layer of {found['name']} has no name"
    measured = harness("validate", *networks, "--device", "null01", "--json").assert_ok().json["networks"]
    assert all(found["measured_s"] > 0 for found in measured)


def _of_dtype(dtype: int, name: str) -> ModelProto:
    if name == "bool":
        nodes = [helper.make_node("Not", ["x"], ["a"]), helper.make_node("And", ["a", "x"], ["y"])]
        return model(nodes, inputs=[value("x", [1, 64], dtype)], outputs=[value("y", [1, 64], dtype)])
    if name.startswith("int"):
        nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])]
        return model(
            nodes,
            inputs=[value("x", [1, 64], dtype)],
            outputs=[value("y", [1, 64], dtype)],
            initializers=[weights("w", (64,), name)],
        )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    return model(
        nodes,
        inputs=[value("x", [1, 64], dtype)],
        outputs=[value("y", [1, 64], dtype)],
        initializers=[weights("w", (64, 64), name)],
    )


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize(
    ("dtype", "device"),
    [("float16", "cpu01"), ("int32", "null01"), ("bool", "cpu01")],
)
def test_other_data_types(dtype: str, device: str, harness: Harness, tmp_path: Path) -> None:
    """Networks of other data types than float32 go through the main job, or are refused with one error."""
    kind = getattr(TensorProto, dtype.upper())
    network = save(_of_dtype(kind, "float64" if dtype == "double" else dtype), tmp_path / "net.onnx")
    outcome = harness("profile", network, "--device", device, "--runs", "3")
    if outcome.code != 0:
        outcome.assert_refused(3)
        return
    outcome.assert_ok()
    built = harness("lut", "build", "--device", device)
    if built.code != 0:
        built.assert_refused(5)
        return
    built.assert_ok()
    estimated = harness("estimate", network, "--device", device, "--json")
    estimated.assert_plain()
    assert estimated.code in (0, 6), str(estimated)
    if estimated.code == 0:
        assert estimated.json["networks"][0]["latency_s"] > 0
