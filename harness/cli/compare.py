"""`harness compare`: two tables or devices side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.arguments import command_line
from harness.cli.options.option_groups import OnlyFields, spread
from harness.cli.terminal.output import note, print_json, print_line, print_table
from harness.errors import CoverageError, LutNotFound
from harness.text import counted, first_names, microseconds, milliseconds
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.estimation.table_comparison import TableComparison
    from harness.lut.table import Lut

_SHOWN_LAYERS = 10
_NAMED = 5
_WORDS = {"a": "A", "b": "B", "neither": "", None: ""}

_SIDE_HELP = "Folder of a table, its name DEVICE/TABLE, or a device, whose newest table is used."


@dataclass(frozen=True)
class ShownLayers:
    """Which layers are shown, and with which columns."""

    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="Rows of operators and of layers to show, 0 for all.")
    ] = _SHOWN_LAYERS
    wide: Annotated[bool, typer.Option("--wide", help="Add columns: key and context of layers.")] = False


@spread
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE_HELP, autocompletion=arguments.complete_side)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same.", autocompletion=arguments.complete_side)],
    models: Annotated[
        list[str] | None, arguments.models_argument(" Default: the networks that both tables were measured with.")
    ] = None,
    *,
    shown: ShownLayers,
    reading: Annotated[arguments.ReadingOptions, OnlyFields(("dim", "batch", "strict"))],
    html: arguments.HtmlFile = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Compare two tables or devices: networks, operators and layers.

    A network counts as faster if the 95 % intervals do not overlap. A layer counts as faster if the difference exceeds
    2 % and three standard errors. Layers are compared if both tables have them. A network that one table does not cover
    is listed, and the exit code is 6.

    Example: harness compare cpu01 npu01 builtin:squeezenet
    """
    from harness.estimation.table_comparison import compare_tables, side_names

    workspace = find_workspace(directory)
    tables = _table(a, workspace), _table(b, workspace)
    if tables[0].clock != tables[1].clock:
        note(f"The clocks differ: A has {tables[0].clock} time, B {tables[1].clock} time")
    compared = compare_tables(
        *tables,
        tuple(models or ()),
        workspace=workspace,
        dims=reading.dims,
        batch=reading.batch,
        strict=reading.strict,
        note=note,
    )
    if html is not None:
        from harness.report.comparison_page import write_comparison

        write_comparison(html, *tables, command_line(), compared)
    if json:
        sides = [{"lut": one.name, "device": one.device, "clock": one.clock} for one in tables]
        print_json(a=sides[0], b=sides[1], **asdict(compared))
    else:
        names = side_names(*tables)
        print_line(f"A: {names[0]}    B: {names[1]}")
        _show(compared, shown)
    _require_complete(compared, tables)


def _require_complete(compared: TableComparison, tables: tuple[Lut, Lut]) -> None:
    """Name the networks that were not compared; raise the error of those refused or not covered."""
    from harness.network.network_list import refusals_error

    if compared.unnamed:
        shown = first_names(compared.unnamed, _NAMED)
        note(
            f"{len(compared.unnamed)} networks of both tables ({shown}) are neither built in nor files here; name them"
        )
    if compared.refused_networks:
        raise refusals_error(compared.refused_networks, len(compared.networks))
    if compared.uncovered:
        raise _uncovered(compared, tables)
    if not compared.networks and not compared.layers:
        step = "Profile the same networks on both devices, or name networks"
        raise CoverageError("The tables have no layer in common", next_step=step)


def _table(side: str, workspace: Workspace) -> Lut:
    """Return the table that a word of the command names; raises LutNotFound."""
    from harness.lut.table_choice import PUBLISHED, open_table

    folder, is_name = Path(side), "/" in side
    if folder.is_dir() or (is_name and any((root / side).is_dir() for root in (workspace.lut, PUBLISHED))):
        return open_table(None, folder, workspace)
    if is_name:
        step = "`harness lut list` lists the tables"
        raise LutNotFound(f"There is no table {side[:200]}", next_step=step)
    return open_table(side, None, workspace)


