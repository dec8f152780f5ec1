"""Levels of nights: one level without changes, divided where a change happened."""

import numpy as np
from hypothesis import given, strategies as st

from harness.slowdowns.detection_power import runs_needed, smallest_change_s
from harness.slowdowns.verdicts import levels

LEVEL = 1e-4
MANY = 1e6


def nights_of(values: list[float]) -> list[tuple[int, ...]]:
    """Return the nights of each level, by their indices."""
    return [one.nights for one in levels(values, [1.0] * len(values), LEVEL, MANY)]


def test_histories_without_change_stay_whole() -> None:
    """Of 2,000 histories of noise, no more are divided than the level allows, within a wide margin."""
    random = np.random.default_rng(5)
    divided = sum(len(levels(random.standard_normal(12), [1.0] * 12, 0.01, MANY)) > 1 for _ in range(2000))
    assert divided <= 20


@given(st.integers(1, 8), st.integers(1, 8), st.floats(20, 100), st.booleans())
def test_a_step_divides_where_it_is(before: int, after: int, height: float, down: bool) -> None:
    """The division is at the step, up or down, for any number of nights on either side."""
    to = -height if down else height
    nights = tuple(range(before + after))
    assert nights_of([0.0] * before + [to] * after) == [nights[:before], nights[before:]]


@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 6), st.floats(20, 100))
def test_a_level_that_comes_back_is_one(before: int, slow: int, after: int, height: float) -> None:
    """Nights before and after slow nights share one level, which is the current one."""
    found = nights_of([0.0] * before + [height] * slow + [0.0] * after)
    count = before + slow + after
    assert found == [tuple(range(before, before + slow)), (*range(before), *range(before + slow, count))]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.floats(-1e3, 1e3), st.floats(0.01, 100))
def test_levels_have_no_scale(values: list[float], offset: float, scale: float) -> None:
    """A common offset and a change of unit leave the division unchanged."""
    moved = [scale * (value + offset) for value in values]
    errors = [scale] * len(values)
    assert [one.nights for one in levels(moved, errors, LEVEL, MANY)] == nights_of(values)


@given(st.floats(1e-9, 1e-3), st.floats(1e-9, 1e-3), st.integers(1, 200))
def test_runs_and_changes_are_inverse(change_s: float, spread_s: float, subjects: int) -> None:
    """The runs that a change needs detect that change; four times as many detect half of it."""
    runs = runs_needed(change_s, spread_s, subjects)
    assert np.isclose(smallest_change_s(spread_s, runs, subjects), change_s)
    assert np.isclose(smallest_change_s(spread_s, 4 * runs, subjects), change_s / 2)
