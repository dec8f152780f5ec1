"""`harness npu sweep`: the points of a sweep, its knee, its files, and the errors for wrong parameters."""

import csv
from pathlib import Path

import npu_inputs
import pytest
from bokeh_figures import Figure
from npu_command import Npu

DIRECT = ("--conv-algorithm", "direct")
"""For tests in which the algorithm plays no part: searching the blocks of a DFT takes most of a compilation."""
LAYERS = (*DIRECT, "--chains", "layers")
"""For tests in which chains play no part, either: searching them takes most of what is left."""


def test_points_are_what_runs_take(npu: Npu, network: Path, tmp_path: Path) -> None:
    """Every point is the run of the same network on a machine whose file has that value."""
    found = npu("sweep", network, "--set", "mfu.columns=8,32", "--json").data
    assert [point["settings"] for point in found["points"]] == [{"mfu.columns": 8}, {"mfu.columns": 32}]
    for point in found["points"]:
        text = npu_inputs.machine_text(columns=str(point["settings"]["mfu.columns"]))
        run = npu("run", network, "--machine", npu_inputs.save(text, tmp_path / "m.toml"), "--no-values", "--json").data
        assert (point["cycles"], point["seconds"]) == (run["cycles"], run["seconds"])
        assert point["mfu_utilisation"] == run["utilisation"]["mfu"]
        assert point["bound"] in ("io", "compute", "fill", "wait") and point["reason"] is None
    assert found["points"][0]["cycles"] > found["points"][1]["cycles"]
    assert 0 < found["import_s"] < found["took_s"]


def test_knee_is_marked(npu: Npu, network: Path, tmp_path: Path) -> None:
    """The knee is the same in JSON, table, CSV and plot: more bandwidth stops paying once the multipliers are busy."""
    page, table = tmp_path / "p.html", tmp_path / "p.csv"
    command = ("sweep", network, *DIRECT, "--set", "ddr.bytes_per_s=125M:32G:x4")
    found, text = npu(*command, "--plot", page, "--csv", table, "--json").data, npu(*command).stdout
    (knee,) = found["knees"]
    assert knee["key"] == "ddr.bytes_per_s" and 125e6 < knee["value"] < 32e9
    (point,) = [point for point in found["points"] if point["knee"]]
    assert (point["settings"]["ddr.bytes_per_s"], point["cycles"]) == (knee["value"], knee["cycles"])
    (line,) = [line for line in text.splitlines() if "◀ knee" in line]
    assert f"{point['cycles']:,.0f}" in line.split()
    label = line.split()[0]
    figure = Figure.of_page(page)
    assert figure.labels == [f"knee: {label}"] and figure.rings[0]["x"] == [knee["value"]]
    assert figure.lines[0]["y"] == [point["cycles"] for point in found["points"]]
    assert figure.axis_labels == ["ddr.bytes_per_s, bytes/s (logarithmic)", "time, cycles (logarithmic)"]
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["cycles"]) for row in rows] == [point["cycles"] for point in found["points"]]
    assert [row["ddr.bytes_per_s"] for row in rows if row["knee"] == "True"] == [str(knee["value"])]
    before, after = found["points"][0]["cycles"], found["points"][-1]["cycles"]
    assert before - knee["cycles"] > knee["cycles"] - after, "most is gained before the knee"


