"""Errors of the emulated NPU as errors of the command line: of the user's files, or bugs of the compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.errors import HarnessError, InputError


@contextlib.contextmanager
def errors_of_user() -> Iterator[None]:
    """What the emulated NPU refuses lies in a file or an option that the user gave: exit code 3."""
    from device_agents.emulated_npu.errors import EmulatorError

    try:
        yield
    except EmulatorError as error:
        raise InputError(error.what, why=error.why, next_step=error.next_step) from error


@contextlib.contextmanager
def errors_of_compiler() -> Iterator[None]:
    """A program that the compiler has just made must run, unless memory or budget end: else it is a bug."""
    from device_agents.emulated_npu.errors import BudgetExceeded, ExecutionFault, InvalidProgram

    with errors_of_user():
        try:
            yield
        except BudgetExceeded:
            raise
        except (ExecutionFault, InvalidProgram) as error:
            why = ". ".join(part for part in (error.what, error.why) if part)
            step = "Report it with the network and these options"
            raise HarnessError("The program that was compiled is faulty", why=why, next_step=step) from error
