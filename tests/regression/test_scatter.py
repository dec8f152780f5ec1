"""How far nights differ in which nothing changed: learnt from the probes, with what is usual where they are few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from harness.regression.scatter import USUAL_FREEDOM, Moved, scatter_of

USUAL = 1e-3
TOTAL_S = 2e-3


def quiet(generator: np.random.Generator, scatter: float, probes: int, nights: int, sampled_s: float) -> list[Moved]:
    """Probes of a device whose nights scatter like that."""
    spread_s = np.hypot(scatter * TOTAL_S, sampled_s)
    errors = np.full(nights, sampled_s)
    return [Moved(generator.normal(0.0, spread_s, nights), errors, TOTAL_S) for _ in range(probes)]


@given(st.floats(-0.5, 2.0), st.integers(0, 1 << 30))
def test_what_many_probes_show_counts(factor: float, seed: int) -> None:
    """Whatever is usual, a hundred probes over three nights tell the scatter, and how well they do."""
    scatter = USUAL * 10**factor
    found = scatter_of(quiet(np.random.default_rng(seed), scatter, 100, 3, 0.1 * scatter * TOTAL_S), USUAL)
    assert 0.7 * scatter < found.value < 1.4 * scatter
    assert 50 < found.freedom < 500


@given(st.integers(0, 1 << 30), st.floats(8.0, 1e4), st.sampled_from((-1.0, 1.0)))
def test_the_few_that_changed_have_no_say(seed: int, by: float, sign: float) -> None:
    """Two of ten probes that change from one night to the next, by however much, leave the scatter what it was."""
    probes = quiet(np.random.default_rng(seed), USUAL, 10, 3, 0.5 * USUAL * TOTAL_S)
    before = scatter_of(probes, USUAL)
    for probe in probes[:2]:
        probe.moved_s[-1] += sign * by * USUAL * TOTAL_S
    assert scatter_of(probes, USUAL).value < 1.8 * before.value


@pytest.mark.parametrize("probes", [[], [Moved(np.zeros(1), np.ones(1), TOTAL_S)]], ids=["none", "one night"])
def test_where_nothing_is_known_it_is_what_is_usual(probes: list[Moved]) -> None:
    """Without two nights of a probe the usual scatter is all there is, and counts as little as it is known."""
    found = scatter_of(probes, USUAL)
    assert found.value == pytest.approx(USUAL, rel=0.01)
    assert found.freedom == pytest.approx(USUAL_FREEDOM, rel=0.05)


@pytest.mark.parametrize(("probes", "sampled"), [(3, 0.3), (3, 3.0), (12, 1.0)])
def test_probabilities_are_kept(probes: int, sampled: float) -> None:
    """Of devices that scatter as devices do, few probes of two nights raise one false alarm in a hundred, not more."""
    generator = np.random.default_rng(7)
    trials, told = 1000, 0
    for _ in range(trials):
        scatter = USUAL * (USUAL_FREEDOM / generator.chisquare(USUAL_FREEDOM)) ** 0.5
        seen = quiet(generator, scatter, probes, 2, sampled * USUAL * TOTAL_S)
        found = scatter_of(seen, USUAL)
        errors_s, freedom = found.errors(seen[0].stderr_s, TOTAL_S)
        moved = seen[0].moved_s
        told += 2 * student.sf(abs(moved[1] - moved[0]) / np.hypot(*errors_s), freedom) < 0.01
    assert told / trials < 0.02
