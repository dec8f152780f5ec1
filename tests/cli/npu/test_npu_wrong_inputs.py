"""`harness npu`: errors for wrong machines, networks, programs and options."""

from dataclasses import replace
from pathlib import Path

import npu_inputs
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from npu_command import Npu

from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.program import Program

MACHINES = {
    "unknown key": (npu_inputs.machine_text() + "\nspeed = 3\n", ("speed",)),
    "missing key": (npu_inputs.machine_text().replace("issue_cycles = 2", ""), ("issue_cycles", "missing")),
    "contradiction": (npu_inputs.machine_text(halo_bytes="2_000_000"), ("halo_bytes", "nb_bytes")),
    "wrong type": (npu_inputs.machine_text(rows='"many"'), ("mfu.rows",)),
    "out of range": (npu_inputs.machine_text(clock_hz="0"), ("clock_hz",)),
    "not TOML": ("clock_hz = [", ("TOML",)),
}


@pytest.mark.parametrize("case", MACHINES)
def test_invalid_machine_is_refused(npu: Npu, network: Path, tmp_path: Path, case: str) -> None:
    """A machine file that is not valid ends with exit 3 and names the key."""
    text, mentions = MACHINES[case]
    npu.refuses(3, "run", network, "--machine", npu_inputs.save(text, tmp_path / "m.toml"), mentions=mentions)


def test_machine_that_is_not_there(npu: Npu, network: Path, tmp_path: Path) -> None:
    """The error names a missing machine file, and for an unknown preset the nearest known one."""
    npu.refuses(3, "run", network, "--machine", tmp_path / "none.toml", mentions=("none.toml",))
    npu.refuses(3, "compile", network, "--preset", "egde", mentions=("egde", "did you mean edge"))


def test_network_that_cannot_fit(npu: Npu, network: Path, tmp_path: Path) -> None:
    """The error for a memory that is too small names the layer, the demand, the limit and the parameter to change."""
    text = npu_inputs.machine_text(nb_bytes="1_024", halo_bytes="64")
    tiny = npu_inputs.save(text, tmp_path / "tiny.toml")
    npu.refuses(3, "run", network, "--machine", tiny, mentions=("needs", "bytes of NB", "there are", "nb_bytes"))


def test_forced_choices_are_the_first_to_let_go(npu: Npu, network: Path, tmp_path: Path) -> None:
    """If forced tiles do not fit, the next step names the options, then the memory to enlarge."""
    small = npu_inputs.save(npu_inputs.machine_text(nb_bytes="16_384", halo_bytes="64"), tmp_path / "small.toml")
    assert npu("run", network, "--machine", small, "--no-values").code == 0
    forced = ("run", network, "--machine", small, "--tile", "20x20")
    npu.refuses(3, *forced, mentions=("next: Omit --tile; else raise nb_bytes",))
    npu.refuses(3, *forced, "--chains", "whole", mentions=("next: Omit --chains and --tile\n",))


def test_unknown_operator_is_named(npu: Npu, tmp_path: Path) -> None:
    """Every command names an unsupported node as the file does, with its operator."""
    path = npu_inputs.save(npu_inputs.unknown_operator(), tmp_path / "odd.onnx")
    for words in (("compile", path), ("run", path), ("disassemble", path), ("trace", path, "-o", tmp_path / "t")):
        npu.refuses(3, *words, mentions=("'odd one'", "Det"))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("case", npu_inputs.FAULTY_PROGRAMS)
def test_faulty_program_is_refused(npu: Npu, tmp_path: Path, case: str) -> None:
    """A forbidden program ends with exit 3, not as a bug; the error names the instruction and has a next step."""
    source, mentions = npu_inputs.FAULTY_PROGRAMS[case]
    path = npu_inputs.save(npu_inputs.program(source), tmp_path / "p")
    npu.refuses(3, "run", path, "--cycle-budget", 100_000, mentions=(*mentions, "next: "))


@pytest.mark.parametrize(
    ("code", "mentions"),
    [(npu_inputs.JUMP_OUT, ("instruction 0", "jumps out")), (npu_inputs.UNKNOWN_OPCODE, ("instruction 0", "opcode"))],
    ids=["jump out", "unknown opcode"],
)
def test_code_that_does_not_decode_is_refused(npu: Npu, tmp_path: Path, code: bytes, mentions: tuple[str, ...]) -> None:
    """Every command that reads a program refuses code that does not decode, before anything runs."""
    path = npu_inputs.save(npu_inputs.program(code), tmp_path / "p")
    for words in (("run", path), ("disassemble", path), ("trace", path, "-o", tmp_path / "t")):
        npu.refuses(3, *words, mentions=mentions)


def _loop(rounds: int) -> str:
    """A program that issues two items in every round."""
    body = "map target=r0:d0, first=r0:d0\nmap target=r0:d0, first=r0:d0\n"
    head = f"descriptor d0, nb, float32, 0\nset r1, {rounds}\nagain:\n"
    return head + body + "add_immediate r1, r1, -1\nbranch_not_zero r1, again\nhalt\n"


def test_small_files_cannot_ask_for_large_runs(npu: Npu, tmp_path: Path) -> None:
    """A few instructions that loop too often are refused before they are timed, and with fewer rounds by trace."""
    path = npu_inputs.save(npu_inputs.program(_loop(499_000)), tmp_path / "p")
    npu.refuses(3, "run", path, mentions=("200000 items", "next:"))
    path = npu_inputs.save(npu_inputs.program(_loop(51_000)), tmp_path / "p")
    npu.refuses(3, "trace", path, "-o", tmp_path / "t", mentions=("102,001 items", "100,000", "why:", "next:"))
    assert not (tmp_path / "t").exists()


