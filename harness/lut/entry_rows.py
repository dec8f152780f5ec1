"""The entries of a table as the rows of `entries.csv`; those of a large file are parsed when they are looked up.

The `csv` module reads them: pandas would add 0.3 s to the 0.9 s of processor time of `harness estimate`.

A table of 100,000 entries takes seconds to parse and check. Once that was done, the cache notes under the hash of
`entries.csv` that this content was checked, and nothing else: its rows are found in the content each time. The file is
read each time, and its hash is compared. A file in another format than `write_entries` produces is not noted, because
its rows need the full parser.
"""

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from harness import cache
from harness.files import csv_text
from harness.lut.csv_rows import checked_rows
from harness.lut.table import Entry
from harness.version import VERSION

MAX_ENTRIES = 500_000
"""More do not fit into the largest file of a table."""
_COLUMNS = tuple(field.name for field in fields(Entry))
_TIMES = ("latency_s", "stderr_s", "remainder_s", "remainder_stderr_s")
_NUMBERS = (*_TIMES, "samples", "campaign")
_READ_AS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_TIMES, float),
    "samples": int,
    "campaign": int,
    "resolved": "1".__eq__,
}
_READERS = tuple(_READ_AS.get(name, str) for name in _COLUMNS)
LEAST_BYTES = 1 << 19
"""The smallest file that is noted: a smaller one is parsed as soon as a note is read."""
Content = bytes | memoryview
_CHECKED = b"checked"
_NEWLINE = 10
_BLOCK_BYTES = 1 << 18
"""Lines are found block by block: a mask of the whole file would need as much new memory as it has bytes."""
_KEY_DIGITS = 16
_SORTED_DIGITS = 8
"""Rows are sorted by the first digits of their keys, which fit into one number: few keys have them in common."""


def write_entries(entries: Sequence[Entry]) -> bytes:
    """Return the file that holds these entries."""
    rows = []
    for entry in entries:
        times = {name: f"{getattr(entry, name):.6e}" for name in _TIMES}
        row = {**asdict(entry), **times, "resolved": int(entry.resolved)}
        rows.append([row[name] for name in _COLUMNS])
    return csv_text(_COLUMNS, rows, quoting=csv.QUOTE_NONNUMERIC).encode()


def read_entries(content: bytes) -> tuple[Entry, ...]:
    """Return the entries of a file; raises ValueError, which says what is wrong with it."""
    entries: dict[tuple[str, str], Entry] = {}
    for number, entry in checked_rows(content, Entry, _COLUMNS, _NUMBERS, MAX_ENTRIES):
        if hashlib.sha256(entry.signature.encode()).hexdigest()[:16] != entry.key:
            raise ValueError(f"line {number}: the key is not the hash of the signature")
        if entry.place in entries:
            raise ValueError(f"line {number}: the layer occurs twice")
        entries[entry.place] = entry
    return tuple(entries.values())


def entries_of(content: Content, sha256: str) -> Sequence[Entry]:
    """Return the entries of a file of this hash; raises ValueError, which says what is wrong with it."""
    if len(content) < LEAST_BYTES:
        return read_entries(bytes(content))
    code = cache.code_version("harness.lut")
    key = cache.key_of("entries 2", VERSION, code, sha256)
    if code and cache.get(key) == _CHECKED:
        return StoredEntries(content)
    whole = bytes(content)
    entries = read_entries(whole)
    if code and whole.count(b"\n") == len(entries) + 1 and write_entries(entries) == whole:
        cache.put(key, _CHECKED)
    return entries


class StoredEntries(Sequence[Entry]):
    """The entries of a file that was checked before, in its order."""

    def __init__(self, content: Content) -> None:
        """`content` is what `write_entries` writes: a row for each line, which begins with a key in quotes."""
        self._content, self._parsed = content, dict[int, Entry]()
        read = np.frombuffer(content, np.uint8)
        blocks = range(0, read.size, _BLOCK_BYTES)
        ends = [np.flatnonzero(read[first : first + _BLOCK_BYTES] == _NEWLINE) + first for first in blocks]
        self._ends = np.concatenate(ends)
        texts = np.ndarray(max(0, len(content) - _KEY_DIGITS), f"S{_KEY_DIGITS}", content, strides=(1,))
        self.rows: Mapping[str, Sequence[int]] = _KeyRows(texts[self._ends[:-1] + 2])
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
        line = str(self._content[int(self._ends[number]) + 1 : int(self._ends[number + 1])], "utf-8")
        (cells,) = csv.reader([line])
        return Entry(*(read(cell) for read, cell in zip(_READERS, cells, strict=True)))


class _KeyRows(Mapping[str, Sequence[int]]):
    def __init__(self, keys: NDArray[np.bytes_]) -> None:
        self._keys = keys
        begins = keys.view(">u8")[:: _KEY_DIGITS // _SORTED_DIGITS].astype(np.uint64)
        self._order = np.argsort(begins)
        self._begins = begins[self._order]

    def __getitem__(self, key: str) -> Sequence[int]:
        digits = key.encode()
        begin = np.uint64(int.from_bytes(digits[:_SORTED_DIGITS], "big"))
        first, last = (np.searchsorted(self._begins, begin, side) for side in ("left", "right"))
        rows = sorted(row for row in self._order[first:last].tolist() if self._keys[row] == digits)
        if not rows:
            raise KeyError(key)
        return rows

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in np.unique(self._keys).tolist())

    def __len__(self) -> int:
        return len(np.unique(self._keys))
