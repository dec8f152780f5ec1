"""A job's campaigns as the bytes of a journal of their own, and the checks before such bytes are read.

The bytes come from another host, which may deliver samples and nothing else. They are opened without triggers, views or
functions, must have exactly the tables of this version, and each value is checked before it is used.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Json, TypeAdapter, ValidationError

from harness.errors import JournalError
from harness.measure.journal import Journal, compact_json
from harness.measure.schema import SCHEMA
from harness.network.fusion_rules import FusionRule
from harness.probe.batches import Visits
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.samples import Clock
from harness.text import is_time

MAX_EXTRACT_BYTES = 1 << 30
"""The largest extract that is merged; a campaign of a thousand probes with forty rounds takes some megabytes."""
_LONGEST_TEXT = 16 << 20
_ROWS_AT_ONCE = 10_000
_HEADER = b"SQLite format 3\x00"
_STEP = "Update harness on the sending host; its own journal still holds the samples"
_SAFE = ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON")


def extract(path: Path, job: str, campaign: int | None = None) -> bytes:
    """Return the campaigns of a named job, complete or not, as the bytes of a journal that holds nothing else.

    `campaign` selects a single one. Raises JournalError if the journal at `path` cannot be read.
    """
    with Journal(path):  # it exists, and has the schema of this version
        pass
    try:
        with contextlib.closing(SCHEMA.in_memory()) as db:
            db.execute("ATTACH ? AS source", (f"{path.absolute().as_uri()}?mode=ro",))
            db.execute("BEGIN")  # one state of the journal, even while another process writes
            db.execute(
                "INSERT INTO main.campaigns SELECT * FROM source.campaigns"
                " WHERE json_extract(settings, '$.job')=?1 AND (?2 IS NULL OR id=?2)",
                (job, campaign),
            )
            for table in ("probes", "layers", "chains", "rounds", "series"):
                selected = f"SELECT * FROM source.{table} WHERE campaign IN (SELECT id FROM main.campaigns)"  # noqa: S608
                db.execute(f"INSERT INTO main.{table} {selected}")
            db.execute(
                "INSERT INTO main.samples SELECT * FROM source.samples WHERE series IN (SELECT id FROM main.series)"
            )
            db.execute("COMMIT")
            return db.serialize()
    except sqlite3.Error as error:
        raise JournalError(f"The journal {path} cannot be read", why=str(error)) from error


_Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Positive = Annotated[int, Field(strict=True, gt=0, lt=2**63)]
_Text = Annotated[str, Field(strict=True, max_length=_LONGEST_TEXT)]
_Flag = Annotated[int, Field(strict=True, ge=0, le=1)]
_Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e9, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


def _written(kind: Any) -> Any:
    """Annotate text that must hold a value exactly as a journal writes it, so that reading it cannot fail later."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def check(text: str) -> str:
        if adapter.dump_python(adapter.validate_json(text), mode="json") != json.loads(text):
            raise ValueError("A value is not in the form of a journal")
        return text

    return Annotated[_Text, AfterValidator(check)]


def _moment(text: str) -> str:
    if not is_time(text):
        raise ValueError("A time is not in the form of a journal")
    return text


_Moment = Annotated[_Text, AfterValidator(_moment)]


_KINDS = {"INTEGER": _Count, "TEXT": _Text, "REAL": _Seconds}
_NARROWER: Mapping[str, Any] = {
    "settings": Json[dict[str, Any]],
    "fingerprint": Json[dict[str, str]],
    "clock": Clock,
    "rules": _written(list[FusionRule]),
    "created": _Moment,
    "complete": _Flag,
    "settled": _Flag,
    "role": Role,
    "terms": _written(OverheadTerms),
    "visits": Visits,
    "stacks": Json[list[str]],
    "networks": Json[list[str]],
    "chain": _written(ChainProbes),
    "taken": _Moment,
    "state": Json[dict[str, _Number]],
    "wall_ns": _Positive,
}
"""Columns whose values have a narrower type than the schema declares; such a name means the same in every table."""


@dataclass(frozen=True)
class JournalTable:
    """A table of the journal; its columns are those of the schema, in that order."""

    name: str

    @functools.cached_property
    def columns(self) -> Mapping[str, Any]:
        """Return the type that the values of each column must have."""
        query = 'SELECT name, type, "notnull" OR pk FROM pragma_table_info(?)'
        with contextlib.closing(SCHEMA.in_memory()) as db:
            declared = db.execute(query, (self.name,)).fetchall()
        kinds = {name: _NARROWER.get(name, _KINDS[kind]) for name, kind, _ in declared}
        return {name: kinds[name] if required else kinds[name] | None for name, _, required in declared}

    @property
    def names(self) -> str:
        """Return the columns as SQL lists them."""
        return ", ".join(f'"{column}"' for column in self.columns)

    def rows(self, db: sqlite3.Connection, where: str, key: int | None = None) -> Iterator[Sequence[Any]]:
        """Yield checked rows; raises JournalError for an invalid one."""
        row: Any = tuple.__class_getitem__(tuple(self.columns.values()))
        check: TypeAdapter[Any] = TypeAdapter(list[row])
        query = f"SELECT {self.names} FROM {self.name} WHERE {where}"  # noqa: S608 - our own names
        try:
            cursor = db.execute(query, () if key is None else (key,))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                check.validate_python(rows)
                yield from rows
        except (sqlite3.Error, ValidationError) as error:
            raise not_ours(f"Its table {self.name} is damaged: {_first(error)}") from error

    def insert(self, into: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows."""
        marks = ",".join("?" * len(self.columns))
        into.executemany(f"INSERT INTO {self.name} ({self.names}) VALUES ({marks})", rows)  # noqa: S608


CAMPAIGNS, PROBES, LAYERS, CHAINS, ROUNDS, SERIES, SAMPLES = map(
    JournalTable, ("campaigns", "probes", "layers", "chains", "rounds", "series", "samples")
)


@contextlib.contextmanager
def opened(content: bytes) -> Iterator[sqlite3.Connection]:
    """Open an extract as a database in memory, after checking that it has the tables of a journal and nothing else."""
    if len(content) > MAX_EXTRACT_BYTES:
        raise not_ours(f"It has {len(content):,} bytes; the limit is {MAX_EXTRACT_BYTES:,}")
    if not content.startswith(_HEADER):
        raise not_ours("It is not an SQLite database")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
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
        yield db


def checked_campaigns(db: sqlite3.Connection, job: str, device: str) -> dict[int, dict[str, Any]]:
    """Return the rows of all campaigns by their number there; raises JournalError for another job or device."""
    found: dict[int, dict[str, Any]] = {}
    for values in CAMPAIGNS.rows(db, "1 ORDER BY id"):
        row = dict(zip(CAMPAIGNS.columns, values, strict=True))
        if row["device"] != device or json.loads(row["settings"]).get("job") != job:
            raise not_ours("It holds a campaign of another job or device")
        if any(row[name] != compact_json(json.loads(row[name])) for name in ("settings", "fingerprint")):
            raise not_ours("Its settings are not in the form of a journal")
        found[row["id"]] = row
    return found


def _first(error: sqlite3.Error | ValidationError) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors(include_url=False, include_input=False)[0]["msg"])
    return str(error)


def not_ours(why: str) -> JournalError:
    """Return the error for an extract that is refused."""
    return JournalError("Another host sent an invalid journal", why=why[:300], next_step=_STEP)
