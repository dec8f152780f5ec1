"""Errors of timed runs; those of a core among others name the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, Deadlock
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Queue, Wait

_NAMED = 8


def over_budget(step: IssuedStep, limit_ps: int, core: int | None = None) -> BudgetExceeded:
    """Return the error for an instruction that ends after the limit."""
    return BudgetExceeded(
        f"{_of(core)}instruction {step.pc} ends beyond the budget of {limit_ps} ps",
        "the program loops without end, or takes longer than the budget allows",
        "Raise the cycle budget if the program is sound",
    )


def locked(
    heads: Mapping[Queue, IssuedStep | None],
    stuck: IssuedStep | None,
    value_of: Callable[[int], int],
    core: int | None = None,
) -> Deadlock:
    """Return the error for queues that wait for each other.

    `heads` holds the first entry of each queue, None for an empty one; `stuck` is the step that the control unit cannot
    issue, if there is one; `value_of` returns the value of a semaphore.
    """
    words = [_head_text(queue, step, value_of) for queue, step in heads.items()]
    if stuck is not None:
        cause = "all queues to drain" if isinstance(stuck.item, Fence) else "room in the queue"
        words.append(f"control unit: instruction {stuck.pc} waits for {cause}")
    return Deadlock(
        f"deadlock: {_of(core)}{'; '.join(words)}",
        "a WAIT needs a POST that is missing or comes after it",
        "Issue every POST so that it does not depend on the WAIT that needs it",
    )


def _of(core: int | None) -> str:
    return "" if core is None else f"core {core}: "


def _head_text(queue: Queue, step: IssuedStep | None, value_of: Callable[[int], int]) -> str:
    if step is None:
        return f"{queue.name} queue: empty"
    assert isinstance(step.item, Wait)  # noqa: S101  # nothing else blocks a queue for good
    semaphore, count = step.item.semaphore, step.item.count
    needed = f"waits for semaphore {semaphore} to be {count}, it is {value_of(semaphore)}"
    return f"{queue.name} queue: instruction {step.pc} {needed}"


def standstill(stopped: Mapping[int, tuple[IssuedStep, int]]) -> Deadlock:
    """Return the error for cores that wait for each other: by core, its stopped step and the number of its input."""
    words = [
        f"core {core}: instruction {step.pc} waits for {_awaited(step.item, number)}"
        for core, (step, number) in stopped.items()
        if isinstance(step.item, Command)
    ]
    more = f"; and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return Deadlock(
        f"deadlock: {'; '.join(words[:_NAMED])}{more}",
        "a RECEIVE needs a SEND that is missing, or a SEND needs a ring slot of a group that is blocked",
        "Order SEND and RECEIVE of all cores so that each can act, or give the group's ring more slots",
    )


def _awaited(command: Command, number: int) -> str:
    if command.function is Function.RECEIVE:
        return f"a message of core {command.peer} for input {number}"
    return f"a slot in the ring of core {command.peer}'s group for input {number}"
