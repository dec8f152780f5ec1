"""Measure the cost of the journal's digests: at each commit, and when a campaign is checked.

    python -m benchmarks.performance.journal_cost [--samples 200000] [--commits 200]

Commits of 50 series go in turn to a campaign with a digest and to one without, as earlier versions wrote them. The
check is compared with reading the samples, and with the check by rows of schema 4, in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import itertools
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.measure.journal.journal import Journal
from harness.measure.journal.records import CampaignKey, Slot
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

PROBES, FRAME, TOKEN, REPEATS = 1000, 50, 1, 3
STATE = {"cpu_mhz": 2100.0, "load": 0.4, "temperature": 44.5}
_ROWS = (
    "SELECT series.id, probe, batch, round, position, token, taken, state,"
    " ordinal, wall_ns, cpu_ns, device_ns, preemptions FROM series LEFT JOIN samples ON samples.series=series.id"
    " WHERE series.id>0 AND +campaign=? ORDER BY series.id, ordinal"
)


class Times(NamedTuple):
    """The wall and CPU time of a task."""

    wall_s: float
    cpu_s: float


def make_plan() -> ProbePlan:
    """Return a plan with as many probes as a large network has."""
    probes = {f"{number:016x}": dataclasses.replace(reference_probe(), id=f"{number:016x}") for number in range(PROBES)}
    return ProbePlan(probes, (), (Batch(tuple(probes)),), next(iter(probes)), (), AuxiliaryKind.AVGPOOL)


def frames(plan: ProbePlan, runs: int) -> Iterator[list[tuple[Slot, str, list[Sample]]]]:
    """Yield frames of series with so many samples each, without end."""
    chance, probes = random.Random(1), itertools.cycle(plan.probes)
    for number in itertools.count():
        yield [(Slot(0, number, at), next(probes), [_sample(chance) for _ in range(runs)]) for at in range(FRAME)]


def _sample(chance: random.Random) -> Sample:
    return Sample(chance.randint(10**5, 10**8), chance.randint(10**5, 10**8), None, 0)


def uncover(path: Path, campaign: int) -> None:
    """Make a campaign one of an earlier version, which no digest covers."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE digests SET plan='', state='', series='' WHERE campaign=?", (campaign,))


def commit_times(folder: Path, commits: int) -> tuple[list[Times], list[Times]]:
    """Return the times of commits with and without a digest, taken in turn."""
    path, plan = folder / "commits.sqlite", make_plan()
    with Journal(path) as journal:
        covered, bare = (
            journal.begin(CampaignKey(name, plan.id, {}, {}), plan, "cpu", TOKEN).id for name in ("covered", "bare")
        )
        uncover(path, bare)
        times: dict[int, list[Times]] = {covered: [], bare: []}
        for frame in itertools.islice(frames(plan, 1), commits):
            for campaign in (covered, bare):
                times[campaign].append(_timed(partial(journal.add, campaign, TOKEN, frame, STATE)))
        assert journal.check_all() == {covered: "intact", bare: "not covered"}
    return times[covered], times[bare]


def check_times(folder: Path, samples: int, runs: int) -> dict[str, Times]:
    """Return the shortest times to check a campaign, to check it row by row, and to read its samples."""
    path, plan = folder / f"{runs}.sqlite", make_plan()
    with Journal(path) as journal:
        campaign = journal.begin(CampaignKey("d", plan.id, {}, {}), plan, "cpu", TOKEN).id
        for frame in itertools.islice(frames(plan, runs), samples // (FRAME * runs)):
            journal.add(campaign, TOKEN, frame, STATE)
    found: dict[str, list[Times]] = {"check": [], "row by row": [], "read": []}
    for _ in range(REPEATS):
        with Journal(path) as journal, contextlib.closing(sqlite3.connect(path)) as db:
            found["check"].append(_timed(partial(journal.require_unaltered, [campaign])))
            found["row by row"].append(_timed(partial(check_by_rows, db, campaign)))
            found["read"].append(_timed(partial(journal.samples, campaign)))
    return {
        name: Times(min(one.wall_s for one in all_), min(one.cpu_s for one in all_)) for name, all_ in found.items()
    }


def check_by_rows(db: sqlite3.Connection, campaign: int) -> int:
    """Return the digest of all series as schema 4 had it: a sum of hashes of each series, row by row in Python."""
    total = 0
    for _, lines in itertools.groupby(db.execute(_ROWS, (campaign,)), key=lambda row: row[0]):
        digest = hashlib.sha256()
        for line in lines:
            digest.update(repr(tuple(line[1:])).encode())
        total = (total + int.from_bytes(digest.digest(), "big")) % (1 << 256)
    return total


def _timed(task: Callable[[], object]) -> Times:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    task()
    return Times(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--commits", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        covered, bare = commit_times(Path(folder), arguments.commits)
        for name in ("wall_s", "cpu_s"):
            both = []
            for label, times in (("with a digest", covered), ("without", bare)):
                low, median, high = (1e3 * one for one in statistics.quantiles((getattr(t, name) for t in times), n=4))
                print(f"commit of {FRAME} series {label}, {name[:-2]}: {median:.2f} ms [{low:.2f}, {high:.2f}]")
                both.append(median)
            print(f"the digest adds {both[0] - both[1]:.2f} ms, {both[0] / both[1] - 1:.0%}")
        for runs in (1, 4):
            found = check_times(Path(folder), arguments.samples, runs)
            print(f"{arguments.samples:,} samples, {runs} in each series:")
            for name, one in found.items():
                ratio = one.cpu_s / found["check"].cpu_s
                print(f"  {name}: {one.wall_s:.2f} s wall, {one.cpu_s:.2f} s CPU, {ratio:.1f} times the check")


if __name__ == "__main__":
    main()
