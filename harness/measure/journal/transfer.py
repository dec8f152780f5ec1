"""A job's campaigns as the bytes of a separate journal, and the checks before such bytes are read.

The bytes come from another host, which may deliver samples and nothing else. They are opened without triggers, views or
functions, must have exactly the tables of this version, and each value is checked before it is used.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ExtractRefused, JournalError
from harness.measure.journal import digest
from harness.measure.journal.checked_rows import CAMPAIGNS, LONGEST_TEXT, InvalidRow, JournalTable
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import PENDING, compact_json
from harness.measure.journal.schema import SCHEMA

MAX_EXTRACT_BYTES = 1 << 30
"""The largest extract that is merged; a campaign of a thousand probes with forty rounds takes some megabytes."""
_HEADER = b"SQLite format 3\x00"
_STEP = "Update harness on the sending host; its own journal still holds the samples"
_ALTERED_STEP = "Run the same command again; if that does not help, run `harness journal check` on that host"
_OWNERS = {
    "campaigns": "id",
    **dict.fromkeys(("probes", "layers", "chains", "rounds", "series", "digests", "blocks"), "campaign"),
}
"""The tables of an extract but for the samples, each with the column that holds the number of the campaign."""
_SAFE = ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON")


def extract(path: Path, job: str, campaign: int | None = None) -> bytes:
    """Return the campaigns of a named job, complete or not, as the bytes of a journal that holds nothing else.

    `campaign` selects a single one. Digests go with the campaigns. One that was altered on disk is skipped if it is
    excluded. Raises JournalError for another altered one, and if the journal at `path` cannot be read.
    """
    with Journal(path) as journal:
        held = [one for one in journal.of_job(job) if campaign in (None, one.id)]
        kept = [one.id for one in held if one.excluded in (None, PENDING) or journal.check(one.id) != "altered"]
        journal.require_unaltered(kept)
    try:
        with contextlib.closing(SCHEMA.in_memory()) as db:
            db.execute("ATTACH ? AS source", (f"{path.absolute().as_uri()}?mode=ro",))
            db.execute("BEGIN")  # one state of the journal, even while another process writes
            selected = "SELECT value FROM json_each(?)"
            for table, column in _OWNERS.items():
                query = f"INSERT INTO main.{table} SELECT * FROM source.{table} WHERE {column} IN ({selected})"  # noqa: S608
                db.execute(query, (json.dumps(kept),))
            db.execute(
                "INSERT INTO main.samples SELECT * FROM source.samples WHERE series IN (SELECT id FROM main.series)"
            )
            db.execute("COMMIT")
            return db.serialize()
    except sqlite3.Error as error:
        raise JournalError(f"The journal {path} cannot be read", why=str(error)) from error


@dataclass(frozen=True)
class Extract:
    """An extract from another host's journal, opened as a database in memory."""

    db: sqlite3.Connection

    def rows(self, table: JournalTable, where: str, *values: int) -> Iterator[Sequence[Any]]:
        """Yield checked rows of a table; raises ExtractRefused for an invalid one."""
        try:
            yield from table.rows(self.db, where, *values)
        except InvalidRow as error:
            raise not_ours(str(error)) from error
        except sqlite3.Error as error:
            raise not_ours(f"Its table {table.name} is damaged: {error}") from error

    def campaigns(self, job: str, device: str) -> dict[int, dict[str, Any]]:
        """Return the rows of all campaigns by their number there.

        Raises ExtractRefused for another job or device, and for a campaign that its digest does not confirm.
        """
        found: dict[int, dict[str, Any]] = {}
        for values in self.rows(CAMPAIGNS, "1 ORDER BY id"):
            row = dict(zip(CAMPAIGNS.columns, values, strict=True))
            if row["device"] != device or json.loads(row["settings"]).get("job") != job:
                raise not_ours("It holds a campaign of another job or device")
            if any(row[name] != compact_json(json.loads(row[name])) for name in ("settings", "fingerprint")):
                raise not_ours("Its settings are not in the form of a journal")
            self._check_digest(row["id"])
            found[row["id"]] = row
        return found

    def _check_digest(self, campaign: int) -> None:
        try:
            verdict = digest.check(self.db, campaign)
        except sqlite3.Error as error:
            raise not_ours(f"Its campaign {campaign} is damaged: {error}") from error
        if verdict == "altered":
            raise not_ours(f"Its campaign {campaign} is not what was measured there", _ALTERED_STEP)


@contextlib.contextmanager
def opened(content: bytes) -> Iterator[Extract]:
    """Open an extract as a database in memory, after checking that it has the tables of a journal and nothing else."""
    if len(content) > MAX_EXTRACT_BYTES:
        raise not_ours(f"It has {len(content):,} bytes; the limit is {MAX_EXTRACT_BYTES:,}")
    if not content.startswith(_HEADER):
        raise not_ours("It is not an SQLite database")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
        try:
            for setting in _SAFE:
                db.execute(f"PRAGMA {setting}")
            db.deserialize(content)
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA.version:
                raise not_ours(f"It has schema {version}; this version reads schema {SCHEMA.version}")
            query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
            with contextlib.closing(SCHEMA.in_memory()) as own:
                is_journal = db.execute(query).fetchall() == own.execute(query).fetchall()
            if not is_journal:
                raise not_ours("Its tables are not those of a journal")
            found = db.execute("PRAGMA quick_check(1)").fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise not_ours(str(error)) from error
        if found != ("ok",):
            raise not_ours(str(found and found[0]))
        yield Extract(db)


def not_ours(why: str, step: str = _STEP) -> ExtractRefused:
    """Return the error for an extract that is refused."""
    return ExtractRefused("Another host sent an invalid journal", why=why[:300], next_step=step)
