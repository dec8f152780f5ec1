"""Errors of the emulated NPU as errors of the harness."""

import contextlib
from collections.abc import Iterator

from device_agents.emulated_npu.compiler.options import TAKES_MEMORY, Options
from device_agents.emulated_npu.emulator_errors import (
    BudgetExceeded,
    ContradictoryOptions,
    DoesNotFit,
    EmulatorError,
    ExecutionFault,
    InvalidProgram,
)
from harness.errors import HarnessError, InputError, UsageError
from harness.text import sentences


@contextlib.contextmanager
def errors_of_user(next_step: str = "") -> Iterator[None]:
    """Raise InputError for what the emulated NPU refuses, and UsageError for options that contradict each other.

    `next_step` is for errors that name none themselves.
    """
    try:
        yield
    except EmulatorError as error:
        kind = UsageError if isinstance(error, ContradictoryOptions) else InputError
        what, why, step = map(_sentence, (error.what, error.why, error.next_step or next_step))
        raise kind(what, why=why, next_step=step) from error


def _sentence(text: str) -> str:
    """Return a text of the emulator with a capital letter, unless it begins with a name such as `nb_bytes`."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text


@contextlib.contextmanager
def errors_of_compiler() -> Iterator[None]:
    """Raise HarnessError, a bug, if a program that the compiler has just written cannot run.

    A run that exceeds its budget or the memory is an InputError, as in `errors_of_user`.
    """
    with errors_of_user():
        try:
            yield
        except BudgetExceeded:
            raise
        except (ExecutionFault, InvalidProgram) as error:
            why, step = sentences(error.what, error.why), "Report it with the network and these options"
            raise HarnessError("The compiled program is faulty", why=why, next_step=step) from error


@contextlib.contextmanager
def errors_of_forced_choices(options: Options) -> Iterator[None]:
    """If something does not fit, propose first to omit the options that the user has given."""
    try:
        yield
    except DoesNotFit as error:
        forced = options.given(TAKES_MEMORY)
        if not forced:
            raise
        rest = f"; else {error.next_step[0].lower()}{error.next_step[1:]}" if error.memory else ""
        step = f"Omit {' and '.join(forced)}{rest}"
        raise DoesNotFit(error.what, error.why, step, error.memory, error.demand_bytes) from error
