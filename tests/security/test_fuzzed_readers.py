"""The readers of foreign input, under the same mutations as `make fuzz`: documented errors, in time and memory."""

import json
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from fuzz_inputs import is_accepted, read_in_bounds
from hypothesis import given, settings, strategies as st

from fuzz import devices, frames, tables
from fuzz.figures import Figures, read_figures, table
from fuzz.target import NAMES, target
from harness.predictor.trees import NODE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "networks": 80,
    "answers": 150,
    "frames": 150,
    "revealed": 100,
    "tables": 60,
    "devices": 200,
    "journal": 30,
}


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_accepted(name: str) -> None:
    """Inputs that the program wrote are accepted, so that mutations pass the first check."""
    for seed in target(name).seeds():
        assert is_accepted(name, seed)


def test_nodes_of_trees_are_changed_by_any_draw() -> None:
    """Each field of a node takes each value that is drawn, also its own, and nodes stay as many."""
    nodes = np.arange(30 * NODE.itemsize, dtype=np.uint8).tobytes()
    changed = {tables.mutated_nodes(nodes, random.Random(draw)) for draw in range(300)}
    assert len(changed) > 200 and {len(one) for one in changed} == {len(nodes)}


@pytest.mark.parametrize("name", NAMES)
def test_changed_inputs_are_read_or_refused(name: str) -> None:
    """Structured mutations are accepted or refused with the documented error."""
    chosen = target(name)
    seeds = chosen.seeds()
    results = {True: 0, False: 0}

    @settings(max_examples=EXAMPLES[name], derandomize=True, database=None)
    @given(st.integers(0, len(seeds) - 1), st.integers(0, 2**32), st.integers(1, 4))
    def read_changed(number: int, seed: int, changes: int) -> None:
        data, draw = seeds[number], random.Random(seed)
        for _ in range(changes):
            data = chosen.mutate(data, draw)
        results[is_accepted(name, data)] += 1

    read_changed()
    least = 3 if name == "networks" else 50  # half of the networks, but for chance
    assert min(results.values()) > EXAMPLES[name] / 50, f"mutations that are all alike find nothing: {results}"
    assert results[True] > EXAMPLES[name] / least, f"too few inputs pass the checks: {results}"


@settings(max_examples=50, derandomize=True, database=None)
@given(st.sampled_from(NAMES), st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(name: str, data: bytes) -> None:
    """Random bytes raise only the documented errors."""
    read_in_bounds(name, data)


def test_decoder_targets_see_what_the_suite_sees() -> None:
    """The seeds of streams and inventories have every reply and every key, so that each is mutated."""
    streams = b"".join(frames.seeds())
    for word in (b"hello", b"lease", b"status", b"put", b"samples", b"end", b"oracle", b"error", b"heartbeat"):
        assert b'"type":"' + word + b'"' in streams
    keys = devices.seeds()[0].decode()
    from harness.device.inventory import Device, Ssh

    names = {*Ssh.model_fields, *Device.model_fields} - {"kind", "name"}
    assert all(f"\n{name} = " in keys for name in names)


def test_command_without_atheris_says_so() -> None:
    """Without atheris, `python -m fuzz` fails, says that nothing was fuzzed, and what to install."""
    program = "import runpy, sys; sys.modules['atheris'] = None; runpy.run_module('fuzz', None, '__main__')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert "atheris is not installed" in done.stderr and ".[fuzz]" in done.stderr


def test_figures_of_a_run_can_be_written_later(tmp_path: Path) -> None:
    """The figures that a run prints, alone or among the results of the reliability page, give the same table."""
    figures = [Figures("networks", 600.2, 1000, 600, 700, 3, 1.5, 90, 200, ("crash at x",))]
    figures.append(Figures("frames", 600.1, 2000, 10, None, None, 0.01, 9, 60, ()))
    printed = {"schema_version": 2, "targets": [asdict(one) for one in figures]}
    for at, content in enumerate((printed, {"part": "fuzz", "found": printed})):
        path = tmp_path / f"{at}.json"
        path.write_text(json.dumps(content))
        assert table(read_figures(path)) == table(figures)
    rows = table(figures).splitlines()[2:]
    assert rows[0] == "| networks | 600 | 1,000 | 600 (60 %) | 700 (70 %) | 3 | 1 | 1,500 ms | 200 MB | 90 |"
    assert rows[1] == "| frames | 600 | 2,000 | 10 | – | – | 0 | 10 ms | 60 MB | 9 |"


def test_input_that_crashes_a_library_is_read_again_in_the_isolated_process(tmp_path: Path) -> None:
    """What ends the fuzzing process is no fault if the program, which isolates that reader, refuses it."""
    path = tmp_path / "input"
    path.write_bytes(b"no network")
    command = [sys.executable, "-m", "fuzz.replay", "networks", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "REFUSED\n"
