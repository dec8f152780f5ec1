"""Whole networks measured without a table: figures, sweeps, samples, memory and energy."""

import csv
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bokeh_figures import Figure
from command_line import Harness
from hypothesis import given, strategies as st
from nullbench import DEVICE, Bench, build_network

import harness
from device_agents import fingerprint
from harness.benchmarking.benchmark_results import LatencyFigures, mean_power_w
from harness.errors import InvalidNetwork, UsageError
from harness.report.benchmark_plot import benchmark_plot

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=300)


@given(TIMES)
def test_percentiles_are_runs_that_enough_runs_reach(latencies_s: list[float]) -> None:
    """Each percentile is one of the runs; its share of the runs is not slower, and one fewer would not do."""
    found = LatencyFigures.of(latencies_s)
    for share, value in ((0.5, found.p50_s), (0.9, found.p90_s), (0.99, found.p99_s)):
        assert value in latencies_s
        assert sum(one <= value for one in latencies_s) >= share * len(latencies_s)
        assert sum(one < value for one in latencies_s) < share * len(latencies_s)
    assert found.min_s <= found.p50_s <= found.p90_s <= found.p99_s <= found.max_s
    assert found.min_s * (1 - 1e-9) <= found.mean_s <= found.max_s * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.5, 50)), min_size=2, max_size=20),
    st.floats(0, 1000),
    st.booleans(),
)
def test_power_is_the_rise_of_the_counter_over_the_time(
    steps: list[tuple[float, float]], start_j: float, wraps: bool
) -> None:
    """The mean power is all energy over all time, on any number of cores, also if the counter starts again at zero."""
    range_j, cores = (start_j + 60.0 if wraps else 1e9), 4
    times = [0.0, *itertools.accumulate(elapsed for elapsed, _ in steps)]
    energies = [start_j, *(start_j + one for one in itertools.accumulate(joules for _, joules in steps))]
    states = [
        {"cpu_total_s": at_s * cores, "energy_j": energy_j % range_j, "energy_range_j": range_j}
        for at_s, energy_j in zip(times, energies, strict=True)
    ]
    found = mean_power_w(states, cores)
    assert found == pytest.approx(sum(joules for _, joules in steps) / times[-1], rel=1e-6)


def test_power_is_absent_where_nothing_reports_it() -> None:
    """Without a counter or a sensor, or with a single state, there is no power; a sensor alone gives its mean."""
    assert mean_power_w([{"cpu_total_s": 1.0}, {"cpu_total_s": 2.0}], 2) is None
    assert mean_power_w([{"cpu_total_s": 1.0, "energy_j": 5.0}], 2) is None
    falls = [{"cpu_total_s": 1.0, "energy_j": 5.0}, {"cpu_total_s": 2.0, "energy_j": 4.0}]
    assert mean_power_w(falls, 2) is None
    assert mean_power_w([{"power_w": 2.0}, {"power_w": 4.0}], 0) == 3.0


