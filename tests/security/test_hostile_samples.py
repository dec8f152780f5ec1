"""Samples of a hostile device: those of a run that its end record does not confirm never count as data."""

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from altered_agent import alter_agents
from nullbench import DEVICE, Bench
from opened_run import open_run
from scripted_agent import start_scripted

from device_agents import wire
from harness import profile
from harness.device import time_limit
from harness.device.inventory import find_device, load_inventory
from harness.device.session import open_session
from harness.errors import CampaignIncomplete, DeviceTooSlow, LinkLost, ProtocolError
from harness.fleet.health import check_golden, check_golden_again
from harness.fleet.store import FleetStore
from harness.measure.policy import RepeatPolicy

FOUR = RepeatPolicy(runs=4)
FALSE_NS = 77_777_777


@pytest.fixture
def whole(tmp_path: Path, bench: Bench) -> list[Any]:  # noqa: ARG001 - first the folder of leases
    """Return the visits of an undisturbed campaign."""
    undisturbed = Bench(tmp_path / "whole")
    return undisturbed.visits(undisturbed.profile(policy=FOUR).campaign)


def rows(bench: Bench, sql: str) -> list[Any]:
    """Return rows of the journal."""
    with contextlib.closing(sqlite3.connect(bench.workspace.journal)) as database:
        return database.execute(sql).fetchall()


def falsified(frame: wire.Frame) -> wire.Frame:
    """Return a samples frame in which every sample has the same false time."""
    content = json.loads(frame.payload)
    for series in content["series"]:
        series["samples"] = [[FALSE_NS, cpu, FALSE_NS, count] for _, cpu, _, count in series["samples"]]
    return replace(frame, payload=json.dumps(content).encode())


class Runs:
    """Counts the runs of a session by their end records."""

    def __init__(self, honest: int) -> None:
        self.left = honest

    def is_honest(self, frame: wire.Frame) -> bool:
        """Return whether the frame belongs to one of the first runs."""
        honest = self.left > 0
        self.left -= frame.type == "end"
        return honest


