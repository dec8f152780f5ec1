"""Make weights and inputs on the device from short specifications, so that no weights are sent to it."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

_BLOCK = 1 << 20


def make(spec: Dict[str, Any]) -> "np.ndarray[Any, Any]":
    """Return the array that a spec describes.

    A spec has `dtype`, `shape`, `seed` and `distribution`, one of normal (`scale`), uniform (`low`, `high`), integers
    (`low`, `high` exclusive) and constant (`low`). Long arrays repeat a block of random numbers, which shortens loading
    and leaves the latency unchanged.
    """
    shape: Tuple[int, ...] = tuple(int(size) for size in spec["shape"])
    dtype = np.dtype(spec["dtype"])
    count = int(np.prod(shape, dtype=np.int64))
    kind = spec["distribution"]
    if kind == "constant":
        return np.full(shape, spec.get("low", 0), dtype)
    generator = np.random.default_rng(int(spec["seed"]))
    block = min(count, _BLOCK)
    if kind == "normal":
        values = generator.standard_normal(block, np.float32) * spec.get("scale", 1.0)
    elif kind == "uniform":
        values = generator.uniform(spec.get("low", 0.0), spec.get("high", 1.0), block)
    elif kind == "integers":
        values = generator.integers(int(spec.get("low", 0)), int(spec.get("high", 2)), block)
    else:
        raise ValueError(f"unknown distribution {kind!r}")
    array = np.empty(count, dtype)
    for start in range(0, count, _BLOCK):
        part = array[start : start + _BLOCK]
        part[:] = values[: part.size]
    return array.reshape(shape)
