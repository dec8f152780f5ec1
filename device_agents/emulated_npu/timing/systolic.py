"""Compute cycles of systolic arrays, as SCALE-Sim counts them (Samajdar et al., arXiv:1811.02883).

Each function returns the cycles of an m x k by k x n product (m output pixels, n filters, k products per output) on an
array of rows x columns.
"""

from __future__ import annotations

from device_agents.emulated_npu.arithmetic import ceil_div


def weight_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """Return the cycles if each fold holds rows x columns weights.

    A fold loads its weights in `rows` cycles, then streams m vectors through the skewed array.
    """
    return ceil_div(k, rows) * ceil_div(n, columns) * (2 * rows + columns + m - 2) - 1


def output_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """Return the cycles if each fold holds rows x columns sums."""
    return ceil_div(m, rows) * ceil_div(n, columns) * (rows + columns + k - 2) - 1


def input_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """Return the cycles if each fold holds rows x columns inputs."""
    return ceil_div(k, rows) * ceil_div(m, columns) * (2 * rows + columns + n - 2) - 1
