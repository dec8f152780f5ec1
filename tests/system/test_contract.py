"""What scripts of other people rely on: JSON fields, exit codes, help, streams, and where files are written."""

import csv
import dataclasses
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import Harness, Outcome
from system_networks import convolutions, save


def _below(group: str, commands: str) -> set[str]:
    return {f"{group} {name}" for name in commands.split()}


COMMANDS = {
    "demo",
    "profile",
    "estimate",
    "validate",
    "agent install",
    *_below("lut", "build show diff check export"),
    *_below("devices", "list show check"),
    *_below("npu", "compile run disassemble trace"),
}
DOCUMENTED = {
    *COMMANDS,
    "benchmark",
    "compare",
    "report",
    "trace",
    "worker",
    *_below("npu", "assemble fit pipeline presets split sweep"),
    *_below("nightly", "accept history install run status try"),
    *_below("devices", "mark golden"),
    *_below("journal", "check"),
    *_below("lut", "import list prune"),
}


@pytest.fixture(scope="module")
def helps(profiled: Harness) -> dict[str, str]:
    """The help text of every command, found by walking down from `harness --help`."""
    found = {"": profiled("--help").assert_ok().stdout}
    for top in _listed(found[""]):
        found[top] = profiled(top, "--help").assert_ok().stdout
        for below in _listed(found[top]):
            found[f"{top} {below}"] = profiled(top, below, "--help").assert_ok().stdout
    return found


def _listed(text: str) -> list[str]:
    """The commands that a help text lists."""
    if "Commands:" not in text:
        return []
    return re.findall(r"^  ([a-z][a-z-]*)  ", text.split("Commands:")[1], re.MULTILINE)


def test_commands_are_those_of_the_contract(helps: dict[str, str]) -> None:
    """Every command of the contract exists, and none that the contract does not know."""
    found = {name for name in helps if name and not _listed(helps[name])}
    assert found >= COMMANDS, f"missing: {COMMANDS - found}"
    assert found <= DOCUMENTED, f"not documented: {found - DOCUMENTED}"


def test_every_option_is_explained(helps: dict[str, str]) -> None:
    """Every option of every command has a help text, beside it or on the next line."""
    for name, text in helps.items():
        lines = [*text.split("Options:")[-1].splitlines(), ""]
        for line, after in pairwise(lines):
            is_alone = re.fullmatch(r"\s+(-\w, )?--[a-z-]+( <[^>]+>)?\s*", line) is not None
            assert not is_alone or re.match(r" {20,}\S", after) or name == "", f"{name}: {line}"


def test_commands_that_show_data_have_json(helps: dict[str, str]) -> None:
    """Every command that shows data has --json."""
    for name in COMMANDS - {"lut export"}:
        assert "--json" in helps[name], name


def test_help_names_the_exit_codes(helps: dict[str, str]) -> None:
    """`harness --help` explains the exit codes."""
    for code in ("0", "1", "2", "3", "4", "5", "6", "7", "130"):
        assert re.search(rf"\b{code} [a-z]", helps[""].replace("\n", " ")), code


@pytest.mark.parametrize(
    "words", [["--help"], ["profile", "--help"], ["lut", "build", "--help"], ["npu", "run", "--help"]], ids=" ".join
)
def test_help_imports_nothing_heavy(words: list[str], profiled: Harness) -> None:
    """Help loads no library that takes long to import."""
    timed = dataclasses.replace(profiled, extra={"PYTHONPROFILEIMPORTTIME": "1"})
    lines = timed.process(*words).stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if "|" in line}
    assert "harness" in loaded and "typer" in loaded
    heavy = {"sklearn", "pandas", "onnxruntime", "onnx", "paramiko", "scipy", "bokeh", "numpy"}
    assert not loaded & heavy
    assert words != ["--help"] or not loaded & {"rich", "pydantic"}


def test_version_is_printed(profiled: Harness) -> None:
    """`harness --version` prints a version and nothing else."""
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", profiled("--version").assert_ok().stdout)


# The main job ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, small_network: Path) -> tuple[Harness, dict[str, Outcome]]:
    """The main job on null01, with --json."""
    harness = Harness.in_folder(tmp_path_factory.mktemp("job"))
    outcomes = {
        "profile": harness("profile", "--device", "null01", small_network, "--json"),
        "lut build": harness("lut", "build", "--device", "null01", "--json"),
        "estimate": harness("estimate", small_network, "--device", "null01", "--json"),
        "validate": harness("validate", small_network, "--device", "null01", "--json"),
    }
    return harness, outcomes


Job = tuple[Harness, dict[str, Outcome]]


@pytest.mark.parametrize("command", ["profile", "lut build", "estimate", "validate"])
def test_result_is_one_object_on_stdout(command: str, job: Job) -> None:
    """With --json stdout is one line with one object that has a schema version."""
    outcome = job[1][command].assert_ok()
    assert outcome.json["schema_version"] == 1
    assert outcome.stdout.count("\n") == 1


