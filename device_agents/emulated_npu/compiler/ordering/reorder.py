"""Hoists loads over earlier computes and stores (S2.5).

All queues are in order. In `L0 C0 S0 L1 C1 S1` the store S0 waits at the head of the IO queue for C0, so that L1 cannot
run at the same time as C0; in `L0 L1 C0 S0 L2 C1 S1 ...` it can. Loads keep their order, and so do all other commands:
the result is a merge of two streams.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.emulated_npu.compiler.ordering.hazards import (
    LOADS,
    SEPARATE,
    STORES,
    UNITS,
    Conflicts,
    dependencies,
    latest_of,
    stream_of,
)
from device_agents.emulated_npu.unit_commands import Command, Function


def hoist_loads(commands: Sequence[Command], *, window: int, memory_of: Sequence[int] = SEPARATE) -> list[Command]:
    """Return the commands with every load as early as its dependences allow, as `hoisted` orders them."""
    return [commands[position] for position in hoisted(commands, dependencies(commands, memory_of), window=window)]


def hoisted(commands: Sequence[Command], conflicts: Sequence[Conflicts], *, window: int) -> list[int]:
    """Return the positions of the commands with loads as early as conflicts allow, over at most `window` computes.

    A load does not pass a store that can start no later than the load: that would only delay the store.
    """
    streams = [stream_of(command) for command in commands]
    others = [position for position, stream in enumerate(streams) if stream not in LOADS]
    loads = [position for position, stream in enumerate(streams) if stream in LOADS]
    rank = {position: index for index, position in enumerate(others)}
    computes = [rank[position] for position in others if streams[position] in UNITS]

    result: list[int] = []
    done = passed = overtaken_from = 0  # others placed; others and computes that precede the load in the program
    for load in loads:
        while passed < len(others) and others[passed] < load:
            overtaken_from += streams[others[passed]] in UNITS
            passed += 1
        found = conflicts[load]
        behind = max(rank.get(latest_of(found, STORES), -1), rank.get(latest_of(found, UNITS), -1)) + 1
        limit = computes[overtaken_from - window - 1] + 1 if overtaken_from > window else 0
        slot = max(behind, limit, done)
        while slot < passed and _is_store(commands, others[slot]) and _starts_no_later(conflicts, others[slot], load):
            slot += 1
        result += others[done:slot]
        result.append(load)
        done = slot
    return result + others[done:]


def _is_store(commands: Sequence[Command], position: int) -> bool:
    """Return whether a command is a store; a RECEIVE is none, because its start depends on another core."""
    function = commands[position].function
    return function is not Function.RECEIVE and stream_of(commands[position]) in STORES


def _starts_no_later(conflicts: Sequence[Conflicts], store: int, load: int) -> bool:
    """Return whether the last compute that the store needs is not after the last one that the load needs."""
    return latest_of(conflicts[store], UNITS) <= latest_of(conflicts[load], UNITS)
