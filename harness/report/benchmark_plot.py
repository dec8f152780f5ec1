"""A benchmark as a line plot: median and 99th percentile over batches or numbers of threads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from harness.benchmarking.benchmark_results import Benchmark, BenchmarkedNetwork
from harness.report.line_plot import PlotAxis, PlotSeries, line_plot, scale_of_range
from harness.report.page_values import Unit, unit_for

Varied = Literal["batch", "threads", "network"]
VARIED: tuple[Varied, Varied] = ("batch", "threads")
PERCENTILES = ("p50", "p99")


def benchmark_plot(benchmark: Benchmark) -> tuple[str, str]:
    """Return title and figure: latency over the batch if it varies, else over the threads, else by network.

    Each value of the other options has separate lines.
    """
    networks = benchmark.networks
    varied: Varied = next((name for name in VARIED if len({getattr(one, name) for one in networks}) > 1), "network")
    unit = unit_for(one.latency.p50_s for one in networks)
    values = list(dict.fromkeys(getattr(one, varied) for one in networks))
    places = {value: _place(value, at) for at, value in enumerate(values)}
    lines: dict[str, list[BenchmarkedNetwork]] = {}
    for one in sorted(networks, key=lambda one: places[getattr(one, varied)]):
        lines.setdefault(_line(one, varied), []).append(one)
    series = [
        _series(
            f"{name} {percentile}".strip(), found, [places[getattr(one, varied)] for one in found], percentile, unit
        )
        for name, found in lines.items()
        for percentile in PERCENTILES
    ]
    ticks = tuple(sorted((place, str(value)) for value, place in places.items()))
    heights = [height for one in series for _, height in one.points if height is not None]
    if varied == "network":  # no line from one network to another
        series = [replace(one, names=tuple(one.name for _ in one.points)) for one in series]
    x = PlotAxis(varied, "linear" if varied == "network" else scale_of_range(list(places.values())), ticks)
    title = f"Median and 99th percentile of the latency on {benchmark.device}, by {varied}"
    return title, line_plot(series, x, PlotAxis(f"latency, {unit.symbol}", scale_of_range(heights)))


def _series(
    name: str, networks: Sequence[BenchmarkedNetwork], places: Sequence[float], percentile: str, unit: Unit
) -> PlotSeries:
    heights = [getattr(one.latency, f"{percentile}_s") / unit.seconds for one in networks]
    return PlotSeries(name, tuple(zip(places, heights, strict=True)))


def _line(one: BenchmarkedNetwork, varied: Varied) -> str:
    """Return what a line has in common."""
    parts = [] if varied == "network" else [one.network]
    parts += [f"{name}={getattr(one, name)}" for name in VARIED if name != varied and getattr(one, name) is not None]
    return " ".join(parts)


def _place(value: str | int | None, at: int) -> float:
    """Return the place on the axis; 1 where the file or the inventory decides."""
    return float(at) if isinstance(value, str) else float(value or 1)
