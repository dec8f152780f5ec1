"""How far nights differ in which nothing changed: learnt from the probes, with what is usual where they are few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from harness.slowdowns.scatter import Deviations, Prior, scatter_of

USUAL = 1e-3
TOTAL_S = 2e-3
PRIOR = Prior(USUAL, 0.1, 0.1)
KNOWN = Prior(USUAL, 0.0, 0.1)
"""Of a device that is as devices are."""


def quiet(
    generator: np.random.Generator, scatter: float, probes: int, nights: int, sampled_s: float
) -> list[Deviations]:
    """Probes of a device whose nights scatter like that."""
    spread_s = np.hypot(scatter * TOTAL_S, sampled_s)
    errors = np.full(nights, sampled_s)
    return [Deviations(generator.normal(0.0, spread_s, nights), errors, TOTAL_S) for _ in range(probes)]


def p_value(probes: list[Deviations], prior: Prior) -> float:
    """Of the last night against the first, for one of the probes."""
    ((errors_s, freedom),) = scatter_of(probes, prior).errors(probes[:1], 1e-3)
    deviation_s = probes[0].deviation_s
    return float(2 * student.sf(abs(deviation_s[-1] - deviation_s[0]) / np.hypot(errors_s[-1], errors_s[0]), freedom))


@given(st.floats(-1.0, 2.5), st.integers(0, 1 << 30))
def test_what_many_probes_show_counts(factor: float, seed: int) -> None:
    """Whatever is usual, a hundred probes over three nights tell the scatter, and how well they do."""
    scatter = USUAL * 10**factor
    probes = quiet(np.random.default_rng(seed), scatter, 100, 3, 0.1 * scatter * TOTAL_S)
    found = scatter_of(probes, PRIOR)
    assert 0.7 * scatter < found.value < 1.4 * scatter
    ((_, freedom),) = found.errors(probes[:1], 1e-3)
    assert 50 < freedom < 1000


@given(st.integers(0, 1 << 30), st.floats(8.0, 1e4), st.sampled_from((-1.0, 1.0)))
def test_the_few_that_changed_have_no_say(seed: int, by: float, sign: float) -> None:
    """Two of ten probes that change from one night to the next, by however much, leave the scatter what it was."""
    probes = quiet(np.random.default_rng(seed), USUAL, 10, 3, 0.5 * USUAL * TOTAL_S)
    before = scatter_of(probes, PRIOR)
    for probe in probes[:2]:
        probe.deviation_s[-1] += sign * by * USUAL * TOTAL_S
    assert scatter_of(probes, PRIOR).value < 1.8 * before.value


@pytest.mark.parametrize(
    "probes", [[], [Deviations(np.zeros(1), np.full(1, 1e-12), TOTAL_S)]], ids=["none", "one night"]
)
def test_where_nothing_is_known_it_is_what_is_usual(probes: list[Deviations]) -> None:
    """Without two nights of a probe the usual scatter is all there is: Student's distribution with four degrees."""
    found = scatter_of(probes, KNOWN)
    ((errors_s, freedom),) = found.errors([Deviations(np.zeros(1), np.full(1, 1e-12), TOTAL_S)], 1e-3)
    assert errors_s[0] == pytest.approx(USUAL * TOTAL_S, rel=0.01)
    assert freedom == pytest.approx(4.0, rel=0.03)


@pytest.mark.parametrize(("probes", "sampled"), [(3, 0.3), (3, 3.0), (12, 1.0)])
def test_probabilities_are_kept(probes: int, sampled: float) -> None:
    """Of devices that scatter as devices do, few probes of two nights raise one false alarm in a hundred, not more."""
    generator = np.random.default_rng(7)
    trials, told = 500, 0
    for _ in range(trials):
        scatter = USUAL * (4.0 / generator.chisquare(4.0)) ** 0.5
        told += p_value(quiet(generator, scatter, probes, 2, sampled * USUAL * TOTAL_S), KNOWN) < 0.01
    assert told / trials < 0.02


@pytest.mark.parametrize("probes", [3, 12])
@pytest.mark.parametrize("times", [10.0, 30.0, 300.0])
def test_a_device_that_scatters_more_than_devices_do_is_believed(times: float, probes: int) -> None:
    """Where all layers scatter by a multiple of what is usual, that is scatter, and hardly ever a change of them."""
    generator = np.random.default_rng(3)
    trials, told = 100, 0
    for _ in range(trials):
        told += p_value(quiet(generator, times * USUAL, probes, 2, USUAL * TOTAL_S), PRIOR) < 1e-3
    assert told / trials < 0.03
