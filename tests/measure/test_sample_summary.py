"""Summaries of samples: robust, with the number of samples they use."""

import math
import random
import statistics

import pytest
from hypothesis import given, strategies as st

from harness.measure.summary import summarise
from harness.samples import Sample

NS = st.integers(1_000, 10**10)


def samples(values: list[int], preempted: int = 0, factor: int = 10) -> list[Sample]:
    """Return clean samples with these device times, and disturbed ones that took `factor` times as long."""
    slow = [Sample(factor * values[0], None, factor * values[0], 3) for _ in range(preempted)]
    return slow + [Sample(value, None, value, 0) for value in values]


@given(st.lists(NS, min_size=2, max_size=60))
def test_the_location_is_the_median_and_the_interval_is_finite(values: list[int]) -> None:
    """Clean samples are summarised by their median, with a positive and finite error."""
    found = summarise(samples(values), "device")
    assert found.latency_s == pytest.approx(statistics.median(values) / 1e9)
    assert 0 < found.stderr_s < found.halfwidth_s < math.inf
    assert (found.samples, found.preempted, found.clock) == (len(values), 0, "device")


@given(st.lists(NS, min_size=4, max_size=40), st.integers(1, 4), st.integers(2, 1000))
def test_preempted_samples_are_left_out_while_enough_others_remain(values: list[int], share: int, factor: int) -> None:
    """Preempted samples do not change the result, and the summary counts them."""
    preempted = len(values) * share // 4
    found, clean = summarise(samples(values, preempted, factor), "device"), summarise(samples(values), "device")
    assert (found.latency_s, found.stderr_s, found.preempted) == (clean.latency_s, clean.stderr_s, preempted)


def test_preempted_samples_count_where_hardly_any_other_is_left() -> None:
    """Two clean samples of ten are not preferred to all ten."""
    found = summarise(samples([1000, 1001], preempted=8), "device")
    assert (found.samples, found.preempted) == (10, 0)


@pytest.mark.parametrize("taken", [2, 3, 4, 5])
def test_a_probe_measured_several_times_has_a_finite_error_whatever_was_preempted(taken: int) -> None:
    """However many of two or more samples were preempted, the summary has a finite error."""
    for preempted in range(taken + 1):
        found = summarise(samples([1000] * (taken - preempted) or [1], preempted)[:taken], "device")
        assert math.isfinite(found.stderr_s), f"{preempted} of {taken} samples preempted"


@given(st.lists(st.integers(990_000, 1_010_000), min_size=10, max_size=40), st.integers(10**8, 10**12))
def test_a_few_spikes_hardly_move_the_result(values: list[int], spike: int) -> None:
    """A tenth of unmarked outliers stays within the range of the others."""
    spoilt = values + [spike] * max(1, len(values) // 10)
    assert min(values) <= summarise(samples(spoilt), "device").latency_s * 1e9 <= max(values)


def test_the_interval_shrinks_with_samples() -> None:
    """Sixteen times the samples make the interval about a quarter as wide."""
    draw = random.Random(5)
    values = [round(draw.gauss(1e6, 1e4)) for _ in range(1600)]
    narrow, wide = summarise(samples(values), "device"), summarise(samples(values[:100]), "device")
    assert narrow.stderr_s * 3 < wide.stderr_s < narrow.stderr_s * 5.5


def test_the_interval_covers_the_truth_about_as_often_as_stated() -> None:
    """Of 600 normal series of 10, the 95 % interval misses the truth in less than a tenth."""
    draw, missed = random.Random(6), 0
    for _ in range(600):
        found = summarise(samples([round(draw.gauss(1e6, 1e4)) for _ in range(10)]), "device")
        missed += abs(found.latency_s - 1e-3) > found.halfwidth_s
    assert missed < 60


def test_one_sample_has_a_location_but_no_interval() -> None:
    """The error of a single sample is its own value, and its interval is infinite."""
    found = summarise([Sample(5000, None, 4000, 0)], "device")
    assert found.latency_s == pytest.approx(4e-6)
    assert found.stderr_s == found.latency_s
    assert math.isinf(found.halfwidth_s)


def test_clocks_are_kept_apart() -> None:
    """Each clock has its own times; one that was not recorded, or is unknown, is refused, as is an empty series."""
    taken = [Sample(5000, 3000, None, 0), Sample(5000, 3000, None, 0)]
    assert summarise(taken, "wall").latency_s == pytest.approx(5e-6)
    assert summarise(taken, "cpu").latency_s == pytest.approx(3e-6)
    with pytest.raises(ValueError, match="device"):
        summarise(taken, "device")
    with pytest.raises((ValueError, KeyError)):
        summarise(taken, "sundial")
    with pytest.raises(ValueError, match="no samples"):
        summarise([], "wall")
