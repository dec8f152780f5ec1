"""Compute cycles of systolic arrays, as SCALE-Sim counts them (Samajdar et al., arXiv:1811.02883)."""

from __future__ import annotations

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.machine import Dataflow


def systolic_cycles(
    dataflow: Dataflow,
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    *,
    products: int = 1,
    preloads_weights: bool = False,
) -> tuple[int, int]:
    """Return the cycles of `products` m x k by k x n products (m output pixels), and how many of them stream vectors.

    A fold holds rows x columns weights, sums or inputs, and streams one vector per cycle through the skewed array.
    Weights and inputs are loaded in `rows` cycles before; sums start at zero. An array that preloads them loads those
    of the next fold while it streams, and the vectors of the next fold follow at once: only the first load, and the
    skew of the last fold, take time of their own.
    """
    if dataflow == "weight-stationary":
        folds, streamed, loading = ceil_div(k, rows) * ceil_div(n, columns), m, rows
    elif dataflow == "output-stationary":
        folds, streamed, loading = ceil_div(m, rows) * ceil_div(n, columns), k, 0
    else:
        folds, streamed, loading = ceil_div(k, rows) * ceil_div(m, columns), n, rows
    folds *= products
    skew = rows + columns - 2
    if preloads_weights:
        return loading + (folds - 1) * max(loading, streamed) + streamed + skew - 1, folds * streamed
    return folds * (loading + skew + streamed) - 1, folds * streamed
