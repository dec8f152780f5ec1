"""How well the compiler chooses: tables of docs/emulator_compiler.md in Markdown.

    python -m benchmarks.emulator.mapper [--jobs N] [--machine NAME] [--larger] [NAME ...]

Networks are the built-in ones, those of benchmarks.topologies, and `generated-N`, drawn from the seed N. For each, the
first table compares the automatic choice with every forced one, and with two bounds that no program can be below. The
loose one is all multiply-adds at the peak of the matrix unit, or inputs, outputs and constants moved once at the
bandwidth of DDR, whichever is longer. The tight one counts the rows and columns that a layer cannot fill, and adds the
time of the vector unit, which shares a queue with the matrix unit. With --larger, a second table doubles one resource
of the machine at a time: a larger machine should not be slower.
"""

import argparse
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import topologies
from benchmarks.emulator import generated_networks
from benchmarks.generated_page import print_head, print_row
from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.layer_parts import output_channels, reduced_channels
from device_agents.emulated_npu.compiler.options import DEFAULT, OF_DEVICE, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.reports.accounting import useful_macs
from device_agents.emulated_npu.timing.cost.matrix_cost import runs_on_mfu
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.emulated_npu.unit_commands import Function
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.npu.loading import load_model

GENERATED = "generated-"
MACHINES: Mapping[str, tuple[Machine, Options]] = {
    "edge": (find_machine("edge"), DEFAULT),
    "npu01": (find_machine("edge"), OF_DEVICE),
    "systolic-32": (find_machine("systolic-32"), DEFAULT),
}
"""Machines with the options that every compilation for them has: those of the device, or none."""
FORCED: Mapping[str, Mapping[str, Any]] = {
    "whole": {"chains": "whole"},
    "layers": {"chains": "layers"},
    "retain": {"halo": "retain"},
    "recompute": {"halo": "recompute"},
    "refetch": {"halo": "refetch"},
    "weights": {"residency": "weights"},
    "features": {"residency": "features"},
    "direct": {"conv_algorithm": "direct"},
    "tiles of 16": {"tile": (16, 16)},
    "tiles of 32": {"tile": (32, 32)},
    "whole, recompute": {"chains": "whole", "halo": "recompute"},
    "whole, tiles of 16": {"chains": "whole", "tile": (16, 16)},
    "whole, tiles of 32": {"chains": "whole", "tile": (32, 32)},
}


def _larger(machine: Machine) -> dict[str, Machine]:
    """Return the machine with one resource doubled, by resource; a shared buffer holds features and weights."""
    more_nb = replace(machine, nb_bytes=2 * machine.nb_bytes)
    found = {
        "NB": replace(more_nb, sb_bytes=more_nb.nb_bytes) if machine.shared_buffer else more_nb,
        "halo buffer": replace(machine, halo_bytes=2 * machine.halo_bytes),
        "LLC": replace(machine, llc=replace(machine.llc, bytes=2 * machine.llc.bytes)),
        "DDR bandwidth": replace(machine, ddr=replace(machine.ddr, bytes_per_s=2 * machine.ddr.bytes_per_s)),
        "queues": replace(
            machine, io_queue_depth=2 * machine.io_queue_depth, cp_queue_depth=2 * machine.cp_queue_depth
        ),
        "matrix unit": replace(machine, mfu=replace(machine.mfu, columns=2 * machine.mfu.columns)),
        "vector unit": replace(machine, vfu=replace(machine.vfu, lanes=2 * machine.vfu.lanes)),
    }
    if not machine.shared_buffer:
        found["SB"] = replace(machine, sb_bytes=2 * machine.sb_bytes)
    return found


@dataclass(frozen=True)
class Found:
    """Cycles of a network: chosen by the compiler, by forced choice, on larger machines, and both bounds."""

    name: str
    cycles: float
    loose_cycles: float
    tight_cycles: float
    forced: Mapping[str, float]
    larger: Mapping[str, float]

    @property
    def best(self) -> str:
        """The fastest forced choice."""
        return min(self.forced, key=lambda name: self.forced[name])

    @property
    def loss(self) -> float:
        """How much slower the automatic choice is than the fastest forced one; negative where it is faster."""
        return self.cycles / self.forced[self.best] - 1

    @property
    def distances(self) -> tuple[float, float]:
        """Cycles over the loose and over the tight bound."""
        return self.cycles / self.loose_cycles, self.cycles / self.tight_cycles


def measure(name: str, machine_name: str = "edge", with_larger: bool = False) -> Found:
    """Compile a network in all ways and time the programs."""
    model = _model(name)
    machine, options = MACHINES[machine_name]
    compiled = compile_model(model, machine, options)
    larger = _larger(machine) if with_larger else {}
    return Found(
        name,
        _cycles_of(compiled),
        *bounds_cycles(compiled),
        _tried(model, {way: (machine, replace(options, **forced)) for way, forced in FORCED.items()}),
        _tried(model, {resource: (more, options) for resource, more in larger.items()}),
    )


