"""Measure the speed of both timing engines.

    python -m benchmarks.performance.timing_engines

First, one core of a compiled network through the engine for one core and, as its one-core case, through the engine for
many cores, alternately in one process. Then the engine for many cores with more cores, inputs and instructions: each
line is a stream through a pipeline of cores, every core a group. The time per item is also given relative to the first
line of its table, which is timed in the same run; if the cost is linear, the ratio hardly grows.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Sequence

from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.isa.sequencer import IssuedStep, sequence
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.timing.many_core_code import CoreSteps
from device_agents.emulated_npu.timing.simulation import durations_ps
from device_agents.emulated_npu.timing.single_core import schedule
from device_agents.emulated_npu.timing.stream_timing import simulate_cores
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
from harness.npu.loading import compile_network, load_model

TILES = 200
INPUTS = 8
REPEATS = 3
ONE_CORE_REPEATS = 9


def _operand(space: Space, size: int) -> Operand:
    return Operand(Descriptor(space, DataType.INT8, (size,), (1,)), 0)


def _load(size: int) -> Command:
    return Command(Function.LOAD, _operand(Space.NB, size), _operand(Space.DDR, size))


def _tile(number: int) -> list[Item]:
    """Return a tile as compiled: a load, the command that waits for it, and a semaphore for the load after next."""
    size = 64 * (1 + number % 7)
    view = _operand(Space.NB, size)
    computing = Command(Function.MAP, view, view)
    return [_load(size), Post(Queue.IO, 0), Wait(Queue.CP, 0), computing, Post(Queue.CP, 1), Wait(Queue.IO, 1)]


def program(core: int, cores: int, tiles: int) -> list[IssuedStep]:
    """Return a stage: receive from the core before, compute tile by tile, send to the core after."""
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
    """Return microseconds per issued item, the best of several runs."""
    programs = [CoreSteps(core, core, program(core, cores, tiles)) for core in range(cores)]
    items = inputs * sum(len(each.steps) for each in programs)
    best_s = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        started_s = time.perf_counter()
        simulate_cores(programs, machine, inputs=inputs, depths=dict.fromkeys(range(cores), 2))
        best_s = min(best_s, time.perf_counter() - started_s)
    return 1e6 * best_s / items


def one_core_engines(network: str, preset: str) -> None:
    """Print the instructions per second of a network's program on one core, for each engine the median."""
    machine = load_preset(preset)
    program = compile_network(load_model(f"builtin:{network}", {}), machine, DEFAULT).compiled.program
    steps = tuple(sequence(program.code, layer_of=program.layer_of))
    instructions = sum(step.control + (step.item is not None) for step in steps)
    costs, limit_ps = CostModel(machine), 1 << 62
    durations_ps(steps, costs)  # fills the cache of costs, which both engines use

    def by_single_core() -> object:
        durations = durations_ps(steps, costs)
        return schedule(steps, durations, machine, limit_ps, machine.issue_cycles * costs.cycle_ps)

    def by_many_cores() -> object:
        return simulate_cores([CoreSteps(0, 0, steps)], machine, inputs=1, depths={0: 1}, costs=costs)

    engines = (by_single_core, by_many_cores)
    seconds: dict[str, list[float]] = {engine.__name__: [] for engine in engines}
    for _ in range(ONE_CORE_REPEATS):
        for engine in engines:
            gc.collect()
            started_s = time.perf_counter()
            engine()
            seconds[engine.__name__].append(time.perf_counter() - started_s)
    for name, taken in seconds.items():
        rate = instructions / statistics.median(taken)
        print(f"{network} on {preset}, {instructions} instructions, {name}: {rate / 1e6:.2f} M instructions/s")


def _table(title: str, rows: Sequence[tuple[int, float]]) -> None:
    print(f"\n{title:>16}  us/item  ratio")
    for count, us in rows:
        print(f"{count:>16}  {us:7.2f}  {us / rows[0][1]:5.2f}")


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for preset in ("edge", "nvdla-256"):
        one_core_engines("resnet50", preset)
    machine = load_preset("chiplets-64")
    print(f"\n{machine.name}, {TILES} tiles of 6 items a core, {INPUTS} inputs; best of {REPEATS}")
    _table("cores", [(count, item_us(machine, count, INPUTS, TILES)) for count in (1, 4, 16, 64)])
    crowded = dataclasses.replace(
        machine, ddr=dataclasses.replace(machine.ddr, bytes_per_s=machine.ddr.bytes_per_s / 64)
    )
    _table("cores, full DDR", [(count, item_us(crowded, count, INPUTS, TILES)) for count in (1, 4, 16, 64)])
    _table("inputs", [(count, item_us(machine, 4, count, TILES)) for count in (2, 8, 32, 128)])
    _table("tiles", [(count, item_us(machine, 4, INPUTS, count)) for count in (50, 200, 800, 3200)])


if __name__ == "__main__":
    main()
