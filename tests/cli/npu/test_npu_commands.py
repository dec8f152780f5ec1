"""`harness npu`: the output of its commands and the files that they write."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import npu_inputs
import pytest
from npu_command import Npu

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.machine import load_preset
from harness.cli.app import main
from harness.network.assemble import assemble_network
from harness.network.model_references import load_network

# --- run ---------------------------------------------------------------------------------------------------------


def test_run_computes_what_onnx_runtime_computes(npu: Npu, network: Path) -> None:
    """The values of a run agree with ONNX Runtime's, and the three parts of the work are timed."""
    found = npu("run", network, "--json").data
    assert 0 < found["max_rel_error"] < 1e-4, "different programs never agree to the last bit"
    assert min(found["compile_s"], found["functional_s"], found["timing_s"]) > 0


@pytest.mark.parametrize("command", ["run", "compile"])
def test_nodes_that_are_left_out_are_named(npu: Npu, tmp_path: Path, command: str) -> None:
    """A node whose size depends on the data is in no figure, and a line names it."""
    path = npu_inputs.save(npu_inputs.detector(), tmp_path / "detector.onnx")
    said = npu(command, path).assert_ok().stderr
    assert said.startswith(f"not measured: {path}: node 'select' (NonMaxSuppression) is left out")


def test_times_of_a_run_sum_up(npu: Npu, network: Path) -> None:
    """Layers and attributed waits sum to the makespan and the wait, which keep within the bounds of the machine."""
    found = npu("run", network, "--no-values", "--json").data
    busier = max(found["io_cycles"], found["compute_cycles"])
    assert busier <= found["cycles"] <= found["io_cycles"] + found["compute_cycles"] + found["control_cycles"]
    assert sum(layer["cycles"] for layer in found["layers"]) + found["no_layer_cycles"] == pytest.approx(
        found["cycles"]
    )
    assert sum(wait["cycles"] for wait in found["waits"]) == pytest.approx(found["wait_cycles"])
    assert found["cycles"] == pytest.approx(busier + found["wait_cycles"])
    assert found["seconds"] == pytest.approx(found["cycles"] / load_preset("edge").clock_hz)
    assert found["mfu_cycles"] + found["vfu_cycles"] == found["compute_cycles"]
    assert busier <= found["formula_cycles"] <= found["cycles"]