def test_counters_and_sensors_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent reads the counter of the one package, not of its parts, and adds up the channels of INA sensors."""
    monkeypatch.setattr(fingerprint, "POWERCAP", str(tmp_path / "powercap"))
    monkeypatch.setattr(fingerprint, "HWMON", str(tmp_path / "hwmon"))
    assert fingerprint.power_readings() == {}
    files = {
        "powercap/intel-rapl:0/energy_uj": "1500000",
        "powercap/intel-rapl:0/max_energy_range_uj": "262143000000",
        "powercap/intel-rapl:0:0/energy_uj": "700000",
        "hwmon/hwmon0/name": "coretemp",
        "hwmon/hwmon0/power1_input": "9000000",
        "hwmon/hwmon1/name": "ina3221",
        "hwmon/hwmon1/power1_input": "2000000",
        "hwmon/hwmon1/power2_input": "500000",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert fingerprint.power_readings() == {"energy_j": 1.5, "energy_range_j": 262143.0, "power_w": 2.5}
    second = tmp_path / "powercap" / "intel-rapl:1"
    second.mkdir()
    (second / "energy_uj").write_text("1\n")
    assert fingerprint.power_readings() == {"power_w": 2.5}


@pytest.fixture
def meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a shell script as the device's power program; return its path."""
    path = tmp_path / "power"
    monkeypatch.setattr(fingerprint, "PROGRAM", str(path))

    def write(lines: str) -> Path:
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.mark.parametrize(
    ("lines", "reading"),
    [
        ("echo 4.31 W", {"power_w": 4.31}),
        ("echo '1250 J'", {"energy_j": 1250.0}),
        ("echo 4.31", {}),
        ("echo -1 W", {}),
        ("echo nan W", {}),
        ("echo 4 W; echo 5 W", {}),
        ("echo 4 W; exit 1", {}),
        ("sleep 60", {}),
        ("yes", {}),
    ],
)
def test_a_program_of_the_device_reports_power_or_energy(
    lines: str, reading: dict[str, float], meter: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that prints one reading in watts or joules is believed; anything else reports nothing."""
    monkeypatch.setattr(fingerprint, "_PROGRAM_S", 60.0 if "echo" in lines else 0.5)
    meter(lines)
    assert fingerprint.power_readings() == reading


def test_a_program_that_others_could_have_written_never_runs(
    meter: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the group may write, that is not executable or that leads nowhere is left alone."""
    monkeypatch.setattr(fingerprint, "_PROGRAM_S", 60.0)
    mark = tmp_path / "ran"
    path = meter(f"touch {mark}; echo 4 W")
    for mode in (0o775, 0o757, 0o644):
        path.chmod(mode)
        assert fingerprint.power_readings() == {} and not mark.exists()
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert fingerprint.power_readings() == {}
    path.unlink()
    meter(f"touch {mark}; echo 4 W")
    assert fingerprint.power_readings() == {"power_w": 4.0} and mark.exists()


def test_energy_of_a_benchmark_is_that_of_the_device_program(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real script in the account of the agent, a benchmark has its power, and energy by the mean latency."""
    program = tmp_path / ".config" / "harness" / "power"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 4.5 W\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    (one,) = harness.benchmark(bench.model, device=DEVICE, runs=20, workspace=bench.workspace).networks
    assert one.power_w == 4.5
    assert one.energy_j == pytest.approx(4.5 * one.latency.mean_s)


def test_a_device_with_a_known_latency(bench: Bench) -> None:
    """Latency, throughput and the number of samples are those of the device; what it does not report is None."""
    bench.set_device(replace(bench.truth, noise=0.0))
    found = harness.benchmark(bench.model, device=DEVICE, runs=45, processes=2, workspace=bench.workspace)
    (one,) = found.networks
    truth_s = bench.truth.network_s(bench.model)
    assert one.latency.p50_s == pytest.approx(truth_s, rel=1e-4) and one.latency.runs == 90
    assert one.throughput_per_s == pytest.approx(1 / truth_s, rel=1e-4)
    assert (one.rows_per_s, one.compile_s, one.peak_bytes, one.energy_j) == (None, None, None, None)
    assert [len(samples) for samples in one.processes] == [45, 45]
    rows = list(found.samples())
    assert len(rows) == 90 and {row["process"] for row in rows} == {0, 1}
    assert found.to_pandas()["p99_s"].tolist() == pytest.approx([truth_s], rel=1e-4)
    assert found.plot().to_svg().count("<rect") == 2 and "net" in found._repr_html_()
    assert found.machine == "quiet"


def test_onnx_runtime_reports_load_time_and_memory(bench: Bench) -> None:
    """On this machine's ONNX Runtime, first run, load time and resident set are known; the peak holds the weights."""
    model = build_network(bench.root / "wide.onnx", widths=(8, 512, 512))
    found = harness.benchmark(model, device="cpu01", batches=[1, 3], runs=5, workspace=bench.workspace)
    assert [one.batch for one in found.networks] == [1, 3]
    for one in found.networks:
        assert one.clock == "wall" and (one.compile_s or 0) > 0 and (one.first_run_s or 0) > 0
        assert one.before_bytes is not None and one.loaded_bytes is not None and one.peak_bytes is not None
        assert one.before_bytes + 512 * 512 * 9 * 4 < one.peak_bytes
        assert one.loaded_bytes <= one.peak_bytes
        assert one.rows_per_s == pytest.approx((one.batch or 0) * one.throughput_per_s)


@pytest.mark.usefixtures("devices_in_process")
def test_the_command_sweeps_and_writes_files(bench: Bench, tmp_path: Path) -> None:
    """Lists of --batch make one row each, in text and JSON; --csv has every run and --html a plot."""
    command = replace(Harness.in_folder(tmp_path / "command"), workspace=bench.root)
    files = ("--csv", tmp_path / "runs.csv", "--html", tmp_path / "plot.html")
    words = ("benchmark", bench.model, "--device", DEVICE, "--batch", "1,2,4", "--runs", "6")
    shown = command(*words, *files).assert_ok()
    assert all(f"batch={batch}" in shown.stdout for batch in (1, 2, 4))
    assert "reports no energy" in shown.stderr and "p99 is the longest" in shown.stderr
    with (tmp_path / "runs.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 18 and all(int(row["device_ns"]) > 0 for row in rows)
    assert "<title>" in (tmp_path / "plot.html").read_text()
    found = json.loads(command(*words, "--json").assert_ok().stdout)
    assert [one["batch"] for one in found["networks"]] == [1, 2, 4]
    times = [one["p50_s"] for one in found["networks"]]
    assert times == sorted(times) and all(map(math.isfinite, times))


@pytest.mark.usefixtures("devices_in_process")
def test_the_verdict_on_the_machine_is_in_text_json_and_page(bench: Bench, tmp_path: Path) -> None:
    """A device whose runs scatter is noisy, with the same reason in text, JSON and page."""
    bench.set_device(replace(bench.truth, noise=0.3))
    command = replace(Harness.in_folder(tmp_path / "command"), workspace=bench.root)
    words = ("benchmark", bench.model, "--device", DEVICE, "--runs", "40", "--html", tmp_path / "plot.html")
    shown = command(*words).assert_ok().stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("machine: ")]
    assert line.startswith("machine: noisy: ") and "scatter of the reference probe" in line
    (found,) = json.loads(command(*words, "--json").assert_ok().stdout)["networks"]
    assert found["machine"]["verdict"] == "noisy"
    assert found["machine"]["text"] in (tmp_path / "plot.html").read_text()


@pytest.mark.usefixtures("devices_in_process")
def test_the_page_has_units_and_says_what_varies(bench: Bench) -> None:
    """The axis is what varies, without a line from one network to another; times over decades are logarithmic."""
    wide = build_network(bench.root / "wide.onnx", widths=(8, 512, 512))
    drawn = {}
    for models, batches in (([bench.model], (1, 2, 16)), ([bench.model, wide], (None,))):
        found = harness.benchmark(models, device=DEVICE, batches=batches, runs=3, workspace=bench.workspace)
        title, figure = benchmark_plot(found)
        drawn[title.rpartition("by ")[2]] = Figure(figure)
    assert drawn["batch"].axis_labels[0] == "batch (logarithmic)" and drawn["batch"].x_ticks == ["1", "2", "16"]
    assert len(drawn["batch"].lines) == 2
    assert drawn["network"].axis_labels == ["network", "latency, ms (logarithmic)"]
    assert drawn["network"].x_ticks == [bench.model.stem, "wide"] and not drawn["network"].lines


@pytest.mark.usefixtures("devices_in_process")
def test_wrong_lists_and_networks_are_named(bench: Bench, tmp_path: Path) -> None:
    """A list that holds no number is a wrong use; a refused network is listed, and raised if none is left."""
    command = replace(Harness.in_folder(tmp_path / "command"), workspace=bench.root)
    wrong = command("benchmark", bench.model, "--device", DEVICE, "--batch", "1,x")
    assert wrong.code == 2 and "--batch 1,x" in wrong.stderr
    with pytest.raises(InvalidNetwork):
        harness.benchmark("missing.onnx", device=DEVICE, workspace=bench.workspace)
    with pytest.raises(UsageError):
        harness.benchmark(bench.model, device=DEVICE, threads=[2], workspace=bench.workspace)
    found = harness.benchmark([bench.model, "missing.onnx"], device=DEVICE, runs=2, workspace=bench.workspace)
    assert [one.file for one in found.refused_networks] == ["missing.onnx"] and len(found.networks) == 1
