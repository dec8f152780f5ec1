"""What work on a file may take: memory and time, by default from its size, or as environment variables state."""

import os
import re
from dataclasses import dataclass

from harness.errors import ConfigurationError, UnsupportedNetwork
from harness.text import byte_size

_LEAST_WALL_S = 60.0
_WALL_PER_CPU = 20
"""Wall time ends what waits for ever. A busy machine takes many times the processor time."""
_UNITS = {"M": 20, "G": 30}
_BYTES_PER_BYTE = 6
"""Parsing, checking and inlining a file hold six copies of it at the same time."""
_STORED_BYTES_PER_S = 32 << 20


@dataclass(frozen=True)
class Limits:
    """What a process may take: bytes of memory beyond those of its start, and seconds of processor and wall time.

    `more_s` is the processor time that many nodes may add, `bytes_per_byte` the memory that each byte stored may add.
    """

    memory_bytes: int
    cpu_s: int
    wall_s: float
    more_s: int = 0
    bytes_per_byte: int = 0


@dataclass(frozen=True)
class LimitSettings:
    """The limits of one kind of work, and the names of the variables that replace them."""

    memory_variable: str
    seconds_variable: str
    memory_bytes: int
    cpu_s: int
    more_s: int = 0

    def limits(self, stored_bytes: int = 0, *, runs: int = 1) -> Limits:
        """Return the limits for a file of this size, its external data included, for work that runs `runs` times.

        Raises ConfigurationError if a variable is not a size or a number of seconds.
        """
        given_bytes, given_s = _size(self.memory_variable), _seconds(self.seconds_variable)
        cpu_s = runs * (given_s or self.cpu_s + stored_bytes // _STORED_BYTES_PER_S)
        more_s = 0 if given_s else self.more_s
        return Limits(
            memory_bytes=given_bytes or self.memory_bytes + _BYTES_PER_BYTE * stored_bytes,
            cpu_s=cpu_s,
            wall_s=_LEAST_WALL_S + _WALL_PER_CPU * (cpu_s + more_s),
            more_s=more_s,
            bytes_per_byte=0 if given_bytes else _BYTES_PER_BYTE,
        )

    def too_slow(self, file: str, task: str, time: str, limits: Limits) -> UnsupportedNetwork:
        """Return the error for a file whose `task`, such as `to read`, takes more than this time."""
        step = f"If you trust the file, allow more seconds: {self.more_seconds(limits)}"
        return UnsupportedNetwork(f"{file} takes more than {time} {task}", next_step=step)

    def too_large(self, file: str, task: str, limits: Limits, why: str = "") -> UnsupportedNetwork:
        """Return the error for a file whose `task` takes more memory than the limit."""
        step = f"If you trust the file, allow more: {self.more_memory(limits)}"
        return UnsupportedNetwork(f"{file} {too_much_memory(limits)} {task}", why=why, next_step=step)

    def more_memory(self, limits: Limits) -> str:
        """Return the assignment that allows about four times the memory."""
        return f"{self.memory_variable}={-(-4 * limits.memory_bytes // (1 << 30))}G"

    def more_seconds(self, limits: Limits) -> str:
        """Return the assignment that allows ten times the processor time."""
        return f"{self.seconds_variable}={10 * limits.cpu_s}"


READING = LimitSettings("HARNESS_READ_MEMORY", "HARNESS_READ_SECONDS", 512 << 20, 4, more_s=4)
"""Reading a file."""
COMPARING = LimitSettings("HARNESS_READ_MEMORY", "HARNESS_READ_SECONDS", 512 << 20, 60)
"""Running a file and the model that is sent for it."""
NPU = LimitSettings("HARNESS_NPU_MEMORY", "HARNESS_NPU_SECONDS", 900 << 20, 60)
"""A command of `harness npu` on a network that was read, or on a program."""
NODES_PER_S = 10_000
"""The nodes for which reading may take another second."""


def too_much_memory(limits: Limits) -> str:
    """Return what a message says about the limit on memory."""
    return f"takes more than {byte_size(limits.memory_bytes)} of memory"


def _size(variable: str) -> int:
    text = os.environ.get(variable, "")
    match = re.fullmatch(r"([1-9]\d{0,5})([MG])", text)
    if text and match is None:
        raise ConfigurationError(f"{variable} is not a size", why=repr(text[:40]), next_step="Write 2G or 500M")
    return int(match[1]) << _UNITS[match[2]] if match else 0


def _seconds(variable: str) -> int:
    text = os.environ.get(variable, "")
    if text and not re.fullmatch(r"[1-9]\d{0,5}", text):
        why = repr(text[:40])
        raise ConfigurationError(f"{variable} is not a number of seconds", why=why, next_step="Write 60")
    return int(text) if text else 0
