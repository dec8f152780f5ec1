"""Axes of a space: the values that one size of a layer may take, selected by a number from 0 to 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

MAX_VALUES = 1000
MAX_SIZE = 1 << 24
DEPTHWISE = "depthwise"


@dataclass(frozen=True)
class Choices:
    """Listed sizes, words or booleans, each equally likely."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Return the number of values."""
        return len(self.values)

    def at(self, position: float) -> Any:
        """Return the value at `position`, from 0 (the first) to 1 (the last)."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]


@dataclass(frozen=True)
class SizeRange:
    """Multiples of `multiple_of` from `low` to `high`, every doubling equally likely."""

    low: int
    high: int
    multiple_of: int = 1

    @property
    def count(self) -> int:
        """Return the number of multiples."""
        return self.high // self.multiple_of - -(-self.low // self.multiple_of) + 1

    def at(self, position: float) -> int:
        """Return the value at `position`, from 0 (smallest) to 1 (largest)."""
        first = -(-self.low // self.multiple_of)
        last = self.high // self.multiple_of
        # Half a step beyond either end makes the ends as likely as their neighbours.
        start, end = math.log(first - 0.5), math.log(last + 0.5)
        return min(max(round(math.exp(start + position * (end - start))), first), last) * self.multiple_of


Axis = Choices | SizeRange


def _listed(is_allowed: Callable[[Any], bool], allowed: str, given: Any) -> Axis:
    """Return the axis of one allowed value or of a list of them; raises ValueError."""
    if isinstance(given, Choices | SizeRange):
        return given
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not found or len(found) > MAX_VALUES or not all(map(is_allowed, found)):
        raise ValueError(f"must be {allowed}")
    if len(set(found)) != len(found):
        raise ValueError("lists a value twice")
    return Choices(found)


def _sizes(given: Any) -> Axis:
    if isinstance(given, dict):
        return _range(given)
    sizes = f"a whole number from 1 to {MAX_SIZE:,}, a list of them, or {{low = …, high = …, multiple_of = …}}"
    axis = _listed(_is_size, sizes, given)
    return Choices(tuple(sorted(axis.values))) if isinstance(axis, Choices) else axis


def _range(given: dict[Any, Any]) -> SizeRange:
    unknown = sorted(str(name)[:40] for name in set(given) - {"low", "high", "multiple_of"})
    if unknown:
        raise ValueError(f"has the unknown key {unknown[0]!r}; a range has low, high and multiple_of")
    if not {"low", "high"} <= set(given) or not all(_is_size(value) for value in given.values()):
        raise ValueError(f"must have low and high, whole numbers from 1 to {MAX_SIZE:,}")
    found = SizeRange(**given)
    if found.count < 1 or found.low > found.high:
        raise ValueError(f"holds no multiple of {found.multiple_of} from {found.low} to {found.high}")
    return found


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIZE


Sizes = Annotated[Axis, PlainValidator(_sizes)]
"""A number, a list of numbers or `{low, high, multiple_of}` in a space file."""


def choices_of(*allowed: str | bool) -> PlainValidator:
    """Return a validator for one of `allowed`, or a list of them."""
    names = ", ".join(str(one).lower() if isinstance(one, bool) else repr(one) for one in allowed)

    def is_allowed(value: Any) -> bool:
        return any(value is one or (isinstance(value, str) and value == one) for one in allowed)

    return PlainValidator(functools.partial(_listed, is_allowed, f"one of {names}, or a list of them"))


def _is_group(value: Any) -> bool:
    return value == DEPTHWISE or _is_size(value)


_GROUPS = f'a whole number from 1, "{DEPTHWISE}", or a list of them'
Groups = Annotated[Choices, PlainValidator(functools.partial(_listed, _is_group, _GROUPS))]
"""Numbers of groups, or `depthwise` for as many as channels."""
