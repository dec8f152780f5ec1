"""`harness benchmark`: percentiles, throughput, load time, memory and energy of whole networks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.arguments import command_line
from harness.cli.options.option_groups import OnlyFields, spread
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import error_fields, note, print_json, print_line, print_table, write_csv
from harness.cli.terminal.progress import show_progress, stop_on_interrupt
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.benchmarking.benchmark_results import Benchmark

_RUNS_OF_P99 = 100
_UNEVEN = 1.1
"""The mean latency, as a multiple of the median, from which the throughput misleads without a remark."""


@dataclass(frozen=True)
class BenchmarkRuns:
    """What is varied, and how often each network runs."""

    batch: Annotated[
        str | None, typer.Option(metavar="N[,N…]", help="Leading dimensions of all inputs, such as 1,2,4,8.")
    ] = None
    threads: Annotated[
        str | None, typer.Option(metavar="N[,N…]", help="Numbers of threads, in place of the one in devices.toml.")
    ] = None
    runs: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Timed runs in each process.")] = 200
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of processes that measure each network.")
    ] = 1


@dataclass(frozen=True)
class Results:
    """The files that the command writes."""

    csv: Annotated[Path | None, file_option("--csv", help="Write each timed run to this file.")] = None
    html: arguments.HtmlFile = None


@spread
def benchmark(
    models: arguments.Models,
    device: arguments.DeviceName = None,
    *,
    extent: BenchmarkRuns,
    files: Results,
    reading: Annotated[arguments.ReadingOptions, OnlyFields(("dim", "strict"))],
    wait: arguments.Wait = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Measure whole networks on a device; no table is needed.

    The command shows percentiles, throughput and load time, and memory and energy where the device reports them.
    Latencies are wall time, or the device's own clock if it has one. Preempted runs are included. Several values of
    --batch and --threads are combined.

    Example: harness benchmark builtin:squeezenet --threads 1,2 --csv runs.csv
    """
    batches = arguments.parse_counts("--batch", extent.batch, 65536)
    threads = arguments.parse_counts("--threads", extent.threads, 1024)
    from harness.benchmarking import measurement
    from harness.network.network_list import refusals_error

    workspace = find_workspace(directory)
    device = device or workspace.default_device
    with show_progress(f"benchmark {device}") as observe, stop_on_interrupt() as stop:
        measured = measurement.benchmark(
            models,
            device=device,
            batches=batches or (None,),
            threads=threads or (None,),
            runs=extent.runs,
            processes=extent.processes,
            strict=reading.strict,
            dims=reading.dims,
            workspace=workspace,
            wait_s=arguments.parse_wait(wait) or 0.0,
            observe=observe,
            stop=stop,
        )
    if files.csv is not None:
        write_csv(files.csv, list(measured.samples()))
    if files.html is not None:
        from harness.report.benchmark_plot import benchmark_plot
        from harness.report.html import write_figure

        notes = [f"Machine during the runs: {measured.machine}."]
        write_figure(files.html, *benchmark_plot(measured), command_line(), notes)
    if json:
        refused = [error_fields(one) for one in measured.refused_networks]
        networks = [{**one.figures, "machine": asdict(one.machine)} for one in measured.networks]
        print_json(device=measured.device, networks=networks, refused_networks=refused)
    else:
        _show(measured)
    if measured.refused_networks:
        raise refusals_error(measured.refused_networks, len(measured.networks))


def _show(measured: Benchmark) -> None:
    from harness.benchmarking.benchmark_results import figures_table

    print_table(*figures_table(measured.networks))
    print_line(f"device: {measured.device}  clock: {', '.join(sorted({one.clock for one in measured.networks}))}")
    print_line(f"machine: {measured.machine}")
    for one in measured.networks:
        if one.latency.mean_s > _UNEVEN * one.latency.p50_s:
            times = f"{one.latency.mean_s / one.latency.p50_s:.1f} times"
            note(f"{one.label}: a few long runs lower runs/s; the mean latency is {times} the median")
    if any(one.latency.runs < _RUNS_OF_P99 for one in measured.networks):
        note(f"With fewer than {_RUNS_OF_P99} runs, p99 is the longest one")
    if all(one.peak_bytes is None for one in measured.networks):
        note(f"{measured.device} reports no memory")
    if all(one.energy_j is None for one in measured.networks):
        note(
            f"{measured.device} reports no energy: it has neither an INA sensor, a readable RAPL counter nor a program"
            " ~/.config/harness/power; docs/benchmark.md describes them"
        )
