"""What the engine for many cores costs: time per issued item for more cores, inputs and instructions.

Each line is a stream through a pipeline of cores, every core a group; the cost per item is also given relative to
the first line of its table, which is timed in the same run. Where the cost is linear, the ratio hardly grows.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Sequence

from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.timing.simulation import durations_ps
from device_agents.emulated_npu.timing.single_core import schedule
from device_agents.emulated_npu.timing.stream_timing import CoreSteps, simulate_cores
from device_agents.emulated_npu.unit_commands import (
    Command,
    DataType,
    Descriptor,
    Function,
    Item,
    Operand,
    Post,
    Queue,
    Space,
    Wait,
)

TILES = 200
INPUTS = 8
REPEATS = 3


def _operand(space: Space, size: int) -> Operand:
    return Operand(Descriptor(space, DataType.INT8, (size,), (1,)), 0)


def _load(size: int) -> Command:
    return Command(Function.LOAD, _operand(Space.NB, size), _operand(Space.DDR, size))


def _tile(number: int) -> list[Item]:
    """What a compiled tile looks like: a load, the computing that waits for it, and room for the load after next."""
    size = 64 * (1 + number % 7)
    view = _operand(Space.NB, size)
    computing = Command(Function.MAP, view, view)
    return [_load(size), Post(Queue.IO, 0), Wait(Queue.CP, 0), computing, Post(Queue.CP, 1), Wait(Queue.IO, 1)]


def program(core: int, cores: int, tiles: int) -> list[IssuedStep]:
    """A stage: receives of the core before it, works tile by tile, sends to the core behind it."""
    items: list[Item] = []
    if core:
        items.append(Command(Function.RECEIVE, _operand(Space.DDR, 1), peer=core - 1))
    for number in range(tiles):
        items += _tile(number + core)
    if core + 1 < cores:
        target = _operand(Space.DDR, 512)
        items.append(Command(Function.SEND, target, _operand(Space.NB, 512), peer=core + 1))
    return [IssuedStep(pc, item, 2) for pc, item in enumerate(items)]


def item_us(machine: Machine, cores: int, inputs: int, tiles: int) -> float:
    """Microseconds per issued item, the best of some."""
    programs = [CoreSteps(core, core, program(core, cores, tiles)) for core in range(cores)]
    items = inputs * sum(len(each.steps) for each in programs)
    best_s = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        started_s = time.perf_counter()
        simulate_cores(programs, machine, inputs=inputs, depths=dict.fromkeys(range(cores), 2))
        best_s = min(best_s, time.perf_counter() - started_s)
    return 1e6 * best_s / items


def schedule_us(machine: Machine, tiles: int) -> float:
    """Microseconds per issued item of the engine for one core, which keeps the causes of every time."""
    steps, costs = program(0, 1, tiles), CostModel(machine)
    durations = durations_ps(steps, costs)
    best_s = float("inf")
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        schedule(steps, durations, machine, 1 << 62, machine.issue_cycles * costs.cycle_ps)
        best_s = min(best_s, time.perf_counter() - started_s)
    return 1e6 * best_s / len(steps)


def _table(title: str, rows: Sequence[tuple[int, float]]) -> None:
    print(f"\n{title:>16}  us/item  ratio")
    for count, us in rows:
        print(f"{count:>16}  {us:7.2f}  {us / rows[0][1]:5.2f}")


def main() -> None:
    """Prints a table for each of the three."""
    machine = load_preset("chiplets-64")
    print(f"{machine.name}, {TILES} tiles of 6 items a core, {INPUTS} inputs; best of {REPEATS}")
    print(f"one core by schedule(): {schedule_us(machine, TILES * INPUTS):.2f} us/item")
    _table("cores", [(count, item_us(machine, count, INPUTS, TILES)) for count in (1, 4, 16, 64)])
    crowded = dataclasses.replace(
        machine, ddr=dataclasses.replace(machine.ddr, bytes_per_s=machine.ddr.bytes_per_s / 64)
    )
    _table("cores, full DDR", [(count, item_us(crowded, count, INPUTS, TILES)) for count in (1, 4, 16, 64)])
    _table("inputs", [(count, item_us(machine, 4, count, TILES)) for count in (2, 8, 32, 128)])
    _table("tiles", [(count, item_us(machine, 4, INPUTS, count)) for count in (50, 200, 800, 3200)])


if __name__ == "__main__":
    main()
