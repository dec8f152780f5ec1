"""The speed of the emulated NPU, its compiler and its timing engines: a part of docs/performance.md."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from benchmarks.generated_page import Section, table
from benchmarks.performance.measuring import (
    Growth,
    Run,
    Task,
    cpu,
    fitted,
    grow,
    growth_table,
    half_decades,
    in_turns,
    spread,
)
from benchmarks.performance.page import reached_linear
from benchmarks.topologies.layers import Topology
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from device_agents.emulated_npu.timing.simulation import durations_ps
from device_agents.emulated_npu.timing.single_core import schedule
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

MODEL, QUICK_MODEL, PRESET = "builtin:resnet50", "builtin:dscnn", "edge"
DEPTHS, QUICK_DEPTHS = half_decades(1, 1_000), (1, 2, 4)
TILES, QUICK_TILES = half_decades(10, 10_000), (5, 10, 20)
CORES, QUICK_CORES = (1, 4, 16, 64), (1, 2, 4)
TILES_A_CORE, INPUTS = 200, 8
CHANNELS, EDGE = 16, 14
_LIMIT_PS = 1 << 62
_PHASES = {"compile_s": "compile", "functional_s": "values", "timing_s": "timing"}


def emulation_section(run: Run) -> Section:
    """Run a network, compile stacks of growing depth, and time programs of growing length and number of cores."""
    model = QUICK_MODEL if run.quick else MODEL
    commands = [_whole_command(model) for _ in range(run.repeats)]
    phases = [(name, spread([one[key] for one in commands])) for key, name in _PHASES.items()]
    phases += [(f"whole command, {name}", spread([one[name] for one in commands])) for name in ("CPU s", "peak MiB")]
    machine = load_preset(PRESET)
    depths, tiles = (QUICK_DEPTHS, QUICK_TILES) if run.quick else (DEPTHS, TILES)
    compiling = grow(depths, lambda depth: partial(compile_graph, stack(depth), machine), run.repeats)
    engines = _engines(machine, tiles, run.repeats)
    text = (
        f"`harness npu run {model}` in processes; phases in seconds of wall time:\n\n"
        f"{table(('phase', 'median'), phases)}\n\nCompiling stacks of equal 3x3 convolutions:\n\n"
        f"{growth_table('layers', {'compile': compiling})}\n\nPrograms of tiles (a load, a computation and their "
        f"semaphores) through both engines; the one for a single core records the cause of every time:\n\n"
        f"{growth_table('cycles', engines)}\n\nA stream of {INPUTS} inputs through a pipeline of cores with "
        f"{TILES_A_CORE} tiles each on `chiplets-64`:\n\n{_pipelines(run)}"
    )
    one, many = engines.values()
    return Section(
        text,
        (
            reached_linear("layers: compile for the emulated NPU", compiling),
            reached_linear("cycles: time a program on one core", one),
            reached_linear("cycles: time a program in the engine for many cores", many),
        ),
    )


def _whole_command(model: str) -> Mapping[str, float]:
    """Run `harness npu run` in a process; return its phases, its CPU time and its peak of memory."""
    command = [sys.executable, "-m", "harness", "npu", "run", model, "--json"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        output = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    result = json.loads(output)
    phases = {name: float(result[name]) for name in _PHASES}
    return {**phases, "CPU s": usage.ru_utime + usage.ru_stime, "peak MiB": usage.ru_maxrss / 1024}


def stack(depth: int) -> Graph:
    """Return the graph of `depth` equal 3x3 convolutions in a row, each with its own weights."""
    net = Topology("stack", 0)
    x = net.image(CHANNELS, EDGE, EDGE)
    for _ in range(depth):
        x = net.convolve(x, CHANNELS, 3, bias=False)
    return import_model(net.finished(x, CHANNELS, EDGE, EDGE).SerializeToString())


def _engines(machine: Machine, tiles: tuple[int, ...], repeats: int) -> dict[str, Growth]:
    """Return how both engines grow with the cycles of a program on one core."""
    costs = CostModel(machine)
    steps = {count: tuple(program(0, 1, count)) for count in tiles}

    def one_core(count: int) -> float:
        durations = durations_ps(steps[count], costs)
        return schedule(steps[count], durations, machine, _LIMIT_PS, machine.issue_cycles * costs.cycle_ps).makespan_ps

    def many_cores(count: int) -> object:
        return simulate_cores([CoreSteps(0, 0, steps[count])], machine, inputs=1, depths={0: 1}, costs=costs)

    cycles = {count: round(one_core(count) / costs.cycle_ps) for count in tiles}
    engines = {"single core, with causes": one_core, "many cores, one core and one input": many_cores}
    found = in_turns(
        {f"{name} {count}": partial(engine, count) for count in tiles for name, engine in engines.items()}, repeats
    )
    return {
        name: fitted({cycles[count]: statistics.median(cpu(found[f"{name} {count}"])) for count in tiles})
        for name in engines
    }


def _pipelines(run: Run) -> str:
    """Return the time per item by the number of cores, with a DDR of full and of a fraction of the bandwidth."""
    machine = load_preset("chiplets-64")
    cores = QUICK_CORES if run.quick else CORES
    tasks: dict[str, Task] = {}
    for count in cores:
        programs = [CoreSteps(core, core, program(core, count, TILES_A_CORE)) for core in range(count)]
        depths = dict.fromkeys(range(count), 2)
        tasks[str(count)] = partial(simulate_cores, programs, machine, inputs=INPUTS, depths=depths)
    found = in_turns(tasks, run.repeats)
    items = {count: INPUTS * sum(len(program(core, count, TILES_A_CORE)) for core in range(count)) for count in cores}
    rows = [(count, f"{items[count]:,}", spread(cpu(found[str(count)]), 1e6 / items[count])) for count in cores]
    return table(("cores", "items", "CPU µs per item"), rows)


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


def _operand(space: Space, size: int) -> Operand:
    return Operand(Descriptor(space, DataType.INT8, (size,), (1,)), 0)


def _tile(number: int) -> list[Item]:
    """Return a tile as compiled: a load, the command that waits for it, and a semaphore for the load after next."""
    size = 64 * (1 + number % 7)
    view = _operand(Space.NB, size)
    loading = Command(Function.LOAD, view, _operand(Space.DDR, size))
    computing = Command(Function.MAP, view, view)
    return [loading, Post(Queue.IO, 0), Wait(Queue.CP, 0), computing, Post(Queue.CP, 1), Wait(Queue.IO, 1)]
