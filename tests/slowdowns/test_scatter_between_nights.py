"""Scatter between nights without changes: estimated from the probes, with a prior for when they are few."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import t as student

from harness.slowdowns.night_scatter import Deviations, Prior, scatter_of

USUAL = 1e-3
TOTAL_S = 2e-3
PRIOR = Prior(USUAL, 0.1)
KNOWN = Prior(USUAL, 0.0)
"""The prior of an ordinary device."""


def quiet(
    generator: np.random.Generator, scatter: float, probes: int, nights: int, sampled_s: float
) -> list[Deviations]:
    """Return probes of a device with this scatter between nights."""
    spread_s = np.hypot(scatter * TOTAL_S, sampled_s)
    errors = np.full(nights, sampled_s)
    return [Deviations(generator.normal(0.0, spread_s, nights), errors, TOTAL_S) for _ in range(probes)]


def p_value(probes: list[Deviations], prior: Prior) -> float:
    """Return the p-value of a probe's last night against its first."""
    ((errors_s, freedom),) = scatter_of(probes, prior).errors(probes[:1], 1e-3)
    deviation_s = probes[0].deviation_s
    return float(2 * student.sf(abs(deviation_s[-1] - deviation_s[0]) / np.hypot(errors_s[-1], errors_s[0]), freedom))


@given(st.floats(-1.0, 2.5), st.integers(0, 1 << 30))
def test_what_many_probes_show_counts(factor: float, seed: int) -> None:
    """For any prior, a hundred probes over three nights determine the scatter and its degrees of freedom."""
    scatter = USUAL * 10**factor
    probes = quiet(np.random.default_rng(seed), scatter, 100, 3, 0.1 * scatter * TOTAL_S)
    found = scatter_of(probes, PRIOR)
    assert 0.7 * scatter < found.value < 1.4 * scatter
    ((_, freedom),) = found.errors(probes[:1], 1e-3)
    assert 50 < freedom < 1000


@given(st.integers(0, 1 << 30), st.floats(8.0, 1e4), st.sampled_from((-1.0, 1.0)))
def test_the_few_that_changed_have_no_say(seed: int, by: float, sign: float) -> None:
    """Two of ten probes that really change, by any amount, leave the scatter unchanged."""
    probes = quiet(np.random.default_rng(seed), USUAL, 10, 3, 0.5 * USUAL * TOTAL_S)
    before = scatter_of(probes, PRIOR)
    for probe in probes[:2]:
        probe.deviation_s[-1] += sign * by * USUAL * TOTAL_S
    assert scatter_of(probes, PRIOR).value < 1.8 * before.value


@pytest.mark.parametrize(
    "probes", [[], [Deviations(np.zeros(1), np.full(1, 1e-12), TOTAL_S)]], ids=["none", "one night"]
)
def test_where_nothing_is_known_it_is_what_is_usual(probes: list[Deviations]) -> None:
    """Without two nights of a probe the prior alone counts: Student's distribution with four degrees of freedom."""
    found = scatter_of(probes, KNOWN)
    ((errors_s, freedom),) = found.errors([Deviations(np.zeros(1), np.full(1, 1e-12), TOTAL_S)], 1e-3)
    assert errors_s[0] == pytest.approx(USUAL * TOTAL_S, rel=0.01)
    assert freedom == pytest.approx(4.0, rel=0.03)


@pytest.mark.parametrize(("probes", "sampled"), [(3, 0.3), (12, 1.0)])
def test_probabilities_are_kept(probes: int, sampled: float) -> None:
    """On ordinary devices, few probes over two nights raise at most one false alarm in a hundred."""
    generator = np.random.default_rng(7)
    trials, alarms = 500, 0
    for _ in range(trials):
        scatter = USUAL * (4.0 / generator.chisquare(4.0)) ** 0.5
        alarms += p_value(quiet(generator, scatter, probes, 2, sampled * USUAL * TOTAL_S), KNOWN) < 0.01
    assert alarms / trials < 0.02


@pytest.mark.parametrize("probes", [3, 12])
@pytest.mark.parametrize("times", [10.0, 30.0, 300.0])
def test_a_device_that_scatters_more_than_devices_do_is_believed(times: float, probes: int) -> None:
    """If all layers scatter by a multiple of the usual, that hardly ever counts as a change."""
    generator = np.random.default_rng(3)
    trials, alarms = 100, 0
    for _ in range(trials):
        alarms += p_value(quiet(generator, times * USUAL, probes, 2, USUAL * TOTAL_S), PRIOR) < 1e-3
    assert alarms / trials < 0.03
