"""Arrays of candidates, in spans that are made or read one by one: rows of a .npy file, or random ones.

The file is not memory-mapped: if another program shortened it, a signal would end the process.
"""

from __future__ import annotations

import math
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from harness.errors import CHECK_FILE, ConfigurationError, UsageError, reason_of

_MALFORMED = (ValueError, TypeError, OverflowError, RecursionError, SyntaxError, tokenize.TokenError)
"""What NumPy raises for a damaged header."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
SPAN = 1 << 17
"""Candidates of a span."""
MOST_RANDOM = 10**12
"""The most random candidates: one core takes a day or more for them."""
_RANDOM = re.compile(r"random:([1-9][0-9]*)\Z")
Rows = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class ArrayFile:
    """An array of one or two axes in a file, at an `offset`; by columns if it `is_fortran`."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    offset: int

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Return consecutive rows; raises ConfigurationError if the file has become shorter."""
        first, last, _ = part.indices(len(self))
        count, columns = last - first, math.prod(self.shape[1:])
        try:
            with self.path.open("rb") as file:
                if self.is_fortran:
                    held = np.stack([self._read(file, at * len(self) + first, count) for at in range(columns)], axis=-1)
                else:
                    held = self._read(file, first * columns, count * columns)
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be read", why=reason_of(error), next_step=CHECK_FILE
            ) from error
        return held.reshape(count, *self.shape[1:])

    def _read(self, file: BinaryIO, first: int, count: int) -> NDArray[Any]:
        file.seek(self.offset + first * self.dtype.itemsize)
        content = file.read(count * self.dtype.itemsize)
        if len(content) < count * self.dtype.itemsize:
            raise _too_short(self.path, self.offset + math.prod(self.shape) * self.dtype.itemsize)
        return np.frombuffer(content, self.dtype)


def open_array(path: Path) -> ArrayFile:
    """Read the header of a .npy file; raises ConfigurationError if it is none, or lacks a part of its array."""
    if not path.is_file():  # a pipe has no parts
        raise ConfigurationError(f"{path} is not a file", next_step="Name a .npy file, or random:N")
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise ValueError(f"its format has version {version[0]}.{version[1]}")
            shape, is_fortran, dtype = _HEADERS[version](file)
            offset = file.tell()
    except (OSError, *_MALFORMED) as error:
        step = "Save it with numpy.save"
        raise ConfigurationError(f"{path} is not a .npy file", why=reason_of(error)[:200], next_step=step) from error
    if dtype.hasobject or not dtype.itemsize or any(type(one) is not int or one < 0 for one in shape):
        raise ConfigurationError(f"{path} does not hold numbers", next_step="Save an array of numbers with numpy.save")
    found = ArrayFile(path, shape, dtype, bool(is_fortran), offset)
    size = offset + math.prod(shape) * dtype.itemsize
    if path.stat().st_size < size:
        raise _too_short(path, size)
    return found


def _too_short(path: Path, size: int) -> ConfigurationError:
    why = f"Its header announces {size:,} bytes"
    step = "Save it again with numpy.save, under a different name if it is being used"
    return ConfigurationError(f"{path} is too short", why=why, next_step=step)


@dataclass(frozen=True)
class RandomSpan:
    """Candidates drawn with a seed: the same ones wherever they are drawn."""

    first: int
    count: int
    sizes: tuple[int, ...]
    seed: int

    def rows(self) -> Rows:
        """Draw the candidates."""
        random = np.random.default_rng([self.seed, self.first])
        columns = [random.integers(0, size, self.count, np.uint8) for size in self.sizes]
        return np.stack(columns).T

    def scores(self) -> None:
        """Return None: random candidates have no scores."""
        return


@dataclass(frozen=True)
class ArraySpan:
    """Candidates of an array, and their scores."""

    first: int
    held: Rows
    scored: NDArray[np.floating[Any]] | None = None

    def rows(self) -> Rows:
        """Return the candidates."""
        return self.held

    def scores(self) -> NDArray[np.floating[Any]] | None:
        """Return their scores."""
        return self.scored


Span = RandomSpan | ArraySpan
"""Some candidates with consecutive numbers, which another process can also generate."""
Part = ArrayFile | NDArray[Any]
"""An array of which parts are read, in a file or in memory."""


def random_spans(count: int, sizes: Sequence[int], seed: int) -> Iterator[Span]:
    """Yield spans of random candidates."""
    for first in range(0, count, SPAN):
        yield RandomSpan(first, min(SPAN, count - first), tuple(sizes), seed)


def array_spans(rows: Part, scores: Part | None = None) -> Iterator[Span]:
    """Yield spans of an array or a file."""
    for first in range(0, len(rows), SPAN):
        part = slice(first, first + SPAN)
        yield ArraySpan(first, rows[part], None if scores is None else scores[part])


def random_count(text: str) -> int | None:
    """Return N of `random:N`, None for any other text; raises UsageError for none or too many candidates."""
    if not text.startswith("random:"):
        return None
    found = _RANDOM.match(text)
    if not found:
        raise UsageError(f"{text[:40]!r} is not a number of candidates", next_step="Write random:1000000")
    if len(found[1]) > len(str(MOST_RANDOM)) or int(found[1]) > MOST_RANDOM:
        why = "One core estimates a few million candidates a second"
        raise UsageError(f"{text[:40]} is more than {MOST_RANDOM:,} candidates", why=why, next_step="Ask for fewer")
    return int(found[1])


def read_candidates(path: Path, positions: int) -> ArrayFile:
    """Open a file of candidates, one row for each and one column for each position; raises ConfigurationError."""
    found = open_array(path)
    if len(found.shape) != 2 or found.shape[1] != positions or found.dtype.kind not in "iu":
        why = f"It holds {found.dtype} of shape {found.shape}"
        step = f"Save whole numbers with {positions} columns, one for each position of several choices"
        raise ConfigurationError(f"{path} does not hold candidates of this space", why=why, next_step=step)
    return found


def read_scores(path: Path, candidates: int) -> ArrayFile:
    """Open a file of scores, one number for each candidate; raises ConfigurationError."""
    found = open_array(path)
    if found.shape != (candidates,) or found.dtype.kind not in "iuf":
        why = f"It holds {found.dtype} of shape {found.shape}"
        raise ConfigurationError(
            f"{path} does not hold scores", why=why, next_step=f"Save an array of {candidates:,} numbers"
        )
    return found
