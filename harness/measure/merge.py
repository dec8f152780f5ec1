"""A job's campaigns out of another journal into ours: every place has one series, however often they are merged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.measure.extract import (
    CAMPAIGNS,
    CHAINS,
    LAYERS,
    PROBES,
    ROUNDS,
    SAMPLES,
    SERIES,
    not_ours,
    opened,
    wanted_campaigns,
)
from harness.measure.journal import Journal

_SAME = 4
"""The first columns of a campaign are what makes two of them one."""
_PLANNED = slice(4, 9)
_PROGRESS = slice(10, 15)


def merge(journal: Journal, content: bytes, *, job: str, device: str) -> Mapping[int, int]:
    """Copies what an extract holds of a job on a device and the journal does not, in one transaction.

    Campaigns are the same where device, plan, settings and fingerprint are. Of a place that both hold a series of,
    the journal keeps its own. Returns the number here of each campaign there. Raises JournalError, and leaves the
    journal as it was, where the bytes are no extract of this version, or one of something else than asked for.
    """
    with opened(content) as db, journal.transaction() as ours:
        return {theirs: _merge(ours, db, theirs, row) for theirs, row in wanted_campaigns(db, job, device).items()}


def _merge(ours: sqlite3.Connection, db: sqlite3.Connection, theirs: int, row: tuple[Any, ...]) -> int:
    """Copies what one campaign there has more than the same campaign here; returns its number here."""
    names = list(CAMPAIGNS.columns)
    known = ours.execute(
        f"SELECT {CAMPAIGNS.names} FROM campaigns WHERE {' AND '.join(f'{name}=?' for name in names[:_SAME])}"  # noqa: S608
        " ORDER BY id DESC LIMIT 1",
        row[:_SAME],
    ).fetchone()
    if known is None:
        number = int(ours.execute("SELECT coalesce(max(id), 0) + 1 FROM campaigns").fetchone()[0])
        CAMPAIGNS.insert(ours, iter([(*row[:-1], number)]))
        for table in (PROBES, LAYERS, CHAINS):
            table.insert(ours, ((number, *rest) for _, *rest in table.rows(db, "campaign=?", theirs)))
    else:
        number = int(known[-1])
        if known[_PLANNED] != row[_PLANNED]:
            raise not_ours(f"Its campaign {theirs} has the plan of campaign {number}, but not its content")
        _combine(ours, number, row)
        _combine_probes(ours, db, number, theirs)
    _combine_rounds(ours, db, number, theirs)
    _copy_series(ours, db, number, theirs)
    return number


def _combine(ours: sqlite3.Connection, number: int, row: tuple[Any, ...]) -> None:
    """Whoever is further says how far it is: its series come along."""
    ours.execute(
        "UPDATE campaigns SET complete=max(complete, ?), settled=max(settled, ?), token=max(token, ?),"
        " untimed_s=max(untimed_s, ?), excluded=coalesce(excluded, ?) WHERE id=?",
        (*row[_PROGRESS], number),
    )


def _combine_probes(ours: sqlite3.Connection, db: sqlite3.Connection, number: int, theirs: int) -> None:
    for _, probe, *_, refused, deaths in PROBES.rows(db, "campaign=?", theirs):
        changed = ours.execute(
            "UPDATE probes SET refused=coalesce(refused, ?), deaths=max(deaths, ?) WHERE campaign=? AND probe=?",
            (refused, deaths, number, probe),
        )
        if changed.rowcount != 1:
            raise not_ours(f"Its campaign {theirs} has a probe that the plan does not")


def _combine_rounds(ours: sqlite3.Connection, db: sqlite3.Connection, number: int, theirs: int) -> None:
    ours.executemany(
        "INSERT INTO rounds VALUES (?,?,?)"
        " ON CONFLICT (campaign, batch) DO UPDATE SET finished=max(finished, excluded.finished)",
        ((number, batch, finished) for _, batch, finished in ROUNDS.rows(db, "campaign=?", theirs)),
    )


def _copy_series(ours: sqlite3.Connection, db: sqlite3.Connection, number: int, theirs: int) -> None:
    """Series of places that have none here, with their samples, in the order in which they were taken."""
    taken = set(ours.execute("SELECT batch, round, position FROM series WHERE campaign=?", (number,)))
    probes = {probe for (probe,) in ours.execute("SELECT probe FROM probes WHERE campaign=?", (number,))}
    (last,) = ours.execute("SELECT coalesce(max(id), 0) FROM series").fetchone()
    new: dict[int, int] = {}

    def series() -> Iterator[Sequence[Any]]:
        for own, _, batch, round, position, probe, *rest in SERIES.rows(db, "campaign=? ORDER BY id", theirs):
            if probe not in probes:
                raise not_ours(f"Its campaign {theirs} has samples of a probe that the plan does not have")
            if (batch, round, position) not in taken:
                new[own] = last + len(new) + 1
                yield (new[own], number, batch, round, position, probe, *rest)

    SERIES.insert(ours, series())
    where = "series IN (SELECT id FROM series WHERE campaign=?) ORDER BY series, ordinal"
    samples = ((new[own], *rest) for own, *rest in SAMPLES.rows(db, where, theirs) if own in new)
    SAMPLES.insert(ours, samples)
