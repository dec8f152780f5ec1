"""Tables of layers: latency, uncertainty, work and what bounds it, in an order that the user chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.cli.terminal.output import print_table
from harness.measure.summary import Z_95
from harness.text import byte_size, count_of, counted, microseconds

if TYPE_CHECKING:
    from harness.lut.layer_work import LayerWork

SortName = Literal["order", "latency", "error", "name", "operators", "macs", "bytes"]
_UNKNOWN = "\N{EN DASH}"


@dataclass(frozen=True)
class LayerView:
    """Which layers a table shows, in which order, and which columns."""

    sort: Annotated[
        SortName | None,
        typer.Option(
            help="Sort layers: order keeps the order of the network or table, name and operators are alphabetical, all"
            " others put the largest value first; error is the standard error."
        ),
    ] = None
    top: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Show only N layers, the longest unless --sort is given; 0 shows all."),
    ] = None
    wide: Annotated[
        bool, typer.Option("--wide", help="Add columns: key, context, source, and flags from other estimators.")
    ] = False


@dataclass(frozen=True)
class ShownLayer:
    """One layer of a table; latency and error are None if nothing is known of it, `work` if its key is unknown.

    `samples` and `share` are None where the table has no such column.
    """

    name: str
    op: str
    latency_s: float | None
    stderr_s: float | None
    work: LayerWork | None
    key: str
    context: str
    share: float | None = None
    source: str = ""
    samples: int | None = None
    note: str = ""
    signature: str = ""


@dataclass(frozen=True)
class _Column:
    """A head, the cell of a row, and whether only `--wide` shows the column."""

    head: str
    cell: Callable[[ShownLayer], str]
    wide: bool = False
    left: bool = False


def _sizes(row: ShownLayer) -> str:
    if not row.signature:
        return ""
    from harness.lut.layer_work import sizes_of  # loads numpy

    return sizes_of(row.signature)


_COLUMNS = (
    _Column("layer", lambda row: row.name or _sizes(row), left=True),
    _Column("operators", lambda row: row.op, left=True),
    _Column("key", lambda row: row.key, wide=True, left=True),
    _Column("context", lambda row: row.context, wide=True, left=True),
    _Column("source", lambda row: row.source, left=True),
    _Column("latency µs", lambda row: _UNKNOWN if row.latency_s is None else microseconds(row.latency_s)),
    _Column("± 95 %", lambda row: "" if row.stderr_s is None else microseconds(Z_95 * row.stderr_s)),
    _Column("share", lambda row: "" if row.share is None else f"{row.share:.1%}"),
    _Column("MACs", lambda row: _UNKNOWN if row.work is None or row.work.macs is None else count_of(row.work.macs)),
    _Column("moved", lambda row: _UNKNOWN if row.work is None else byte_size(row.work.moved_bytes)),
    _Column("bound by", lambda row: (row.work and row.work.bound) or _UNKNOWN),
    _Column("runs", lambda row: "" if row.samples is None else str(row.samples)),
    _Column("note", lambda row: row.note),
)

_ORDERS: Mapping[SortName, Callable[[ShownLayer], Any]] = {
    "order": lambda _: 0,
    "latency": lambda row: -math.inf if row.latency_s is None else -row.latency_s,
    "error": lambda row: -math.inf if row.stderr_s is None else -row.stderr_s,
    "name": lambda row: row.name,
    "operators": lambda row: row.op,
    "macs": lambda row: 0 if row.work is None else -(row.work.macs or 0),
    "bytes": lambda row: 0 if row.work is None else -row.work.moved_bytes,
}


def show_layers(rows: Sequence[ShownLayer], view: LayerView, *, sort: SortName, top: int = 0, last: str = "") -> None:
    """Print layers as `view` asks, by default in the order `sort` and the first `top`, 0 for all.

    A view of some layers without an order has the longest first. Layers of unknown latency come before them.

    Columns that are empty in all rows are left out, and so is a source that all layers share, unless the view is wide.
    `last` is a line below the table that says what is not shown.
    """
    ordered = sorted(rows, key=_ORDERS[view.sort or ("latency" if view.top else sort)])
    count = top if view.top is None else view.top
    shown = ordered[: count or None]
    columns = [
        one for one in _COLUMNS if (view.wide or not one.wide) and {one.cell(row) for row in shown} - {"", _UNKNOWN}
    ]
    if not view.wide and len({row.source for row in rows}) == 1:
        columns = [one for one in columns if one.head != "source"]
    cells = [[one.cell(row) for one in columns] for row in shown]
    print_table([one.head for one in columns], cells, left=sum(one.left for one in columns))
    if len(shown) < len(ordered):
        print(f"and {_summary(ordered[len(shown) :])}{last}")


def _summary(rows: Sequence[ShownLayer]) -> str:
    """Return how many layers are not shown and their sum, and how many of them have no latency."""
    known_s = [row.latency_s for row in rows if row.latency_s is not None]
    unknown = len(rows) - len(known_s)
    parts = [
        f"{microseconds(sum(known_s))} µs together" if known_s else "",
        f"{unknown} not in the table" if unknown else "",
    ]
    return ", ".join([counted(len(rows), "more layer"), *filter(None, parts)])


def work_fields(work: LayerWork | None) -> dict[str, Any]:
    """Return the fields of a layer's work in JSON, null where nothing is known of it."""
    return {"macs": None, "moved_bytes": None, "bound": None} if work is None else asdict(work)
