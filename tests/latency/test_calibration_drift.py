"""Drift that all samples of a calibration share: removed where it is visible, in the intervals where it is not."""

import math
from functools import cache

import numpy as np
import pytest

from harness.latency.drift import SLOW_DRIFT, level_error, level_factors, levelled
from harness.latency.overhead import COLUMNS, MODEL_NOISE, Overhead, row_of
from harness.latency.overhead_fit import fit_overhead, levelled_nulls
from harness.measure.summary import Measurement
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.overhead_terms import OverheadTerms
from harness.samples import Sample

TRUTH = {
    "runs": 7e-5,
    "input_bytes": 1e-9,
    "output_bytes": 7e-10,
    "loaded_bytes": 6e-11,
    "stored_bytes": 6e-11,
    "stacks": 1e-6,
    "stacked_rows": 8e-7,
    "last_bytes": 6e-10,
    "accesses": 1e-7,
}
A_B_C = ("input_bytes", "output_bytes", "runs")


@cache
def terms() -> dict[str, OverheadTerms]:
    """Return the calibration probes of a device without bytes of its own."""
    return {probe.id: probe.terms for probe in calibration_probes(AuxiliaryKind.ROWPOOL, 0)}


@cache
def seconds(one: OverheadTerms) -> float:
    """Return the seconds of an additive device."""
    return sum(TRUTH.get(name, 0.0) * amount for name, amount in zip(COLUMNS, row_of(one), strict=True))


def calibrated(seed: int, drift: float, rounds: int, slow_drift: float, apart: float = 2.3) -> Overhead:
    """Return the overhead of a device with sinusoidal speed, with rounds at random, on average `apart` periods."""
    draw = np.random.default_rng(seed)
    phases = draw.uniform(0, 2 * math.pi) + 2 * math.pi * np.cumsum(draw.exponential(apart, rounds))
    samples = {
        probe: [
            Sample(1, None, round(1e9 * seconds(one) * factor * float(np.exp(0.003 * draw.standard_normal()))), 0)
            for factor in 1 + drift * np.sin(phases)
        ]
        for probe, one in terms().items()
    }
    nulls, shared = levelled_nulls(samples, terms(), "device", slow_drift)
    return fit_overhead(nulls, drift=shared)


def held(drift: float, draws: int, rounds: int, slow_drift: float, apart: float = 2.3) -> float:
    """Return the share of 95 % intervals of a, b and c that hold the truth."""
    found = [calibrated(seed, drift, rounds, slow_drift, apart) for seed in range(draws)]
    inside = [
        one.coefficients[name].low <= TRUTH[name] <= one.coefficients[name].high for one in found for name in A_B_C
    ]
    return sum(inside) / len(inside)


def test_intervals_hold_where_rounds_lie_at_random_over_the_drift() -> None:
    """A calibration that spans the drift has intervals that hold, whatever the size of the drift.

    The three intervals of a draw share the drift: with 95 % true coverage, three or more of 12 draws fail once in 50.
    """
    assert held(0.01, 12, 8, slow_drift=0.0) >= 0.8
    assert held(0.03, 12, 8, slow_drift=0.0) >= 0.8


def test_a_short_calibration_is_off_by_drift_that_no_scatter_shows() -> None:
    """Consecutive rounds share one factor: intervals fail without the allowance for slow drift, and widen with it."""
    unaware = held(0.01, 8, 8, slow_drift=0.0, apart=1e-6)
    assert unaware < 0.6
    assert held(0.01, 8, 8, slow_drift=SLOW_DRIFT, apart=1e-6) > unaware
    assert calibrated(1, 0.0, 8, slow_drift=SLOW_DRIFT).c.stderr >= 0.9 * SLOW_DRIFT * TRUTH["runs"]


def test_levelled_samples_are_those_of_a_steady_device() -> None:
    """Levelling removes the factor of each round and keeps the mean of the rounds."""
    slow = (1.0, 1.1, 0.9, 1.0)
    sizes = {"x": 10_000, "y": 500_000, "z": 70_000}
    samples = {name: [Sample(1, None, round(size * factor), 0) for factor in slow] for name, size in sizes.items()}
    factors = level_factors(samples, "device")
    assert factors == pytest.approx(slow, rel=1e-6)
    for taken, size in ((samples["x"], 10_000), (samples["y"], 500_000)):
        assert [one.device_ns for one in levelled(taken, factors)] == pytest.approx([size] * 4, rel=1e-3)
    assert level_error(factors) > level_error(factors * 4) > 0
    assert level_error((1.0,)) == 0.0


def test_an_additive_device_passes_the_residual_test_and_another_does_not() -> None:
    """Null probes off the fit by more than their errors contradict the additive model; one disturbed probe does not."""
    draw = np.random.default_rng(5)

    def nulls(model_error: float) -> list[tuple[OverheadTerms, Measurement]]:
        found = []
        for one in terms().values():
            off = math.exp(0.001 * draw.standard_normal() + model_error * draw.standard_normal())
            value = seconds(one) * off
            found.append((one, Measurement(value, 0.001 * value, 0.0024 * value, 8, 0, "device")))
        return found

    additive, another = fit_overhead(nulls(0.0)), fit_overhead(nulls(0.05))
    assert not additive.contradicts_model
    assert additive.misfit < MODEL_NOISE
    assert another.contradicts_model
    assert another.misfit == pytest.approx(0.05, rel=0.5)
    disturbed = nulls(0.0)
    disturbed[3] = (disturbed[3][0], Measurement(1e-3, 1e-6, 2e-6, 8, 0, "device"))
    assert not fit_overhead(disturbed).contradicts_model
