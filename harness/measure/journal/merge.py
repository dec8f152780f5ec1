"""Merge a job's campaigns from another journal: every slot keeps one series, however often they are merged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.measure.journal import digest
from harness.measure.journal.checked_rows import CAMPAIGNS, CHAINS, LAYERS, PROBES, ROUNDS, SAMPLES, SERIES, new_number
from harness.measure.journal.journal import SAME_KEY, Journal
from harness.measure.journal.records import PENDING
from harness.measure.journal.transfer import Extract, not_ours, opened
from harness.text import printable

SECOND = "measured a second time by another worker"
"""The reason that excludes a campaign if another one of the same job counts."""
_SAME = ("device", "plan", "settings", "fingerprint")
"""The columns of a campaign's key, in the order of `SAME_KEY`."""
_PLANNED = ("seed", "clock", "auxiliary", "reference", "rules")

_Row = Mapping[str, Any]


def merge(journal: Journal, content: bytes, *, job: str, device: str) -> Mapping[int, int]:
    """Copy campaigns of a job on a device from an extract that the journal lacks, in one transaction.

    Campaigns are the same if their keys and the times at which they began are equal. For a slot that both hold, the
    journal keeps its own series. If several complete campaigns have the same key, the one that began first counts and
    the others are excluded. Returns, for the number of each campaign there, the number here of the one that counts.
    Raises ExtractRefused, and leaves the journal unchanged, for bytes that are not an extract of this version, that
    belong to another job, or that were altered; and JournalError if the journal cannot be written.
    """
    with opened(content) as extract, journal.transaction() as ours:
        rows = extract.campaigns(job, device)
        numbers = {theirs: _merge(ours, extract, theirs, row) for theirs, row in rows.items()}
        return {theirs: _counting(ours, row, numbers[theirs]) for theirs, row in rows.items()}


def _merge(ours: sqlite3.Connection, extract: Extract, theirs: int, row: _Row) -> int:
    """Copy what a campaign here lacks of the same campaign there; returns its number here."""
    found = ours.execute(
        f"SELECT {CAMPAIGNS.names} FROM campaigns WHERE {SAME_KEY} AND created=?",  # noqa: S608 - our own names
        [row[name] for name in (*_SAME, "created")],
    ).fetchone()
    known = found and dict(zip(CAMPAIGNS.columns, found, strict=True))
    if known and any(known[name] != row[name] for name in _PLANNED):
        raise not_ours(f"Its campaign {theirs} has the plan of campaign {known['id']}, but not its content")
    number = int(known["id"]) if known else _insert(ours, extract, theirs, row)
    with digest.renewed(ours, number):
        if known:
            _join_states(ours, extract, known, theirs, row)
        ours.executemany(
            "INSERT INTO rounds VALUES (?,?,?)"
            " ON CONFLICT (campaign, batch) DO UPDATE SET finished=max(finished, excluded.finished)",
            ((number, batch, finished) for _, batch, finished in extract.rows(ROUNDS, "campaign=?", theirs)),
        )
        _copy_series(ours, extract, number, theirs)
    return number


def _insert(ours: sqlite3.Connection, extract: Extract, theirs: int, row: _Row) -> int:
    """Copy a campaign with its plan."""
    number = new_number(ours)
    copy = {**row, "id": number, "excluded": _standing({"complete": 0, "excluded": None}, row)}
    CAMPAIGNS.insert(ours, [tuple(copy.values())])
    for table in (PROBES, LAYERS, CHAINS):
        table.insert(ours, ((number, *rest) for _, *rest in extract.rows(table, "campaign=?", theirs)))
    digest.begin(ours, number)
    return number


def _join_states(ours: sqlite3.Connection, extract: Extract, known: _Row, theirs: int, row: _Row) -> None:
    """Give a campaign here the further of both states, since the series of the other one are copied as well."""
    number = known["id"]
    ours.execute(
        "UPDATE campaigns SET complete=max(complete, ?), settled=max(settled, ?), token=max(token, ?),"
        " untimed_s=max(untimed_s, ?), excluded=? WHERE id=?",
        (*(row[name] for name in ("complete", "settled", "token", "untimed_s")), _standing(known, row), number),
    )
    for _, probe, *_, refused, deaths in extract.rows(PROBES, "campaign=?", theirs):
        changed = ours.execute(
            "UPDATE probes SET refused=coalesce(refused, ?), deaths=max(deaths, ?) WHERE campaign=? AND probe=?",
            (refused, deaths, number, probe),
        )
        if changed.rowcount != 1:
            raise not_ours(f"Its campaign {theirs} has a probe that the plan does not")


