"""`harness validate`: whole networks measured on the device beside their estimates."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.output import interval_ms, note, percent, print_json, print_table
from harness.cli.progress import show_progress, stop_on_interrupt
from harness.settings import DEFAULT_DEVICE
from harness.text import milliseconds
from harness.workspace import find_workspace

WORST_LAYERS = 5

if TYPE_CHECKING:
    from harness.validation.network_validation import Validation
    from harness.validation.oracle_comparison import OracleReport


def validate(
    models: options.Models,
    device: options.DeviceName = DEFAULT_DEVICE,
    lut: options.LutFolder = None,
    naive: Annotated[
        bool, typer.Option("--naive", help="Time every layer alone as well, and show the plain sum.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare layers with the runtime's own profile as well.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Separate processes that measure each network.")
    ] = 3,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report to this file.")] = None,
    dim: options.Dims = None,
    workspace: options.WorkspaceFolder = None,
    json: options.Json = False,
) -> None:
    """Measure whole networks on the device and compare with the table's estimates.

    An emulated device also tells the truth: overhead and layers are then compared with it.

    Example: harness validate --device cpu01 --naive builtin:resnet50 builtin:mobilenetv2
    """
    place, dims = find_workspace(workspace), options.parse_dims(dim)

    from harness.estimation import network_estimate as networks
    from harness.validation import network_validation as validation

    with show_progress(device) as observe, stop_on_interrupt() as stop:
        result = validation.validate(
            models, device=device, lut=lut, workspace=place, processes=processes, naive=naive, layers=layers, dims=dims,
            observe=observe, stop=stop,
        )  # fmt: skip
    if html is not None:
        from harness.lut.table_files import open_table
        from harness.network.models import load_networks
        from harness.report.html import write_report

        table = open_table(device, place.lut / result.lut if lut is None else lut, place)
        estimates = [networks.estimate_network(network, table) for network in load_networks(models, dims)]
        write_report(html, table, estimates, result)
    if json:
        print_json(**asdict(result))
    else:
        show_validation(result)


def show_validation(result: Validation) -> None:
    """The table of errors and their summary."""
    naive = any(network.naive_s is not None for network in result.networks)
    header = ("network", "estimated ms", "95 % interval", "measured ms", "± 95 %", "error", "floor")
    rows = []
    for network in result.networks:
        row = [
            network.name,
            milliseconds(network.estimated_s),
            interval_ms(network.interval_s),
            milliseconds(network.measured_s),
            milliseconds(network.measured_halfwidth_s),
            percent(network.error),
            "" if network.repeatability is None else f"{network.repeatability:.1%}",
        ]
        if naive:
            row.append("" if network.naive_error is None else percent(network.naive_error))
        rows.append(row)
    print_table((*header, "naive sum") if naive else header, rows)
    print(
        f"mean absolute error {result.mape:.1%}  within 5 %: {result.within_5:.0%}  within 10 %: {result.within_10:.0%}"
        f"  intervals hold: {result.interval_coverage:.0%}  clock: {result.clock}  table: {result.lut}"
    )
    if result.floor is not None:
        print(
            f"repeatability from process to process {result.floor:.1%} (median); mean absolute error beyond each"
            f" network's own {result.mape_beyond_floor:.1%}"
        )
    if result.oracle is not None:
        _show_oracle(result.oracle)
    if result.fingerprint_changes:
        note(
            f"The device is not as it was when the table was measured: {', '.join(result.fingerprint_changes)} changed"
        )


def _show_oracle(report: OracleReport) -> None:
    """Fitted overhead beside the true one, and the layers that are furthest off."""
    from harness.validation.oracle_comparison import COUNTED_SHARE

    print()
    rows = [
        (name, f"{one.true:.4g}", f"{one.fitted:.4g}", "" if one.error is None else percent(one.error))
        for name, one in report.overhead.items()
    ]
    if rows:
        print_table(("overhead", "true", "fitted", "error"), rows)
    if report.time_weighted_error is not None:
        long = "" if report.mean_error_long is None else f", mean of those above 50 µs {report.mean_error_long:.1%}"
        print(f"all layers: time-weighted error {report.time_weighted_error:.1%}{long}")
    if report.median_error is None or report.p95_error is None:
        return
    print(
        f"{report.counted} layers of more than {COUNTED_SHARE:.0%} of their network:"
        f" median error {report.median_error:.1%}, 95 % are within {report.p95_error:.1%}; the worst:"
    )
    worst = [
        (network, layer.name, layer.op, milliseconds(layer.true_s), milliseconds(layer.estimated_s),
         "" if layer.error is None else percent(layer.error))
        for network, layer in report.worst(WORST_LAYERS)
    ]  # fmt: skip
    print_table(("network", "layer", "operators", "true ms", "table ms", "error"), worst, left=3)
