"""Windows of positions, and tables of sums and of pairs, on invented terms."""

import itertools

import numpy as np
from hypothesis import given, settings, strategies as st

from harness.architecture_search.layer_terms import Terms
from harness.architecture_search.pair_tables import PairTables
from harness.architecture_search.position_tables import Candidate, PositionTable, WindowSearch, covering
from harness.architecture_search.sum_tables import SumTables

SOURCES = 6


@st.composite
def position_lists(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[PositionTable, ...]]:
    """Draw sizes of positions, and a table with a window of up to three positions for each."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    tables = []
    for at in range(len(sizes)):
        window = max(0, at - draw(st.integers(0, 1))), min(len(sizes), at + 1 + draw(st.integers(0, 1)))
        terms = tuple(_terms(random) for _ in range(draw(st.integers(1, 5))))
        tables.append(PositionTable(window, random.integers(0, len(terms), sizes[slice(*window)]), terms))
    return sizes, tuple(tables)


def _terms(random: np.random.Generator) -> Terms:
    counts = random.integers(0, 3, SOURCES)
    held = tuple((at, float(count)) for at, count in enumerate(counts.tolist()) if count)
    return Terms(float(random.normal()), float(random.random()), (1, 0, 0, 0), held)


def _of(tables: tuple[PositionTable, ...], candidate: Candidate) -> list[Terms]:
    return [one.terms[int(one.kinds[candidate[slice(*one.window)]])] for one in tables]


@given(position_lists(), st.integers(0, 1 << 30))
@settings(max_examples=60)
def test_lookups_are_the_sums_and_the_quadratic_form(
    drawn: tuple[tuple[int, ...], tuple[PositionTable, ...]], seed: int
) -> None:
    """Tables by blocks add up what each position has, and tables by pairs give `x Q x` of their counts."""
    sizes, tables = drawn
    random = np.random.default_rng(seed)
    factors = random.normal(size=(SOURCES, SOURCES))
    covariance = factors @ factors.T
    rows = [tuple(int(random.integers(size)) for size in sizes) for _ in range(20)]
    choices = np.array(rows, np.uint8).T.copy()
    sums = SumTables.of(tables, sizes, lambda one: one.remainder_s).sums(choices)
    variances = PairTables.of(tables, sizes, covariance).sums(choices)
    for at, row in enumerate(rows):
        terms = _of(tables, row)
        counts = np.zeros(SOURCES)
        for one in terms:
            counts[[source for source, _ in one.counts]] += [count for _, count in one.counts]
        expected = counts @ covariance @ counts + sum(one.spread_s2 for one in terms)
        assert np.isclose(sums[at], sum(one.remainder_s for one in terms), rtol=1e-12, atol=1e-12)
        assert np.isclose(variances[at], expected, rtol=1e-11)


@given(st.lists(st.integers(1, 4), min_size=4, max_size=6), st.integers(0, 3), st.integers(0, 1 << 20))
@settings(max_examples=25)
def test_a_window_reaches_as_far_as_the_choices_that_matter(sizes: list[int], reach: int, seed: int) -> None:
    """The tables reproduce terms that depend on a choice some positions away, with no window wider than that."""

    def terms_of(candidate: Candidate) -> tuple[Terms, ...]:
        return tuple(
            Terms(choice + 10.0 * candidate[min(at + reach, len(sizes) - 1)], 0.0, (1, 0, 0, 0), ())
            for at, choice in enumerate(candidate)
        )

    tables = WindowSearch(sizes, terms_of, seed=seed).tables()
    for at, table in enumerate(tables):
        assert table.window[0] == at
        assert table.window[1] <= max(at + 1, min(at + reach, len(sizes) - 1) + 1)
    for candidate in itertools.islice(itertools.product(*map(range, sizes)), 0, 4096, 7):
        assert tuple(_of(tables, candidate)) == terms_of(candidate)


def test_a_joint_coupling_widens_the_window() -> None:
    """Terms that change only for some pairs of choices are found by random candidates, and the window grows."""

    def terms_of(candidate: Candidate) -> tuple[Terms, ...]:
        return tuple(
            Terms(float(choice), float(min(candidate[at : at + 2]) > 1), (1, 0, 0, 0), ())
            for at, choice in enumerate(candidate)
        )

    tables = WindowSearch((4,) * 5, terms_of).tables()
    for candidate in itertools.product(range(4), repeat=5):
        assert tuple(_of(tables, candidate)) == terms_of(candidate)


@given(st.lists(st.integers(1, 4), min_size=3, max_size=6))
def test_covering_candidates_have_every_combination(sizes: list[int]) -> None:
    """Each combination of each window occurs in a candidate, and neighbouring windows share candidates."""
    windows = [(at, at + 2) for at in range(len(sizes) - 1)]
    wanted = {(first, stop): set(itertools.product(*map(range, sizes[first:stop]))) for first, stop in windows}
    found = list(covering(sizes, {window: set(held) for window, held in wanted.items()}, np.random.default_rng(0)))
    for (first, stop), held in wanted.items():
        assert {candidate[first:stop] for candidate in found} == held
    assert len(found) <= sum(map(len, wanted.values()))
