"""The results of a benchmark, as values, frames, rows of raw samples and a plot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harness.benchmarking.latency_figures import LatencyFigures
from harness.measure.noise.machine_noise import MachineNoise
from harness.network.network_list import RefusedNetwork
from harness.notebook import BarPlot, LatencyBar, frame, html_table
from harness.samples import Sample
from harness.text import byte_size, milliseconds

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class BenchmarkedNetwork:
    """One network with one batch and number of threads; those are None where the file and the inventory decide.

    `latency` is on `clock`: wall time, or the clock of a device that has its own. `throughput_per_s` counts runs one
    behind the other; `rows_per_s` counts rows of the batch. `compile_s` is the time to open a session, `first_run_s`
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
        rows = [*(cells(one) for one in self.networks), (f"machine: {self.machine}", *[""] * (len(HEADER) - 1))]
        return html_table(f"Benchmark on {self.device}", HEADER, rows)


HEADER = (
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


def cells(one: BenchmarkedNetwork) -> tuple[str, ...]:
    """Return the texts of a row below HEADER; a dash stands for what the device does not report."""
    latency = one.latency
    return (
        one.label,
        *(milliseconds(value) for value in (latency.p50_s, latency.p90_s, latency.p99_s)),
        f"{one.throughput_per_s:,.1f}",
        "–" if one.rows_per_s is None else f"{one.rows_per_s:,.1f}",
        "–" if one.compile_s is None else milliseconds(one.compile_s),
        "–" if one.first_run_s is None else milliseconds(one.first_run_s),
        "–" if one.peak_bytes is None else byte_size(one.peak_bytes),
        "–" if one.energy_j is None else f"{1e3 * one.energy_j:.3g}",
    )