def test_empty_and_endless_programs_are_refused(npu: Npu, tmp_path: Path) -> None:
    """A program without instructions is refused, and one beyond its budget with the budget and the option for more."""
    npu.refuses(3, "run", npu_inputs.save(npu_inputs.program(b""), tmp_path / "p"), mentions=("no instructions",))
    path = npu_inputs.save(npu_inputs.program(_loop(100)), tmp_path / "p")
    npu.refuses(3, "run", path, "--cycle-budget", 1_000, mentions=("1000 cycles", "--cycle-budget"))


@pytest.mark.parametrize("option", ["--preset", "--machine", "--csv"])
def test_enormous_names_are_shortened(npu: Npu, network: Path, option: str) -> None:
    """A name of ten thousand characters is recognisable in the error and does not fill the screen."""
    name = "a" * 5_000 + "b" * 5_000
    outcome = npu("run", network, "--no-values", option, name)
    assert outcome.code == 3 and "aaa…bbb" in outcome.stderr and len(outcome.stderr) < 1_000
    outcome = npu("run", name)
    assert outcome.code == 3 and "aaa…bbb" in outcome.stderr and len(outcome.stderr) < 1_000


def test_program_for_another_machine_is_refused(npu: Npu, tmp_path: Path) -> None:
    """A program that claims more memory than the machine has is refused with the parameter that would mend it."""
    path = npu_inputs.save(npu_inputs.program(npu_inputs.SOUND, sb_bytes=1 << 40), tmp_path / "p")
    npu.refuses(3, "run", path, mentions=("SB", "sb_bytes"))


@settings(max_examples=30, suppress_health_check=list(HealthCheck), derandomize=True)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=3))
def test_mutated_program_is_a_program_or_refused(
    npu: Npu, network: Path, tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    """Any bytes changed in the code, with a valid checksum, give a run or an error of the file, never a bug."""
    if not (tmp_path / "p").exists():
        npu("compile", network, "-o", tmp_path / "p")
    program = Program.from_bytes((tmp_path / "p").read_bytes())
    code = bytearray(program.code)
    for place, byte in changes:
        code[place % len(code)] = byte
    path = npu_inputs.save(replace(program, code=bytes(code)).to_bytes(), tmp_path / "mutated")
    outcome = npu("run", path, "--cycle-budget", 100_000, "--json")
    assert outcome.code in (0, 3), outcome


def test_names_in_a_program_file_are_not_trusted(npu: Npu, tmp_path: Path) -> None:
    """Control characters in the layer names of a program file do not reach the terminal."""
    path = npu_inputs.save(npu_inputs.program(npu_inputs.SOUND, layer="\x1b[31mred\nhalt"), tmp_path / "p")
    assert npu("run", path).code == npu("disassemble", path).code == 0
    assert assemble(npu("disassemble", path).stdout) == assemble(npu_inputs.SOUND)


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (("--tile", "0x4"), ("--tile",)),
        (("--tile", "4"), ("HxW",)),
        (("--halo", "refetch", "--chains", "whole"), ("contradicts",)),
        (("--compare-reorder", "--no-reorder"), ("contradicts",)),
        (("--preset", "edge", "--machine", "m.toml"), ("exclude",)),
        (("--dim", "batch=2"), ("batch",)),
    ],
    ids=str,
)
def test_options_that_make_no_sense(npu: Npu, network: Path, words: tuple[str, ...], mentions: tuple[str, ...]) -> None:
    """Malformed values and options that contradict each other are usage errors."""
    npu.refuses(2, "run", network, *words, mentions=mentions)


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (("--chains", "long"), ("--chains", "whole")),
        (("--halo", "lost"), ("--halo", "retain-columns")),
        (("--residency", "none"), ("--residency", "features")),
        (("--conv-algorithm", "fft"), ("--conv-algorithm", "odd-dft")),
        (("--dft-kernels", "nb"), ("--dft-kernels", "llc")),
    ],
    ids=str,
)
def test_unknown_choices_are_refused(
    npu: Npu, network: Path, words: tuple[str, ...], mentions: tuple[str, ...]
) -> None:
    """An unknown choice is a usage error that lists the choices."""
    npu.misuses("run", network, *words, mentions=mentions)


def test_options_of_the_compiler_need_a_network(npu: Npu, tmp_path: Path) -> None:
    """A program file together with a compiler option is refused rather than run without the option."""
    path = npu_inputs.save(npu_inputs.program(npu_inputs.SOUND), tmp_path / "p")
    npu.refuses(2, "run", path, "--fences", mentions=("already compiled",))
    npu.refuses(2, "run", path, "--compare-reorder", mentions=("already compiled",))


def test_cycle_budget_ends_a_run(npu: Npu, network: Path) -> None:
    """A network that takes more cycles than --cycle-budget is stopped, and the error names the budget."""
    cycles = npu("run", network, "--no-values", "--json").data["cycles"]
    npu.refuses(3, "run", network, "--cycle-budget", int(cycles) - 1, mentions=("budget",))
    assert npu("run", network, "--no-values", "--cycle-budget", int(cycles) + 1, "--json").data["cycles"] == cycles


def test_file_that_cannot_be_written(npu: Npu, network: Path, tmp_path: Path) -> None:
    """Writing to a folder that does not exist ends with exit 3, and the error names the file."""
    nowhere = tmp_path / "none" / "x"
    npu.refuses(3, "compile", network, "-o", nowhere, mentions=(str(nowhere),))
    npu.refuses(3, "run", network, "--no-values", "--csv", nowhere, mentions=(str(nowhere),))
    npu.refuses(3, "trace", network, "-o", nowhere, mentions=(str(nowhere),))
