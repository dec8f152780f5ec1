"""`harness report`: the page of networks from what the workspace holds, without a device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from harness.cli.options import arguments
from harness.cli.options.arguments import command_words
from harness.cli.options.option_groups import spread
from harness.cli.terminal.output import note, print_json
from harness.text import first_names, printable
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.estimation.network_estimate import NetworkEstimates
    from harness.lut.table import Lut
    from harness.network.keyed_network import KeyedNetwork
    from harness.validation.results import Validation

_NAMED = 5


@spread
def report(
    models: Annotated[
        list[str] | None, arguments.models_argument(" Default: those of the last validation, or else of the table.")
    ] = None,
    *,
    choice: arguments.TableChoice,
    html: arguments.HtmlFile = None,
    reading: arguments.ReadingOptions,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Write an HTML report from the workspace; no device is needed.

    The report shows the layers and the overhead of the table, its samples, and the last validation with this table, as
    `validate --html` does. It is written to reports/DEVICE.html, unless --html names another file.

    Example: harness report --device cpu01
    """
    from harness.estimation.network_estimate import NetworkEstimates
    from harness.estimation.table_comparison import networks_of
    from harness.lut.table_choice import open_table
    from harness.network.network_list import NetworksRead
    from harness.report.html import report_networks
    from harness.validation.results import last_validation

    workspace = find_workspace(directory)
    table = open_table(choice.device, choice.lut, workspace, reading.variant)
    last = last_validation(workspace, table)
    chosen = tuple(models or ()) or (last.models if last else ()) or networks_of(table, workspace)
    read: NetworksRead[KeyedNetwork] = NetworksRead(())
    if chosen:
        read = reading.networks(chosen, table, reading.dims or (last.dims if last and not models else {}))
    validation = _matching(last.result, NetworkEstimates.of(read, table)) if last else None
    path = html or _default_path(workspace, table)
    report_networks(path, workspace, table, read, command_words(), validation)
    if json:
        names = [one.name for one in read.networks]
        print_json(html=str(path), lut=table.name, networks=names, validated=validation is not None)
    else:
        print(printable(str(path)))


def _matching(validation: Validation, estimates: NetworkEstimates) -> Validation | None:
    """Return the validation if the page has all its networks, as they were then: its errors are of all of them."""
    found = {one.name: one.latency_s for one in estimates}
    other = [one.name for one in validation.networks if not _is_same(found.get(one.name), one.estimated_s)]
    if not other:
        return validation
    shown = first_names(other, _NAMED)
    note(f"The last validation is omitted: {shown} has changed or is not in this report. Run `harness validate` again")
    return None


def _is_same(now_s: float | None, then_s: float) -> bool:
    return now_s is not None and math.isclose(now_s, then_s, rel_tol=1e-6)


def _default_path(workspace: Workspace, table: Lut) -> Path:
    workspace.reports.mkdir(parents=True, exist_ok=True)
    return workspace.reports / f"{table.device}.html"