def test_grid_of_machines_and_values(npu: Npu, network: Path, tmp_path: Path) -> None:
    """Presets and parameters make a grid, with one line per combination of all but the first parameter."""
    page = tmp_path / "p.html"
    sets = ("--set", "mfu.rows=16,32", "--set", "vfu.lanes=32,64")
    command = ("sweep", network, *LAYERS, "--preset", "edge", "--preset", "nvdla-256", *sets)
    found = npu(*command, "--plot", page, "--json").data
    got = [(point["machine"], *point["settings"].values()) for point in found["points"]]
    assert sorted(got) == [(m, r, v) for m in ("edge", "nvdla-256") for r in (16, 32) for v in (32, 64)]
    assert got[:2] == [("edge", 16, 32), ("edge", 32, 32)], "along a line the first parameter varies"
    names = [f"{machine}, vfu.lanes={lanes}" for machine in ("edge", "nvdla-256") for lanes in (32, 64)]
    assert Figure.of_page(page).legend == names
    lines = npu(*command).stdout.splitlines()
    assert lines[0].split()[:5] == ["machine", "mfu.rows", "vfu.lanes", "mm²", "cycles"]
    assert sum(line.startswith(("edge ", "nvdla-256 ")) for line in lines) == 8


def test_what_is_left_out_is_named(npu: Npu, tmp_path: Path) -> None:
    """Nodes that no machine runs are listed, as `npu run` lists them."""
    path = npu_inputs.save(npu_inputs.detector(), tmp_path / "detector.onnx")
    for command in ("run", "sweep"):
        found = npu(command, path, *(("--set", "mfu.rows=8,16") if command == "sweep" else ("--no-values",)))
        assert found.code == 0 and "not measured: " in found.stderr, command


