"""Arrays of candidates, in spans that are made or read one by one: a file of NumPy, or random ones."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigurationError, UsageError, reason_of

SPAN = 1 << 17
"""Candidates of a span."""
_MALFORMED = (ValueError, TypeError, OverflowError, RecursionError, SyntaxError, tokenize.TokenError)
"""What NumPy raises for a damaged header."""
_RANDOM = re.compile(r"random:([0-9]{1,15})\Z")
Rows = NDArray[np.integer[Any]]


class Span(Protocol):
    """Some candidates with consecutive numbers, which another process can have, too."""

    @property
    def first(self) -> int:
        """The number of the first candidate."""
        ...

    def rows(self) -> Rows:
        """Return the candidates."""
        ...

    def scores(self) -> NDArray[np.floating[Any]] | None:
        """Return the score of each candidate, None without scores."""
        ...


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
        """Return None: nobody has scored them."""
        return


@dataclass(frozen=True)
class ArraySpan:
    """Candidates of an array, and their scores."""

    first: int
    held: Rows
    scored: NDArray[np.floating[Any]] | None = None

    def rows(self) -> Rows:
        """Return the candidates."""
        return np.asarray(self.held)

    def scores(self) -> NDArray[np.floating[Any]] | None:
        """Return their scores."""
        return None if self.scored is None else np.asarray(self.scored)


def random_spans(count: int, sizes: Sequence[int], seed: int) -> Iterator[Span]:
    """Yield spans of random candidates."""
    for first in range(0, count, SPAN):
        yield RandomSpan(first, min(SPAN, count - first), tuple(sizes), seed)


def array_spans(rows: Rows, scores: NDArray[np.floating[Any]] | None = None) -> Iterator[Span]:
    """Yield spans of an array, which may be a mapped file."""
    for first in range(0, len(rows), SPAN):
        part = slice(first, first + SPAN)
        yield ArraySpan(first, rows[part], None if scores is None else scores[part])


def random_count(text: str) -> int | None:
    """Return N of `random:N`, None for any other text; raises UsageError for none or too many candidates."""
    if not text.startswith("random:"):
        return None
    found = _RANDOM.match(text)
    if not found or not int(found[1]):
        raise UsageError(f"{text[:40]!r} is not a number of candidates", next_step="Write random:1000000")
    return int(found[1])


def read_candidates(path: Path, positions: int) -> Rows:
    """Map a file of candidates, one row for each and one column for each position; raises ConfigurationError."""
    found = _mapped(path)
    if found.ndim != 2 or found.shape[1] != positions or found.dtype.kind not in "iu":
        why = f"It holds {found.dtype} of shape {found.shape}"
        step = f"Save whole numbers with {positions} columns, one for each position"
        raise ConfigurationError(f"{path} does not hold candidates of this space", why=why, next_step=step)
    return found


def read_scores(path: Path, candidates: int) -> NDArray[np.floating[Any]]:
    """Map a file of scores, one number for each candidate; raises ConfigurationError."""
    found = _mapped(path)
    if found.shape != (candidates,) or found.dtype.kind not in "iuf":
        why = f"It holds {found.dtype} of shape {found.shape}"
        raise ConfigurationError(
            f"{path} does not hold scores", why=why, next_step=f"Save an array of {candidates:,} numbers"
        )
    return found


def _mapped(path: Path) -> NDArray[Any]:
    if not path.is_file():  # a pipe cannot be mapped
        raise ConfigurationError(f"{path} is not a file", next_step="Name a .npy file, or random:N")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, *_MALFORMED) as error:
        step = "Save it with numpy.save"
        raise ConfigurationError(f"{path} is not a .npy file", why=reason_of(error)[:200], next_step=step) from error
