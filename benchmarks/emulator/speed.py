"""Measure the speed of the emulated NPU: ResNet-50 on `edge`, and programs of growing size.

    python -m benchmarks.emulator.speed

Prints medians of the phases compile, functional and timing, of the whole command with start-up, and of the peak of
memory, each in a process of its own; then the time per layer of stacks of equal layers, relative to the smallest stack.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    Graph,
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    ViewAxis,
)
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.emulated_npu.unit_commands import DataType, Function, Settings

MODEL = "builtin:resnet50"
REPEATS = 5
DEPTHS = (16, 32, 64, 128)
CHANNELS, EDGE = 64, 56


def whole_command() -> dict[str, float]:
    """Run `harness npu run` in a process; return its phases and times with start-up (s), and peak memory (MiB)."""
    command = [sys.executable, "-m", "harness", "npu", "run", MODEL, "--json"]
    started_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"})
    output = process.stdout.read() if process.stdout else b""
    _, _, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started_s
    result = json.loads(output)
    phases = {name: result[name] for name in ("compile_s", "functional_s", "timing_s", "max_rel_error")}
    return {
        **phases,
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def stack(depth: int) -> Graph:
    """Return a graph of `depth` equal 3x3 convolutions in a row, each with its own weights."""
    shape = (1, CHANNELS, EDGE, EDGE)
    axes = tuple(ViewAxis(size, axis) for axis, size in enumerate(shape))
    values = {
        f"v{index}": Value(
            f"v{index}",
            shape,
            DataType.FLOAT32,
            (0, 2, 3, 1),
            "activation" if index else "input",
            index == depth,
        )
        for index in range(depth + 1)
    }
    layers = tuple(
        HardwareLayer(
            index,
            f"conv{index}",
            (f"conv{index}",),
            Function.CONVOLVE,
            (View(f"v{index}", (0, 0, 0, 0), axes),),
            View(f"v{index + 1}", (0, 0, 0, 0), axes),
            Settings(kernel=(1, 3, 3), pad=(0, 1, 1)),
            LazyConstant(
                f"w{index}", (CHANNELS, CHANNELS, 3, 3), DataType.FLOAT32, (f"w{index}",), lambda array: array
            ),
        )
        for index in range(depth)
    )
    return Graph(values, layers, ("v0",), (f"v{depth}",), (), depth)


def growth() -> Iterator[tuple[int, int, float, float]]:
    """Yield depth, instructions, and median CPU seconds to compile and to time, for stacks of growing depth."""
    machine = load_preset("edge")
    for depth in DEPTHS:
        graph = stack(depth)
        compiling_s, timing_s, instructions = [], [], 0
        for _ in range(REPEATS):
            started_s = time.process_time()
            program = compile_graph(graph, machine).program
            compiling_s.append(time.process_time() - started_s)
            started_s = time.process_time()
            simulate_program(program, machine)
            timing_s.append(time.process_time() - started_s)
            instructions = len(program.code) // 16
        yield depth, instructions, statistics.median(compiling_s), statistics.median(timing_s)


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    runs = [whole_command() for _ in range(REPEATS)]
    print(f"{MODEL} on edge, medians of {REPEATS} processes")
    for name in runs[0]:
        print(f"  {name:14} {statistics.median(run[name] for run in runs):.4g}")
    print("stacks of 3x3 convolutions, CPU time of each stage per layer, relative to the shallowest")
    rows = list(growth())
    depth, _, compiling_s, timing_s = rows[0]
    first_compiling_s, first_timing_s = compiling_s / depth, timing_s / depth
    for depth, instructions, compiling_s, timing_s in rows:
        print(
            f"  {depth:4} layers {instructions:6} instructions"
            f"  compile {compiling_s:7.3f} s ({compiling_s / depth / first_compiling_s:4.2f})"
            f"  timing {timing_s:7.4f} s ({timing_s / depth / first_timing_s:4.2f})"
        )
    print(f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
