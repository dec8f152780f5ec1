"""The values that a parameter takes in a sweep, from text: `8,16,32`, `256K:4M:x2`, `100:500:+100`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from device_agents.emulated_npu.emulator_errors import EmulatorError
from harness.npu.sweep.machine_parameters import ParameterValue, check_key, parameters

Scale = Literal["linear", "log", "names"]

_NUMBER = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?)([KMGT]?)\Z")
_RANGE = re.compile(r"([^:]*):([^:]*):([x+])([^:]*)\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = (("bytes_per_s", "bytes/s"), ("bytes", "bytes"), ("_hz", "Hz"), ("_ns", "ns"), ("_cycles", "cycles"))
_LONGEST_SHOWN = 60


class InvalidSweep(EmulatorError):
    """A parameter and its values are not written as KEY=VALUES."""


@dataclass(frozen=True)
class SweepAxis:
    """A parameter and its values; numbers ascend.

    `scale` is log if the ratios of neighbours vary less than their differences (a geometric series), and names if the
    values are not numbers.
    """

    key: str
    values: tuple[ParameterValue, ...]

    @property
    def scale(self) -> Scale:
        """How the values are spaced."""
        if any(isinstance(value, (str, bool)) for value in self.values):
            return "names"
        return scale_of([float(value) for value in self.values])


def scale_of(values: Sequence[float]) -> Literal["linear", "log"]:
    """Return log if ascending numbers are spaced by a factor rather than by a difference."""
    if len(values) < 3 or values[0] <= 0:
        return "linear"
    pairs = list(itertools.pairwise(values))
    ratios, differences = [after / before for before, after in pairs], [after - before for before, after in pairs]
    return "log" if max(ratios) / min(ratios) < max(differences) / min(differences) else "linear"


def parse_axis(text: str, most_values: int) -> SweepAxis:
    """Parse `KEY=VALUES`: single values and ranges, separated by commas.

    A range is FIRST:LAST:xFACTOR or FIRST:LAST:+STEP; it ends at the last value that is not beyond LAST, and whole
    numbers stay whole. K, M, G and T are powers of 1024 for sizes (bytes), of 1000 for clocks and rates (_hz, _per_s).
    The machine checks the limits of values. Raises InvalidMachine for an unknown key, and InvalidSweep for text that is
    not a number or range, for a value given twice, and for more than `most_values`.
    """
    key, separator, words = text.partition("=")
    if not separator:
        raise InvalidSweep(f"{_shown(text)} is not KEY=VALUES", "", "Write mfu.rows=8,16,32 or nb_bytes=256K:4M:x2")
    check_key(key)
    values: list[ParameterValue] = []
    for word in words.split(","):
        found = list(itertools.islice(_part(key, word.strip()), most_values + 1))
        values += dict.fromkeys(found)  # whole numbers grow slowly by a small factor
        if max(len(found), len(values)) > most_values:
            what = f"{key}={_shown(words)} are more than {most_values} values"
            raise InvalidSweep(what, f"A sweep has at most {most_values} points", "Take a larger step or factor")
    for value in values:
        if values.count(value) > 1:
            raise InvalidSweep(f"{key} takes the value {shown(key, value)} twice", "", "Omit one of them")
    is_numeric = parameters()[key] in (int, float)
    return SweepAxis(key, tuple(sorted(values)) if is_numeric else tuple(values))


def shown(key: str, value: ParameterValue) -> str:
    """Return a value as a reader writes it: with the largest suffix that leaves at most two decimals."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    base = _base(key)
    for suffix, power in reversed(_POWERS.items()):
        if base and power and value >= base**power and value * 100 % base**power == 0:
            return f"{value / base**power:.2f}".rstrip("0").rstrip(".") + suffix
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def in_unit(key: str) -> str:
    """Return a parameter with its unit, which its name ends with, if it has one."""
    for ending, unit in _UNITS:
        if key.endswith(ending):
            return f"{key}, {unit}"
    return key


def _part(key: str, word: str) -> Iterator[ParameterValue]:
    expected = parameters()[key]
    if expected not in (int, float):
        if not _NAME.match(word):
            raise InvalidSweep(f"{key}={_shown(word)} is not a value", "It is one word", "Separate values by commas")
        yield {"true": True, "false": False}.get(word, word) if expected is bool else word
        return
    if ":" not in word:
        yield _plain(_number(key, word))
        return
    found = _RANGE.match(word)
    if not found:
        why = "A range is FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"
        raise InvalidSweep(f"{key}={_shown(word)} is not a range", why, "Write 256K:4M:x2 or 100:500:+100")
    first, last = _number(key, found[1]), _number(key, found[2])
    # A factor has no unit.
    change = _number("", found[4]) if found[3] == "x" else _number(key, found[4])
    if last < first:
        raise InvalidSweep(f"{key}={_shown(word)} ends before it starts", "", "Write the smaller value first")
    if change <= (1 if found[3] == "x" else 0) or (found[3] == "x" and first <= 0):
        why = "A factor is larger than 1 and its range starts above 0; a step is larger than 0"
        raise InvalidSweep(f"{key}={_shown(word)} does not grow", why, "Correct the range")
    yield from _steps(first, last, found[3], change, whole=expected is int)


def _steps(first: Fraction, last: Fraction, sign: str, change: Fraction, *, whole: bool) -> Iterator[ParameterValue]:
    at = first
    while at <= last:
        yield round(at) if whole else _plain(at)
        at = at * change if sign == "x" else at + change


def _number(key: str, word: str) -> Fraction:
    found = _NUMBER.match(word)
    if not found:
        why = "It must be a number of 0 or more, optionally followed by K, M, G or T"
        raise InvalidSweep(f"{key or 'factor'}={_shown(word)} is not a number", why, "Write 8, 0.5, 256K or 17e9")
    base = _base(key)
    number = Fraction(Decimal(found[1].replace("_", "")))
    if not found[2]:
        return number
    if not base:
        why = "K, M, G and T are for sizes (bytes), clocks (_hz) and rates (_per_s)"
        raise InvalidSweep(f"{key or 'factor'}={_shown(word)} has a suffix", why, "Write the number in full")
    return number * Fraction(base ** _POWERS[found[2]])


def _plain(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)


def _base(key: str) -> int:
    """Return the value of K for a parameter; 0 if it takes no suffixes."""
    if key.endswith(("_hz", "_per_s")):
        return 1000
    return 1024 if key.endswith("bytes") else 0


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
