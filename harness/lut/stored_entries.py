"""The entries of a large table, parsed when they are looked up.

A table of 100,000 entries takes seconds to parse and check. Once that was done, the cache holds an index under the hash
of `entries.csv`: where each row begins, and the rows in the order of their keys. The file is read each time, and its
hash is compared (`read_with_digest`); the index states only that this content was checked. Files that `write_entries`
would write otherwise have no index, because their rows need the full parser.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from harness import cache
from harness.lut.entry_rows import read_entries, write_entries
from harness.lut.table import Entry, displacement_of, rows_by_key
from harness.version import VERSION

LEAST_BYTES = 1 << 19
"""The smallest file that has an index: a smaller one is parsed as soon as an index is read."""
_BYTES_PER_ENTRY = 20
_NEWLINE = 10


def entries_of(content: bytes, sha256: str) -> Sequence[Entry]:
    """Return the entries of a file of this hash; raises ValueError, which says what is wrong with it."""
    if len(content) < LEAST_BYTES:
        return read_entries(content)
    code = cache.code_version("harness.lut")
    key = cache.key_of("entries 1", VERSION, code, sha256)
    index = cache.get(key) if code else None
    if index is not None:
        try:
            return StoredEntries(content, index)
        except ValueError:
            pass  # the cache is no authority: the file is parsed
    entries = read_entries(content)
    if code and content.count(b"\n") == len(entries) + 1 and write_entries(entries) == content:
        cache.put(key, _index(content, entries))
    return entries


def _index(content: bytes, entries: Sequence[Entry]) -> bytes:
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == _NEWLINE)
    keys = np.array([int(entry.key, 16) for entry in entries], np.uint64)
    order = np.argsort(keys, kind="stable")
    whole = np.array([displacement_of(entries, rows_by_key(entries))], np.float64)
    parts = (whole, ends.astype("<u8"), keys[order], order.astype("<u4"))
    return b"".join(part.tobytes() for part in parts)


class StoredEntries(Sequence[Entry]):
    """The entries of a file that was checked before, in its order."""

    def __init__(self, content: bytes, index: bytes) -> None:
        """`index` is what `_index` made of the content; raises ValueError for another size."""
        count, left = divmod(len(index) - 16, _BYTES_PER_ENTRY)
        if count < 0 or left:
            raise ValueError("the index has another size")
        self._content, self._parsed = content, dict[int, Entry]()
        self.displacement = float(np.frombuffer(index, np.float64, 1)[0])
        self._ends = np.frombuffer(index, "<u8", count + 1, 8)
        keys: NDArray[Any] = np.frombuffer(index, "<u8", count, 16 + 8 * count)
        order: NDArray[Any] = np.frombuffer(index, "<u4", count, 16 + 16 * count)
        self.rows: Mapping[str, Sequence[int]] = _KeyRows(keys, order)
        """The rows of each key."""
        if int(self._ends[-1]) + 1 != len(content):
            raise ValueError("the index is that of another file")

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
