"""Traces of a network on several devices, in the Trace Event Format."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from command_line import Harness
from nullbench import DEVICE, Bench, build_network
from page_browser import Browser
from perfetto_page import Perfetto, served_perfetto

import harness
from harness.errors import UsageError

EXECUTED, ESTIMATED = 1, 2
WIDTHS = (8, 16, 24, 32, 40, 48)
RECURRENT = {"w": (1, 24, 4), "r": (1, 24, 8)}
"""The weights of a small GRU."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The trace of a network that the command writes, with a table for the emulated NPU and none for the processor."""
    folder = tmp_path_factory.mktemp("trace")
    model = build_network(folder / "net.onnx", widths=WIDTHS)
    policy = harness.RepeatPolicy(runs=2)
    harness.profile(model, device="npu01", workspace=folder, policy=policy)
    harness.build_lut("npu01", workspace=folder)
    command = replace(Harness.in_folder(folder / "command"), workspace=folder)
    path = folder / "trace.json"
    command("trace", model, "--device", "cpu01,npu01", "-o", path).assert_ok()
    command("npu", "trace", model, "-o", folder / "npu.json").assert_ok()
    emulated = harness.emulate(model, preset="edge", values=False)
    return {**json.loads(path.read_text()), "emulated_us": emulated.latency_s * 1e6, "workspace": folder}


@pytest.fixture(scope="module")
def perfetto(browser: Browser) -> Iterator[Perfetto]:
    """Perfetto."""
    yield from served_perfetto(browser)


def slices(trace: dict[str, Any], process: int, track: int) -> list[dict[str, Any]]:
    """The slices of one track."""
    return [one for one in trace["traceEvents"] if (one["ph"], one["pid"], one["tid"]) == ("X", process, track)]


def test_events_have_the_fields_of_the_format(traced: dict[str, Any]) -> None:
    """Complete events have name, category, process, thread, start and length in microseconds; each track has a name."""
    events = traced["traceEvents"]
    assert {one["ph"] for one in events} == {"M", "X"}
    for one in events:
        assert isinstance(one["name"], str) and isinstance(one["pid"], int) and isinstance(one["tid"], int)
        assert isinstance(one["args"], dict)
        if one["ph"] == "X":
            is_measured = one["pid"] == 1  # in microseconds, of which a short layer may take none
            assert one["ts"] >= 0 and one["dur"] >= (0 if is_measured else 1e-6) and one["cat"] in ("Node", "Estimate")
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    assert named == {(one["pid"], one["tid"]) for one in events if one["ph"] == "X"}
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert processes == {1: "cpu01 (cpu clock)", 2: "npu01 (device clock)"}


def test_slices_of_a_track_follow_each_other(traced: dict[str, Any]) -> None:
    """No slice of a track overlaps the next one, so a viewer nests none in another."""
    for process, track in ((1, EXECUTED), (2, EXECUTED), (2, ESTIMATED)):
        found = slices(traced, process, track)
        assert len(found) >= len(WIDTHS)
        for before, after in itertools.pairwise(found):
            assert after["ts"] >= before["ts"] + before["dur"] - 1e-5


def test_layers_of_both_devices_have_the_same_names(traced: dict[str, Any]) -> None:
    """Every layer of the emulated NPU stands under its name in ONNX Runtime's profile, which fuses otherwise."""
    cpu, npu = ({one["name"] for one in slices(traced, process, EXECUTED)} for process in (1, 2))
    assert {"conv0", "pool", "classifier"} <= npu <= cpu


def test_layers_carry_estimate_and_entry(traced: dict[str, Any]) -> None:
    """With a table, each layer of the network occurs once with its estimate and entry; without one there is none."""
    layers = slices(traced, 2, EXECUTED)
    entries = [entry for one in layers for entry in one["args"].get("entries", ())]
    assert len(entries) == len(slices(traced, 2, ESTIMATED))
    assert all(entry["source"] == "measured" and len(entry["key"]) == 16 for entry in entries)
    for one in layers:
        arguments = one["args"]
        if "estimated_us" in arguments:
            assert arguments["error"] == pytest.approx(arguments["estimated_us"] / arguments["latency_us"] - 1)
    assert not any("entries" in one["args"] for one in slices(traced, 1, EXECUTED))


def test_executed_layers_add_up_to_the_time_of_the_emulator(traced: dict[str, Any]) -> None:
    """The layers of the emulated NPU add up to the makespan of the program that `emulate` times."""
    sum_us = sum(one["dur"] for one in slices(traced, 2, EXECUTED))
    assert sum_us == pytest.approx(traced["emulated_us"], abs=1e-3)


@pytest.mark.parametrize("file", ["trace.json", "npu.json"])
def test_perfetto_reads_a_trace(file: str, traced: dict[str, Any], perfetto: Perfetto) -> None:
    """Perfetto's trace processor finds no error, and every slice with its track, length and arguments, and arrow.

    An instant is a slice of no length.
    """
    path = traced["workspace"] / file
    events = json.loads(path.read_text())["traceEvents"]
    perfetto.open(path)
    assert perfetto.rows("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
    found = perfetto.rows(
        "select pid, tid, slice.name, dur, (select count(*) from args where args.arg_set_id = slice.arg_set_id)"
        " from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)"
    )
    expected = Counter((one["pid"], one["tid"], one["name"]) for one in events if one["ph"] in ("X", "i"))
    assert Counter((pid, tid, name) for pid, tid, name, _, _ in found) == expected
    assert sum(row[3] for row in found) == pytest.approx(
        sum(1000 * one["dur"] for one in events if one["ph"] == "X"), abs=len(found)
    )
    assert all(arguments for *_, arguments in found)
    assert perfetto.rows("select count(*) from flow") == [[sum(one["ph"] == "s" for one in events)]]


def test_a_device_without_a_profile_is_refused(bench: Bench) -> None:
    """A device whose backend reports no layers is a wrong use, which names the device."""
    with pytest.raises(UsageError, match=DEVICE):
        harness.trace(bench.model, devices=[DEVICE], workspace=bench.workspace)


def test_a_trace_needs_no_table(tmp_path: Path) -> None:
    """A network without a table is traced from Python, too, and its trace can be written as JSON."""
    model = build_network(tmp_path / "net.onnx")
    found = harness.trace(model, devices=["cpu01"], workspace=tmp_path)
    assert found.devices[0].lut is None and found.devices[0].estimated == ()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["otherData"]["network"] == "net"


def test_parts_of_a_layer_are_not_compared_with_the_whole(traced: dict[str, Any]) -> None:
    """A recurrent layer that the device executes in many parts has its name on each, and an error on none."""
    constants = [
        onnx.numpy_helper.from_array(np.full(shape, 0.1, np.float32), name) for name, shape in RECURRENT.items()
    ]
    node = onnx.helper.make_node("GRU", ["x", *RECURRENT], ["", "y"], "gru", hidden_size=8)
    sizes = {"x": [4, 1, 4], "y": [1, 1, 8]}
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size) for name, size in sizes.items())
    graph = onnx.helper.make_graph([node], "g", [x], [y], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    found = harness.trace(model, devices=["npu01"], workspace=traced["workspace"])
    parts = [layer for layer in found.devices[0].layers if layer.layers == ("gru",)]
    assert len(parts) > 4 and [bool(layer.estimates) for layer in parts] == [True] + [False] * (len(parts) - 1)
    assert not parts[0].is_whole
    events = found.to_json()["traceEvents"]
    assert [one["args"]["error"] for one in events if "error" in one.get("args", {})] == [None]
