"""Errors of the emulated NPU as errors of the command line: of the user's files, or bugs of the compiler."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.errors import HarnessError, InputError

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.options import Options


_LONG_WORD = re.compile(r"(\S{60})\S{81,}(\S{60})")


def shortened(text: str) -> str:
    """The text with the middle of every enormous word left out: names and paths of users have any length."""
    return _LONG_WORD.sub(r"\1…\2", text)


@contextlib.contextmanager
def errors_of_user(next_step: str = "") -> Iterator[None]:
    """What the emulated NPU refuses lies in a file or an option that the user gave: exit code 3.

    `next_step` is for errors that name none themselves.
    """
    from device_agents.emulated_npu.emulator_errors import EmulatorError

    try:
        yield
    except EmulatorError as error:
        step = error.next_step or next_step
        raise InputError(shortened(error.what), why=shortened(error.why), next_step=step) from error


@contextlib.contextmanager
def errors_of_compiler() -> Iterator[None]:
    """A program that the compiler has just made must run, unless memory or budget end: else it is a bug."""
    from device_agents.emulated_npu.emulator_errors import BudgetExceeded, ExecutionFault, InvalidProgram

    with errors_of_user():
        try:
            yield
        except BudgetExceeded:
            raise
        except (ExecutionFault, InvalidProgram) as error:
            why = ". ".join(part for part in (error.what, error.why) if part)
            step = "Report it with the network and these options"
            raise HarnessError("The program that was compiled is faulty", why=why, next_step=step) from error


@contextlib.contextmanager
def errors_of_forced_choices(options: Options) -> Iterator[None]:
    """Where something does not fit, what the user forced on the compiler is the first to let go."""
    from device_agents.emulated_npu.compiler.options import DEFAULT
    from device_agents.emulated_npu.emulator_errors import DoesNotFit

    names = ("tile", "chains", "halo", "residency", "conv_algorithm", "dft_block", "dft_kernels")
    changed = [name for name in names if getattr(options, name) != getattr(DEFAULT, name)]
    forced = [f"--{name.replace('_', '-')}" for name in changed]
    try:
        yield
    except DoesNotFit as error:
        if not forced:
            raise
        rest = f"; else {error.next_step[0].lower()}{error.next_step[1:]}" if error.memory else ""
        step = f"Leave {' and '.join(forced)} out{rest}"
        raise DoesNotFit(error.what, error.why, step, error.memory, error.demand_bytes) from error
