"""Imported tables among measured ones, in every command; the examples of docs/import.md; convolutions of a V100."""

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Harness
from import_files import CONVOLUTION, V100_COLUMNS, row, run_import, v100_mapping, v100_rows
from onnx import TensorProto, helper, numpy_helper

from harness.lut.table_files import read_lut

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "import.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def small_network(folder: Path, layers: int = 3) -> Path:
    """Write a chain of named convolutions with activations."""
    weight = numpy_helper.from_array(np.zeros((16, 16, 3, 3), np.float32), "w")
    nodes, last = [], "x"
    for at in range(layers):
        nodes.append(helper.make_node("Conv", [last, "w"], [f"c{at}"], f"conv{at}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{at}"], [f"r{at}"], f"relu{at}"))
        last = f"r{at}"
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 28, 28])
    result = helper.make_tensor_value_info(last, TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph(nodes, "small", [image], [result], [weight])
    path = folder / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_imported_table_never_comes_before_a_measured_one(harness: Harness) -> None:
    """The newest measured table stays the default after an import; the imported one is used by name, or alone."""
    network = small_network(harness.workspace)
    harness("profile", "--device", "null01", network, "--runs", "3").assert_ok()
    measured = harness("lut", "build", "--device", "null01", "--json").data["lut"]
    before = harness.kept()
    section = [{**CONVOLUTION, "bias": False, "activation": "Relu"}]
    found = run_import(harness, [row(k=16)], "--json", device="null01", operator=section).data
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-import-[0-9a-f]{8}", Path(found["lut"]).name)
    assert harness.kept().items() >= before.items(), "a measured table changed"
    estimated = harness("estimate", network, "--device", "null01", "--json").data
    assert estimated["lut"] == f"null01/{Path(measured).name}"
    named = harness("estimate", network, "--lut", f"null01/{Path(found['lut']).name}")
    assert "a tool measured, not harness" in named.assert_ok().stderr
    alone = run_import(harness, [row(k=16)], "--json", device="elsewhere", operator=section).data
    assert harness("estimate", network, "--device", "elsewhere", "--json").data["lut"] in alone["lut"]
    changes = harness("lut", "diff", measured, found["lut"]).assert_ok()
    assert "tool:  -> a tool" in changes.stderr


def test_a_dry_run_writes_nothing(harness: Harness) -> None:
    """With `--dry-run` everything is checked and counted, and the workspace stays as it is."""
    found = run_import(harness, [row(), row(k=64)], "--dry-run", "--json").data
    assert (found["lut"], found["entries"]) == (None, 2)
    assert not (harness.workspace / "lut").exists()
    run_import(harness, [row()], "--dry-run", "--held-out", "3").assert_refused(2, mentions=("--sample",))


def test_stated_overhead_is_in_estimates_and_may_be_subtracted(harness: Harness) -> None:
    """The overhead of a mapping is added to networks; with `included` each row loses it, and rows below it are bad."""
    network = small_network(harness.workspace, layers=1)
    section = [{**CONVOLUTION, "bias": False, "activation": "Relu"}]
    stated = {"a_s_per_byte": 1e-9, "b_s_per_byte": 2e-9, "c_s": 1e-5}
    one = 16 * 28 * 28 * 4
    for included in (False, True):
        overhead = {**stated, "included": included}
        run_import(harness, [row(k=16)], operator=section, overhead=overhead, device=f"d{included}").assert_ok()
        (found,) = harness("estimate", network, "--device", f"d{included}", "--json").data["networks"]
        assert found["overhead_s"] == pytest.approx(1e-5 + 3e-9 * one)
        assert found["latency_s"] == pytest.approx(5e-4 + (0 if included else found["overhead_s"]))
    overhead = {**stated, "included": True, "c_s": 1.0}
    run_import(harness, [row()], operator=section, overhead=overhead).assert_refused(3, mentions=("not above",))
    assert "1.000e-09" in harness("lut", "show", "--device", "dTrue").assert_ok().stdout


def test_whole_networks_are_compared_and_nothing_is_fitted_to_them(harness: Harness) -> None:
    """Networks change no entry; they show the errors of estimates, and widen later intervals by these."""
    small_network(harness.workspace)
    section = [{**CONVOLUTION, "bias": False, "activation": "Relu", "where": {"kind": "conv"}}]
    rows = [row(k=16), row(kind="small.onnx", ms=1.8), row(kind="missing.onnx"), row(kind="../small.onnx")]
    networks = [{"model": "$kind"}]
    run_import(harness, rows, operator=section, network=networks).assert_refused(3, mentions=("line 4", "line 5"))
    plain = run_import(harness, rows[:1], "--json", operator=section, device="plain").data
    report = harness.workspace / "report.html"
    options = ("--json", "--skip-invalid", "--html", report)
    found = run_import(harness, rows, *map(str, options), operator=section, network=networks).data
    (compared,) = found["validation"]["networks"]
    assert (compared["name"], compared["measured_s"]) == ("small", pytest.approx(1.8e-3))
    assert compared["error"] == pytest.approx(1.5 / 1.8 - 1)
    assert "Estimated against measured latency" in report.read_text(encoding="utf-8")
    with_networks, without = (read_lut(Path(one["lut"])) for one in (found, plain))
    assert [one.latency_s for one in with_networks.entries] == [one.latency_s for one in without.entries]
    assert without.sum_error == pytest.approx(0.02)
    (error,) = with_networks.network_errors.values()
    assert 0.19 < error < 0.21
    low, high = harness("estimate", "small.onnx", "--device", "board", "--json").data["networks"][0]["interval_s"]
    assert low < 1.8e-3 < high
    stated = [{"model": "small.onnx", "latency": 1.5}, {"model": "builtin:dscnn", "latency": 1.0}]
    shown = run_import(harness, rows[:1], operator=section, network=stated, device="exact").assert_ok()
    assert "+0.0%" in shown.stdout and "dscnn is not compared" in shown.stderr


def test_a_profile_of_a_runtime_becomes_the_layers_of_its_network(harness: Harness) -> None:
    """The page's lines turn a profile of ONNX Runtime into rows whose layers are those of the network."""
    import onnxruntime

    folder = harness.workspace
    network = small_network(folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "raw")
    session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
    for _ in range(5):
        session.run(None, {"x": np.zeros((1, 16, 28, 28), np.float32)})
    Path(session.end_profiling()).rename(folder / "profile.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (lines,) = [block for block in blocks("python") if "_kernel_time" in block]
        exec(compile(lines.replace("json.load(open(", "json.load(__open("), "import.md", "exec"), {"__open": _open})  # noqa: S102
    (section,) = [block for block in blocks("toml") if "_kernel_time" in block]
    mapping = folder / "profile.toml"
    mapping.write_text(
        'device = "cpu"\nunit = "us"\nlatency = "$dur"\nstatistic = "median"\nfusion = "rows"\n'
        '[provenance]\ntool = "onnxruntime"\n[uncertainty]\nrelative = 0.05\n'
        + section.replace("model.onnx", "small.onnx")
    )
    found = harness("lut", "import", "profile.csv", "--mapping", mapping, "--json").data
    events = [one for one in json.loads((folder / "profile.json").read_text()) if one["name"].endswith("_kernel_time")]
    assert found["rows"]["read"] == len(events) == 30 and found["rows"]["invalid"] == 0
    (estimate,) = harness("estimate", network, "--device", "cpu", "--json").data["networks"]
    assert estimate["coverage"]["measured"] == 6
    relu = {one["name"]: one["latency_s"] for one in estimate["layers"]}
    middle = [one["dur"] * 1e-6 for one in events if one["name"] in ("relu1_kernel_time", "relu2_kernel_time")]
    assert min(middle) <= relu["relu1"] == relu["relu2"] <= max(middle)


def _open(path: str) -> Any:
    """Open a file as the page does, and close it with the interpreter's help."""
    import io

    return io.StringIO(Path(path).read_text(encoding="utf-8"))


def test_names_joined_by_a_tool_are_one_layer_and_teach_fusion(harness: Harness) -> None:
    """Kernels named "conv0 + relu0" become fused layers; another network of such layers is cut in the same way."""
    small_network(harness.workspace)
    names = ["conv0 + relu0", "conv1 + relu1", "Reformatting CopyNode for x", "conv2", "relu2", "relu1, conv2"]
    rows = [[name, str(100 * at + 50)] for at, name in enumerate(names)]
    sections = {"operator": None, "layers": [{"model": "small.onnx", "nodes": "$name"}]}
    mapping = {**sections, "unit": "us", "latency": "$us", "fusion": "rows", "header": ("name", "us")}
    run_import(harness, rows, **mapping).assert_refused(
        3, mentions=("line 4", "Reformatting", "line 7", "shares nodes")
    )
    run_import(harness, rows, "--skip-invalid", **mapping).assert_ok()
    table = read_lut(harness.table)
    assert sorted((one.op, one.context, round(one.latency_s * 1e6)) for one in table.entries) == [
        ("Conv", "map", 350),
        ("Conv+Relu", "map", 150),
        ("Conv+Relu", "outside", 50),
        ("Relu", "map", 450),
    ]
    (network,) = harness("estimate", "small.onnx", "--device", "board", "--json").data["networks"]
    assert network["latency_s"] == pytest.approx(1e-3)


def test_the_worked_example_of_the_page_runs(harness: Harness) -> None:
    """The file and the mapping of docs/import.md give the table that the page describes."""
    (harness.workspace / "kernels.csv").write_text(blocks("csv")[0], encoding="utf-8")
    (harness.workspace / "kernels.toml").write_text(blocks("toml")[0], encoding="utf-8")
    for command in [line.split("#")[0].split()[1:] for line in blocks("sh")[0].splitlines() if "kernels.csv" in line]:
        harness(*command).assert_ok()
    table = read_lut(harness.table)
    ops = ["Conv+BatchNormalization+Relu"] * 4 + ["Gemm", "GlobalAveragePool"]
    assert sorted(one.op for one in table.entries) == ops
    assert min(one.latency_s for one in table.entries) == pytest.approx(9.5e-6)
    assert {one.samples for one in table.entries} == {50}


@pytest.fixture(scope="module")
def v100(tmp_path_factory: pytest.TempPathFactory) -> tuple[Harness, dict[str, Any]]:
    """A workspace with a table of a part of the V100 data, and what the command printed."""
    harness = Harness.in_folder(tmp_path_factory.mktemp("v100"))
    options = ("--sample", "120", "--held-out", "300", "--json")
    found = run_import(harness, v100_rows(430), *options, header=(), columns=list(V100_COLUMNS), **v100_mapping())
    return harness, found.data


def test_convolutions_of_a_device_that_nobody_has_are_predicted(v100: tuple[Harness, dict[str, Any]]) -> None:
    """From 120 rows of TensorRT on a V100, a third of 300 others are predicted within 10 %, and intervals hold."""
    _, found = v100
    held_out = found["held_out"]
    assert found["predictor"] and held_out["layers"] > 280 and held_out["unpredicted"] == 0
    assert held_out["within_10"] > 0.33
    assert held_out["interval_coverage"] > 0.8


def test_every_command_on_tables_works_with_an_imported_one(v100: tuple[Harness, dict[str, Any]]) -> None:
    """Show, check, diff, export, estimate and the report accept the table; layers without an entry are predicted."""
    harness, found = v100
    for command in (("show",), ("check",), ("diff", found["lut"], found["lut"])):
        where = ("--device", "v100") if command == ("show",) else ()
        harness("lut", *command, *where).assert_ok()
    harness("lut", "export", "layers.csv", "--device", "v100").assert_ok()
    with (harness.workspace / "layers.csv").open(newline="", encoding="utf-8") as file:
        exported = list(csv.DictReader(file))
    assert len(exported) == found["entries"]
    assert {(one["method"], one["clock"], one["overhead_c_s"]) for one in exported} == {("import", "device", "0.0")}
    network = small_network(harness.workspace)
    model = onnx.load(network)
    half = harness.workspace / "half.onnx"
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.elem_type = TensorProto.FLOAT16
    array = numpy_helper.to_array(model.graph.initializer[0]).astype("float16")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))
    onnx.save(model, half)
    harness("estimate", half, "--device", "v100", "--html", "r.html", "--json").assert_ok()
    (estimate,) = harness("estimate", half, "--device", "v100", "--json").data["networks"]
    sources = {one["source"] for one in estimate["layers"]}
    assert sources <= {"interpolated", "extrapolated"}
    assert 0 < estimate["latency_s"] < 0.01
    report = (harness.workspace / "r.html").read_text(encoding="utf-8")
    assert "NVIDIA V100" in report and "Overhead as the import states it" in report
    assert "null probes" not in report and "R²" not in report


def test_the_mapping_of_the_v100_on_the_page_reads_its_data(harness: Harness) -> None:
    """The mapping that docs/import.md shows for the V100 makes entries of the rows, of the same latencies."""
    (mapping,) = [block for block in blocks("toml") if 'device = "v100"' in block]
    (harness.workspace / "v100.toml").write_text(mapping, encoding="utf-8")
    rows = v100_rows(18)  # too few to train a predictor, which takes a while
    (harness.workspace / "v100.csv").write_text("\n".join(map(",".join, rows)) + "\n", encoding="utf-8")
    harness("lut", "import", "v100.csv", "--mapping", "v100.toml").assert_ok()
    taken = [float(one[-1]) / 1e3 for one in rows if float(one[-1]) > 0]
    entries = read_lut(harness.table).entries
    assert statistics.fmean(one.latency_s for one in entries) == pytest.approx(statistics.fmean(taken), rel=1e-6)
    assert len(entries) == len(taken)
