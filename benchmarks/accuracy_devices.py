"""A device profiled, its tables by several estimators, and whole networks measured beside their estimates."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from scipy.stats import binomtest

from harness import build_lut, estimate, profile, validate
from harness.errors import DeviceBusy, HarnessError
from harness.latency.methods import LatencyMethod
from harness.lut.table import Lut
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult
from harness.measure.summary import Z_95
from harness.network.models import BUILTIN_PREFIX
from harness.predictor.uncertainty.intervals import LEVEL, NORMAL_90
from harness.validation.network_validation import DEFAULT_PROCESSES, NetworkValidation, Validation
from harness.workspace import Workspace

OTHER_METHODS: tuple[LatencyMethod, ...] = ("difference", "regression")
"""Estimators shown beside the default; `regression` is the plain one of S1."""
TENTH, TWENTIETH = 0.10, 0.05
REJECTED_P = 0.01
ATTEMPTS, WAIT_S = 40, 15.0
"""A device that somebody else uses is asked for this often."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Measured:
    """All of one device in one run; `others` are estimates in seconds by method and network.

    `predicted` layers of the networks have no entry in the table, and are estimated by its predictor.
    """

    profiled: ProfileResult
    table: Lut
    validation: Validation
    others: Mapping[str, Mapping[str, float]]
    predicted: int

    @property
    def networks(self) -> tuple[NetworkValidation, ...]:
        """Every network with its measurement and its estimate."""
        return self.validation.networks


@dataclass
class Run:
    """One run of the benchmark: where it works, on which networks; each device is measured once."""

    root: Path
    networks: Sequence[str]
    quick: bool
    _measured: dict[str, Measured] = field(default_factory=dict)

    def workspace(self, name: str) -> Workspace:
        """A workspace of its own for each job, so that campaigns of one do not enter tables of another."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return Workspace(folder)

    def device(self, name: str, networks: Sequence[str] | None = None) -> Measured:
        """Profiles and validates a device, the first time that it is asked for."""
        if name not in self._measured:
            chosen = self.networks if networks is None else networks
            self._measured[name] = measure_device(name, references(chosen), self.workspace(name))
        return self._measured[name]


def references(names: Sequence[str]) -> list[str]:
    """Built-in networks as the commands name them."""
    return [BUILTIN_PREFIX + name for name in names]


def measure_device(device: str, models: Sequence[str], place: Workspace) -> Measured:
    """Profile, tables, validation in several processes with the naive sum and all layers that the device tells."""
    say(f"{device}: profiling {len(models)} networks")
    profiled = patiently(lambda: profile(models, device=device, workspace=place, policy=RepeatPolicy(), fresh=True))
    say(f"{device}: {profiled.probes} probes, {profiled.device_seconds:.1f} s on it, {profiled.wall_seconds:.0f} s")
    others = {str(method): _estimates(device, models, place, method) for method in OTHER_METHODS}
    table = build_lut(device, workspace=place)
    coverage = [one.coverage for one in estimate(models, lut=table.path, workspace=place)]
    predicted = sum(one["interpolated"] + one["extrapolated"] for one in coverage)
    say(f"{device}: validating")
    validation = patiently(
        lambda: validate(
            models,
            device=device,
            lut=table.path,
            workspace=place,
            processes=DEFAULT_PROCESSES,
            naive=True,
            layers=True,
        )
    )
    return Measured(profiled, table, validation, others, predicted)


def _estimates(device: str, models: Sequence[str], place: Workspace, method: LatencyMethod) -> dict[str, float]:
    """What another estimator makes of the same samples; networks that it cannot tell are left out."""
    try:
        table = build_lut(device, workspace=place, method=method)
    except HarnessError as error:
        say(f"{device}: no table by {method}: {error}")
        return {}
    found = estimate(models, lut=table.path, workspace=place)
    return {one.name: one.latency_s for one in found if one.latency_s is not None}


def patiently(work: Callable[[], Result]) -> Result:
    """Does work on a device, and again after a while where somebody else uses it; raises DeviceBusy in the end."""
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except DeviceBusy as error:
            say(f"waiting: {error.what}")
            time.sleep(WAIT_S)
    return work()


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


def holds_at_90(network: NetworkValidation) -> bool:
    """Whether the 90 % interval holds the measurement: the 95 % interval of a normal error, scaled."""
    low_s, high_s = network.interval_s
    scale = NORMAL_90 / Z_95
    below_s, above_s = scale * (network.estimated_s - low_s), scale * (high_s - network.estimated_s)
    return network.estimated_s - below_s <= network.measured_s <= network.estimated_s + above_s


def p_of_90(held: int, count: int) -> float:
    """Two-sided p of an exact binomial test against intervals that hold in 90 %."""
    return float(binomtest(held, count, LEVEL).pvalue)


@dataclass(frozen=True)
class Errors:
    """Summary of relative errors."""

    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of absolute errors."""
        return statistics.median(map(abs, self.errors))

    @property
    def mean(self) -> float:
        """Of absolute errors."""
        return statistics.fmean(map(abs, self.errors))

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return max(map(abs, self.errors))

    @property
    def rmspe(self) -> float:
        """Root of the mean square."""
        return math.sqrt(statistics.fmean(error * error for error in self.errors))

    def within(self, limit: float) -> int:
        """How many are at most this far off."""
        return sum(abs(error) <= limit for error in self.errors)

    def of(self, limit: float) -> str:
        """`13 of 15`."""
        return f"{self.within(limit)} of {len(self.errors)}"

    def has_share(self, limit: float, wanted: int, among: int) -> bool:
        """Whether `wanted` of `among`, or that share of another number, are within the limit."""
        return self.within(limit) * among >= wanted * len(self.errors)
