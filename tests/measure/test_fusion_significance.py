"""The test for fusion on simulated measurements: few false answers, and clear ones where an operator disappears."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.measure.fusion.probed_fusion import APART
from harness.measure.fusion.significance import ShapeSaving, fit_verdict, holm, shape_saving
from harness.measure.summary import Measurement, undisturbed
from harness.network.fusion.fusion_rules import SIGNIFICANCE
from harness.samples import Sample

PROBES = ("first", "second", "both", "between", "first_inputs", "second_inputs")
SHAPES = 4
ROUNDS = 10


def measured(true_s: float, noise: float, random: np.random.Generator) -> Measurement:
    """Return the summary of ten cold runs of a probe, with relative noise."""
    taken_s = true_s * (1 + noise * random.standard_normal(ROUNDS))
    return undisturbed([Sample(1, None, round(value * 1e9), 0) for value in taken_s], "device")


def savings(saved: float, noise: float, random: np.random.Generator) -> list[ShapeSaving]:
    """Return shapes in which the second operator takes a tenth to a half of the first, and saves the share `saved`."""
    found = []
    for _ in range(SHAPES):
        overhead_s, first_s = random.uniform(2e-5, 1e-4), random.uniform(1e-4, 1e-3)
        second_s = first_s * random.uniform(0.1, 0.5)
        both_s = first_s + (1 - saved) * second_s
        true_s = (first_s, second_s, both_s, 0.0, 0.0, 0.0)
        found.append(shape_saving(*(measured(overhead_s + one, noise, random) for one in true_s)))
    return found


@pytest.mark.parametrize("noise", [0.002, 0.02, 0.1, 0.3])
def test_operators_whose_times_add_up_are_rarely_called_fused(noise: float) -> None:
    """Of 200 pairs that save nothing, at most one in a hundred is called fused at that level."""
    random = np.random.default_rng(1)
    called = sum(fit_verdict(savings(0.0, noise, random)).p_fused <= SIGNIFICANCE for _ in range(200))
    assert called <= 2


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_at_the_boundary_neither_answer_is_given_too_often(noise: float) -> None:
    """If exactly half is saved, each answer occurs about as often in 200 cases as its level states.

    Errors estimated from ten samples have heavier tails than the normal distribution, and savings that count for no
    more than all of the operator lean towards `apart`, hence 8 and 2 in place of 2 and 0.2.
    """
    random = np.random.default_rng(2)
    verdicts = [fit_verdict(savings(0.5, noise, random)) for _ in range(200)]
    assert sum(verdict.p_fused <= SIGNIFICANCE for verdict in verdicts) <= 8
    assert sum(verdict.p_apart <= APART for verdict in verdicts) <= 2


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.02])
def test_an_operator_that_vanishes_is_found(noise: float) -> None:
    """At up to two per cent of noise, 19 of 20 fused pairs are found, at a level corrected for a hundred patterns."""
    random = np.random.default_rng(3)
    verdicts = [fit_verdict(savings(1.0, noise, random)) for _ in range(100)]
    assert sum(verdict.p_fused <= SIGNIFICANCE / 100 for verdict in verdicts) >= 95
    assert 0.9 <= np.median([verdict.share for verdict in verdicts]) <= 1


@pytest.mark.parametrize("saved", [0.0, -1.0])
def test_operators_that_save_nothing_are_found_apart(saved: float) -> None:
    """At two per cent of noise, 19 of 20 pairs that save nothing are found to be apart."""
    random = np.random.default_rng(4)
    assert sum(fit_verdict(savings(saved, 0.02, random)).p_apart <= APART for _ in range(100)) >= 95


def test_one_shape_with_a_fake_saving_does_not_decide() -> None:
    """Three shapes that save nothing and one that saves twice the operator: no significant fusion."""
    fair = [ShapeSaving(0.0, 10e-6, 0.2e-6, 0.2e-6)] * 3
    verdict = fit_verdict([*fair, ShapeSaving(20e-6, 10e-6, 0.2e-6, 0.2e-6)])
    assert (verdict.matched, verdict.fused) == (4, 1)
    assert verdict.p_fused > SIGNIFICANCE


def test_shapes_without_measurable_time_decide_nothing() -> None:
    """If the smaller operator takes no time, both answers stay open."""
    verdict = fit_verdict([ShapeSaving(1e-6, 0.0, 1e-6, 1e-6)] * 3)
    assert (verdict.p_fused, verdict.p_apart) == (1.0, 1.0)


def test_a_saving_by_hand() -> None:
    """By hand: 130 + 60 - 140 - 40 = 10 us, of 20 us that the second takes alone (60 - 40)."""
    values = dict(zip(PROBES, (130e-6, 60e-6, 140e-6, 40e-6, 40e-6, 40e-6), strict=True))
    saving = shape_saving(*(Measurement(value, 1e-8, 2e-8, 10, 0, "cpu") for value in values.values()))
    assert saving.saving_s == pytest.approx(10e-6)
    assert saving.own_s == pytest.approx(20e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_never_lowers_nor_swaps_p_values(p_values: list[float]) -> None:
    """Corrected values are between the raw ones and Bonferroni's, and in the same order."""
    corrected = holm(p_values)
    assert all(raw <= one <= min(1, raw * len(p_values)) for raw, one in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    assert all(corrected[one] <= corrected[other] for one, other in itertools.pairwise(order))


def test_holm_by_hand() -> None:
    """0.01 * 3, 0.02 * 2, and 0.04 * 1, which is no less than the one before."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx((0.04, 0.03, 0.04))
