"""A job's campaigns as the bytes of a journal of their own, and the checks before such bytes are read.

The bytes come from another host, which may deliver samples and nothing else. They are opened without triggers, views or
functions, must have exactly the tables of this version, and each value is checked before it is used.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Json, TypeAdapter, ValidationError

from harness.errors import JournalError
from harness.measure.journal import Journal
from harness.measure.schema import SCHEMA_VERSION, bring_up_to_date
from harness.network.fusion_rules import FusionRule
from harness.probe.batches import Visits
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
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
        with contextlib.closing(sqlite3.connect("file::memory:", uri=True, isolation_level=None)) as db:
            bring_up_to_date(db)
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


@dataclass(frozen=True)
class _Table:
    """The columns of a table, with the types that their values must have."""

    name: str
    columns: Mapping[str, Any]

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

    @property
    def names(self) -> str:
        return ", ".join(f'"{column}"' for column in self.columns)

    def insert(self, into: sqlite3.Connection, rows: Iterator[Sequence[Any]]) -> None:
        """Add rows."""
        marks = ",".join("?" * len(self.columns))
        into.executemany(f"INSERT INTO {self.name} ({self.names}) VALUES ({marks})", rows)  # noqa: S608


CAMPAIGNS = _Table(
    "campaigns",
    {
        "device": _Text,
        "plan": _Text,
        "settings": Json[dict[str, Any]],
        "fingerprint": Json[dict[str, str]],
        "seed": _Count,
        "clock": Literal["cpu", "wall", "device"],
        "auxiliary": _Text,
        "reference": _Text,
        "rules": _written(list[FusionRule]),
        "created": _Moment,
        "complete": _Flag,
        "settled": _Flag,
        "token": _Count,
        "untimed_s": _Seconds,
        "excluded": _Text | None,
        "id": _Count,
    },
)
PROBES = _Table(
    "probes",
    {
        "campaign": _Count,
        "probe": _Text,
        "role": Role,
        "label": _Text,
        "auxiliary": _Text | None,
        "terms": _written(OverheadTerms),
        "visits": Visits,
        "refused": _Text | None,
        "deaths": _Count,
    },
)
LAYERS = _Table(
    "layers",
    {
        "campaign": _Count,
        **dict.fromkeys(("key", "context", "op", "name", "layer", "auxiliary", "in_context", "null"), _Text),
        "stacks": Json[list[str]],
        "networks": Json[list[str]],
    },
)
CHAINS = _Table("chains", {"campaign": _Count, "ordinal": _Count, "chain": _written(ChainProbes)})
ROUNDS = _Table("rounds", {"campaign": _Count, "batch": _Count, "finished": _Count})
SERIES = _Table(
    "series",
    {
        "id": _Count,
        "campaign": _Count,
        "batch": _Count,
        "round": _Count,
        "position": _Count,
        "probe": _Text,
        "token": _Count,
        "taken": _Moment,
        "state": Json[dict[str, _Number]],
    },
)
SAMPLES = _Table(
    "samples",
    {
        "series": _Count,
        "ordinal": _Count,
        "wall_ns": _Positive,
        "cpu_ns": _Count | None,
        "device_ns": _Count | None,
        "preemptions": _Count,
    },
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
            if version != SCHEMA_VERSION:
                raise not_ours(f"It has schema {version}; this version reads schema {SCHEMA_VERSION}")
            if _schema(db) != _own_schema():
                raise not_ours("Its tables are not those of a journal")
            found = db.execute("PRAGMA quick_check(1)").fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise not_ours(str(error)) from error
        if found != ("ok",):
            raise not_ours(str(found and found[0]))
        yield db


def _schema(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return set(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def _own_schema() -> set[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        bring_up_to_date(db)
        return _schema(db)


def checked_campaigns(db: sqlite3.Connection, job: str, device: str) -> dict[int, tuple[Any, ...]]:
    """Return the rows of all campaigns by their number there; raises JournalError for another job or device."""
    found: dict[int, tuple[Any, ...]] = {}
    for row in CAMPAIGNS.rows(db, "1 ORDER BY id"):
        settings, fingerprint = json.loads(row[2]), json.loads(row[3])
        if row[0] != device or settings.get("job") != job:
            raise not_ours("It holds a campaign of another job or device")
        if (_canonical(settings), _canonical(fingerprint)) != row[2:4]:
            raise not_ours("Its settings are not in the form of a journal")
        found[row[-1]] = tuple(row)
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _first(error: sqlite3.Error | ValidationError) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors(include_url=False, include_input=False)[0]["msg"])
    return str(error)


def not_ours(why: str) -> JournalError:
    """Return the error for an extract that is refused."""
    return JournalError("Another host sent an invalid journal", why=why[:300], next_step=_STEP)
