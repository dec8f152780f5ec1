"""The machines of a sweep: built-in ones and files, with every combination of the values of --set.

Values are texts such as `8,16,32`, `256K:4M:x2` or `100:500:+100`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Literal

from device_agents.emulated_npu.emulator_errors import ContradictoryMachine, EmulatorError
from device_agents.emulated_npu.machine import Machine
from harness.errors import UsageError
from harness.npu.error_translation import errors_of_user
from harness.npu.npu_options import MachineChoice
from harness.npu.sweep.machine_parameters import ONE_BUFFER, ParameterValue, changed, check_key, parameters, with_tied
from harness.text import sentences

MOST_POINTS = 256
"""Largest number of machines in a sweep; each takes a compilation."""
MOST_LINES = 12
"""Largest number of lines in a plot."""
Scale = Literal["linear", "log", "names"]
_NUMBER = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?)([KMGT]?)\Z")
_RANGE = re.compile(r"([^:]*):([^:]*):([x+])([^:]*)\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = (("bytes_per_s", "bytes/s"), ("bytes", "bytes"), ("_hz", "Hz"), ("_ns", "ns"), ("_cycles", "cycles"))
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class SweepMachine:
    """A machine to try; if its values contradict each other it is None, and `reason` says why."""

    base: Machine
    settings: Mapping[str, ParameterValue]
    machine: Machine | None
    reason: str = ""
    next_step: str = ""


@dataclass(frozen=True)
class MachineGrid:
    """Base machines, the parameters that change, and their product: machine by machine, the last parameter fastest."""

    machines: tuple[Machine, ...]
    axes: tuple[SweepAxis, ...]
    candidates: tuple[SweepMachine, ...]

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """The machines on which each further parameter changes with those of --set."""
        found: dict[str, list[str]] = {}
        for each in self.candidates:
            others = with_tied(each.base, each.settings)
            for key in others:
                if key not in each.settings and each.base.name not in found.setdefault(key, []):
                    found[key].append(each.base.name)
        return {key: tuple(names) for key, names in found.items()}

    @property
    def one_buffer(self) -> tuple[str, ...]:
        """Names of the machines on which setting one of nb_bytes and sb_bytes sets both."""
        return tuple(dict.fromkeys(name for key in ONE_BUFFER for name in self.tied.get(key, ())))

    def check_drawable(self) -> None:
        """Raise UsageError for more lines than a plot has room for."""
        sizes = [len(axis.values) for axis in self.axes]
        count = len(self.candidates) // next((size for size in sizes if size > 1), len(self.machines))
        if count > MOST_LINES:
            step = "Give the parameter with the most values first, which is the horizontal axis, or omit --plot"
            raise UsageError(f"--plot would have {count} lines, more than {MOST_LINES}", next_step=step)


def read_grid(presets: Sequence[str], files: Sequence[Path], settings: Sequence[str]) -> MachineGrid:
    """Return all machines of a sweep, checked before the network is compiled for any of them.

    Raises UsageError for a single machine and for more than `MOST_POINTS`, InputError for a value that is not allowed.
    """
    machines, axes = _read_machines(presets, files), _read_axes(settings)
    sizes = [len(axis.values) for axis in axes]
    count = len(machines) * math.prod(sizes)
    if count < 2:
        step = "Give --set KEY=VALUES with several values, or --preset several times"
        raise UsageError("The sweep has only one machine", why="No parameter varies", next_step=step)
    if count > MOST_POINTS:
        product = " x ".join(map(str, [len(machines), *sizes] if len(machines) > 1 else sizes))
        step = "Omit values or use a larger step"
        raise UsageError(f"{product} = {count:,} machines are more than {MOST_POINTS}", next_step=step)
    with errors_of_user():
        candidates = tuple(
            _candidate(base, dict(zip((axis.key for axis in axes), values, strict=True)))
            for base in machines
            for values in itertools.product(*(axis.values for axis in axes))
        )
    return MachineGrid(tuple(machines), axes, candidates)


def _read_machines(presets: Sequence[str], files: Sequence[Path]) -> list[Machine]:
    """Return the machines to start from, edge if none is named; raises UsageError for one that is given twice."""
    found = [MachineChoice(preset=name).load() for name in presets]
    found += [MachineChoice(machine=file).load() for file in files]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Machine {name} is given twice", next_step="Omit one, or rename its file")
    return found or [MachineChoice().load()]


def _read_axes(settings: Sequence[str]) -> tuple[SweepAxis, ...]:
    """Return the parameters of --set with their values; raises UsageError."""
    axes: list[SweepAxis] = []
    for text in settings:
        try:
            axis = parse_axis(text, MOST_POINTS)
        except EmulatorError as error:
            raise UsageError(f"--set: {error.what}", why=error.why, next_step=error.next_step) from error
        if axis.key.startswith("cores."):
            why = "A sweep runs networks on one core, which uses neither other cores nor links"
            step = "Compare numbers of cores with `harness npu pipeline --groups`"
            raise UsageError(f"--set {axis.key} changes nothing", why=why, next_step=step)
        if any(axis.key == other.key for other in axes):
            raise UsageError(f"--set {axis.key} is given twice", next_step="Separate its values by commas")
        axes.append(axis)
    return tuple(axes)


def _candidate(base: Machine, settings: Mapping[str, ParameterValue]) -> SweepMachine:
    try:
        return SweepMachine(base, settings, changed(base, settings))
    except ContradictoryMachine as error:
        return SweepMachine(base, settings, None, sentences(error.what, error.why), error.next_step)


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
