"""Running digests of campaigns, which show that a journal was altered on disk after its samples were committed.

A digest of each campaign is kept in three parts: its plan, written once; its state, written anew by each transaction;
and its series with their samples, to which each transaction adds those that it wrote. They detect damage, not forgery:
who can write the journal can write digests, too. Campaigns of journals of earlier versions have none. A
journal that was created with digests says so in its header: there, a campaign without one has lost it.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

Verdict = Literal["intact", "not covered", "altered"]

_MODULUS = 1 << 256
_PLAN = (
    "SELECT device, plan, seed, settings, fingerprint, clock, auxiliary, reference, rules, created"
    " FROM campaigns WHERE id=?",
    "SELECT probe, role, label, auxiliary, terms, visits FROM probes WHERE campaign=? ORDER BY probe",
    'SELECT key, context, op, name, layer, auxiliary, in_context, "null", stacks, networks'
    " FROM layers WHERE campaign=? ORDER BY key, context",
    "SELECT ordinal, chain FROM chains WHERE campaign=? ORDER BY ordinal",
)
_STATE = (
    "SELECT complete, settled, token, untimed_s, excluded FROM campaigns WHERE id=?",
    "SELECT probe, refused, deaths FROM probes WHERE campaign=? AND (deaths OR refused IS NOT NULL) ORDER BY probe",
    "SELECT batch, finished FROM rounds WHERE campaign=? ORDER BY batch",
)
_SERIES = (
    "SELECT series.id, probe, batch, round, position, token, taken, state,"
    " ordinal, wall_ns, cpu_ns, device_ns, preemptions FROM series LEFT JOIN samples ON samples.series=series.id WHERE "
)
_ORDER = " ORDER BY series.id, ordinal"
# The unary plus keeps SQLite from reading all series of the campaign, in the order of another index.
_NEW_SERIES = f"{_SERIES} series.id>? AND +campaign=? {_ORDER}"
# Through the index by which samples are read: damage to it hides series that the table still has.
_ALL_SERIES = f"{_SERIES} campaign=? {_ORDER}"


def cover(db: sqlite3.Connection, campaign: int) -> None:
    """Begin the digest of a campaign that the open transaction has inserted with its plan."""
    db.execute("INSERT INTO digests VALUES (?,?,?,?,?)", (campaign, _of(db, _PLAN, campaign), "", _hex(0), 0))
    renew(db, campaign)


def renew(db: sqlite3.Connection, campaign: int) -> None:
    """Bring the digest up to what the open transaction has written to the campaign; nothing for one without digest."""
    row = db.execute("SELECT series, covered FROM digests WHERE campaign=?", (campaign,)).fetchone()
    if row is not None:
        total, covered = _added(int(row[0], 16), row[1], db.execute(_NEW_SERIES, (row[1], campaign)))
        state = _of(db, _STATE, campaign)
        db.execute(
            "UPDATE digests SET state=?, series=?, covered=? WHERE campaign=?", (state, _hex(total), covered, campaign)
        )


def check(db: sqlite3.Connection, campaign: int) -> Verdict:
    """Compare a campaign with its digest; reads all its samples."""
    row = db.execute("SELECT plan, state, series FROM digests WHERE campaign=?", (campaign,)).fetchone()
    if row is None:
        (mark,) = db.execute("PRAGMA application_id").fetchone()
        return "altered" if mark else "not covered"
    total, _ = _added(0, 0, db.execute(_ALL_SERIES, (campaign,)))
    return "intact" if row == (_of(db, _PLAN, campaign), _of(db, _STATE, campaign), _hex(total)) else "altered"


def lost(db: sqlite3.Connection) -> tuple[int, ...]:
    """Return the campaigns that have a digest and nothing else any more."""
    rows = db.execute("SELECT campaign FROM digests WHERE campaign NOT IN (SELECT id FROM campaigns) ORDER BY campaign")
    return tuple(int(number) for (number,) in rows)


def _of(db: sqlite3.Connection, queries: Iterable[str], campaign: int) -> str:
    digest = hashlib.sha256()
    for query in queries:
        for row in db.execute(query, (campaign,)):
            digest.update(repr(row).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _added(total: int, covered: int, rows: Iterable[Sequence[Any]]) -> tuple[int, int]:
    """Add the digest of each series to a sum, so that a journal can merge series in any order."""
    for series, lines in _by_series(rows):
        digest = hashlib.sha256()
        for line in lines:
            digest.update(repr(tuple(line[1:])).encode())
        total, covered = (total + int.from_bytes(digest.digest(), "big")) % _MODULUS, max(covered, series)
    return total, covered


def _by_series(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Iterable[Sequence[Any]]]]:
    for series, lines in itertools.groupby(rows, key=lambda row: row[0]):
        yield int(series), lines


def _hex(number: int) -> str:
    return f"{number:064x}"
