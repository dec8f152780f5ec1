"""Correlations between the errors of a table's entries, which the error of a sum of entries needs.

The file holds the correlations of each entry with those after it, row by row, as 32-bit little-endian floats,
compressed.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Floats

Correlations = NDArray[np.float32]
"""The correlations of each entry with those after it, row by row: half of a matrix without its diagonal."""
MAX_CORRELATED = 10_000
"""The most entries of a table with correlations, which take 200 MB when a sum of entries needs them."""
_ITEM_BYTES = 4
_SMALLEST = 1e-4
"""Smaller correlations are noise, and cost space."""
_READ_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20


def pack(covariance: Floats) -> bytes:
    """Return the packed correlations of a covariance matrix; empty for fewer than two entries."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(spread, spread)
    upper = correlation[np.triu_indices(len(covariance), 1)]
    kept = np.where(abs(upper) < _SMALLEST, 0.0, np.clip(upper, -1.0, 1.0))
    return zlib.compress(kept.astype("<f4").tobytes(), 6) if len(kept) else b""


def check(content: bytes, entries: int) -> None:
    """Raise ValueError unless the content belongs to this number of entries; takes memory for one block only."""
    for _ in _numbers(content, entries):
        pass


def unpack(content: bytes, entries: int) -> Correlations:
    """Return the correlations; raises ValueError unless the content belongs to this number of entries.

    The greatest table's take 200 MB; a whole matrix in double precision would take four times as much.
    """
    found = np.zeros(entries * (entries - 1) // 2, np.float32)
    filled = 0
    for part in _numbers(content, entries):
        found[filled : filled + part.size] = part
        filled += part.size
    return found


def _numbers(content: bytes, entries: int) -> Iterator[NDArray[Any]]:
    """Yield the correlations block by block; raises ValueError at the first that is none, and for a wrong number."""
    if entries > MAX_CORRELATED:
        raise ValueError(f"it holds correlations of more than {MAX_CORRELATED:,} entries")
    expected = entries * (entries - 1) // 2 * _ITEM_BYTES
    if not expected and not content:
        return
    found, rest = 0, b""
    for block in _blocks(content, f"it does not hold {expected} bytes, the correlations of {entries} entries"):
        found += len(block)
        if found > expected:
            break
        block = rest + block
        whole = len(block) // _ITEM_BYTES * _ITEM_BYTES
        rest = block[whole:]
        numbers = np.frombuffer(block[:whole], "<f4")
        if not (abs(numbers) <= 1.0).all():
            raise ValueError("it holds a correlation outside -1 to 1")
        yield numbers
    if found != expected:
        raise ValueError(f"it does not hold {expected} bytes, the correlations of {entries} entries")


def _blocks(content: bytes, otherwise: str) -> Iterator[bytes]:
    """Yield what the content decompresses to; raises ValueError, with this text if it is cut or something follows."""
    decoder = zlib.decompressobj()
    for start in range(0, len(content), _READ_BYTES):
        tail = content[start : start + _READ_BYTES]
        while tail:
            if decoder.eof:
                raise ValueError(otherwise)
            try:
                block = decoder.decompress(tail, _BLOCK_BYTES)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            tail = decoder.unconsumed_tail or decoder.unused_data
            yield block
    while block := decoder.decompress(b"", _BLOCK_BYTES):
        yield block
    if not decoder.eof:
        raise ValueError(otherwise)


def variance(
    correlations: Correlations | None, entries: int, stderr: Mapping[int, float], counts: Mapping[int, float]
) -> float:
    """Return the variance of a sum of entries, each counted by its index as often as `counts` says.

    `entries` is the number of all; without correlations they are independent.
    """
    at = np.array(sorted(counts), int)
    parts = np.array([stderr[index] * counts[index] for index in at.tolist()], float)
    total = float(parts @ parts)
    if correlations is None:
        return total
    for place, row in enumerate(at.tolist()):
        start = row * (entries - 1) - row * (row - 1) // 2
        total += 2.0 * float(parts[place] * (parts[place + 1 :] @ correlations[start + at[place + 1 :] - row - 1]))
    return max(0.0, total)
