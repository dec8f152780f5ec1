"""Make weights and inputs on the device from short specifications, so that no weights are sent to it."""

from __future__ import annotations

import functools
from typing import Any, Dict, Tuple

import numpy as np

PACKED = {"int4": 2, "uint4": 2}
"""Types of which a byte holds several elements, and how many."""
_BLOCK = 1 << 16
"""Random numbers of an array; making more of them took a third of the time of loading a probe."""
_STRIDE = 40503
"""An odd number, so that each seed below _BLOCK begins at another place of the block."""


def make(spec: Dict[str, Any]) -> "np.ndarray[Any, Any]":
    """Return the array that a spec describes.

    An array of a packed type has its bytes as ONNX stores them, of numpy's type `V1`. A spec has `dtype`, `shape`,
    `seed` and `distribution`, one of normal (`scale`), uniform (`low`, `high`), integers (`low`, `high` exclusive) and
    constant (`low`). Long arrays repeat a block of random numbers. All normal arrays share one block, in which the seed
    is the place of their first number. Both shorten loading and leave the latency unchanged.
    """
    shape: Tuple[int, ...] = tuple(int(size) for size in spec["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if spec["dtype"] in PACKED:
        size = -(-count // PACKED[spec["dtype"]])
        return make({**spec, "dtype": "uint8", "shape": [size], "low": 0, "high": 256}).view("V1")
    dtype = np.dtype(spec["dtype"])
    kind = spec["distribution"]
    if kind == "constant":
        return np.full(shape, spec.get("low", 0), dtype)
    seed, block = int(spec["seed"]), min(count, _BLOCK)
    values: "np.ndarray[Any, Any]"
    if kind == "normal":
        start = seed * _STRIDE % _BLOCK
        values = _two_blocks()[start : start + block] * np.float32(spec.get("scale", 1.0))
    elif kind == "uniform":
        values = np.random.default_rng(seed).uniform(spec.get("low", 0.0), spec.get("high", 1.0), block)
    elif kind == "integers":
        values = np.random.default_rng(seed).integers(int(spec.get("low", 0)), int(spec.get("high", 2)), block)
    else:
        raise ValueError(f"unknown distribution {kind!r}")
    array = np.empty(count, dtype)
    for start in range(0, count, _BLOCK):
        part = array[start : start + _BLOCK]
        part[:] = values[: part.size]
    return array.reshape(shape)


@functools.lru_cache(maxsize=1)
def _two_blocks() -> "np.ndarray[Any, Any]":
    """Return a block of standard normal numbers twice, so that a block may begin anywhere in the first."""
    return np.tile(np.random.default_rng(0).standard_normal(_BLOCK, np.float32), 2)
