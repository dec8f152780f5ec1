"""The tables of the journal with the type of each column: every row is checked in the same way, whoever reads it."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Json, TypeAdapter, ValidationError

from harness.measure.journal.schema import SCHEMA
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.key import LayerKey
from harness.probe.batches import Visits
from harness.probe.chain_plan import CHECKED, MOST_CHECKED, ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.samples import Clock
from harness.text import is_time

LONGEST_TEXT = 16 << 20
_ROWS_AT_ONCE = 10_000

_Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Positive = Annotated[int, Field(strict=True, gt=0, lt=2**63)]
_Text = Annotated[str, Field(strict=True, max_length=LONGEST_TEXT)]
_Flag = Annotated[int, Field(strict=True, ge=0, le=1), AfterValidator(bool)]
_Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e9, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class InvalidRow(ValueError):
    """A table has a row that harness has not written."""


def _written(kind: Any) -> Any:
    """Annotate text that holds a value as a journal writes it."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def read(text: str) -> Any:
        value = adapter.validate_json(text)
        if json.loads(text) != adapter.dump_python(value, mode="json"):
            raise ValueError("A value is not in the form of a journal")
        return value

    return Annotated[_Text, AfterValidator(read)]


def _moment(text: str) -> str:
    if not is_time(text):
        raise ValueError("A time is not in the form of a journal")
    return text


def _planned(chain: ChainProbes) -> ChainProbes:
    if not CHECKED <= chain.checked <= MOST_CHECKED or chain.wider != (0, 0):
        raise ValueError("A window has a length that no plan has")
    return chain


_Moment = Annotated[_Text, AfterValidator(_moment)]


_KINDS = {"INTEGER": _Count, "TEXT": _Text, "REAL": _Seconds}
_NARROWER: Mapping[str, Any] = {
    "settings": Json[dict[str, Any]],
    "fingerprint": Json[dict[str, str]],
    "clock": Clock,
    "rules": _written(tuple[FusionRule, ...]),
    "created": _Moment,
    "complete": _Flag,
    "settled": _Flag,
    "role": Role,
    "terms": _written(OverheadTerms),
    "visits": Visits,
    "key": Annotated[_Text, AfterValidator(LayerKey)],
    "stacks": Json[tuple[str, ...]],
    "networks": Json[tuple[str, ...]],
    "chain": Annotated[_written(ChainProbes), AfterValidator(_planned)],
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

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[list[tuple[Any, ...]]]:
        row: Any = tuple.__class_getitem__(tuple(self.columns.values()))
        return TypeAdapter(list[row])

    def rows(self, db: sqlite3.Connection, where: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Yield checked rows as they are stored; raises InvalidRow, and sqlite3.Error for an unreadable file."""
        for rows, _ in self._checked(db, where, values):
            yield from rows

    def records(self, db: sqlite3.Connection, where: str, *values: Any) -> Iterator[dict[str, Any]]:
        """Yield checked rows as values by column, JSON read; raises InvalidRow, and sqlite3.Error."""
        for _, read in self._checked(db, where, values):
            for row in read:
                yield dict(zip(self.columns, row, strict=True))

    def _checked(
        self, db: sqlite3.Connection, where: str, values: Sequence[Any]
    ) -> Iterator[tuple[list[Any], list[tuple[Any, ...]]]]:
        cursor = db.execute(f"SELECT {self.names} FROM {self.name} WHERE {where}", values)  # noqa: S608 - our own names
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            try:
                read = self._adapter.validate_python(rows)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]["msg"]
                raise InvalidRow(f"Its table {self.name} is damaged: {first}") from error
            yield rows, read

    def insert(self, into: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows."""
        marks = ",".join("?" * len(self.columns))
        into.executemany(f"INSERT INTO {self.name} ({self.names}) VALUES ({marks})", rows)  # noqa: S608


def new_number(db: sqlite3.Connection) -> int:
    """Return a number for a campaign, under which there are no rows of a lost one."""
    owners = ("max(id) FROM campaigns", "max(campaign) FROM digests", "max(campaign) FROM probes")
    return 1 + max(db.execute(f"SELECT {one}").fetchone()[0] or 0 for one in owners)


CAMPAIGNS, PROBES, LAYERS, CHAINS, ROUNDS, SERIES, SAMPLES = map(
    JournalTable, ("campaigns", "probes", "layers", "chains", "rounds", "series", "samples")
)
