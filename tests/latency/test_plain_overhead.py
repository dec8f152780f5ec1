"""The literal regression of S1.4: three coefficients by least squares, and nothing else."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.linear_model import LinearRegression

from harness.errors import IllConditionedDesign
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.plain_overhead import fit_plain_overhead, is_plain_null
from harness.measure.summary import Measurement
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.overhead_terms import OverheadTerms

TRUTH = np.array([7e-5, 1e-9, 8e-10])
"""c, a and b of a device whose auxiliary layers take no time."""
SEEDS = st.integers(0, 2**32 - 1)
KINDS = st.sampled_from(list(AuxiliaryKind))


@cache
def terms_of(kind: AuxiliaryKind) -> tuple[OverheadTerms, ...]:
    """Return the terms of the real calibration probes."""
    return tuple(probe.terms for probe in calibration_probes(kind, 600_000))


def measured(terms: OverheadTerms, seconds: float) -> tuple[OverheadTerms, Measurement]:
    """Return a null probe that took so long."""
    return terms, Measurement(seconds, seconds / 100, seconds / 50, 9, 0, "device")


def clean_s(terms: OverheadTerms) -> float:
    """Return the true overhead."""
    return float(TRUTH @ [1.0, terms.input_bytes, terms.output_bytes])


@settings(max_examples=30)
@given(KINDS, SEEDS)
def test_the_three_numbers_are_those_of_ordinary_least_squares(kind: AuxiliaryKind, seed: int) -> None:
    """a, b and c are those of scikit-learn and of numpy, on any totals of probes with one auxiliary layer."""
    draw = np.random.default_rng(seed)
    nulls = [measured(terms, clean_s(terms) * draw.lognormal(0, 0.3)) for terms in terms_of(kind)]
    found = fit_plain_overhead(nulls)
    plain = [(one, total.latency_s) for one, total in nulls if is_plain_null(one)]
    sizes = np.array([(one.input_bytes, one.output_bytes) for one, _ in plain]) / 1e6
    totals = np.array([seconds for _, seconds in plain])
    known = LinearRegression().fit(sizes, totals)
    wanted = [known.intercept_, *(known.coef_ / 1e6)]
    again = np.linalg.lstsq(np.column_stack((np.ones(len(sizes)), sizes)), totals)[0]
    assert [found.c.value, found.a.value, found.b.value] == pytest.approx(wanted, rel=1e-6)
    assert [found.c.value, found.a.value * 1e6, found.b.value * 1e6] == pytest.approx(again, rel=1e-6)
    assert found.r2 == pytest.approx(known.score(sizes, totals))
    assert (found.probes, found.model) == (len(plain), "plain")


@settings(max_examples=20)
@given(KINDS, SEEDS)
def test_other_null_probes_and_terms_have_no_part_in_it(kind: AuxiliaryKind, seed: int) -> None:
    """Stacks, slices and views change nothing, and no term but a, b and c is subtracted from a layer."""
    draw = np.random.default_rng(seed)
    nulls = [measured(terms, clean_s(terms)) for terms in terms_of(kind)]
    others = [(one, total if is_plain_null(one) else measured(one, draw.uniform(1e-6, 1.0))[1]) for one, total in nulls]
    found = fit_plain_overhead(nulls)
    assert fit_plain_overhead(others) == found
    assert any(not is_plain_null(one) for one, _ in nulls)
    for terms in terms_of(kind):
        assert found.of(row_of(terms))[0] == pytest.approx(clean_s(terms), rel=1e-9)
    assert {name for name in COLUMNS if found.coefficients[name].value} == {"runs", "input_bytes", "output_bytes"}


@pytest.mark.parametrize("kind", [AuxiliaryKind.AVGPOOL, AuxiliaryKind.ROWPOOL])
def test_intervals_hold_although_long_totals_scatter_more(kind: AuxiliaryKind) -> None:
    """With 1 % of noise, which is larger for longer totals, 95 % intervals hold in 88 to 99.5 % of 120 draws."""
    draw, held = np.random.default_rng(7), 0
    for _ in range(120):
        nulls = [measured(terms, clean_s(terms) * draw.lognormal(0, 0.01)) for terms in terms_of(kind)]
        found = fit_plain_overhead(nulls, drift=0.0)
        held += sum(one.low <= true <= one.high for one, true in zip((found.c, found.a, found.b), TRUTH, strict=True))
    assert 0.88 <= held / 360 <= 0.995


def test_sizes_that_vary_together_are_refused() -> None:
    """Too few probes, and outputs that are as large as their inputs, separate no coefficients."""
    some = [OverheadTerms(size, 64, 1, size, 64) for size in (100, 2000, 30_000)]
    together = [OverheadTerms(size, size, 1, size, size) for size in (100, 2000, 30_000, 400_000, 5_000_000)]
    for terms in (some, together):
        with pytest.raises(IllConditionedDesign):
            fit_plain_overhead([measured(one, clean_s(one)) for one in terms])
