"""Adding samples to a journal, checking and reading them: a part of docs/performance.md.

Frames of 50 series go in turn to a campaign with a digest and to one without, as earlier versions wrote them. The check
is compared with reading the samples, in the same run.
"""

import contextlib
import dataclasses
import itertools
import random
import sqlite3
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.generated_page import Section, table
from benchmarks.performance.measuring import Growth, Run, Took, cpu, fitted, grow, growth_table, ratio, spread, timed
from benchmarks.performance.page import reached, reached_linear
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import CampaignKey, Slot
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

PROBES, FRAME, RUNS, TOKEN = 1000, 50, 4, 1
SIZES, QUICK_SIZES = (1_000, 3_200, 10_000, 32_000, 100_000, 320_000, 1_000_000), (200, 400, 800)
"""Multiples of the samples of a frame."""
ADDED, QUICK_ADDED = 60, 3
"""Frames added to each journal, and timed."""
FLAT_EXPONENT = 0.1
STATE = {"cpu_mhz": 2100.0, "load": 0.4, "temperature": 44.5}


def journal_section(run: Run) -> Section:
    """Fill journals over three decades; add to them, check and read them."""
    sizes, added = (QUICK_SIZES, QUICK_ADDED) if run.quick else (SIZES, ADDED)
    folder, plan = run.folder("journal"), make_plan()
    campaigns = {size: _filled(folder / f"{size}.sqlite", plan, size) for size in sizes}
    checking = grow(sizes, lambda size: partial(_check, folder / f"{size}.sqlite", campaigns[size]), run.repeats)
    reading = grow(sizes, lambda size: partial(_read, folder / f"{size}.sqlite", campaigns[size]), run.repeats)
    covered, bare, adding = _added(folder, plan, campaigns, added)
    rows = [
        (name, *(spread([getattr(one, field) for one in times], 1e3) for field in ("wall_s", "cpu_s")))
        for name, times in (("with a digest", covered), ("without", bare))
    ]
    growths = {"check": checking, "read": reading, f"add {FRAME} series": adding}
    text = (
        f"Campaigns of {PROBES:,} probes with {RUNS} samples in each series. Medians of {run.repeats}, and of "
        f"adding {added}:\n\n{growth_table('samples', growths)}\n\nAdding {FRAME} series with the digest that protects "
        "them and without, in turns; the rest of the wall time waits for the disk:\n\n"
        f"{table(('campaign', 'wall ms', 'CPU ms'), rows)}\n\n"
        f"The digest adds {ratio(covered, bare) - 1:.0%} of CPU time."
    )
    flat = reached(f"samples in the journal: add {FRAME} series", adding.figure, adding.last <= FLAT_EXPONENT)
    linear = [reached_linear(f"samples in the journal: {name}", growths[name]) for name in ("check", "read")]
    return Section(text, (*linear, flat))


def make_plan() -> ProbePlan:
    """Return a plan with as many probes as a large network has."""
    probes = {f"{number:016x}": dataclasses.replace(reference_probe(), id=f"{number:016x}") for number in range(PROBES)}
    return ProbePlan(probes, (), (Batch(tuple(probes)),), next(iter(probes)), (), AuxiliaryKind.AVGPOOL)


def frames(plan: ProbePlan, start: int = 0) -> Iterator[list[tuple[Slot, str, list[Sample]]]]:
    """Yield frames of series without end; `start` is the number of frames before."""
    chance, probes = random.Random(1), itertools.cycle(plan.probes)
    for number in itertools.count(start):
        yield [(Slot(0, number, at), next(probes), [_sample(chance) for _ in range(RUNS)]) for at in range(FRAME)]


def _sample(chance: random.Random) -> Sample:
    return Sample(chance.randint(10**5, 10**8), chance.randint(10**5, 10**8), None, 0)


def _begin(journal: Journal, plan: ProbePlan, name: str) -> int:
    return journal.begin(CampaignKey(name, plan.id, {}, {}), plan, "cpu", TOKEN).id


def _filled(path: Path, plan: ProbePlan, samples: int) -> int:
    with Journal(path) as journal:
        campaign = _begin(journal, plan, "filled")
        for frame in itertools.islice(frames(plan), samples // (FRAME * RUNS)):
            journal.add(campaign, TOKEN, frame, STATE)
    return campaign


def _check(path: Path, campaign: int) -> None:
    with Journal(path) as journal:
        journal.require_unaltered([campaign])


def _read(path: Path, campaign: int) -> None:
    with Journal(path) as journal:
        journal.samples(campaign)


def _added(
    folder: Path, plan: ProbePlan, campaigns: dict[int, int], added: int
) -> tuple[list[Took], list[Took], Growth]:
    """Add frames in turn to a campaign with a digest, to one without, and to the filled ones of all sizes."""
    with contextlib.ExitStack() as opened:
        path = folder / "bare.sqlite"
        small = opened.enter_context(Journal(path))
        bare, covered = (_begin(small, plan, name) for name in ("bare", "covered"))
        _uncover(path, bare)
        targets: dict[str | int, tuple[Journal, int]] = {"covered": (small, covered), "bare": (small, bare)}
        for size, campaign in campaigns.items():
            targets[size] = (opened.enter_context(Journal(folder / f"{size}.sqlite")), campaign)
        times: dict[str | int, list[Took]] = {name: [] for name in targets}
        for frame in itertools.islice(frames(plan, max(campaigns)), added):
            for name, (journal, campaign) in targets.items():
                times[name].append(timed(partial(journal.add, campaign, TOKEN, frame, STATE)))
        found = small.check_all()
    if found != {bare: "altered", covered: "intact"}:
        raise SystemExit(f"the journal is not as it was written: {found}")
    by_size = {size: statistics.median(cpu(times[size])) for size in campaigns}
    return times["covered"], times["bare"], fitted(by_size)


def _uncover(path: Path, campaign: int) -> None:
    """Take the digest of a campaign away, so that none is kept."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM digests WHERE campaign=?", (campaign,))
