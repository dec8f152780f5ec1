"""Correlations of a table's entries in their file: packed ones are read back, anything else is refused."""

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.lut.error_correlations import check, pack, unpack, variance

SEEDS = st.integers(0, 2**32 - 1)
ENTRIES = st.integers(0, 30)
KEPT = 1e-4
"""Smaller correlations are dropped."""


def covariance_of(entries: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a covariance of standard errors from nanoseconds to seconds, some almost uncorrelated."""
    draw = np.random.default_rng(seed)
    mixed = draw.standard_normal((entries, entries + 2)) * (draw.random((entries, entries + 2)) < 0.5)
    mixed += np.eye(entries, entries + 2)
    spread = 10 ** draw.uniform(-9, 0, entries)
    return np.asarray(mixed @ mixed.T * np.outer(spread, spread))


def matrix_of(content: bytes, entries: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the whole matrix of packed correlations."""
    matrix = np.zeros((entries, entries))
    matrix[np.triu_indices(entries, 1)] = unpack(content, entries)
    return matrix + matrix.T + np.eye(entries)


def half_of(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the part of a matrix that is stored."""
    return matrix[np.triu_indices(len(matrix), 1)].astype(np.float32)


@given(ENTRIES, SEEDS)
def test_correlations_come_back(entries: int, seed: int) -> None:
    """Correlations are read back in single precision, symmetric with a unit diagonal; the smallest are zero."""
    covariance = covariance_of(entries, seed)
    spread = np.sqrt(np.diag(covariance))
    wanted = covariance / np.outer(spread, spread)
    found = matrix_of(pack(covariance), entries)
    assert found.shape == (entries, entries)
    assert (found == found.T).all()
    assert (np.diag(found) == 1.0).all()
    assert found == pytest.approx(np.where(abs(wanted) < KEPT, found, wanted), abs=1e-6)
    assert (abs(found[abs(wanted) < 0.999 * KEPT]) == 0.0).all()


@given(ENTRIES, SEEDS)
def test_packing_again_changes_nothing(entries: int, seed: int) -> None:
    """Unpacking and packing again gives the same bytes."""
    packed = pack(covariance_of(entries, seed))
    assert pack(matrix_of(packed, entries)) == packed


def test_entries_without_error_are_not_correlated() -> None:
    """An entry with a variance of zero has no correlations."""
    covariance = np.array([[0.0, 0.0], [0.0, 4.0]])
    assert (matrix_of(pack(covariance), 2) == np.eye(2)).all()


@given(st.integers(2, 30), SEEDS, st.data())
def test_content_that_was_cut_short_is_refused(entries: int, seed: int, data: st.DataObject) -> None:
    """Content truncated anywhere is refused."""
    packed = pack(covariance_of(entries, seed))
    end = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError, match=r".+"):
        unpack(packed[:end], entries)


@given(ENTRIES, SEEDS, st.binary(min_size=1, max_size=40))
def test_content_with_something_behind_it_is_refused(entries: int, seed: int, more: bytes) -> None:
    """Content with further bytes at the end is refused."""
    with pytest.raises(ValueError, match=r".+"):
        unpack(pack(covariance_of(entries, seed)) + more, entries)


@given(st.integers(2, 30), SEEDS, st.integers(0, 40))
def test_content_of_another_number_of_entries_is_refused(entries: int, seed: int, others: int) -> None:
    """Content of another number of entries is refused with the expected size."""
    content = pack(covariance_of(entries, seed))
    if others != entries:
        with pytest.raises(ValueError, match=rf"{others * (others - 1) // 2 * 4} bytes.* {others} entries"):
            unpack(content, others)


@given(st.binary(max_size=200), st.integers(2, 30))
def test_any_bytes_are_correlations_or_refused(content: bytes, entries: int) -> None:
    """Random bytes are refused with a ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        unpack(content, entries)


@pytest.mark.parametrize("value", [1.0001, -2.0, float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_no_correlations_are_refused(value: float) -> None:
    """A packed number outside -1 to 1 is refused."""
    plain = np.array([0.5, value, -0.5], "<f4").tobytes()
    with pytest.raises(ValueError, match="outside -1 to 1"):
        unpack(zlib.compress(plain), 3)


def test_what_is_much_larger_when_unpacked_is_refused_before_that() -> None:
    """Content that unpacks to 64 MB is refused without unpacking more than was expected."""
    bomb = zlib.compressobj()
    content = b"".join([*(bomb.compress(bytes(1 << 20)) for _ in range(64)), bomb.flush()])
    tracemalloc.start()
    with pytest.raises(ValueError, match="12 bytes"):
        unpack(content, 3)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 3 << 20


def test_checking_takes_no_memory_for_all_correlations() -> None:
    """The 8 MB of 2,000 entries are checked in less memory, and found wrong in their last number."""
    plain = np.full(2000 * 1999 // 2, 0.25, "<f4")
    content = zlib.compress(plain.tobytes(), 1)
    plain[-1] = 1.5
    wrong = zlib.compress(plain.tobytes(), 1)
    tracemalloc.start()
    try:
        check(content, 2000)
        with pytest.raises(ValueError, match="outside -1 to 1"):
            check(wrong, 2000)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@given(st.integers(1, 12), SEEDS, st.data())
def test_the_variance_of_a_sum_is_that_of_its_terms(entries: int, seed: int, data: st.DataObject) -> None:
    """The variance of a sum is counts times covariance times counts."""
    covariance = covariance_of(entries, seed)
    stderr = np.sqrt(np.diag(covariance))
    counts = data.draw(st.dictionaries(st.integers(0, entries - 1), st.integers(1, 50)))
    vector = np.array([counts.get(at, 0) for at in range(entries)], float)
    correlation = covariance / np.outer(stderr, stderr)
    wanted = float(vector @ covariance @ vector)
    # Terms may cancel: single precision is that of the largest of them.
    largest = float(vector @ np.diag(stderr**2) @ vector) * entries
    found = variance(half_of(correlation), len(stderr), dict(enumerate(stderr)), counts)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6 * largest + 1e-30)


def test_variances_by_hand() -> None:
    """Errors of 3 and 4 sum to 7 if correlated, 5 if independent and 1 if anticorrelated."""
    stderr = np.array([3.0, 4.0])
    for correlation, wanted in ((1.0, 49.0), (0.0, 25.0), (-1.0, 1.0)):
        matrix = np.array([[1.0, correlation], [correlation, 1.0]])
        assert variance(half_of(matrix), 2, dict(enumerate(stderr)), {0: 1, 1: 1}) == pytest.approx(wanted)
    assert variance(half_of(np.eye(2)), 2, dict(enumerate(stderr)), {0: 5}) == pytest.approx(15.0**2)
    assert variance(half_of(np.eye(2)), 2, dict(enumerate(stderr)), {}) == 0.0
