"""Networks are lengthened by interruptions that most short runs do not meet, within the error that is stated."""

import numpy as np
import pytest

from harness.array_types import Floats
from harness.measure.noise.interruptions import interruptions_of, lengthening

PART_S = 50e-6
ADDED = 0.04


def runs_s(seed: int, *, interrupted: bool) -> Floats:
    """Return successive runs of 50 µs, one in twenty of which is interrupted for 40 µs."""
    random = np.random.default_rng(seed)
    quiet_s = PART_S * np.exp(random.normal(0, 0.005, 40_000))
    return quiet_s + interrupted * ADDED * PART_S * 20 * (random.random(len(quiet_s)) < 0.05)


@pytest.mark.parametrize("length", [1, 4, 80, 400])
def test_a_network_takes_as_long_as_its_median_run(length: int) -> None:
    """Networks of 50 µs to 20 ms are lengthened as the medians of so many runs are, within a 95 % interval."""
    runs = runs_s(length, interrupted=True)
    usual_s = float(np.median(runs))
    whole_s = float(np.median(runs.reshape(-1, length).sum(axis=1)))
    factor, error = lengthening(usual_s * length, interruptions_of(runs, np.full(len(runs), usual_s)))
    assert factor == pytest.approx(whole_s / (usual_s * length), abs=2 * error + 1e-3)
    assert 0 < error < factor - 1 < ADDED


def test_a_machine_without_interruptions_has_none() -> None:
    """Runs that only scatter, and campaigns that are too short to show interruptions, lengthen nothing."""
    runs = runs_s(0, interrupted=False)
    assert interruptions_of(runs, np.full(len(runs), np.median(runs))) < 2e-4
    assert interruptions_of(runs[:50] * 2, runs[:50]) == 0.0
    assert lengthening(1.0, 0.0) == (1.0, 0.0)
