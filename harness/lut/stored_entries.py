"""The entries of a large table, parsed when they are looked up.

A table of 100,000 entries takes seconds to parse and check. Once that was done, the cache notes under the hash of
`entries.csv` that this content was checked, and nothing else: what it lists is found in the content itself each time.
The file is read each time, and its hash is compared (`read_with_digest`). Files that `write_entries` would write
otherwise are not noted, because their rows need the full parser.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from harness import cache
from harness.lut.entry_rows import read_entries, write_entries
from harness.lut.table import Entry
from harness.version import VERSION

LEAST_BYTES = 1 << 19
"""The smallest file that is noted: a smaller one is parsed as soon as a note is read."""
_CHECKED = b"checked"
_NEWLINE = 10
_KEY_DIGITS = 16
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def entries_of(content: bytes, sha256: str) -> Sequence[Entry]:
    """Return the entries of a file of this hash; raises ValueError, which says what is wrong with it."""
    if len(content) < LEAST_BYTES:
        return read_entries(content)
    code = cache.code_version("harness.lut")
    key = cache.key_of("entries 2", VERSION, code, sha256)
    if code and cache.get(key) == _CHECKED:
        return StoredEntries(content)
    entries = read_entries(content)
    if code and content.count(b"\n") == len(entries) + 1 and write_entries(entries) == content:
        cache.put(key, _CHECKED)
    return entries


class StoredEntries(Sequence[Entry]):
    """The entries of a file that was checked before, in its order."""

    def __init__(self, content: bytes) -> None:
        """`content` is what `write_entries` writes: a row for each line, which begins with a key in quotes."""
        self._content, self._parsed = content, dict[int, Entry]()
        read = np.frombuffer(content, np.uint8)
        self._ends = np.flatnonzero(read == _NEWLINE)
        digits = _HEX[read[self._ends[:-1, None] + np.arange(2, 2 + _KEY_DIGITS)]]
        keys = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").ravel().astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        self.rows: Mapping[str, Sequence[int]] = _KeyRows(keys[order], order)
        """The rows of each key."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | Sequence[Entry]:
        """Return an entry, which is kept, or some."""
        if isinstance(at, slice):
            return tuple(self._entry(number) for number in range(*at.indices(len(self))))
        number = range(len(self))[at]
        if number not in self._parsed:
            self._parsed[number] = self._entry(number)
        return self._parsed[number]

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries; none is kept."""
        return map(self._entry, range(len(self)))

    def _entry(self, number: int) -> Entry:
        line = self._content[int(self._ends[number]) + 1 : int(self._ends[number + 1])].decode()
        (cells,) = csv.reader([line])
        key, context, op, latency_s, stderr_s, samples, resolved, visit, flags, networks, campaign, *rest = cells
        probe, baseline, signature, remainder_s, remainder_stderr_s = rest
        return Entry(
            key,
            context,
            op,
            float(latency_s),
            float(stderr_s),
            int(samples),
            resolved == "1",
            visit,
            flags,
            networks,
            int(campaign),
            probe,
            baseline,
            signature,
            float(remainder_s),
            float(remainder_stderr_s),
        )


class _KeyRows(Mapping[str, Sequence[int]]):
    def __init__(self, keys: NDArray[Any], order: NDArray[Any]) -> None:
        self._keys, self._order = keys, order

    def __getitem__(self, key: str) -> Sequence[int]:
        wanted = np.uint64(int(key, 16))
        first, last = np.searchsorted(self._keys, wanted, "left"), np.searchsorted(self._keys, wanted, "right")
        if first == last:
            raise KeyError(key)
        rows: list[int] = self._order[first:last].tolist()
        return rows

    def __iter__(self) -> Iterator[str]:
        return (f"{key:016x}" for key in np.unique(self._keys).tolist())

    def __len__(self) -> int:
        return len(np.unique(self._keys))
