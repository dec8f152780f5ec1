"""Devices that several commands want at once: emulated ones are shared, real ones are waited for."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import TIMEOUT_S, Harness, Outcome
from processes import is_stopped, sabotaged, wait_until, workers

from device_agents.lease import Lease

RUNS = 8
STOPS_AFTER = 150
"""The run after which a worker stops: a third of a campaign and its golden probe."""
DEVICES = """
[devices.emulated]
backend = "null"
options = { noise = 0.01, seed = 1 }

[devices.leased]
backend = "null"
exclusive = true
"""
PROFILES = "json_extract(settings, '$.purpose')='profile'"
Taken = dict[tuple[int, int, int, int], int]


@pytest.fixture
def lab(harness: Harness) -> Harness:
    """A workspace with an emulated device, which needs no lease, and one that is leased like a real one."""
    return _with_devices(harness)


def _with_devices(harness: Harness) -> Harness:
    (harness.workspace / "devices.toml").write_text(DEVICES)
    return harness


def _words(network: Path, *more: str, device: str = "emulated") -> tuple[str | Path, ...]:
    return "profile", "--device", device, network, "--runs", str(RUNS), *more


def _campaigns(harness: Harness) -> list[int]:
    journal = harness.workspace / ".harness" / "journal.sqlite"
    if not journal.exists() or not harness.query("SELECT name FROM sqlite_master"):
        return []
    return [number for (number,) in harness.query(f"SELECT id FROM campaigns WHERE {PROFILES} ORDER BY id")]


def _taken(harness: Harness, campaign: int) -> Taken:
    """The device times of a campaign by their place."""
    rows = harness.query(
        "SELECT batch, round, position, ordinal, device_ns FROM series JOIN samples ON series.id = samples.series"
        " WHERE campaign=?",
        campaign,
    )
    places = {row[:4]: row[4] for row in rows}
    assert len(places) == len(rows), "a sample stands twice"
    return places


def _end(process: subprocess.Popen[str]) -> Outcome:
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return Outcome(process.returncode, stdout, stderr)


@contextmanager
def _stopped_in_the_middle(harness: Harness, network: Path, known: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A command whose worker stops in the middle of its campaign, which has `known` samples before; then it goes on."""
    process = replace(harness, extra=sabotaged(stops_after=STOPS_AFTER)).start(*_words(network, "--json"))
    wait_until(lambda: any(map(is_stopped, workers(harness.runtime))), "the stop of the worker")
    wait_until(lambda: any(len(_taken(harness, one)) > known for one in _campaigns(harness)), "samples of a campaign")
    (worker,) = workers(harness.runtime)
    try:
        yield process
    finally:
        os.kill(worker, signal.SIGCONT)


def test_an_emulated_device_serves_several_commands_at_once(lab: Harness, small_network: Path, tmp_path: Path) -> None:
    """Commands in this workspace and in another measure while one is in its middle; each gets what it gets alone."""
    alone = _with_devices(Harness.in_folder(tmp_path / "alone"))
    alone(*_words(small_network)).assert_ok()
    (tmp_path / "other").mkdir()
    other = _with_devices(Harness(tmp_path / "other", lab.runtime, lab.home))
    with _stopped_in_the_middle(lab, small_network) as first:
        second = lab(*_words(small_network, "--json")).data
        third = other(*_words(small_network, "--json")).data
        lab(*_words(small_network, "--dry-run")).assert_ok()
        assert first.poll() is None
    ended = _end(first).data
    assert not any(one["resumed"] for one in (ended, second, third))
    (campaign,) = _campaigns(alone)
    expected = _taken(alone, campaign)
    assert len(set(expected.values())) > 100
    for harness, result in ((lab, ended), (lab, second), (other, third)):
        assert _taken(harness, result["campaign"]) == expected
    lab("lut", "build", "--device", "emulated").assert_ok()


def test_an_interrupted_campaign_is_continued_by_one_command(lab: Harness, small_network: Path) -> None:
    """While one command continues an interrupted campaign, the same command given again begins its own."""
    with _stopped_in_the_middle(lab, small_network) as process:
        process.send_signal(signal.SIGINT)
    assert _end(process).code == 130
    (interrupted,) = _campaigns(lab)
    with _stopped_in_the_middle(lab, small_network, len(_taken(lab, interrupted))) as first:
        second = lab(*_words(small_network, "--json")).data
    ended = _end(first).data
    assert (ended["campaign"], ended["resumed"], second["resumed"]) == (interrupted, True, False)
    assert second["campaign"] != interrupted
    assert ended["samples"] == second["samples"] == len(_taken(lab, second["campaign"]))
    assert _taken(lab, interrupted).keys() == _taken(lab, second["campaign"]).keys()


@pytest.fixture
def held(lab: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    """The lease of the real device, in other hands."""
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(lab.runtime))
    lease = Lease("leased")
    lease.acquire("eve@elsewhere")
    yield lease
    lease.release()


def _note(process: subprocess.Popen[str]) -> str:
    """The first line that a command writes to stderr about waiting."""
    assert process.stderr is not None
    return next(line for line in process.stderr if "waiting" in line)


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["profile", "dry run"])
def test_the_wait_for_a_device_ends_with_todays_error(
    lab: Harness, held: Lease, small_network: Path, more: tuple[str, ...]
) -> None:
    """Without --wait a device in use is refused at once; with it after that time, and the holder is shown once."""
    assert held.token
    at_once = lab(*_words(small_network, *more, device="leased")).assert_refused(4, mentions=("eve@elsewhere",))
    assert "waiting" not in at_once.stderr
    later = lab(*_words(small_network, *more, "--wait", "3s", device="leased"))
    later.assert_refused(4, mentions=("leased is in use by eve@elsewhere",))
    assert later.stderr.count("waiting for up to") == 1
    assert not _campaigns(lab)


def test_a_command_that_waits_measures_when_the_device_is_free(lab: Harness, held: Lease, small_network: Path) -> None:
    """`profile --wait` and `validate --wait` begin as soon as the holder is done."""
    waiting = lab.start(*_words(small_network, "--wait", "10m", device="leased"))
    assert re.search(r"in use by eve@elsewhere; waiting for up to (600|5\d\d) s", _note(waiting))
    held.release()
    _end(waiting).assert_ok()
    lab("lut", "build", "--device", "leased").assert_ok()
    held.acquire("eve@elsewhere")
    words = ("validate", small_network, "--device", "leased", "--processes", "1", "--wait", "1m")
    validating = lab.start(*words)
    assert "waiting for up to 60 s" in _note(validating)
    held.release()
    assert "waiting" not in _end(validating).assert_ok().stderr


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["profile", "dry run"])
def test_ctrl_c_ends_the_wait(lab: Harness, held: Lease, small_network: Path, more: tuple[str, ...]) -> None:
    """Ctrl-C while a command waits for a device ends it with exit 130."""
    assert held.token
    waiting = lab.start(*_words(small_network, *more, "--wait", "10m", device="leased"))
    assert re.search(r"waiting for up to (600|5\d\d) s", _note(waiting))
    waiting.send_signal(signal.SIGINT)
    assert _end(waiting).code == 130


def test_a_wait_that_is_no_duration_is_refused(lab: Harness, small_network: Path) -> None:
    """--wait takes the durations that --budget takes."""
    lab(*_words(small_network, "--wait", "soon")).assert_refused(2, mentions=("--wait soon", "10m"))
