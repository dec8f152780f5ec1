"""The results of a benchmark, as values, frames, rows of raw samples and a plot."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harness.measure.noise.machine_noise import MachineNoise
from harness.measure.summary import seconds_of
from harness.network.network_list import RefusedNetwork
from harness.notebook import BarPlot, LatencyBar, frame, html_table
from harness.samples import Sample
from harness.text import byte_size, milliseconds

if TYPE_CHECKING:
    import pandas

State = Mapping[str, float]


@dataclass(frozen=True)
class LatencyFigures:
    """Latencies of all runs, preempted ones included. pN_s is the smallest that at least N % do not exceed."""

    runs: int
    mean_s: float
    min_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, latencies_s: Sequence[float]) -> LatencyFigures:
        """Return the figures of one run or more; raises ValueError without any."""
        if not latencies_s:
            raise ValueError("no samples")
        ordered = sorted(latencies_s)
        p50_s, p90_s, p99_s = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9, 0.99))
        mean_s = statistics.fmean(ordered)
        return cls(len(ordered), mean_s, ordered[0], p50_s, p90_s, p99_s, ordered[-1])


def reported_clock(clock: str) -> str:
    """Return the clock of percentiles: that of the device where it has one, else wall time, which users wait for."""
    return "device" if clock == "device" else "wall"


def latencies_s(samples: Sequence[Sample], clock: str) -> tuple[float, ...]:
    """Return the latency of each run on the reported clock of a device with this clock."""
    return tuple(seconds_of(sample, reported_clock(clock)) for sample in samples)


def mean_power_w(states: Sequence[State], cores: int) -> float | None:
    """Return the mean power over the states of a measurement, in order; None where the device reports none.

    Sensors report power, whose mean this is. Counters report energy: its rise over the time between the first and the
    last state, which the times of all processors show. A counter that falls has no mean, unless it wraps at a range.
    """
    sensed = [state["power_w"] for state in states if "power_w" in state]
    if sensed:
        return statistics.fmean(sensed)
    counted = [state for state in states if "energy_j" in state and "cpu_total_s" in state]
    if len(counted) < 2 or cores < 1:
        return None
    elapsed_s = (counted[-1]["cpu_total_s"] - counted[0]["cpu_total_s"]) / cores
    energy_j = sum(
        (after["energy_j"] - before["energy_j"]) % after.get("energy_range_j", math.inf)
        for before, after in itertools.pairwise(counted)
    )
    return energy_j / elapsed_s if elapsed_s > 0 and math.isfinite(energy_j) else None


@dataclass(frozen=True)
class BenchmarkedNetwork:
    """One network with one batch and number of threads; those are None where the file and the inventory decide.

    `latency` is on `clock`: wall time, or the clock of a device that has its own. `throughput_per_s` counts runs one
    after the other; `rows_per_s` counts rows of the batch. `compile_s` is the time to open a session, `first_run_s`
    the first run. `before_bytes` is the worker's resident set before it loads the network, `peak_bytes` the largest one
    until its first run ends, and `loaded_bytes` the one after it; all contain the runtime's arena. `power_w` is the
    mean power while it runs and `energy_j` the energy of one run. What the device does not report is None. Load times
    are medians over processes, memory is the largest value. `machine` is the verdict on the machine then.
    """

    network: str
    batch: int | None
    threads: int | None
    clock: str
    latency: LatencyFigures
    throughput_per_s: float
    rows_per_s: float | None
    compile_s: float | None
    first_run_s: float | None
    before_bytes: int | None
    loaded_bytes: int | None
    peak_bytes: int | None
    power_w: float | None
    energy_j: float | None
    machine: MachineNoise
    processes: tuple[tuple[Sample, ...], ...] = field(repr=False)

    @property
    def label(self) -> str:
        """The network with what was varied."""
        varied = {"batch": self.batch, "threads": self.threads}
        return " ".join([self.network, *(f"{name}={value}" for name, value in varied.items() if value is not None)])

    @property
    def figures(self) -> dict[str, Any]:
        """All figures by name, without samples."""
        kept = {name: value for name, value in vars(self).items() if name not in ("latency", "processes")}
        return {**kept, **asdict(self.latency), "machine": self.machine.text}


@dataclass(frozen=True)
class Benchmark:
    """All networks of a benchmark, and those that harness or the device refused."""

    device: str
    networks: tuple[BenchmarkedNetwork, ...]
    refused_networks: tuple[RefusedNetwork, ...] = ()

    @property
    def machine(self) -> str:
        """The verdict on the machine: of the network that it disturbed most where they differ."""
        found = {one.machine.text for one in self.networks}
        worst = max(self.networks, key=lambda one: (len(one.machine.reasons) > 0, one.machine.resolution or 0.0))
        which = f" ({worst.label}, the worst of {len(self.networks)})" if len(found) > 1 else ""
        return f"{worst.machine.text}{which}"

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield each timed run as one row, in order; `process` counts the processes from 0."""
        for one in self.networks:
            place = {"network": one.network, "batch": one.batch, "threads": one.threads}
            for process, samples in enumerate(one.processes):
                for run, sample in enumerate(samples):
                    yield {**place, "process": process, "run": run, **asdict(sample)}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with the figures of one network, batch and number of threads in each row."""
        rows = [one.figures for one in self.networks]
        return frame(rows, tuple(rows[0]) if rows else ())

    def plot(self) -> BarPlot:
        """Return a plot of the median latencies; whiskers reach to the 99th percentile."""
        bars = (
            LatencyBar(one.label, one.latency.p50_s, (one.latency.p50_s, one.latency.p99_s)) for one in self.networks
        )
        return BarPlot(f"{self.device}: median latency, whiskers to the 99th percentile", tuple(bars))

    def _repr_html_(self) -> str:
        header, rows = figures_table(self.networks)
        rows.append((f"machine: {self.machine}", *[""] * (len(header) - 1)))
        return html_table(f"Benchmark on {self.device}", header, rows)


_ABSENT = "–"
_HEADER = (
    "network",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "runs/s",
    "rows/s",
    "load ms",
    "first run ms",
    "peak memory",
    "energy mJ",
)


def _cells(one: BenchmarkedNetwork) -> tuple[str, ...]:
    latency = one.latency
    return (
        one.label,
        *(milliseconds(value) for value in (latency.p50_s, latency.p90_s, latency.p99_s)),
        f"{one.throughput_per_s:,.1f}",
        _ABSENT if one.rows_per_s is None else f"{one.rows_per_s:,.1f}",
        _ABSENT if one.compile_s is None else milliseconds(one.compile_s),
        _ABSENT if one.first_run_s is None else milliseconds(one.first_run_s),
        _ABSENT if one.peak_bytes is None else byte_size(one.peak_bytes),
        _ABSENT if one.energy_j is None else f"{1e3 * one.energy_j:.3g}",
    )


def figures_table(networks: Sequence[BenchmarkedNetwork]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and a row for each network; a figure that no network has gets no column."""
    rows = [_cells(one) for one in networks]
    kept = [any(row[at] != _ABSENT for row in rows) for at in range(len(_HEADER))]
    header, *shown = (tuple(itertools.compress(row, kept)) for row in (_HEADER, *rows))
    return header, shown
