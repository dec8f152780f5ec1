"""The order of jobs and what fits into a budget: pure functions."""

import itertools
import math

from hypothesis import given, strategies as st

from harness.nightly.due_jobs import Staleness, by_staleness, within_budget

STALENESS = st.builds(
    Staleness,
    nights=st.none() | st.integers(0, 400),
    uncertainty=st.floats(0, 1),
    weight=st.sampled_from([0.5, 1.0, 2.0]),
)
COSTS = st.none() | st.floats(0.1, 100)


@given(st.lists(st.tuples(st.integers(), STALENESS), max_size=12))
def test_order_is_total_and_stable(items: list[tuple[int, Staleness]]) -> None:
    """The order is a permutation by falling urgency that keeps the given order of equals."""
    numbered = list(enumerate(items))
    order = by_staleness(numbered, lambda one: one[1][1])
    assert sorted(order) == sorted(numbered)
    for before, after in itertools.pairwise(order):
        first, second = before[1][1].urgency, after[1][1].urgency
        assert first > second or (first == second and before[0] < after[0])


@given(st.lists(STALENESS, min_size=1, max_size=8), STALENESS, st.integers(1, 50), st.floats(0, 1))
def test_order_is_monotone(others: list[Staleness], one: Staleness, nights: int, more: float) -> None:
    """An older set, or an equally old and more uncertain one, never moves back."""

    def position(item: Staleness) -> int:
        return by_staleness([item, *others], lambda each: each).index(item)

    if one.nights is not None:
        assert position(Staleness(one.nights + nights, one.uncertainty, one.weight)) <= position(one)
        assert position(Staleness(None, one.uncertainty, one.weight)) <= position(one)
    wider = min(1.0, one.uncertainty + more)
    assert position(Staleness(one.nights, wider, one.weight)) <= position(one)


def test_never_measured_comes_first() -> None:
    """A set that was never measured comes before the oldest; of equal age the most uncertain comes first."""
    new, old, wide, narrow = Staleness(None, 0.0), Staleness(300), Staleness(1, 0.4), Staleness(1, 0.1)
    assert by_staleness([narrow, wide, old, new], lambda one: one) == [new, old, wide, narrow]


@given(st.lists(COSTS, max_size=10), st.floats(0.1, 200), st.floats(0, 200))
def test_budget_is_kept(costs: list[float | None], budget_s: float, spent_s: float) -> None:
    """Started jobs fit into the rest of the budget, except the night's first; none follows one of unknown cost."""
    numbered = list(enumerate(costs))
    now = within_budget(numbered, lambda one: one[1], budget_s, spent_s)
    assert now == [one for one in numbered if one in now]
    assert all(cost is not None for _, cost in now[:-1])
    known = [cost for _, cost in now if cost is not None]
    first_alone = spent_s == 0 and len(known) == 1
    assert spent_s + sum(known) <= budget_s * (1 + 1e-9) or not known or first_alone
    if costs and spent_s == 0:
        assert now and now[0][0] == 0


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.sampled_from([0.5, 1.0, 2.0])), min_size=1, max_size=6),
    st.floats(0.1, 40),
)
def test_nothing_starves(sets: list[tuple[float, float]], budget_s: float) -> None:
    """For any budget, every set is measured again within a number of nights bounded by its weight."""
    last: dict[int, int | None] = dict.fromkeys(range(len(sets)))
    weights = [weight for _, weight in sets]
    bound = math.ceil(len(sets) * max(weights) / min(weights)) + len(sets)
    waited = dict.fromkeys(range(len(sets)), 0)
    for night in range(1, 4 * bound):
        ages = {one: Staleness(None if at is None else night - at, 0.1, sets[one][1]) for one, at in last.items()}
        order = by_staleness(list(ages), ages.__getitem__)
        now = within_budget(order, lambda one: sets[one][0] if last[one] is not None else None, budget_s, 0.0)
        for one in last:
            waited[one] = 0 if one in now else waited[one] + 1
        last.update(dict.fromkeys(now, night))
        assert max(waited.values()) <= bound