def test_work_and_bytes_of_a_run_are_those_of_the_network(npu: Npu, network: Path) -> None:
    """Multiply-adds and external bytes of a chain are what the shapes say: features go in and out once."""
    found = npu("run", network, "--no-values", "--chains", "whole", "--json").data
    pixels, channels = npu_inputs.SIZE**2, npu_inputs.CHANNELS
    assert found["useful_macs"] == pixels * 9 * channels * (3 + channels)
    assert found["macs"] == found["useful_macs"] + found["redundant_macs"] and found["redundant_macs"] == 0
    classes = found["tensor_classes"]
    assert classes["input_output"] == {"read_bytes": pixels * 3 * 4, "written_bytes": pixels // 4 * channels * 4}
    assert classes["activations"] == {"read_bytes": 0, "written_bytes": 0}
    assert classes["weights"]["read_bytes"] >= 9 * channels * (3 + channels) * 4


@pytest.mark.parametrize("choice", [("--chains", "layers"), ("--chains", "whole", "--tile", "3x4"), ()], ids=str)
def test_bytes_by_class_sum_to_the_bytes_of_the_memories(npu: Npu, network: Path, choice: tuple[str, ...]) -> None:
    """The bytes by class of tensor sum to the bytes of DDR and last-level cache; ddr_bytes is the part of DDR."""
    found = npu("run", network, "--no-values", "--json", *choice).data
    external = [moved for name, moved in found["tensor_classes"].items() if name != "halo_copies"]
    for way in ("read_bytes", "written_bytes"):
        assert sum(moved[way] for moved in external) == sum(found["memories"][name][way] for name in ("ddr", "llc"))
    ddr = found["memories"]["ddr"]
    assert found["ddr_bytes"] == ddr["read_bytes"] + ddr["written_bytes"]
    for memory in ("nb", "sb", "halo"):
        marks = found["memories"][memory]
        assert 0 <= marks["peak_bytes"] <= marks["reserved_bytes"] <= marks["bytes"]


def test_layers_one_by_one(npu: Npu, network: Path) -> None:
    """With --chains layers every hardware layer is a chain, and intermediates pass through external memory."""
    found = npu("run", network, "--chains", "layers", "--json").data
    assert found["chains"] == found["hardware_layers"] == len(found["layers"]) == 3 and found["onnx_nodes"] == 5
    assert [layer["chain"] for layer in found["layers"]] == [0, 1, 2]
    moved = found["tensor_classes"]["activations"]
    assert moved["written_bytes"] == 2 * npu_inputs.SIZE**2 * npu_inputs.CHANNELS * 4 <= moved["read_bytes"]
    assert found["max_rel_error"] < 1e-4


def test_halo_retained_computes_nothing_twice(npu: Npu, network: Path) -> None:
    """In tiles of one chain, a halo that is recomputed costs multiply-adds, and one that is retained costs memory."""
    forced = ("run", network, "--chains", "whole", "--tile", "3x10", "--json")
    retained, recomputed = npu(*forced, "--halo", "retain").data, npu(*forced, "--halo", "recompute").data
    assert retained["redundant_macs"] == 0 < recomputed["redundant_macs"]
    assert retained["memories"]["halo"]["peak_bytes"] > 0 == recomputed["memories"]["halo"]["reserved_bytes"]
    assert retained["tensor_classes"]["halo_copies"]["written_bytes"] > 0
    assert retained["passes"] == recomputed["passes"] == 4
    assert max(retained["max_rel_error"], recomputed["max_rel_error"]) < 1e-4


def test_marginal_latency_of_layers(npu: Npu, network: Path) -> None:
    """--marginal adds to each layer what the run would save without it, never more than all of it."""
    found = npu("run", network, "--no-values", "--marginal", "--json").data
    marginal = [layer["marginal_cycles"] for layer in found["layers"]]
    assert max(marginal) > 0 and sum(marginal) <= found["cycles"] and min(marginal) >= 0
    assert {layer["marginal_cycles"] for layer in npu("run", network, "--no-values", "--json").data["layers"]} == {None}


def test_gain_of_reordering(npu: Npu, network: Path) -> None:
    """--compare-reorder reports the cycles that --no-reorder takes."""
    forced = ("run", network, "--no-values", "--chains", "layers", "--json")
    found, in_order = npu(*forced, "--compare-reorder").data, npu(*forced, "--no-reorder").data
    assert found["reorder"]["in_order_cycles"] == in_order["cycles"]
    assert found["reorder"]["gain"] == pytest.approx(1 - found["cycles"] / in_order["cycles"])
    assert in_order["reorder"] is None


def test_presets_without_values_have_a_time(npu: Npu, network: Path) -> None:
    """An int8 machine reports the time, notes on stderr that it has no values, and its error is null."""
    outcome = npu("run", network, "--preset", "nvdla-256", "--json")
    assert outcome.data["max_rel_error"] is None and outcome.data["functional_s"] is None
    assert outcome.data["cycles"] > 0 and "int8" in outcome.stderr


def test_machine_of_ones_own(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A machine file is used: half the columns take longer than the preset that it was derived from."""
    own = npu_inputs.save(npu_inputs.machine_text(columns="16"), tmp_path / "narrow.toml")
    found = npu("run", network, "--machine", own, "--no-values", "--json").data
    assert found["machine"] == "narrow"
    assert found["mfu_cycles"] > npu("run", network, "--no-values", "--json").data["mfu_cycles"]


def test_text_of_a_run(npu: Npu, network: Path) -> None:
    """The text has a row for every layer and the total, and below them the time and its parts."""
    outcome = npu("run", network)
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == ["stem", "body", "pool", "total"]
    for label in ("time", "formula", "wait", "utilisation", "MACs", "external", "high water", "network", "values"):
        assert any(line.startswith(label) for line in lines), label


# --- names -------------------------------------------------------------------------------------------------------


def test_layers_bear_the_names_of_the_file(npu: Npu, network: Path, tmp_path: Path) -> None:
    """JSON, CSV, listing and trace name layers and nodes as the file does."""
    found = npu("run", network, "--no-values", "--csv", tmp_path / "l.csv", "--json").data
    assert [layer["name"] for layer in found["layers"]] == ["stem", "body", "pool"]
    assert [layer["nodes"] for layer in found["layers"]] == [["stem", "stem/relu"], ["body", "body/relu"], ["pool"]]
    assert [layer["op"] for layer in found["layers"]] == ["Conv+Relu", "Conv+Relu", "MaxPool"]
    with (tmp_path / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["stem", "body", "pool", "total"]
    assert float(rows[-1]["cycles"]) == pytest.approx(found["cycles"])
    assert "\n# body\n" in npu("disassemble", network).stdout
    assert npu("trace", network, "-o", tmp_path / "t.json").code == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    nodes = {event["name"] for event in events if event.get("cat") == "Node"}
    assert nodes == {"stem_kernel_time", "body_kernel_time", "pool_kernel_time"}


def test_hostile_names_stay_names(npu: Npu, tmp_path: Path) -> None:
    """Names that are formulas, control sequences or those of our own tensors change nothing but what is shown."""
    names = ("=cmd()", "\x1b[31mred", "-2", "a#0", "n0")
    path = npu_inputs.save(npu_inputs.convolutions(names, x="w0", a="k0"), tmp_path / "evil.onnx")
    found = npu("run", path, "--csv", tmp_path / "l.csv", "--json").data
    assert [layer["name"] for layer in found["layers"]] == ["=cmd()", "-2", "n0"] and found["max_rel_error"] < 1e-4
    assert npu("run", path).code == npu("disassemble", path).code == npu("compile", path, "--explain").code == 0
    with (tmp_path / "l.csv").open(newline="") as file:
        cells = [cell for row in csv.DictReader(file) for cell in (row["name"], row["nodes"], row["op"])]
    assert not any(cell.startswith(("=", "-", "+", "@")) for cell in cells)


def test_names_do_not_change_the_program(npu: Npu, network: Path, tmp_path: Path) -> None:
    """The program under the file's own names is the one that a device compiles from the names on the wire."""
    assert npu("compile", network, "-o", tmp_path / "p").code == 0
    sent = compile_model(assemble_network(load_network(str(network))).content, load_preset("edge"))
    assert Program.from_bytes((tmp_path / "p").read_bytes()).code == sent.program.code


# --- compile, disassemble, trace ---------------------------------------------------------------------------------


def test_explain_shows_what_was_not_chosen(npu: Npu, network: Path, tmp_path: Path) -> None:
    """The chosen way of every chain is marked; it takes at most twice as long as another, as two queues work."""
    text = npu_inputs.machine_text(nb_bytes="65_536", halo_bytes="16_384")
    machine = npu_inputs.save(text, tmp_path / "small.toml")
    command = ("compile", network, "--machine", machine, "--chains", "layers", "--explain")
    found = npu(*command, "--json").data
    assert [decision["layers"] for decision in found["decisions"]] == [["stem"], ["body"], ["pool"]]
    assert any(decision["others"] for decision in found["decisions"])
    for decision in found["decisions"]:
        assert all(2 * other["predicted_s"] >= decision["chosen"]["predicted_s"] for other in decision["others"])
    assert found["predicted_s"] == pytest.approx(sum(one["chosen"]["predicted_s"] for one in found["decisions"]))
    assert npu(*command).stdout.count("* ") == 3
    assert "others" not in npu(*command[:-1], "--json").stdout


def test_program_file_takes_the_time_of_its_network(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A compiled file runs, lists and traces as the network does; values and what only the compiler knows are null."""
    file = tmp_path / "small.npu"
    compiled = npu("compile", network, "-o", file, "--json").data
    assert compiled["program"] == str(file)
    whole, program = npu("run", network, "--no-values", "--json").data, npu("run", file, "--json").data
    for field in ("cycles", "formula_cycles", "wait_cycles", "macs", "ddr_bytes", "waits", "memories", "instructions"):
        assert program[field] == whole[field], field
    assert [layer["cycles"] for layer in program["layers"]] == [layer["cycles"] for layer in whole["layers"]]
    assert program["max_rel_error"] is program["compile_s"] is program["useful_macs"] is program["chains"] is None
    assert npu("run", file).code == 0
    assert npu("disassemble", file).stdout == npu("disassemble", network).stdout
    assert npu("trace", file, "-o", tmp_path / "t.json", "--json").data["cycles"] == whole["cycles"]


def test_listing_assembles_to_the_program(npu: Npu, network: Path, tmp_path: Path) -> None:
    """The output of disassemble, with its comments, assembles to the code of the program file."""
    npu("compile", network, "-o", tmp_path / "p")
    listed = npu("disassemble", tmp_path / "p", "--json").data
    assert assemble(listed["text"]) == Program.from_bytes((tmp_path / "p").read_bytes()).code
    assert listed["layers"] == ["stem", "body", "pool"]


def test_edited_listing_is_a_program(npu: Npu, network: Path, tmp_path: Path) -> None:
    """An unchanged listing gives the same file; added instructions take time and belong to the layer above them."""
    program, listing, made = tmp_path / "p", tmp_path / "l.txt", tmp_path / "q"
    npu("compile", network, "-o", program)
    text = npu("disassemble", program).stdout
    npu_inputs.save(text, listing)
    npu("assemble", listing, "--base", program, "-o", made)
    assert made.read_bytes() == program.read_bytes()
    npu_inputs.save(text.replace("\n# body\n", "\n# body\n" + "    add_immediate r255, r255, 0\n" * 5000, 1), listing)
    added = npu("assemble", listing, "--base", program, "-o", made, "--json").data
    before, after = Program.from_bytes(program.read_bytes()), Program.from_bytes(made.read_bytes())
    assert added["instructions"] == len(after.layer_of) == len(before.layer_of) + 5000
    assert after.layer_of.count(1) >= 5000 and after.layers == before.layers
    assert npu("run", made, "--json").data["cycles"] > npu("run", program, "--json").data["cycles"]


def test_listing_that_does_not_assemble_is_refused(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A wrong line is named; a base that is no program is refused."""
    program, listing = tmp_path / "p", npu_inputs.save("    halt\n    jmup L0\n", tmp_path / "l.txt")
    npu("compile", network, "-o", program)
    npu.refuses(3, "assemble", listing, "--base", program, "-o", tmp_path / "q", mentions=("line 2", "jmup"))
    npu.refuses(2, "assemble", listing, "--base", network, "-o", tmp_path / "q", mentions=("--base",))


def test_program_of_ones_own_machine_needs_that_machine(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A program for a machine that is no preset runs with its file and is refused without."""
    own = npu_inputs.save(npu_inputs.machine_text(columns="16"), tmp_path / "narrow.toml")
    npu("compile", network, "--machine", own, "-o", tmp_path / "p")
    npu.refuses(3, "run", tmp_path / "p", mentions=("narrow", "--machine"))
    assert npu("run", tmp_path / "p", "--machine", own, "--json").data["machine"] == "narrow"


# --- streams that the caller closed -------------------------------------------------------------------------------


def _shell(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs a script of bash in which `$H` is the harness and `$1`, `$2`, … are the words."""
    environment = {**os.environ, "H": f"{sys.executable} -m harness"}
    command = ["bash", "-c", f"set -o pipefail; {script}", "bash", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(network: Path, tmp_path: Path, closed: str) -> None:
    """Commands succeed without stdout, and their output does not end up in the files that they write."""
    program, table = tmp_path / "p", tmp_path / "l.csv"
    made = _shell(f'$H npu compile "$1" -o "$2" {closed}', network, program)
    assert (made.returncode, made.stdout) == (0, "") and "Error" not in made.stderr
    Program.from_bytes(program.read_bytes())
    assert _shell(f'$H npu run "$1" --csv "$2" {closed}', program, table).returncode == 0
    with table.open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["stem", "body", "pool", "total"]


@pytest.mark.parametrize("command", ['npu disassemble "$1"', "devices list", "--help"])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(network: Path, command: str) -> None:
    """A closed pipe ends the command with the code of SIGPIPE and without a message."""
    ended = _shell(f"$H {command} | true", network)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_an_error_that_nobody_reads_keeps_its_exit_code() -> None:
    """An error keeps its exit code if stderr is a closed pipe."""
    assert _shell("$H npu run nowhere.onnx 2>&1 | true").returncode == 3


# --- devices -----------------------------------------------------------------------------------------------------


def test_network_that_a_device_cannot_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profiling a network with an operator that the NPU lacks ends with exit 3 and names the node."""
    path = npu_inputs.save(npu_inputs.unknown_operator(), tmp_path / "odd.onnx")
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(tmp_path))
    handler = signal.getsignal(signal.SIGINT)
    for words in ((), ("--dry-run",)):
        with pytest.raises(SystemExit) as end:
            main(["profile", "--device", "npu01", "--workspace", str(tmp_path), str(path), *words])
        assert end.value.code == 3
        assert "'odd one' (Det)" in capsys.readouterr().err
    signal.signal(signal.SIGINT, handler)
