"""Campaigns that are disturbed: busy devices, dead agents, interrupts and kills; the same command resumes them."""

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import TIMEOUT_S, Harness, Outcome, wait_for
from processes import agents, is_stopped, runs, sabotaged, workers

LEASED = '[devices.leased]\nbackend = "null"\nexclusive = true\n'
RUNS = 24
STOPS_AFTER = 500
"""The run after which a worker stops: a third of a campaign and its golden probe."""
PROFILES = 'settings LIKE \'%"purpose":"profile"%\''
"""Campaigns that are no golden probe."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, small_network: Path) -> dict[str, Any]:
    """The result of the undisturbed campaign."""
    harness = Harness.in_folder(tmp_path_factory.mktemp("undisturbed"))
    result = _profile(harness, small_network).assert_ok().json
    return {**result, "visits": _visits(harness)}


def _words(network: Path, device: str = "null01") -> tuple[str | Path, ...]:
    return "profile", "--device", device, network, "--runs", str(RUNS), "--json"


def _profile(harness: Harness, network: Path, device: str = "null01") -> Outcome:
    return harness(*_words(network, device))


def _visits(harness: Harness) -> Counter[str]:
    """How many samples each probe has."""
    rows = harness.query(
        "SELECT probe, count(*) FROM series JOIN samples ON series.id = samples.series"
        f" WHERE campaign IN (SELECT id FROM campaigns WHERE {PROFILES}) GROUP BY probe"
    )
    return Counter(dict(rows))


def _samples(harness: Harness) -> set[tuple[Any, ...]]:
    with contextlib.suppress(Exception):
        return set(
            harness.query(
                "SELECT campaign, probe, batch, round, position, ordinal, wall_ns, device_ns FROM series"
                " JOIN samples ON series.id = samples.series"
                f" WHERE campaign IN (SELECT id FROM campaigns WHERE {PROFILES})"
            )
        )
    return set()


def _start(harness: Harness, network: Path, device: str = "null01") -> subprocess.Popen[str]:
    """A campaign whose worker stands still in its middle."""
    process = replace(harness, extra=sabotaged(stops_after=STOPS_AFTER)).start(*_words(network, device))
    wait_for(lambda: any(map(is_stopped, workers(harness.runtime))), "the stop of the worker")
    wait_for(lambda: _samples(harness), "samples")
    return process


def _go_on(harness: Harness) -> None:
    """Let the worker go on, if it has not ended."""
    for worker in workers(harness.runtime):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def _end(process: subprocess.Popen[str]) -> Outcome:
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return Outcome(process.returncode, stdout, stderr)


def _assert_resumes(harness: Harness, network: Path, kept: set[tuple[Any, ...]], undisturbed: dict[str, Any]) -> None:
    """The same command completes the campaign: nothing of it lost, nothing doubled, the same plan."""
    assert kept
    result = _profile(harness, network).assert_ok().json
    assert result["resumed"] is True
    assert harness.query(f"SELECT count(*), count(DISTINCT plan) FROM campaigns WHERE {PROFILES}") == [(1, 1)]
    after = _samples(harness)
    assert kept <= after, f"{len(kept - after)} samples were lost"
    places = Counter(row[:6] for row in after)
    assert max(places.values()) == 1, "a sample stands twice"
    visits = _visits(harness)
    doubled = {
        probe: (count, undisturbed["visits"][probe])
        for probe, count in visits.items()
        if count != undisturbed["visits"][probe]
    }
    assert not doubled, f"samples of probes differ from an undisturbed campaign: {doubled}"
    assert result["probes"] == undisturbed["probes"] and result["samples"] == undisturbed["samples"]
    harness("lut", "build", "--device", "null01").assert_ok()


def test_second_controller_in_the_same_workspace_is_busy(harness: Harness, small_network: Path) -> None:
    """A second campaign in the same workspace is refused with exit 4 and does not disturb the first."""
    (harness.workspace / "devices.toml").write_text(LEASED)
    first = _start(harness, small_network, device="leased")
    _profile(harness, small_network, "leased").assert_refused(4)
    _go_on(harness)
    assert _end(first).assert_ok().json["samples"] > 0
    assert harness.query(f"SELECT count(*) FROM campaigns WHERE {PROFILES}") == [(1,)]


@pytest.mark.parametrize("victim", ["agent", "worker"])
def test_agent_that_dies_is_reported_and_resumed(
    victim: str, harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """Agent or worker killed in the middle: exit 4, and the same command completes the campaign."""
    process = _start(harness, small_network)
    (target,) = {"agent": agents, "worker": workers}[victim](harness.runtime)
    os.kill(target, signal.SIGKILL)
    _end(process).assert_refused(4, mentions=("next:",))
    kept = _samples(harness)
    _assert_resumes(harness, small_network, kept, undisturbed)


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "process"])
def test_interrupt_is_resumed(
    whole_group: bool, harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """Ctrl-C, sent by a terminal to the whole group or to the command alone: exit 130, how to resume, and it does."""
    process = _start(harness, small_network)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    _go_on(harness)
    outcome = _end(process)
    assert outcome.code == 130, str(outcome)
    outcome.assert_plain()
    assert outcome.stdout == "" and "resume" in outcome.stderr.lower(), str(outcome)
    kept = _samples(harness)
    assert len(kept) < undisturbed["samples"]
    _assert_resumes(harness, small_network, kept, undisturbed)


def test_interrupted_twice_is_resumed(harness: Harness, small_network: Path, undisturbed: dict[str, Any]) -> None:
    """A second Ctrl-C ends at once with exit 130, and nothing committed is lost."""
    process = _start(harness, small_network)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    while "Ctrl-C again" not in process.stderr.readline():  # before it, a second signal would be one with the first
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    outcome = _end(process)
    assert outcome.code == 130, str(outcome)
    outcome.assert_plain()
    _assert_resumes(harness, small_network, _samples(harness), undisturbed)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_controller_that_is_killed_is_resumed(
    kill: signal.Signals, harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """A controller killed in the middle leaves no agent behind, and the same command completes the campaign."""
    process = _start(harness, small_network)
    left = [*agents(harness.runtime), *workers(harness.runtime)]
    assert len(left) == 2
    process.send_signal(kill)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    wait_for(lambda: not any(map(runs, left)), "the end of agent and worker")
    _assert_resumes(harness, small_network, _samples(harness), undisturbed)


def test_fresh_begins_anew(harness: Harness, small_network: Path) -> None:
    """`--fresh` leaves an interrupted campaign alone and begins another."""
    process = _start(harness, small_network)
    os.killpg(process.pid, signal.SIGINT)
    _go_on(harness)
    assert _end(process).code == 130
    result = (
        harness("profile", "--device", "null01", small_network, "--runs", "4", "--fresh", "--json").assert_ok().json
    )
    assert result["resumed"] is False
    assert harness.query(f"SELECT count(*) FROM campaigns WHERE {PROFILES}") == [(2,)]


def test_budget_ends_a_campaign(harness: Harness, small_network: Path) -> None:
    """A budget too small for one round ends with exit 5 and says how to go on, and the device time stays near it."""
    outcome = harness("profile", "--device", "null01", small_network, "--budget", "0.001s", "--json")
    outcome.assert_plain()
    assert outcome.code in (0, 5), str(outcome)
    if outcome.code == 5:
        outcome.assert_refused(5, mentions=("budget",))


def _has_begun(process: subprocess.Popen[str]) -> bool:
    """Whether a command has loaded a library, which it does after it has set its handlers, or has ended."""
    return process.poll() is not None or "site-packages" in (Path("/proc") / str(process.pid) / "maps").read_text()


def test_interrupt_of_an_estimate(unchanged: Harness, small_network: Path) -> None:
    """Ctrl-C at any moment of a command, once the interpreter is up, ends without a traceback."""
    for delay_s in (0.0, 0.3, 0.6):
        process = unchanged.start("estimate", small_network, "--device", "null01")
        wait_for(lambda process=process: _has_begun(process), "its beginning")
        time.sleep(delay_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        outcome = _end(process)
        outcome.assert_plain()
        assert outcome.code in (0, 130), str(outcome)
