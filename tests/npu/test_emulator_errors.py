"""Errors of the emulated NPU as errors of the harness."""

import pytest

from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.emulator_errors import (
    BudgetExceeded,
    ContradictoryOptions,
    Deadlock,
    DoesNotFit,
    EmulatorError,
    InvalidMachine,
    InvalidProgram,
)
from harness.errors import HarnessError, InputError
from harness.npu.error_translation import errors_of_compiler, errors_of_forced_choices, errors_of_user


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ContradictoryOptions("--a contradicts --b"), 2),
        (InvalidMachine("m"), 3),
        (InvalidProgram("p"), 3),
        (BudgetExceeded("b"), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_user(error: EmulatorError, exit_code: int) -> None:
    """Contradictory options are usage errors, everything else an input error; a missing next step is filled in."""
    with pytest.raises(HarnessError) as caught, errors_of_user("Do this"):
        raise error
    what = error.what[0].upper() + error.what[1:]
    assert (caught.value.exit_code, caught.value.what, caught.value.next_step) == (exit_code, what, "Do this")


def test_names_keep_their_letters() -> None:
    """A message begins with a capital letter, except where it begins with the name of a key or option."""
    with pytest.raises(InputError) as caught, errors_of_user():
        raise InvalidMachine("nb_bytes is 0", "it must be above 0")
    assert (caught.value.what, caught.value.why) == ("nb_bytes is 0", "It must be above 0")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(Deadlock("d"), 1), (InvalidProgram("p"), 1), (BudgetExceeded("b"), 3), (DoesNotFit("f"), 3)],
)
def test_compiled_programs_that_cannot_run_are_bugs(error: EmulatorError, exit_code: int) -> None:
    """A fault of a compiled program is a bug of harness; a budget or a memory that is too small is not."""
    with pytest.raises(HarnessError) as caught, errors_of_compiler():
        raise error
    assert caught.value.exit_code == exit_code


def test_given_options_are_omitted_first() -> None:
    """The next step names the given options before the memory; without given options the error is unchanged."""
    error = DoesNotFit("what", "why", "Raise nb_bytes", "NB", 10)
    with pytest.raises(DoesNotFit) as caught, errors_of_forced_choices(Options(tile=(4, 4))):
        raise error
    assert caught.value.next_step == "Omit --tile; else raise nb_bytes" and caught.value.demand_bytes == 10
    with pytest.raises(DoesNotFit) as caught, errors_of_forced_choices(DEFAULT):
        raise error
    assert caught.value is error