def _uncovered(compared: TableComparison, tables: tuple[Lut, Lut]) -> CoverageError:
    """Name each table that lacks layers of a network, and some of these layers."""
    whats, whys, devices = [], [], []
    for side, table in zip(("A", "B"), tables, strict=True):
        lacking = {one.name: one.a_unknown if side == "A" else one.b_unknown for one in compared.networks}
        lacking = {name: layers for name, layers in lacking.items() if layers}
        if not lacking:
            continue
        layers = list(dict.fromkeys(one for unknown in lacking.values() for one in unknown))
        names = first_names(lacking, _NAMED)
        whats.append(f"{side}, {table.name}, lacks {counted(sum(map(len, lacking.values())), 'layer')} of {names}")
        whys.append(f"{side} lacks {first_names(layers, _NAMED)}")
        devices.append(table.device)
    step = f"Profile the networks on {' and '.join(dict.fromkeys(devices))} and build the tables again, or omit them"
    return CoverageError("; ".join(whats), why="; ".join(whys), next_step=step)


def _show(compared: TableComparison, shown: ShownLayers) -> None:
    if compared.networks:
        rows = [
            (one.name, _latency(one.a_s), _latency(one.b_s), _ratio(one.ratio), _WORDS[one.faster])
            for one in compared.networks
        ]
        print_table(("network", "A ms", "B ms", "B/A", "faster"), rows)
        print()
    if compared.operators:
        operators = [
            (
                one.op,
                str(one.layers),
                microseconds(one.a_s),
                microseconds(one.b_s),
                _ratio(one.ratio),
                str(one.a_faster),
                str(one.b_faster),
            )
            for one in compared.operators[: shown.top or None]
        ]
        head = ("operators", "layers", "A µs", "B µs", "B/A", "A faster", "B faster")
        print_table(head, operators)
        _count_rest("row", len(compared.operators) - len(operators))
        print()
        _show_layers(compared, shown)
    wins = [sum(one.faster == side for one in compared.layers) for side in ("a", "b")]
    common = (
        f"{counted(len(compared.layers), 'common layer')}: A is faster on {wins[0]}, B on {wins[1]}"
        " (by more than 2 % and three standard errors)"
    )
    alone = f"only in A: {compared.only_a}, only in B: {compared.only_b}"
    print_line(f"{common if compared.layers else 'no common layers'}; {alone}")


def _show_layers(compared: TableComparison, shown: ShownLayers) -> None:
    from harness.lut.layer_work import sizes_of

    rows: list[Sequence[str]] = []
    farthest = {one.key: one for one in reversed(compared.layers)}  # of the places of a layer, the first differs most
    listed = compared.layers if shown.wide else [one for one in compared.layers if farthest[one.key] is one]
    for one in listed[: shown.top or None]:
        places = (one.key, one.context) if shown.wide else ()
        times = (microseconds(one.a_s), microseconds(one.b_s), _ratio(one.ratio), _WORDS[one.faster])
        rows.append((one.example or sizes_of(one.signature), one.op, *places, *times))
    places = ("key", "context") if shown.wide else ()
    header = ("layer", "operators", *places, "A µs", "B µs", "B/A", "faster")
    print_table(header, rows, left=2 + len(places))
    _count_rest("layer", len(listed) - len(rows))
    if len(listed) < len(compared.layers):
        print_line("each layer is listed once, where it differs most; --wide lists all its contexts")


def _count_rest(noun: str, count: int) -> None:
    if count:
        print_line(f"and {counted(count, f'more {noun}')}, differing less; --top 0 shows all")


def _latency(seconds: float | None) -> str:
    return "not covered" if seconds is None else milliseconds(seconds)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if 0.1 <= value < 10 else f"{value:.3g}"
