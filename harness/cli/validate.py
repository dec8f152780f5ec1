"""`harness validate`: whole networks measured on the device, compared with their estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import arguments
from harness.cli.options.arguments import command_words
from harness.cli.options.option_groups import spread
from harness.cli.terminal.output import note, print_json, print_line, print_table
from harness.cli.terminal.progress import show_progress, stop_on_interrupt
from harness.errors import MachineNoisy
from harness.settings import VALIDATION_PROCESSES
from harness.text import (
    clock_name,
    counted,
    first_names,
    interval_ms,
    microseconds,
    milliseconds,
    printable,
    signed_percent,
)
from harness.workspace import find_workspace

WORST_LAYERS = 5
_STOPPED: dict[Stop, str] = {
    "decided": "more would not change the verdict",
    "target": "the latency is known to within the target",
    "most processes": "--processes allows no more",
}
NAMED_ON_CPU = 10

if TYPE_CHECKING:
    from harness.validation.oracle_comparison import OracleReport
    from harness.validation.results import NetworkValidation, Validation
    from harness.validation.stopping_rule import Stop


@dataclass(frozen=True)
class ValidateOptions:
    """What is measured in addition, in how many processes, and how long to wait for the device."""

    naive: Annotated[bool, typer.Option("--naive", help="Also time layers one by one, and show the plain sum.")] = False
    layers: Annotated[bool, typer.Option("--layers", help="Also compare layers with the runtime's own profile.")] = (
        False
    )
    processes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Maximum number of processes that measure each network; disturbed ones do not count.",
        ),
    ] = VALIDATION_PROCESSES
    wait: arguments.Wait = None

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as `harness.validate` takes them."""
        own = {name: value for name, value in asdict(self).items() if name != "wait"}
        return {**own, "wait_s": arguments.parse_wait(self.wait) or 0.0}


