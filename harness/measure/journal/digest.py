"""Running digests of campaigns, which show that a journal was altered on disk after its samples were committed.

The digest of a campaign has three parts: of its plan, written once; of its state, written again by each transaction;
and of its series with their samples. The series that one transaction wrote are a block. Each block's digest is that of
its content and of the blocks before it, so nothing written later covers what was altered earlier. SQLite itself writes
the content of a block as JSON, in which every value shows its type; Python, row by row, takes three to five times as
long.

Digests detect damage, not forgery: anyone who can write the journal can also write digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Literal

Verdict = Literal["intact", "altered"]

MAX_BLOCK = 1024
"""Series of one block: those of a larger transaction are several."""
_START = hashlib.sha256().hexdigest()
_PLAN = (
    "SELECT device, plan, seed, settings, fingerprint, clock, auxiliary, reference, rules, created"
    " FROM campaigns WHERE id=?",
    "SELECT probe, role, label, auxiliary, terms, visits FROM probes NOT INDEXED WHERE campaign=? ORDER BY probe",
    'SELECT key, context, op, name, layer, auxiliary, in_context, "null", stacks, networks'
    " FROM layers WHERE campaign=? ORDER BY key, context",
    "SELECT ordinal, chain FROM chains WHERE campaign=? ORDER BY ordinal",
)
_TROUBLED = (
    "SELECT probe, refused, deaths FROM probes {} WHERE campaign=? AND (deaths OR refused IS NOT NULL) ORDER BY probe"
)
_STATE = (
    "SELECT complete, settled, token, untimed_s, excluded FROM campaigns WHERE id=?",
    _TROUBLED.format("INDEXED BY troubled_probes"),
    "SELECT batch, finished FROM rounds WHERE campaign=? ORDER BY batch",
)
_STATE_WITHOUT_INDEX = (_STATE[0], _TROUBLED.format("NOT INDEXED"), _STATE[2])
# Ordered subqueries fix the order of the lines: SQLite keeps it for group_concat. The unary plus avoids another index.
_BLOCKS = """
SELECT first, last,
    (SELECT group_concat(line) FROM (
        SELECT json_array(id, probe, batch, round, position, token, taken, state) AS line
        FROM series WHERE id BETWEEN first AND last AND +campaign=blocks.campaign ORDER BY id)),
    (SELECT group_concat(line) FROM (
        SELECT json_array(series, ordinal, wall_ns, cpu_ns, device_ns, preemptions) AS line
        FROM samples WHERE series BETWEEN first AND last ORDER BY series, ordinal))
FROM blocks WHERE campaign=? AND first>? ORDER BY first
"""


def begin(db: sqlite3.Connection, campaign: int) -> None:
    """Begin the digest of a campaign that the open transaction has inserted with its plan, without series."""
    parts = (_of(db, _PLAN, campaign), _of(db, _STATE, campaign), _START)
    db.execute("INSERT INTO digests VALUES (?,?,?,?)", (campaign, *parts))


@contextlib.contextmanager
def renewed(db: sqlite3.Connection, campaign: int) -> Iterator[None]:
    """Bring the digest up to what the open transaction writes to the campaign inside.

    A state that was altered before stays altered.
    """
    known = _known(db, campaign)
    if known is None:
        yield
        return
    _, state, series = known
    was_intact, last = state == _of(db, _STATE, campaign), _last(db)
    yield
    added = range(last + 1, _last(db) + 1)
    blocks = (added[at : at + MAX_BLOCK] for at in range(0, len(added), MAX_BLOCK))
    db.executemany("INSERT INTO blocks VALUES (?,?,?)", ((campaign, one[0], one[-1]) for one in blocks))
    for _, _, content in _contents(db, campaign, last) if added else ():
        series = _chained(series, content)
    state = _of(db, _STATE, campaign) if was_intact else state
    db.execute("UPDATE digests SET state=?, series=? WHERE campaign=?", (state, series, campaign))


def check(db: sqlite3.Connection, campaign: int) -> Verdict:
    """Compare a campaign with its digest, within a transaction; reads all its samples."""
    try:
        found = (_of(db, _PLAN, campaign), _of(db, _STATE_WITHOUT_INDEX, campaign), _series(db, campaign))
    except sqlite3.Error as error:  # of a value: JSON has no bytes; text that is not UTF-8 has no code of SQLite
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
            raise
        return "altered"
    return "intact" if _known(db, campaign) == found else "altered"


def lost(db: sqlite3.Connection) -> tuple[int, ...]:
    """Return the campaigns that have a digest and nothing else any more."""
    rows = db.execute("SELECT campaign FROM digests WHERE campaign NOT IN (SELECT id FROM campaigns) ORDER BY campaign")
    return tuple(int(number) for (number,) in rows)


def forget(db: sqlite3.Connection, campaign: int) -> None:
    """Drop the digest of a campaign."""
    db.execute("DELETE FROM digests WHERE campaign=?", (campaign,))
    db.execute("DELETE FROM blocks WHERE campaign=?", (campaign,))


def _known(db: sqlite3.Connection, campaign: int) -> tuple[str, str, str] | None:
    found: tuple[str, str, str] | None = db.execute(
        "SELECT plan, state, series FROM digests WHERE campaign=?", (campaign,)
    ).fetchone()
    return found


def _last(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(id), 0) FROM series").fetchone()[0])


def _of(db: sqlite3.Connection, queries: Iterable[str], campaign: int) -> str:
    digest = hashlib.sha256()
    for query in queries:
        digest.update(repr(db.execute(query, (campaign,)).fetchall()).encode())
    return digest.hexdigest()


def _series(db: sqlite3.Connection, campaign: int) -> str | None:
    """The digest of all blocks; None if they overlap, or are not all series that the index of the campaign lists."""
    digest, before, count, total = _START, 0, 0, 0
    for first, last, content in _contents(db, campaign, 0):
        if not (type(first) is type(last) is int and before < first <= last):
            return None
        digest, before = _chained(digest, content), last
        count, total = count + last - first + 1, total + (first + last) * (last - first + 1) // 2
    listed = db.execute("SELECT count(*), coalesce(sum(id), 0) FROM series WHERE campaign=?", (campaign,)).fetchone()
    return digest if listed == (count, total) else None


def _contents(db: sqlite3.Connection, campaign: int, after: int) -> Iterator[tuple[int, int, str]]:
    """Yield the bounds and the content of the blocks of a series."""
    for first, last, series, samples in db.execute(_BLOCKS, (campaign, after)):
        yield first, last, f"{series or ''}\n{samples or ''}"


def _chained(digest: str, content: str) -> str:
    return hashlib.sha256(f"{digest}\n{content}".encode()).hexdigest()
