"""Correlations between the errors of a table's entries, which the error of a sum of entries needs.

The file holds the correlations of each entry with those after it, row by row, as 32-bit little-endian floats,
compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from harness.array_types import Floats

_ITEM_BYTES = 4
_SMALLEST = 1e-4
"""Smaller correlations are noise, and cost space."""


def pack(covariance: Floats) -> bytes:
    """Return the packed correlations of a covariance matrix; empty for fewer than two entries."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(spread, spread)
    upper = correlation[np.triu_indices(len(covariance), 1)]
    kept = np.where(abs(upper) < _SMALLEST, 0.0, np.clip(upper, -1.0, 1.0))
    return zlib.compress(kept.astype("<f4").tobytes(), 6) if len(kept) else b""


def unpack(content: bytes, entries: int) -> Floats:
    """Return the correlation matrix; raises ValueError unless the content belongs to this number of entries."""
    expected = entries * (entries - 1) // 2 * _ITEM_BYTES
    if not expected and not content:
        return np.eye(entries)
    decoder = zlib.decompressobj()
    try:
        plain = decoder.decompress(content, expected + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(plain) != expected or not decoder.eof or decoder.unused_data:
        raise ValueError(f"it does not hold {expected} bytes, the correlations of {entries} entries")
    upper = np.frombuffer(plain, "<f4").astype(float)
    if not (abs(upper) <= 1.0).all():
        raise ValueError("it holds a correlation outside -1 to 1")
    matrix = np.eye(entries)
    above = np.triu_indices(entries, 1)
    matrix[above] = upper
    matrix.T[above] = upper
    return matrix


def variance(correlation: Floats, stderr: Floats, counts: Mapping[int, int]) -> float:
    """Return the variance of a sum of entries, each counted by its index as often as `counts` says."""
    at = np.fromiter(counts.keys(), int, len(counts))
    parts = stderr[at] * np.fromiter(counts.values(), float, len(counts))
    return max(0.0, float(parts @ correlation[np.ix_(at, at)] @ parts))
