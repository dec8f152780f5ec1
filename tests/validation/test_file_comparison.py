"""A difference between a file and what is sent for it is reported if two processes show it."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx.parser
import pytest
from nullbench import build_network

from device_agents.backends.onnxruntime import alternating_runs
from harness import cache
from harness.network.assemble import assemble_network
from harness.network.model_references import load_network
from harness.validation.file_comparison import FileComparison, compare_with_file

Pairs = list[list[int]]
EQUAL, FASTER = [[100, 100]] * 40, [[100, 80]] * 40
LOOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    looped (float[1, 8] x) => (float[1, 8] y) <int64 n = {3}, bool go = {1}>
    {
        y = Loop (n, go, x) <body = step (int64 i, bool c, float[1, 8] a) => (bool d, float[1, 8] b) {
            d = Identity (c)
            b = Tanh (a)
        }>
    }
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "own cache"))


def compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *processes: Pairs, widths: Sequence[int] = (8, 32), text: str = ""
) -> tuple[FileComparison, int]:
    """Return the result if processes print these pairs of times, one after the other, and how many were left."""
    answers: Iterator[Pairs] = iter(processes)

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, json.dumps(next(answers)), "")

    path = build_network(tmp_path / "file.onnx", widths=widths)
    if text:
        onnx.save(onnx.parser.parse_model(text), path)
    network = load_network(str(path))
    monkeypatch.setattr(subprocess, "run", answer)
    found = compare_with_file(str(path), network, assemble_network(network))
    return found, len(list(answers))


def test_a_difference_in_both_processes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent takes 0.8 times as long as the file in two processes: it differs."""
    found, left = compared(tmp_path, monkeypatch, FASTER, FASTER)
    assert found.differs and found.ratio == pytest.approx(0.8) and left == 0 and not found.reason


@pytest.mark.parametrize(("processes", "reason"), [([FASTER, FASTER], "its loops are replaced"), ([EQUAL], "")])
def test_loops_explain_a_difference(
    processes: list[Pairs], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent has the iterations of a loop, so a file with one may take longer."""
    found, _ = compared(tmp_path, monkeypatch, *processes, text=LOOP)
    assert found.reason.startswith(reason) and bool(found.reason) == bool(reason)


def test_a_difference_in_one_process_is_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a second process shows no difference, none is reported."""
    found, left = compared(tmp_path, monkeypatch, FASTER, EQUAL)
    assert not found.differs and found.ratio == pytest.approx(1.0) and left == 0


def test_opposite_differences_are_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one process shows what is sent faster and the other slower, none is reported."""
    found, left = compared(tmp_path, monkeypatch, FASTER, [[80, 100]] * 40)
    assert not found.differs and left == 0


def test_equal_times_need_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a difference, no second process runs."""
    found, left = compared(tmp_path, monkeypatch, EQUAL, FASTER)
    assert not found.differs and left == 1


def test_a_file_that_does_not_differ_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is kept for the content of the file and what is sent; a difference is looked for each time."""
    first, _ = compared(tmp_path, monkeypatch, EQUAL)
    again, left = compared(tmp_path, monkeypatch, FASTER)
    assert again == first and left == 1
    other, left = compared(tmp_path, monkeypatch, FASTER, FASTER, EQUAL, widths=(8, 16))
    assert other.differs and left == 1
    other, left = compared(tmp_path, monkeypatch, EQUAL, widths=(8, 16))
    assert not other.differs and left == 0


@pytest.mark.parametrize(("latency_ns", "order"), [(1_000, "fs sfs sfs"), (2_000_000, "fs fs fs")])
def test_what_happens_between_pairs_does_not_slow_the_file_down(
    latency_ns: int, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file `f` of a brief network runs right behind what is sent, `s`, as what is sent runs behind the file."""
    path = str(build_network(tmp_path / "file.onnx", widths=(8,)))
    task: dict[str, object] = {"file": path, "sent": path, "weights": [], "inputs": [], "given": {}, "limits": None}
    task |= {"seconds": 0.0, "fewest": 2, "tolerance": 0.0}
    ran: list[object] = []

    def timed(session: object, _: object) -> int:
        ran.append(session)
        return latency_ns

    monkeypatch.setattr(alternating_runs, "_timed", timed)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(task)))
    alternating_runs.main()
    assert ["f" if one is ran[0] else "s" for one in ran] == list(order.replace(" ", ""))


def test_an_input_that_a_dimension_option_gave_a_value_is_compared(tmp_path: Path) -> None:
    """The file runs with the values that `--dim` gives its scalar inputs, which what is sent no longer has."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        switched (float[n, 64] x, bool on, int64[1] rows) => (float[k, n] y)
        {
            factor = Constant <value = float {2.0}> ()
            one = Constant <value = float {1.0}> ()
            scale = Where (on, factor, one)
            columns = Constant <value = int64[1] {-1}> ()
            shape = Concat <axis = 0> (rows, columns)
            scaled = Mul (x, scale)
            y = Reshape (scaled, shape)
        }
    """
    path = tmp_path / "switched.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    network = load_network(str(path), {"n": 8, "on": 1, "rows": 64})
    assert network.inputs == ("x",)
    found = compare_with_file(str(path), network, assemble_network(network))
    assert found.ratio is not None, found.reason
