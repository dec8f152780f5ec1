"""A benchmark as a line plot: median and 99th percentile over batches or numbers of threads."""

from __future__ import annotations

from collections.abc import Sequence

from harness.benchmarking.benchmark_results import Benchmark, BenchmarkedNetwork
from harness.report.line_plot import PlotAxis, PlotSeries, line_plot
from harness.report.units import unit_for


def sweep_plot(benchmark: Benchmark) -> tuple[str, str]:
    """Return title and figure; the axis is the batch if it varies, else the threads, and each other value has lines."""
    networks = benchmark.networks
    by_batch = len({one.batch for one in networks}) > 1
    unit = unit_for(one.latency.p50_s for one in networks)
    lines: dict[str, list[BenchmarkedNetwork]] = {}
    for one in networks:
        other = ("threads", one.threads) if by_batch else ("batch", one.batch)
        name = one.network if other[1] is None else f"{one.network} {other[0]}={other[1]}"
        lines.setdefault(name, []).append(one)
    series = [
        PlotSeries(f"{name} {percentile}", _points(found, percentile, by_batch, unit.seconds))
        for name, found in lines.items()
        for percentile in ("p50", "p99")
    ]
    places = sorted({float(_place(one, by_batch)) for one in networks})
    ticks = tuple((place, f"{place:g}") for place in places)
    x = PlotAxis("batch" if by_batch else "threads", "log" if len(places) > 1 else "linear", ticks)
    title = f"Latency on {benchmark.device}"
    return title, line_plot(series, x, PlotAxis(f"latency, {unit.symbol}"))


def _points(
    networks: Sequence[BenchmarkedNetwork], percentile: str, by_batch: bool, unit_s: float
) -> tuple[tuple[float, float | None], ...]:
    ordered = sorted(networks, key=lambda one: _place(one, by_batch))
    return tuple((float(_place(one, by_batch)), getattr(one.latency, f"{percentile}_s") / unit_s) for one in ordered)


def _place(one: BenchmarkedNetwork, by_batch: bool) -> int:
    """The place on the axis; 1 where the file or the inventory decides."""
    return (one.batch if by_batch else one.threads) or 1
