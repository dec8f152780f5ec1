"""What is raised when a stream of runs cannot go on, naming core and instruction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, Deadlock
from device_agents.emulated_npu.timing.core_code import CoreCode
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Queue, Wait

_NAMED = 8


def over_budget(code: CoreCode, pc: int, limit_ps: int) -> BudgetExceeded:
    """An instruction of a core ends too late."""
    return BudgetExceeded(
        f"core {code.source.core}: instruction {pc} ends beyond the budget of {limit_ps} ps",
        "the program loops without end, or the inputs take longer than the budget allows",
        "Raise the budget if the program is sound",
    )


def locked(
    code: CoreCode, position: int, heads: tuple[int, int], counts: tuple[int, int], units: Sequence[int]
) -> Deadlock:
    """A core whose queues wait for each other: the heads, how many entries were issued, what the semaphores hold."""
    words = []
    for queue, head, count in zip(Queue, heads, counts, strict=True):
        if head == count:
            words.append(f"{queue.name} queue: empty")
            continue
        step = code.step_of(queue, head)
        assert isinstance(step.item, Wait)  # noqa: S101  # nothing else blocks a queue for good
        number, needed = step.item.semaphore, step.item.count
        value = units[code.semaphores[number]]
        words.append(
            f"{queue.name} queue: instruction {step.pc} waits for semaphore {number} to be {needed}, it is {value}"
        )
    if position < len(code.source.steps):
        stuck = code.source.steps[position]
        cause = "both queues to drain" if isinstance(stuck.item, Fence) else "room in the queue"
        words.append(f"control unit: instruction {stuck.pc} waits for {cause}")
    return Deadlock(
        f"deadlock: core {code.source.core}: {'; '.join(words)}",
        "a WAIT needs a POST that never comes, or that stands behind it",
        "Order every POST so that it can act before its WAIT blocks what it depends on",
    )


def standstill(stuck: Iterable[tuple[CoreCode, int, int]]) -> Deadlock:
    """Cores that wait for each other: each with the run and the entry of its IO queue that it stopped at."""
    words = [
        f"core {code.source.core}: instruction {step.pc} waits for {_awaited(step.item, run)}"
        for code, run, entry in stuck
        if isinstance((step := code.step_of(Queue.IO, entry)).item, Command)
    ]
    more = f"; and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return Deadlock(
        f"deadlock: {'; '.join(words[:_NAMED])}{more}",
        "a RECEIVE needs a SEND that never comes, or a SEND the slot of a group that cannot go on",
        "Order SEND and RECEIVE of all cores so that each can act, or give the group's ring more slots",
    )


def _awaited(command: Command, run: int) -> str:
    if command.function is Function.RECEIVE:
        return f"a message of core {command.peer} for input {run}"
    return f"a slot in the ring of core {command.peer}'s group for input {run}"