def _model(name: str) -> bytes:
    if name.startswith(GENERATED):
        drawn: bytes = generated_networks.build(int(name.removeprefix(GENERATED))).SerializeToString()
        return drawn
    if name in topologies.NAMES:
        content: bytes = topologies.build(name).SerializeToString()
        return content
    return load_model(BUILTIN_PREFIX + name, {}).content


def _tried(model: bytes, ways: Mapping[str, tuple[Machine, Options]]) -> dict[str, float]:
    """Return the cycles by way; a way that does not fit the machine is absent."""
    found = {}
    for name, (machine, options) in ways.items():
        try:
            found[name] = _cycles_of(compile_model(model, machine, options))
        except EmulatorError:
            continue
    return found


def _cycles_of(compiled: Compiled) -> float:
    machine = compiled.machine
    return simulate_program(compiled.program, machine).makespan_ps * machine.clock_hz / 1e12


def bounds_cycles(compiled: Compiled) -> tuple[float, float]:
    """Return the loose and the tight number of cycles that no program of this network can be below."""
    graph, machine = compiled.graph, compiled.machine
    values = [graph.values[name] for name in (*graph.inputs, *graph.outputs)]
    elements = sum(math.prod(value.shape) for value in values)
    constants = {
        each.name: math.prod(each.shape)
        for layer in graph.layers
        for each in (layer.weights, layer.scale_shift)
        if each is not None
    }
    moved_bytes = (elements + sum(constants.values())) * machine.data_type.bytes
    io_cycles = moved_bytes / machine.ddr.bytes_per_s * machine.clock_hz
    macs = useful_macs(compiled)
    peak_cycles = ceil_div(sum(macs.values()), machine.mfu.rows * machine.mfu.columns * machine.mfu.pixels)
    unit_cycles = [_unit_cycles(layer, macs.get(layer.index, 0), machine) for layer in graph.layers]
    return max(peak_cycles, io_cycles), max(sum(unit_cycles), io_cycles)


def _unit_cycles(layer: HardwareLayer, macs: int, machine: Machine) -> float:
    """Return the cycles that a layer at least takes on its unit.

    In a cycle, for each of its pixels, a column adds products for one output, and a row feeds one input to columns. So
    an output uses at most as many rows as it has products, and an input as many columns as outputs need it.
    """
    if layer.function is Function.GATHER:
        return 0.0
    if not runs_on_mfu(machine.mfu, layer.function):
        operations = macs if layer.function is Function.DEPTHWISE else math.prod(layer.output.shape)
        return operations / machine.vfu.lanes
    rows, columns, settings = machine.mfu.rows, machine.mfu.columns, layer.settings
    # The channels of a depthwise convolution are on the columns, as if they were its outputs.
    groups = 1 if layer.function is Function.DEPTHWISE else layer.groups
    outputs = output_channels(layer) // groups
    channels = 1 if layer.function is Function.DEPTHWISE else reduced_channels(layer)
    products = channels if layer.matrix else channels * math.prod(settings.kernel)
    users = outputs if layer.matrix else outputs * math.prod(map(ceil_div, settings.kernel, settings.stride))
    return macs / (machine.mfu.pixels * min(columns * min(rows, products), rows * min(columns, users)))


def main() -> None:
    """Measure the networks and print the tables with their summaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks; default: all but generated ones")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--machine", choices=list(MACHINES), default="edge")
    parser.add_argument("--larger", action="store_true", help="double the machine's resources, too")
    given = parser.parse_args()
    found = []
    heads = ("M cycles", "over the loose bound", "over the tight bound", "fastest forced choice", "against it")
    print_head("network", *heads)
    measuring = functools.partial(measure, machine_name=given.machine, with_larger=given.larger)
    with ProcessPoolExecutor(given.jobs) as pool:
        for one in pool.map(measuring, given.names or (*BUILTIN_NAMES, *topologies.NAMES)):
            found.append(one)
            distances = (f"{distance:.2f}" for distance in one.distances)
            print_row(one.name, f"{one.cycles / 1e6:.3f}", *distances, one.best, f"{one.loss:+.2%}")
    late = sum(one.loss > 0.005 for one in found)
    for name, over in zip(("loose", "tight"), zip(*(one.distances for one in found), strict=True), strict=True):
        print(f"\nover the {name} bound: median {statistics.median(over):.2f}, worst {max(over):.2f}")
    print(f"slower than a forced choice by more than 0.5 %: {late} of {len(found)}\n")
    if given.larger:
        _print_larger(found)


def _print_larger(found: Sequence[Found]) -> None:
    """Print by how much networks are slower with one resource doubled."""
    print_head("doubled", "median", "worst", "networks that are slower by more than 1 %")
    for resource in dict.fromkeys(resource for one in found for resource in one.larger):
        changes = {one.name: one.larger[resource] / one.cycles - 1 for one in found if resource in one.larger}
        slower = [f"{name} {change:+.1%}" for name, change in changes.items() if change > 0.01]
        middle, worst = statistics.median(changes.values()), max(changes.values())
        print_row(resource, f"{middle:+.2%}", f"{worst:+.2%}", ", ".join(slower) or "none")


if __name__ == "__main__":
    main()
