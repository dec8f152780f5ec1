"""The tables of the journal, and the migration of journals that older versions wrote."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from harness.errors import JournalError

SCHEMA_VERSION = 3
_SCHEMA = """
CREATE TABLE campaigns (
    id INTEGER PRIMARY KEY, device TEXT NOT NULL, plan TEXT NOT NULL, seed INTEGER NOT NULL, settings TEXT NOT NULL,
    fingerprint TEXT NOT NULL, clock TEXT NOT NULL, auxiliary TEXT NOT NULL, reference TEXT NOT NULL,
    rules TEXT NOT NULL, created TEXT NOT NULL, complete INTEGER NOT NULL DEFAULT 0,
    settled INTEGER NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0, untimed_s REAL NOT NULL DEFAULT 0,
    excluded TEXT);
CREATE TABLE probes (
    campaign INTEGER NOT NULL REFERENCES campaigns, probe TEXT NOT NULL, role TEXT NOT NULL, label TEXT NOT NULL,
    auxiliary TEXT, terms TEXT NOT NULL, visits TEXT NOT NULL, refused TEXT, deaths INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (campaign, probe)) WITHOUT ROWID;
CREATE TABLE layers (
    campaign INTEGER NOT NULL REFERENCES campaigns, key TEXT NOT NULL, context TEXT NOT NULL, op TEXT NOT NULL,
    name TEXT NOT NULL, layer TEXT NOT NULL, auxiliary TEXT NOT NULL, in_context TEXT NOT NULL, "null" TEXT NOT NULL,
    stacks TEXT NOT NULL, networks TEXT NOT NULL, PRIMARY KEY (campaign, key, context)) WITHOUT ROWID;
CREATE TABLE chains (
    campaign INTEGER NOT NULL REFERENCES campaigns, ordinal INTEGER NOT NULL, chain TEXT NOT NULL,
    PRIMARY KEY (campaign, ordinal)) WITHOUT ROWID;
CREATE TABLE rounds (
    campaign INTEGER NOT NULL REFERENCES campaigns, batch INTEGER NOT NULL, finished INTEGER NOT NULL,
    PRIMARY KEY (campaign, batch)) WITHOUT ROWID;
CREATE TABLE series (
    id INTEGER PRIMARY KEY, campaign INTEGER NOT NULL REFERENCES campaigns, probe TEXT NOT NULL,
    batch INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, token INTEGER NOT NULL,
    taken TEXT NOT NULL, state TEXT NOT NULL, UNIQUE (campaign, batch, round, position));
CREATE TABLE samples (
    series INTEGER NOT NULL REFERENCES series, ordinal INTEGER NOT NULL, wall_ns INTEGER NOT NULL, cpu_ns INTEGER,
    device_ns INTEGER, preemptions INTEGER NOT NULL, PRIMARY KEY (series, ordinal)) WITHOUT ROWID;
"""
_CHANGES = {2: "ALTER TABLE campaigns ADD COLUMN excluded TEXT"}
"""The statement that migrates each older version to the next."""


def version_at(path: Path) -> int:
    """Return the schema version of the journal at `path`, 0 if there is none yet, without changing the file.

    Raises JournalError for any other file.
    """
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
        db.isolation_level = None
        db.execute("BEGIN")  # both values from one state: another process may be creating the file
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (*_CHANGES, SCHEMA_VERSION) and (version, tables) != (0, 0):
        why = f"It has schema {version}; this version reads schema {SCHEMA_VERSION}"
        raise JournalError(f"{path} is not a journal of this version", why=why, next_step="Move it away")
    return int(version)


def bring_up_to_date(db: sqlite3.Connection) -> None:
    """Create the tables, or migrate those of an older version, unless another process already did."""
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            version = SCHEMA_VERSION
        while version < SCHEMA_VERSION:
            db.execute(_CHANGES[version])
            version += 1
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
