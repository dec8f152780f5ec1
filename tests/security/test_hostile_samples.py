"""Samples of a hostile device: those of a run that its end record does not confirm never count as data."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from altered_agent import alter_agents
from nullbench import Bench

from device_agents import wire
from harness.errors import CampaignIncomplete, LinkLost, ProtocolError
from harness.measure.policy import RepeatPolicy

FOUR = RepeatPolicy(runs=4)
FALSE_NS = 77_777_777


@pytest.fixture
def bench(tmp_path: Path, runtime_folder: Path) -> Bench:  # noqa: ARG001 - leases go there
    """Return a workspace with a null device."""
    return Bench(tmp_path / "bench")


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
            bench.profile(policy=FOUR)
    assert "end record" in str(refused.value) or "cancelled" in str(refused.value)
    before = bench.visits(1)
    assert before, "the honest runs stay"
    assert bench.profile(policy=FOUR).resumed
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
            bench.profile(policy=FOUR)
    before = bench.visits(1)
    assert before
    assert bench.profile(policy=FOUR).resumed
    assert rows(bench, f"SELECT count(*) FROM samples WHERE device_ns={FALSE_NS}") == [(0,)]
    assert bench.visits(1) == whole


def test_a_device_that_takes_its_time_is_given_up(
    bench: Bench, whole: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that reports short runs and takes long ones is given up after the wall time; a later run resumes."""

    def alter(frame: wire.Frame) -> Iterator[wire.Frame]:
        if frame.type == "end":
            time.sleep(0.2)
        yield frame

    with monkeypatch.context() as patch:
        alter_agents(patch, alter)
        with pytest.raises(CampaignIncomplete, match=r"did not finish within 1 s.*--time-limit") as given_up:
            bench.profile(policy=RepeatPolicy(runs=4, wall_s=1.0))
    assert (given_up.value.exit_code, given_up.value.fault) == (5, "device")
    before = bench.visits(1)
    assert 0 < len(before) < len(whole)
    assert bench.profile(policy=FOUR).resumed
    assert bench.visits(1) == whole


def test_the_default_limit_follows_from_plan_and_budget() -> None:
    """More probes, more rounds and a larger budget allow more time; what the user sets is taken as it is."""
    plain, budgeted = RepeatPolicy(), RepeatPolicy(budget_s=60.0)
    assert plain.limit_s(10, 20) < plain.limit_s(20, 20) < plain.limit_s(20, 40)
    assert budgeted.limit_s(10, 200) < RepeatPolicy(budget_s=90.0).limit_s(10, 200) < plain.limit_s(10, 200)
    assert RepeatPolicy(wall_s=5.0).limit_s(10, 200) == 5.0