@pytest.mark.parametrize("lie", ["hash", "count", "cancelled"])
def test_samples_of_a_run_with_a_wrong_end_record_are_no_data(
    lie: str, bench: Bench, whole: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """False samples before a wrong end record reach no journal; an honest resume ends as if they were never sent."""
    runs = Runs(honest=7)

    def alter(frame: wire.Frame) -> Iterator[wire.Frame]:
        if runs.is_honest(frame) or frame.type not in ("samples", "end"):
            yield frame
        elif frame.type == "samples":
            yield falsified(frame)
        elif lie == "count":
            yield replace(frame, fields={**frame.fields, "count": frame.fields["count"] + 1})
        elif lie == "cancelled":
            yield replace(frame, fields={**frame.fields, "cancelled": True})
        else:
            yield frame

    with monkeypatch.context() as patch:
        alter_agents(patch, alter)
        with pytest.raises(ProtocolError) as refused:
            bench.profile(policy=FOUR, connect=open_session)
    assert "end record" in str(refused.value) or "cancelled" in str(refused.value)
    before = bench.visits(1)
    assert before, "the honest runs stay"
    assert bench.profile(policy=FOUR, connect=open_session).resumed
    assert rows(bench, f"SELECT count(*) FROM samples WHERE device_ns={FALSE_NS} OR wall_ns={FALSE_NS}") == [(0,)]
    assert bench.visits(1) == whole
    assert set(before) < set(whole)


def test_samples_before_a_broken_link_are_no_data(
    bench: Bench, whole: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that breaks after the samples of a run and before its end record leaves those of earlier runs only."""
    runs = Runs(honest=7)

    def alter(frame: wire.Frame) -> Iterator[wire.Frame]:
        if runs.is_honest(frame):
            yield frame
        elif frame.type == "end":
            raise ConnectionResetError("the cable is out")
        else:
            yield falsified(frame) if frame.type == "samples" else frame

    with monkeypatch.context() as patch:
        alter_agents(patch, alter)
        with pytest.raises(LinkLost):
            bench.profile(policy=FOUR, connect=open_session)
    before = bench.visits(1)
    assert before
    assert bench.profile(policy=FOUR, connect=open_session).resumed
    assert rows(bench, f"SELECT count(*) FROM samples WHERE device_ns={FALSE_NS}") == [(0,)]
    assert bench.visits(1) == whole


def test_a_device_that_takes_its_time_is_given_up(
    bench: Bench, whole: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that reports short runs and takes long ones is given up after the wall time; a later run resumes."""
    wall_s = 0.0

    def alter(frame: wire.Frame) -> Iterator[wire.Frame]:
        if frame.type == "end":
            time.sleep(wall_s / 5)
        yield frame

    before: list[Any] = []
    for wall_s in (3.0, 15.0, 75.0):  # a busy machine may take seconds to begin
        with monkeypatch.context() as patch:
            alter_agents(patch, alter)
            with pytest.raises(CampaignIncomplete) as given_up:
                bench.profile(policy=RepeatPolicy(runs=4, wall_s=wall_s), connect=open_session)
        if before := bench.visits(1):
            break
    assert re.search(f"did not finish within {wall_s:g} s.*--time-limit", str(given_up.value))
    assert (given_up.value.exit_code, given_up.value.fault) == (5, "device")
    assert 0 < len(before) < len(whole)
    assert bench.profile(policy=FOUR, connect=open_session).resumed
    assert bench.visits(1) == whole


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces the local agent by a scripted one; a slow device has little time to end."""
    monkeypatch.setattr(time_limit, "GRACE_S", 0.2)

    def replace_agent(case: str) -> None:
        monkeypatch.setattr("harness.device.session.start_here", lambda: start_scripted(case))

    return replace_agent


def test_a_run_that_is_cancelled_in_vain_is_ended(bench: Bench, scripted: Callable[[str], None]) -> None:
    """A device that goes on with a run after its time was up and the run cancelled is given up in its middle."""
    scripted("slow_visits")
    for wall_s in (3, 15, 75):  # a busy machine may take seconds to begin
        with pytest.raises(DeviceTooSlow) as given_up:
            bench.profile(policy=RepeatPolicy(runs=4, wall_s=wall_s), connect=open_session)
        if "cancelled" in str(given_up.value):
            break
    assert f"within {wall_s} s. It does not end a run that was cancelled" in str(given_up.value)
    assert bench.visits(1) == []


@pytest.mark.parametrize("case", ["slow_visits", "slow_probes"])
def test_a_job_has_a_limit_whatever_takes_its_time(bench: Bench, scripted: Callable[[str], None], case: str) -> None:
    """The limit counts golden probes and the loading of probes, too, and is not begun anew by another attempt."""
    scripted(case)
    with pytest.raises(DeviceTooSlow, match=r"bench did not finish within 0.4 s") as given_up:
        profile(bench.model, device=DEVICE, policy=RepeatPolicy(runs=4, wall_s=0.4), workspace=bench.workspace)
    assert (given_up.value.exit_code, given_up.value.retry_helps) == (5, True)


def test_a_campaign_that_used_its_time_up_counts_if_the_device_is_as_it_was(bench: Bench) -> None:
    """The golden probe after a campaign is measured beyond the limit of the job, the one before it is not."""
    device = find_device(load_inventory(bench.workspace.devices), DEVICE)
    over = time_limit.TimeLimit(1e-9)
    with open_run(device, bench.workspace) as run, FleetStore(bench.workspace.fleet) as store:
        before = check_golden(run, store)
        over.begin()
        check_golden_again(replace(run, time_limit=over), store, before)
        with pytest.raises(DeviceTooSlow):
            check_golden(replace(run, time_limit=over), store)


def test_the_default_limit_follows_from_plan_and_budget() -> None:
    """More probes, more rounds and a larger budget allow more time; what the user sets is taken as it is."""
    plain, budgeted = RepeatPolicy(), RepeatPolicy(budget_s=60.0)
    assert plain.limit_s(10, 20) < plain.limit_s(20, 20) < plain.limit_s(20, 40)
    assert budgeted.limit_s(10, 200) < RepeatPolicy(budget_s=90.0).limit_s(10, 200) < plain.limit_s(10, 200)
    assert RepeatPolicy(wall_s=5.0).limit_s(10, 200) == 5.0