def _standing(known: _Row, row: _Row) -> str | None:
    """Return the reason that excludes a campaign after both states are merged.

    A reason given on either side stays, ours before theirs. A complete campaign that one side has admitted no longer
    waits. Each journal decides for itself which of several campaigns counts.
    """
    other = {"complete": row["complete"], "excluded": None if row["excluded"] == SECOND else row["excluded"]}
    for reason in (known["excluded"], other["excluded"]):
        if reason not in (None, PENDING, SECOND):
            return printable(reason)
    if known["excluded"] == SECOND:
        return SECOND
    complete = [one["excluded"] for one in (known, other) if one["complete"]]
    return PENDING if complete and None not in complete else None


def _counting(ours: sqlite3.Connection, row: _Row, number: int) -> int:
    """The campaign that counts among those with the same key, after excluding the others; `number` if none does.

    The one that began first counts, so that every journal that holds them all agrees.
    """
    held = ours.execute(
        f"SELECT id FROM campaigns WHERE {SAME_KEY} AND complete AND excluded IS NULL"  # noqa: S608 - our own names
        " ORDER BY created, id",
        [row[name] for name in _SAME],
    ).fetchall()
    for (one,) in held[1:]:
        with digest.renewed(ours, one):
            ours.execute("UPDATE campaigns SET excluded=? WHERE id=?", (SECOND, one))
    (excluded,) = ours.execute("SELECT excluded FROM campaigns WHERE id=?", (number,)).fetchone()
    return int(held[0][0]) if held and excluded == SECOND else number


def _copy_series(ours: sqlite3.Connection, extract: Extract, number: int, theirs: int) -> None:
    """Copy series for slots that have none here, with their samples, in the order in which they were taken."""
    taken = set(ours.execute("SELECT batch, round, position FROM series WHERE campaign=?", (number,)))
    probes = {probe for (probe,) in ours.execute("SELECT probe FROM probes WHERE campaign=?", (number,))}
    (last,) = ours.execute("SELECT coalesce(max(id), 0) FROM series").fetchone()
    new: dict[int, int] = {}

    def series() -> Iterator[Sequence[Any]]:
        for own, _, probe, batch, round, position, *rest in extract.rows(SERIES, "campaign=? ORDER BY id", theirs):
            if probe not in probes:
                raise not_ours(f"Its campaign {theirs} has samples of a probe that the plan does not have")
            if (batch, round, position) not in taken:
                new[own] = last + len(new) + 1
                yield (new[own], number, probe, batch, round, position, *rest)

    SERIES.insert(ours, series())
    where = "series IN (SELECT id FROM series WHERE campaign=?) ORDER BY series, ordinal"
    samples = ((new[own], *rest) for own, *rest in extract.rows(SAMPLES, where, theirs) if own in new)
    SAMPLES.insert(ours, samples)


def held_out(journal: Journal, *, job: str, device: str) -> dict[str, str]:
    """Return the campaigns of a job that must not be continued: when they began, and why.

    A campaign that is excluded in favour of another one is among them if that other one is held out.
    """
    held = [one for one in journal.campaigns(device) if one.job == job]
    reasons: dict[str, str] = {}
    for one in held:
        alike = [other for other in held if other.key == one.key]
        if one.excluded == SECOND and not any(other.is_usable for other in alike):
            given = (other.excluded for other in alike if other.excluded not in (None, PENDING, SECOND))
            reasons[one.created] = next(given, None) or SECOND
        elif one.excluded not in (None, PENDING, SECOND):
            reasons[one.created] = one.excluded
    return reasons


def hold_out(journal: Journal, reasons: Mapping[str, str], *, job: str, device: str) -> None:
    """Exclude campaigns that another journal excludes, so that the job starts again."""
    for one in journal.campaigns(device):
        if one.job == job and one.excluded in (None, PENDING) and one.created in reasons:
            journal.exclude(one.id, one.token, printable(reasons[one.created]))