def test_profile_fields(job: Job) -> None:
    """`profile --json` reports campaign, probes, samples, device and wall seconds, and the journal agrees."""
    harness, outcomes = job
    found = outcomes["profile"].json
    assert harness.query("SELECT device, complete FROM campaigns WHERE id = ?", found["campaign"]) == [("null01", 1)]
    probes = harness.query("SELECT count(*) FROM probes WHERE campaign = ?", found["campaign"])
    assert probes == [(found["probes"],)]
    rows = harness.query(
        "SELECT count(*), sum(device_ns) / 1e9 FROM series JOIN samples ON id = series WHERE campaign = ?",
        found["campaign"],
    )
    assert rows[0][0] == found["samples"]
    assert found["device_seconds"] == pytest.approx(rows[0][1])
    assert found["wall_seconds"] > 0


def test_lut_build_fields(job: Job) -> None:
    """`lut build --json` reports table, entries and overhead, and the folder is as documented."""
    harness, outcomes = job
    found = outcomes["lut build"].json
    folder = Path(found["lut"])
    folder = folder if folder.is_absolute() else harness.workspace / folder
    assert folder == harness.table
    assert folder.parent == harness.workspace / "lut" / "null01"
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}-joint-[0-9a-f]{8,}", folder.name)
    with (folder / "entries.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == found["entries"] == 3
    assert {"a_s_per_byte", "b_s_per_byte", "c_s", "r2"} <= found["overhead"].keys()


def test_overhead_is_the_known_one(job: Job) -> None:
    """On the null device a, b and c come out as they were set."""
    overhead = job[1]["lut build"].json["overhead"]
    assert overhead["a_s_per_byte"] == pytest.approx(1e-10, rel=0.02)
    assert overhead["b_s_per_byte"] == pytest.approx(2e-10, rel=0.02)
    assert overhead["c_s"] == pytest.approx(1e-4, rel=0.02)


def test_layer_latencies_are_the_known_ones(job: Job) -> None:
    """On the null device a layer takes 1 ns a byte of its weights that stay on the device."""
    (found,) = job[1]["estimate"].json["networks"]
    known = {"c1": 48 * 3 * 9 * 4e-9, "c2": 48 * 48 * 9 * 4e-9}
    for layer in found["layers"]:
        if layer["name"] in known:
            assert layer["latency_s"] == pytest.approx(known[layer["name"]], rel=0.02)


def test_manifest_says_what_the_design_promises(job: Job) -> None:
    """The manifest holds schema version, overhead with covariance, fingerprint, rules, hashes, tool and clock."""
    manifest = json.loads((job[0].table / "manifest.json").read_text())
    for field in ("schema_version", "overhead", "fingerprint", "rules", "sha256", "tool_version", "clock"):
        assert manifest[field], field
    assert manifest["overhead"]["covariance"]


def test_estimate_fields(job: Job) -> None:
    """`estimate --json` reports latency, interval, coverage and layers, and the layers add up."""
    (found,) = job[1]["estimate"].json["networks"]
    low, high = found["interval_s"]
    assert 0 < low <= found["latency_s"] <= high
    assert set(found["coverage"]) == {"measured", "interpolated", "extrapolated", "unknown"}
    assert sum(found["coverage"].values()) == len(found["layers"])
    for layer in found["layers"]:
        assert {"name", "op", "key", "latency_s", "stderr_s", "source"} <= layer.keys()
        assert layer["latency_s"] > 0 and layer["stderr_s"] >= 0 and layer["source"] == "measured"
    total = sum(layer["remainder_s"] for layer in found["layers"]) + found["overhead_s"]
    assert found["latency_s"] == pytest.approx(total)
    assert job[1]["estimate"].json["clock"] == "device"


def test_validate_fields(job: Job) -> None:
    """`validate --json` gives errors as fractions that agree with each other."""
    found = job[1]["validate"].json
    (network,) = found["networks"]
    error = network["estimated_s"] / network["measured_s"] - 1
    assert network["error"] == pytest.approx(error, abs=1e-9)
    assert found["mape"] == pytest.approx(abs(error), abs=1e-9)
    assert found["within_5"] == (abs(error) <= 0.05) and found["within_10"] == (abs(error) <= 0.1)
    assert 0 <= found["interval_coverage"] <= 1
    assert network["estimated_s"] == job[1]["estimate"].json["networks"][0]["latency_s"]
    assert abs(error) < 0.01, "the null device's networks are known exactly"


def test_estimate_and_checks_change_nothing(job: Job, small_network: Path) -> None:
    """Commands that only read leave every file of the workspace as it was."""
    harness = job[0]
    before = harness.state()
    null01 = ("--device", "null01")
    for words in (
        ("estimate", small_network, *null01),
        ("lut", "show", *null01),
        ("lut", "check"),
        ("lut", "diff", harness.table, harness.table),
        ("devices", "list"),
        ("devices", "show", "cpu01"),
    ):
        harness.assert_processes_agree(*words).assert_ok()
    harness("profile", small_network, *null01, "--dry-run").assert_ok()
    assert harness.state() == before


def test_device_check_changes_nothing(job: Job) -> None:
    """`devices check` lists findings, gives a remedy for each failure, and changes nothing."""
    harness = job[0]
    before = harness.state()
    outcome = harness("devices", "check", "null01")
    outcome.assert_plain()
    assert outcome.code in (0, 4) and (outcome.code == 0) == ("FAILS" not in outcome.stdout), str(outcome)
    assert outcome.stdout.count("to correct ") >= outcome.stdout.count("FAILS")
    assert harness.state() == before


def test_dry_run_in_an_empty_workspace_writes_nothing(harness: Harness, small_network: Path) -> None:
    """`--dry-run` prints how many probes and how long, and leaves an empty workspace empty."""
    found = harness("profile", "--device", "null01", small_network, "--dry-run", "--json").assert_ok().json
    assert found["probes"] > 0 and found["device_seconds"]
    assert harness("profile", "--device", "null01", small_network, "--dry-run").assert_ok().stdout
    assert list(harness.workspace.iterdir()) == []


def test_reading_commands_in_an_empty_workspace_write_nothing(harness: Harness, small_network: Path) -> None:
    """Commands that find nothing to work on leave an empty workspace empty."""
    for words in (("lut", "show"), ("lut", "build"), ("estimate", small_network), ("validate", small_network)):
        harness(*words, "--device", "null01").assert_refused(3, mentions=("next:",))
    harness("lut", "check").assert_refused(3, mentions=("next:",))
    assert list(harness.workspace.rglob("*")) == []


def test_nothing_is_written_elsewhere(harness: Harness, small_network: Path, tmp_path: Path) -> None:
    """A campaign writes to its workspace, the lease folder and the user's cache, and nowhere else."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    other = Harness(elsewhere, harness.runtime, harness.home, {"TMPDIR": str(temporary)})
    for words in (("profile", small_network, "--runs", "8"), ("lut", "build")):
        other.process(*words, "--device", "null01", "--workspace", harness.workspace).assert_ok()
    assert list(elsewhere.iterdir()) == []
    assert list(temporary.iterdir()) == [], "temporary files were left"
    assert [path.name for path in harness.home.iterdir() if path.name != ".cache"] == []
    assert {path.name for path in harness.workspace.iterdir()} == {".harness", "lut"}


@pytest.mark.parametrize("method", ["joint", "chain", "regression", "regression-terms", "difference"])
def test_methods_of_the_contract_build_a_table(method: str, harness: Harness, job: Job) -> None:
    """Each method of this release builds a table that says how it was made."""
    import shutil

    shutil.copytree(job[0].workspace / ".harness", harness.workspace / ".harness")
    found = harness("lut", "build", "--device", "null01", "--method", method, "--json").assert_ok().json
    assert found["entries"] == (1 if method == "chain" else 3)  # one of the three layers can follow a copy of itself
    assert json.loads((harness.table / "manifest.json").read_text())["method"] == method


def test_text_and_json_agree(job: Job, small_network: Path) -> None:
    """Without --json stdout is a table for people that names the network."""
    outcome = job[0]("estimate", small_network, "--device", "null01").assert_ok()
    assert "small" in outcome.stdout and not outcome.stdout.startswith("{")


@pytest.mark.usefixtures("any_speed")
def test_real_runtime_goes_through_the_main_job(harness: Harness, tmp_path: Path) -> None:
    """The main job works on cpu01, ONNX Runtime on this machine, and its estimate is positive and measured."""
    network = save(convolutions(channels=16), tmp_path / "net.onnx")
    profiled = harness("profile", "--device", "cpu01", network, "--runs", "15", "--json").assert_ok().json
    assert profiled["refused"] == 0
    rows = harness.query("SELECT min(wall_ns), min(cpu_ns) FROM samples")
    assert rows[0][0] > 0 and rows[0][1] > 0
    harness("lut", "build", "--device", "cpu01").assert_ok()
    validated = harness("validate", "--device", "cpu01", network, "--processes", "2", "--json")
    assert validated.code in (0, 5), validated.stderr  # 5 where other work on the machine hides the answer
    (found,) = validated.json["networks"]
    assert found["estimated_s"] > 0 and found["measured_s"] > 0
    assert not [path for path in harness.home.rglob("*") if "telemetry" in path.name.lower()]


def test_debug_shows_a_traceback(profiled: Harness) -> None:
    """A traceback appears with --debug, and only then."""
    plain = profiled("devices", "show", "nobody").assert_refused(3)
    debug = profiled("--debug", "devices", "show", "nobody")
    assert debug.code == plain.code and "Traceback" in debug.stderr
