"""Cycles of systolic arrays, compared with following the wavefront element by element."""

from hypothesis import given, strategies as st

from device_agents.emulated_npu.timing.cost.matrix_cost import systolic_cycles

SIZES = st.integers(1, 12)


def _folds(size: int, array: int) -> int:
    return len(range(0, size, array))


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_weights_take_as_long_as_their_wavefront(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """A fold loads a row per cycle; vector v then meets the weight at (i, j) i + j cycles after it enters."""
    last = max(rows + v + i + j for v in range(m) for i in range(rows) for j in range(columns))
    folds = _folds(k, rows) * _folds(n, columns)
    assert systolic_cycles("weight-stationary", m, n, k, rows, columns) == (folds * (last + 1) - 1, folds * m)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_sums_take_as_long_as_their_wavefront(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """Product p of the sum at (i, j) is computed i + j cycles after both operands enter."""
    last = max(p + i + j for p in range(k) for i in range(rows) for j in range(columns))
    folds = _folds(m, rows) * _folds(n, columns)
    assert systolic_cycles("output-stationary", m, n, k, rows, columns) == (folds * (last + 1) - 1, folds * k)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_inputs_are_stationary_weights_of_the_transposed_product(
    m: int, n: int, k: int, rows: int, columns: int
) -> None:
    """Holding the inputs of A B is holding the weights of its transpose."""
    transposed = systolic_cycles("weight-stationary", n, m, k, rows, columns)
    assert systolic_cycles("input-stationary", m, n, k, rows, columns) == transposed
