"""The machines of a sweep: built-in ones and files, with every combination of the parameters of --set."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agents.emulated_npu.emulator_errors import ContradictoryMachine, EmulatorError
from device_agents.emulated_npu.machine import Machine
from harness.errors import UsageError
from harness.npu.error_translation import errors_of_user
from harness.npu.npu_options import MachineChoice
from harness.npu.sweep.axis import SweepAxis, parse_axis
from harness.npu.sweep.machine_parameters import ONE_BUFFER, ParameterValue, changed, with_tied
from harness.text import sentences

MOST_POINTS = 256
"""Largest number of machines in a sweep; each takes a compilation."""

MOST_LINES = 12
"""Largest number of lines in a plot."""


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
