"""The inverse by groups: that of the dense matrix, for any division into groups and common unknowns."""

import numpy as np
from hypothesis import given, settings, strategies as st
from scipy.sparse import csc_array, csr_array

from harness.array_types import Floats, Ints
from harness.latency.grouped_inverse import inverse

SEEDS = st.integers(0, 2**32 - 1)


def normal_matrix(seed: int) -> tuple[csc_array, Ints]:
    """Return the normal matrix of equations that hold one group's unknowns and the common ones, and their counts."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 6, draw.integers(1, 40))
    common = int(draw.integers(0, 5))
    groups = np.split(np.arange(sizes.sum()) + common, np.cumsum(sizes)[:-1])
    rows = []
    for group in groups:
        for _ in range(len(group) + 12):
            row = np.zeros(common + sizes.sum())
            row[group] = draw.uniform(-1, 1, len(group))
            row[:common] = draw.uniform(0.1, 1, common)
            rows.append(row)
    order = draw.permutation(common + sizes.sum())
    design = np.array(rows)[:, order]
    return csc_array(design.T @ design + 1e-9 * np.eye(len(order))), np.count_nonzero(design, axis=0)


@given(SEEDS)
@settings(max_examples=60)
def test_each_part_is_that_of_the_dense_inverse(seed: int) -> None:
    """Parts, sums, single variances and scaled parts equal those of the dense inverse."""
    normal, equations = normal_matrix(seed)
    dense: Floats = np.linalg.inv(normal.toarray())
    found = inverse(normal, equations)
    draw = np.random.default_rng(seed)
    some = draw.permutation(len(dense))[: len(dense) // 2 + 1]
    weights = draw.uniform(-1, 1, (3, len(dense)))
    lengths = draw.uniform(0.5, 2, len(dense))
    near = {"rtol": 1e-6, "atol": 1e-8 * np.abs(dense).max()}
    np.testing.assert_allclose(found.between(some), dense[np.ix_(some, some)], **near)
    np.testing.assert_allclose(found.of_sums(csr_array(weights)), weights @ dense @ weights.T, **near)
    np.testing.assert_allclose(found.of_each(csr_array(weights)), np.diag(weights @ dense @ weights.T), **near)
    scaled = found.scaled(lengths, 3.0).between(np.arange(len(dense)))
    np.testing.assert_allclose(scaled, 3 * dense / np.outer(lengths, lengths), **near)


def test_unknowns_that_all_share_their_equations_are_inverted() -> None:
    """A dense matrix, without small groups or even without a local unknown, has its inverse, too."""
    design = np.random.default_rng(3).uniform(-1, 1, (400, 30))
    dense = design.T @ design
    for equations in (400, 10, 1):
        found = inverse(csc_array(dense), np.full(30, equations)).between(np.arange(30))
        np.testing.assert_allclose(found, np.linalg.inv(dense), rtol=1e-9, atol=1e-12)


def test_a_long_row_of_neighbours_is_inverted() -> None:
    """Unknowns that each meet the next one are one group, which holds as many as a network has chains."""
    count = 300
    pairs = np.eye(count) + 0.4 * np.eye(count, k=1)
    dense = pairs.T @ pairs + np.eye(count)
    found = inverse(csc_array(dense), np.full(count, 2)).between(np.arange(count))
    np.testing.assert_allclose(found, np.linalg.inv(dense), rtol=1e-9, atol=1e-12)