@spread
def validate(
    models: arguments.Models,
    *,
    choice: arguments.TableChoice,
    extent: ValidateOptions,
    html: arguments.HtmlFile = None,
    reading: arguments.ReadingOptions,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Measure whole networks and compare them with their estimates.

    Each network is measured in at least three processes, until the verdict on the estimate is clear or the latency is
    known to within 1 %. If the device is emulated, the true overhead and layer latencies are compared as well.

    If a network cannot be used, or the device refuses it, it is listed, the others are measured, and the exit code is
    3.

    Example: harness validate --device cpu01 --naive builtin:resnet50
    """
    workspace, lut = find_workspace(directory), choice.lut
    label = choice.device or (workspace.default_device if lut is None else str(lut))

    from harness.lut.table_choice import open_table
    from harness.network.keyed_reading import read_keyed_networks
    from harness.validation import network_validation as validation

    with show_progress(f"validate {label}") as observe, stop_on_interrupt() as stop:
        result = validation.validate(
            models,
            device=choice.device,
            lut=lut,
            workspace=workspace,
            **extent.keywords,
            **reading.keywords,
            observe=observe,
            stop=stop,
        )
    if html is not None:
        from harness.report.html import report_networks

        table = open_table(result.device, Path(result.lut) if lut is None else lut, workspace)
        read = read_keyed_networks(models, table.rules, reading.dims, batch=reading.batch)
        report_networks(html, workspace, table, read, command_words(), result)
    if json:
        print_json(**asdict(result))
    else:
        show_validation(result)
    _require_answer(result)


def _require_answer(result: Validation) -> None:
    """Raise the error of networks that were refused, or of a machine too noisy to answer."""
    from harness.network.network_list import refusals_error
    from harness.validation.results import MOST_FLOOR

    if result.refused_networks:
        raise refusals_error(result.refused_networks, len(result.networks))
    if not result.is_answered and result.machine is not None:
        what = f"The validation cannot say whether estimates are within {MOST_FLOOR:.0%}"
        step = "Stop other work on the device and validate again, or give more --processes"
        raise MachineNoisy(what, why=f"The machine is {result.machine.text}", next_step=step)


def show_validation(result: Validation) -> None:
    """Print the table of errors and their summary."""
    naive = any(network.naive_s is not None for network in result.networks)
    header = ("network", "estimated ms", "95 % interval", "measured ms", "± 95 %", "error", "floor")
    rows = []
    for network in result.networks:
        row = [
            network.name,
            milliseconds(network.estimated_s),
            interval_ms(network.interval_s),
            milliseconds(network.measured_s),
            milliseconds(network.measured_halfwidth_s, 1),
            signed_percent(network.error),
            "" if network.repeatability is None else f"{network.repeatability:.1%}",
        ]
        if naive:
            row.append("" if network.naive_error is None else signed_percent(network.naive_error))
        rows.append(row)
    print_table((*header, "naive sum error") if naive else header, rows)
    inside = sum(network.within_interval for network in result.networks)
    print_line(
        f"mean absolute error {result.mape:.1%}  within 5 %: {result.within_5:.0%}  within 10 %: {result.within_10:.0%}"
        f"  inside the 95 % interval: {inside} of {len(result.networks)}  clock: {clock_name(result.clock)}"
        f"  table: {result.lut}  method: {result.method}"
    )
    if result.floor is not None:
        beyond = (
            f"; mean error beyond each network's floor {result.mape_beyond_floor:.1%}" if result.is_answered else ""
        )
        print_line(f"floor {result.floor:.1%} (median): the difference from process to process{beyond}")
    if result.machine is not None:
        print_line(f"machine: {result.machine.text}")
    for line in _stops(result):
        print_line(line)
    if disturbed := [one for one in result.networks if one.preempted_processes]:
        shown = ", ".join(f"{one.preempted_processes} of {one.name}" for one in disturbed)
        print_line(f"processes left out, because other programs held a core in most of their runs: {shown}")
    for network in result.networks:
        _note_file(network)
    if result.oracle is not None:
        _show_oracle(result.oracle)
    compiled = [f"{one.name} {one.compile_s:.2g} s" for one in result.networks if one.compile_s is not None]
    if compiled:
        print_line(f"time to load, not part of any latency: {'  '.join(compiled)}")
    for one in result.networks:
        if one.on_cpu:
            shown = first_names(one.on_cpu, NAMED_ON_CPU)
            note(printable(f"{one.name}: {len(one.on_cpu)} nodes run on the CPU: {shown}"))
    if result.fingerprint_changes:
        note(f"The device has changed since the table was measured: {', '.join(result.fingerprint_changes)}")


def _stops(result: Validation) -> Iterator[str]:
    """Yield the reasons why networks were not measured further, with the numbers of networks and processes."""
    counts = Counter((one.stopped, len(one.processes_s)) for one in result.networks if one.stopped)
    for (reason, processes), networks in sorted(counts.items()):
        noun = "process" if processes == 1 else "processes"
        yield f"{counted(networks, 'network')} measured in {processes} {noun}: {_STOPPED[reason]}"


def _note_file(network: NetworkValidation) -> None:
    compared = network.file_comparison
    if compared is not None and compared.ratio is None:
        note(f"{network.name}: not compared with its file, because {compared.reason}")
    elif compared is not None and compared.differs and compared.interval is not None:
        low, high = compared.interval
        note(
            f"{network.name}: the measured model differs from the file. On this machine it takes {compared.ratio:.2f}"
            f" times as long as the file [{low:.2f}, {high:.2f}]; {compared.reason or 'please report this'}"
        )


def _show_oracle(report: OracleReport) -> None:
    """Print the fitted and the true overhead, and the layers with the largest errors."""
    from harness.lut.lut_tables import A_B_C, OVERHEAD_UNITS
    from harness.validation.oracle_comparison import COUNTED_SHARE

    print()
    rows = []
    for name, one in report.overhead.items():
        error = "" if one.error is None else signed_percent(one.error)
        rows.append((OVERHEAD_UNITS[A_B_C[name]], f"{one.true:.4g}", f"{one.fitted:.4g}", error))
    if rows:
        print_table(("overhead of a run, in seconds", "true", "fitted", "error"), rows)
    if report.time_weighted_error is not None:
        long = "" if report.mean_error_long is None else f", mean of those above 50 µs {report.mean_error_long:.1%}"
        print_line(f"all layers: time-weighted error {report.time_weighted_error:.1%}{long}")
    if report.repeatability is not None:
        print_line(f"floor of layers {report.repeatability:.1%}: the difference of the profile from process to process")
    if report.median_error is None or report.p95_error is None:
        return
    print_line(
        f"{report.counted} layers of more than {COUNTED_SHARE:.0%} of their network:"
        f" median error {report.median_error:.1%}, 95 % are within {report.p95_error:.1%}; the largest errors:"
    )
    worst = []
    for network, layer in report.worst(WORST_LAYERS):
        error = "" if layer.error is None else signed_percent(layer.error)
        times = microseconds(layer.true_s), microseconds(layer.estimated_s)
        worst.append((network, layer.name, layer.op, *times, error))
    print_table(("network", "layer", "operators", "true µs", "table µs", "error"), worst, left=3)
