"""Read series and samples of a journal by plain SQL, without changing the file."""

import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.workspace import Workspace

Visits = tuple[tuple[int, int, int, str, int], ...]
"""Batch, round, position, probe and number of samples of each series of a campaign."""
Samples = Counter[tuple[Any, ...]]


def visits(journal: Path, of_job: str | None = None) -> Mapping[int, Visits]:
    """Return the series of each profile campaign, or those of one job, ordered by batch, round and position."""
    query = (
        "SELECT campaign, batch, round, position, probe,"
        " (SELECT count(*) FROM samples WHERE samples.series=series.id)"
        " FROM series JOIN campaigns ON campaigns.id=campaign WHERE json_extract(settings, '$.purpose')='profile'"
        " AND (:job IS NULL OR json_extract(settings, '$.job')=:job) ORDER BY campaign, batch, round, position"
    )
    found: dict[int, list[tuple[int, int, int, str, int]]] = defaultdict(list)
    with reading(journal) as db:
        for campaign, *visit in db.execute(query, {"job": of_job}):
            found[campaign].append(tuple(visit))
    return {campaign: tuple(taken) for campaign, taken in found.items()}


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database read-only. Another process may be writing it, or may have died while writing."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
        yield db


def samples(folder: Path) -> Samples:
    """Return each committed sample with its position, its values and the lease token of its writer."""
    path = Workspace(folder).journal
    query = (
        "SELECT campaign, batch, round, position, probe, series.token, ordinal, wall_ns, cpu_ns, device_ns, preemptions"
        " FROM series JOIN samples ON samples.series=series.id"
    )
    if not path.exists() or path.stat().st_size == 0:
        return Counter()
    with reading(path) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name='samples'").fetchone():
            return Counter()
        return Counter(db.execute(query).fetchall())
