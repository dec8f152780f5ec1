"""Compute cycles of systolic arrays, as SCALE-Sim counts them (Samajdar et al., arXiv:1811.02883)."""

from __future__ import annotations

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.machine import Dataflow


def systolic_cycles(dataflow: Dataflow, m: int, n: int, k: int, rows: int, columns: int) -> tuple[int, int]:
    """Return the cycles of an m x k by k x n product (m output pixels), and how many of them stream vectors.

    A fold holds rows x columns weights, sums or inputs, and streams one vector per cycle through the skewed array.
    Weights and inputs are loaded in `rows` cycles before; sums start at zero.
    """
    if dataflow == "weight-stationary":
        folds, streamed, loading = ceil_div(k, rows) * ceil_div(n, columns), m, rows
    elif dataflow == "output-stationary":
        folds, streamed, loading = ceil_div(m, rows) * ceil_div(n, columns), k, 0
    else:
        folds, streamed, loading = ceil_div(k, rows) * ceil_div(m, columns), n, rows
    return folds * (loading + rows + columns + streamed - 2) - 1, folds * streamed