def test_presets_alone(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A sweep over presets and machine files keeps their order, and has no knee."""
    own = npu_inputs.save(npu_inputs.machine_text(columns="16"), tmp_path / "narrow.toml")
    command = ("sweep", network, *LAYERS, "--preset", "nvdla-256", "--preset", "edge", "--machine", own)
    found = npu(*command, "--plot", tmp_path / "p.html", "--json").data
    assert [point["machine"] for point in found["points"]] == found["machines"] == ["nvdla-256", "edge", "narrow"]
    assert found["knees"] == [] and "knee" not in npu(*command).stdout
    assert Figure.of_page(tmp_path / "p.html").x_ticks == ["nvdla-256", "edge", "narrow"]


def test_machines_that_cannot_stay_in_the_table(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A machine too small for the network, or whose values contradict each other, has a reason instead of a time."""
    own = npu_inputs.save(npu_inputs.machine_text(halo_bytes="1_024"), tmp_path / "own.toml")
    command = ("sweep", network, *DIRECT, "--machine", own, "--set", "nb_bytes=1K,2K,1M", "--set", "halo_bytes=1K")
    contradicts, tiny, large = npu(*command, "--plot", tmp_path / "p.html", "--json").data["points"]
    assert contradicts["cycles"] is tiny["cycles"] is tiny["bound"] is None and large["cycles"] > 0
    assert "halo_bytes 1024 leaves nothing of nb_bytes 1024" in contradicts["reason"]
    assert "bytes of NB" in tiny["reason"] and large["reason"] is None
    outcome = npu(*command)
    assert outcome.code == 0 and outcome.stdout.count("cannot run") == 4  # in the table and below it
    assert "nb_bytes=2K, halo_bytes=1K: " in outcome.stdout


def test_one_buffer_is_set_as_a_whole(npu: Npu, network: Path) -> None:
    """On a machine with one buffer both sizes are set, and a note says so; with two buffers only the given one."""
    command = ("sweep", network, *LAYERS, "--preset", "nvdla-256", "--set", "nb_bytes=128K,1M")
    found = npu(*command, "--json").data
    assert all(point["cycles"] > 0 for point in found["points"]) and found["one_buffer"] == ["nvdla-256"]
    assert "nb_bytes and sb_bytes are set together on nvdla-256" in npu(*command).stdout
    both = npu(*command, "--set", "sb_bytes=1M", "--json").data["points"]
    assert "differs from nb_bytes" in both[0]["reason"] and both[1]["cycles"] == found["points"][1]["cycles"]


def test_clocks_are_compared_by_time(npu: Npu, network: Path) -> None:
    """If the clock varies, milliseconds are compared: a faster clock waits more cycles for edge's memory."""
    command = ("sweep", network, *LAYERS, "--set", "clock_hz=250M:4G:x4")
    found = npu(*command, "--json").data
    assert found["metric"] == "milliseconds" and npu(*command).stdout.splitlines()[0].endswith("ms as bars")
    first, last = found["points"][0], found["points"][-1]
    assert first["cycles"] < last["cycles"] and first["seconds"] > last["seconds"]


def test_values_that_change_nothing(npu: Npu, network: Path) -> None:
    """For a parameter without influence on the NPU's time, the summary says that it changes nothing."""
    text = npu("sweep", network, *LAYERS, "--set", "host.driver_s=0.001,0.002,0.003").stdout
    assert "none, host.driver_s changes nothing" in text


def test_choices_and_names_are_parameters_too(npu: Npu, network: Path) -> None:
    """Dataflows, types and a single fixed value can be set like numbers."""
    sets = ("--set", "mfu.packing=none", "--set", "mfu.dataflow=dot-product,weight-stationary")
    command = ("sweep", network, *LAYERS, *sets)
    found = npu(*command, "--json").data
    assert [point["settings"]["mfu.dataflow"] for point in found["points"]] == ["dot-product", "weight-stationary"]
    assert found["points"][0]["cycles"] != found["points"][1]["cycles"]
    assert "edge with mfu.packing=none" in npu(*command).stdout


@pytest.mark.parametrize(
    ("code", "words", "mentions"),
    [
        (2, (), ("only one machine", "--set")),
        (2, ("--set", "mfu.rows=8"), ("only one machine",)),
        (2, ("--set", "mfu.row=8,16"), ("mfu.row ", "did you mean mfu.rows")),
        (2, ("--set", "mfu.rows=1:20:+1", "--set", "mfu.columns=1:20:+1"), ("20 x 20 = 400", "256")),
        (2, ("--set", "mfu.rows=8,16", "--set", "mfu.rows=32"), ("mfu.rows", "twice")),
        (2, ("--preset", "edge", "--preset", "edge"), ("edge", "twice")),
        (2, ("--set", "mfu.rows=1,2", "--set", "mfu.columns=1:20:+1", "--plot", "p.html"), ("20 lines", "12")),
        (2, ("--set", "mfu.rows=8,16", "--plot", "p.svg"), ("p.svg", "--plot FILE.html")),
        (2, ("--set", "cores.per_chip=1,2"), ("cores.per_chip changes nothing", "one core", "npu pipeline --groups")),
        (3, ("--set", "mfu.rows=8,16,0"), ("mfu.rows is 0", "from 1 to 65536")),
        (3, ("--preset", "egde", "--preset", "edge"), ("egde", "did you mean edge")),
        (
            3,
            ("--set", "nb_bytes=64K,128K", "--set", "halo_bytes=256K"),
            ("no machine of the sweep", "halo_bytes 262144", "lower halo_bytes"),
        ),
        (
            3,
            ("--set", "mfu.rows=8,16", "--cycle-budget", "10"),
            ("no machine of the sweep", "10 cycles", "--cycle-budget"),
        ),
        (3, ("--set", "mfu.rows=8,16", "--csv", "/nowhere/x.csv"), ("/nowhere/x.csv", "folder")),
    ],
    ids=str,
)
def test_sweeps_that_cannot_be(
    npu: Npu, network: Path, code: int, words: tuple[str, ...], mentions: tuple[str, ...]
) -> None:
    """Errors in the parameters end the command before any machine is tried, and name key, value and limit."""
    npu.refuses(code, "sweep", network, *words, mentions=mentions)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_networks_that_no_machine_can_run(npu: Npu, tmp_path: Path, jobs: str) -> None:
    """An unsupported operator does not depend on the machine, and ends the sweep at once, in any process."""
    path = npu_inputs.save(npu_inputs.unknown_operator(), tmp_path / "odd.onnx")
    npu.refuses(3, "sweep", path, "--set", "mfu.rows=8,16", "--jobs", jobs, mentions=("'odd one'", "Det"))


def test_processes_change_nothing(npu: Npu, network: Path) -> None:
    """Several processes find the points of one, in the same order, machines that cannot be included."""
    command = ("sweep", network, *DIRECT, "--set", "nb_bytes=1K,64K,1M", "--set", "mfu.rows=8,32", "--json")
    one, three = npu(*command).data["points"], npu(*command, "--jobs", "3").data["points"]
    for points in (one, three):
        for point in points:
            del point["compile_s"], point["timing_s"]
    assert one == three and any(point["reason"] for point in one) and len(one) == 6


def test_front_and_knees_in_few_sentences(npu: Npu, network: Path) -> None:
    """Lines with one knee share a sentence, and the front lists the same machines as JSON, the smallest first."""
    command = ("sweep", network, *DIRECT, "--set", "mfu.rows=1,8,32", "--set", "io_queue_depth=8,16,32")
    points, text = npu(*command, "--json").data["points"], npu(*command).stdout
    front = sorted({point["area_mm2"] for point in points if point["pareto"]})
    assert front and text.count("Pareto") >= len(front) + 1
    assert sum(line.startswith("knee") for line in text.splitlines()) < 3
    assert "all 3 lines" in text or "of 3 lines" in text


def test_halo_buffer_keeps_its_share(npu: Npu, network: Path) -> None:
    """A smaller NB has a smaller halo buffer, and a note says so."""
    outcome = npu("sweep", network, *DIRECT, "--set", "nb_bytes=128K,256K")
    assert "cannot run" not in outcome.stdout and "halo_bytes keeps its share of nb_bytes on edge" in outcome.stdout


def test_larger_and_slower_is_explained(npu: Npu, network: Path) -> None:
    """A larger machine that is slower is run with the smaller one's program, which decides what is to blame."""
    sets = ("--set", "mfu.dataflow=weight-stationary", "--set", "mfu.packing=none", "--set", "mfu.rows=8,64,4096")
    command = ("sweep", network, *sets)
    points = npu(*command, "--json").data["points"]
    (slow,) = [point for point in points if point["slower_than"]]
    than = slow["slower_than"]
    assert slow["settings"]["mfu.rows"] == 4096 and than["key"] == "mfu.rows" and than["value"] < 4096
    assert than["because"] == ("compiler" if than["seconds"] < slow["seconds"] else "machine")
    best = min(point["cycles"] for point in points)
    assert than["slower_by"] == pytest.approx(slow["cycles"] / best - 1) and than["slower_by"] > 0.005
    assert f"the {than['because']} is to blame" in npu(*command).stdout


def test_front_by_energy(npu: Npu, network: Path) -> None:
    """The energies of a sweep are those of single runs, and --cost energy puts the front in their order."""
    command = ("sweep", network, *DIRECT, "--set", "nb_bytes=64K,1M", "--set", "mfu.rows=8,32", "--cost", "energy")
    found, text = npu(*command, "--json").data, npu(*command).stdout
    assert found["cost"] == "energy"
    marked = [point for point in found["points"] if point["pareto"]]
    assert marked
    for point in marked:
        assert not any(
            other["energy_uj"] <= point["energy_uj"]
            and other["seconds"] <= point["seconds"]
            and (other["energy_uj"], other["seconds"]) != (point["energy_uj"], point["seconds"])
            for other in found["points"]
        )
    assert "µJ, " in next(line for line in text.splitlines() if line.startswith("Pareto"))
    run = npu("run", network, "--no-values", "--json").data
    whole = npu("sweep", network, "--set", "mfu.rows=16,32", "--json").data["points"][1]
    assert whole["energy_uj"] == pytest.approx(run["energy_uj"]["total"])
    assert sum(part for name, part in run["area_mm2"].items() if name != "total") == pytest.approx(whole["area_mm2"])
