"""Profile a device, build its tables with several estimators, and measure whole networks beside their estimates."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from scipy.stats import binomtest

from benchmarks.parts import say
from harness import build_lut, estimate, profile, validate
from harness.device.session import AgentSession, Truth
from harness.errors import DeviceBusy, HarnessError
from harness.latency.method_names import LatencyMethod
from harness.lut.table import Lut
from harness.measure.device_requests import load_request
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult
from harness.measure.summary import Z_95
from harness.network.model_references import BUILTIN_PREFIX
from harness.network.network import Network
from harness.predictor.uncertainty.intervals import LEVEL, NORMAL_90
from harness.probe.probe import network_probe
from harness.validation.results import NetworkValidation, Validation
from harness.workspace import Workspace

OTHER_METHODS: tuple[LatencyMethod, ...] = ("difference", "regression")
"""Estimators shown beside the default; `regression` is the one of S1 without changes."""
TENTH, TWENTIETH = 0.10, 0.05
REJECTED_P = 0.01
ATTEMPTS, WAIT_S = 40, 15.0
"""How often, and how long apart, a device that another job holds is asked for."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Measured:
    """The results of one device.

    `others` holds estimates in seconds by method and network. `predicted` is the number of layers that have no entry in
    the table, so that its predictor estimates them.
    """

    profiled: ProfileResult
    table: Lut
    validation: Validation
    others: Mapping[str, Mapping[str, float]]
    predicted: int

    @property
    def networks(self) -> tuple[NetworkValidation, ...]:
        """Each network with its measurement and its estimate."""
        return self.validation.networks


@dataclass
class Run:
    """One run of the benchmark: its folder and networks. It measures each device once."""

    root: Path
    networks: Sequence[str]
    quick: bool
    _measured: dict[str, Measured] = field(default_factory=dict)

    def workspace(self, name: str) -> Workspace:
        """Return a workspace for one job, so that campaigns of another job do not enter its tables."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return Workspace(folder)

    def device(self, name: str, networks: Sequence[str] | None = None, threads: int | None = None) -> Measured:
        """Return the results of a device, with so many threads if given; the first call measures it."""
        job = name if threads is None else f"{name}-{threads}-threads"
        if job not in self._measured:
            models = references(self.networks if networks is None else networks)
            self._measured[job] = measure_device(name, models, self.workspace(job), threads)
        return self._measured[job]


def references(names: Sequence[str]) -> list[str]:
    """Return the references of built-in networks that commands accept."""
    return [BUILTIN_PREFIX + name for name in names]


def measure_device(device: str, models: Sequence[str], workspace: Workspace, threads: int | None = None) -> Measured:
    """Profile networks, build tables, and validate in several processes with the naive sum and all reported layers."""
    say(f"{device}: profiling {len(models)} networks")
    profiled = patiently(
        lambda: profile(models, device=device, workspace=workspace, policy=RepeatPolicy(), fresh=True, threads=threads)
    )
    say(f"{device}: {profiled.probes} probes, {profiled.device_seconds:.1f} s on it, {profiled.wall_seconds:.0f} s")
    others = {str(method): _estimates(device, models, workspace, method, threads) for method in OTHER_METHODS}
    table = build_lut(device, workspace=workspace, threads=threads)
    coverage = [one.coverage for one in estimate(models, lut=table.path, workspace=workspace)]
    predicted = sum(one["interpolated"] + one["extrapolated"] for one in coverage)
    say(f"{device}: validating")
    validation = patiently(
        lambda: validate(
            models, device=device, lut=table.path, workspace=workspace, naive=True, layers=True, threads=threads
        )
    )
    return Measured(profiled, table, validation, others, predicted)


def _estimates(
    device: str, models: Sequence[str], workspace: Workspace, method: LatencyMethod, threads: int | None
) -> dict[str, float]:
    """Return the estimates in seconds of another estimator from the same samples, without networks that it rejects."""
    try:
        table = build_lut(device, workspace=workspace, method=method, threads=threads)
    except HarnessError as error:
        say(f"{device}: no table by {method}: {error}")
        return {}
    found = estimate(models, lut=table.path, workspace=workspace)
    return {one.name: one.latency_s for one in found if one.latency_s is not None}


def truth_of(session: AgentSession, network: Network) -> Truth:
    """Return the device's own account of the layers of a whole network."""
    probe = network_probe(network)
    session.put(load_request(probe))
    truth = session.oracle(probe.id)
    session.drop([probe.id])
    return truth


def patiently(work: Callable[[], Result]) -> Result:
    """Call `work`, and again after a pause while another job holds the device. Raise DeviceBusy after ATTEMPTS."""
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except DeviceBusy as error:
            say(f"waiting: {error.what}")
            time.sleep(WAIT_S)
    return work()


def holds_at_90(network: NetworkValidation) -> bool:
    """Return whether the 90 % interval holds the measurement. It is the 95 % interval scaled as for a normal error."""
    low_s, high_s = network.interval_s
    scale = NORMAL_90 / Z_95
    below_s, above_s = scale * (network.estimated_s - low_s), scale * (high_s - network.estimated_s)
    return network.estimated_s - below_s <= network.measured_s <= network.estimated_s + above_s


def p_of_90(held: int, count: int) -> float:
    """Return the two-sided p of an exact binomial test against intervals that hold in 90 %."""
    return float(binomtest(held, count, LEVEL).pvalue)


@dataclass(frozen=True)
class Errors:
    """A summary of relative errors."""

    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median absolute error."""
        return statistics.median(map(abs, self.errors))

    @property
    def mean(self) -> float:
        """The mean absolute error."""
        return statistics.fmean(map(abs, self.errors))

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return max(map(abs, self.errors))

    @property
    def rmspe(self) -> float:
        """The root of the mean squared error."""
        return math.sqrt(statistics.fmean(error * error for error in self.errors))

    def within(self, limit: float) -> int:
        """Return how many absolute errors are at most `limit`."""
        return sum(abs(error) <= limit for error in self.errors)

    def share(self, limit: float) -> str:
        """Return the number within `limit` in words, such as `13 of 15`."""
        return f"{self.within(limit)} of {len(self.errors)}"

    def has_share(self, limit: float, wanted: int, among: int) -> bool:
        """Return whether at least `wanted / among` of the errors are within the limit."""
        return self.within(limit) * among >= wanted * len(self.errors)
