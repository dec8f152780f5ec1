"""Compile a network, run it on one core of the emulated NPU, and time it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from device_agents.emulated_npu.inference import MOST_ITEMS_OF_FILE, TimedProgram, check_accesses, time_program
from device_agents.emulated_npu.reports.accounting import (
    MovedBytes,
    RunEnergy,
    TensorClass,
    instruction_counts,
    issued_instructions,
    moved_by_class,
    moved_by_memory,
    peak_bytes,
    run_energy,
    useful_macs,
)
from device_agents.emulated_npu.reports.chrome_trace import LayerLabel, chrome_trace
from device_agents.emulated_npu.reports.statistics import LayerRow, layer_rows
from device_agents.emulated_npu.timing.attribution import WaitTime
from device_agents.emulated_npu.unit_commands import Space
from harness.errors import InputError, UsageError
from harness.measure.progress import Observer, begin, ignore
from harness.npu.error_translation import errors_of_compiler, errors_of_user
from harness.npu.loading import CompiledModel, LoadedProgram, Note, compile_network
from harness.npu.memory_image import values_of_program
from harness.npu.npu_options import RunOptions
from harness.npu.own_data import read_own_data, write_outputs
from harness.npu.value_check import ValueCheck, check_values, has_values

_PROGRAM_BUDGET_CYCLES = 10**10
_MOST_TRACED_ITEMS = 100_000


@dataclass(frozen=True)
class CoreRun:
    """A timed run. For a program file `source` is None, and the compiler's facts are missing.

    `setup_cycles`: the program's setup, which runs once when the program is loaded.
    """

    name: str
    timed: TimedProgram
    timing_s: float
    setup_cycles: float = 0.0
    source: CompiledModel | None = None
    checked: ValueCheck | None = None
    marginal_cycles: tuple[float, ...] | None = None
    in_order_cycles: float | None = None

    @cached_property
    def rows(self) -> tuple[LayerRow, ...]:
        """Counters of every layer; the last row is the total."""
        useful = None if self.source is None else useful_macs(self.source.compiled)
        return run_rows(self.timed, useful)

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """ONNX operators of every layer; empty for a program file."""
        return ("",) * len(self.timed.program.layers) if self.source is None else self.source.operators

    @cached_property
    def moved_by_memory(self) -> Mapping[Space, MovedBytes]:
        """Bytes read from and written to DDR and the last-level cache."""
        return moved_by_memory(self.timed.steps, self.timed.costs)

    @cached_property
    def moved_by_class(self) -> Mapping[TensorClass, MovedBytes] | None:
        """Bytes by class of tensor; None for a program file."""
        timed, source = self.timed, self.source
        return None if source is None else moved_by_class(timed.steps, source.compiled, timed.costs)

    @cached_property
    def energy(self) -> RunEnergy:
        """The energy of the run in microjoules, by its causes."""
        return run_energy(self.timed.steps, self.timed.costs, self.timed.timing.makespan_ps)

    @cached_property
    def peak_bytes(self) -> Mapping[Space, int]:
        """High-water marks of the on-chip memories."""
        return peak_bytes(self.timed.timing.schedule)

    @cached_property
    def instructions(self) -> dict[str, int]:
        """Instructions of the program by class, in total, and as issued with loops unrolled."""
        counts = instruction_counts(self.timed.program)
        return {**counts, "total": sum(counts.values()), "issued": issued_instructions(self.timed.steps)}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the network, none for a program file."""
        return () if self.source is None else tuple(self.source.compiled.graph.outputs)

    @property
    def waits(self) -> list[WaitTime]:
        """The idle times of the busier queue, longest first."""
        return sorted(self.timed.timing.waits, key=lambda wait: -wait.ps)

    @property
    def redundant_macs(self) -> int | None:
        """Multiplications by zero or repeated ones; None for a program file."""
        total = self.rows[-1]
        return None if self.source is None else total.macs - (total.useful_macs or 0)

    @property
    def reorder_gain(self) -> float:
        """The fraction of the cycles that reordering saves."""
        return 1 - self.timed.cycles / self.in_order_cycles if self.in_order_cycles else 0.0


def run_rows(timed: TimedProgram, useful: Mapping[int, int] | None = None) -> tuple[LayerRow, ...]:
    """Return the counters of every layer and, as the last row, their total."""
    *rows, total = layer_rows(timed.timing, timed.machine, timed.program.layers, useful_macs=useful, costs=timed.costs)
    # Depthwise layers run on the vector unit, so their multiply-adds do not count as use of the matrix unit.
    macs = sum(row.macs for row in rows if row.mfu_busy_cycles)
    possible = timed.cycles * timed.machine.mfu.multipliers
    return (*rows, replace(total, mfu_utilisation=macs / possible if possible else 0.0))


def run_on_one_core(loaded: LoadedProgram, options: RunOptions, note: Note, observe: Observer = ignore) -> CoreRun:
    """Time a program and, for a network on a float32 machine, compare its values with ONNX Runtime's.

    With own data, the network has the weights of its file, or a program file those of its memory image, and
    `options.output_dir` gets its outputs.
    """
    source = loaded.source
    if options.compare_reorder and source is None:
        why = "A program file is already compiled"
        raise UsageError("--compare-reorder needs a network", why=why, next_step="Name an ONNX file")
    _check_image(source, options)
    data = read_own_data(loaded.reference, source.model, options.input) if options.own_data and source else None
    begin(observe, "timing", None if source is None else source.effort)
    timed, timing_s = time_loaded(loaded, options.cycle_budget)
    with_values = options.values and source is not None and has_values(loaded.machine, note)
    if data is not None and not with_values:
        what = f"{loaded.machine.name} computes no values"
        raise UsageError(what, next_step="Choose a machine that computes in float32, such as edge")
    checked = None
    if with_values and source is not None:
        begin(observe, "computing values", float(sum(useful_macs(source.compiled).values())))
        checked = check_values(source, note, data)
        if options.output_dir is not None and data is not None:
            write_outputs(options.output_dir, data.output_values(source.model, checked.outputs))
    if options.image is not None and options.output_dir is not None:
        write_outputs(options.output_dir, values_of_program(loaded, options.image, options.input))
    return CoreRun(
        name=loaded.name,
        timed=timed,
        timing_s=timing_s,
        setup_cycles=setup_cycles(loaded),
        source=source,
        checked=checked,
        marginal_cycles=timed.marginal_cycles() if options.marginal else None,
        in_order_cycles=_in_order_cycles(source, options.cycle_budget) if options.compare_reorder and source else None,
    )


def _check_image(source: CompiledModel | None, options: RunOptions) -> None:
    """Raise UsageError where own data needs a memory image and has none, or has one and needs none."""
    if options.image is None and options.own_data and source is None:
        why = "A program file has no weights"
        raise UsageError("--input and --output-dir need weights", why=why, next_step="Add --image, or name a network")
    if options.image is not None and source is not None:
        why = "A network is compiled again, with the weights of its file"
        raise UsageError("--image needs a program file", why=why, next_step="Omit --image")
    if options.image is not None and options.output_dir is None:
        why = "There is no network to compare the values with"
        raise UsageError("--image needs --output-dir", why=why, next_step="Add --output-dir DIR")


def time_loaded(loaded: LoadedProgram, cycle_budget: int | None = None) -> tuple[TimedProgram, float]:
    """Return the program's time and how many seconds timing took; a program file is checked in full first."""
    start = time.perf_counter()
    if loaded.source is not None:
        with errors_of_compiler():
            timed = time_program(loaded.program, loaded.machine, cycle_budget=cycle_budget)
        return timed, time.perf_counter() - start
    with errors_of_user("Correct the program, or compile the network again"):
        budget = cycle_budget or _PROGRAM_BUDGET_CYCLES
        timed = time_program(loaded.program, loaded.machine, cycle_budget=budget, most_items=MOST_ITEMS_OF_FILE)
        took_s = time.perf_counter() - start
        check_accesses(timed.steps, loaded.program, loaded.machine)
    return timed, took_s


def setup_cycles(loaded: LoadedProgram) -> float:
    """Return the cycles of the program's setup; 0 without one. The setup of a program file is also checked."""
    alone = loaded.program.setup_alone()
    return 0.0 if alone is None else time_loaded(replace(loaded, program=alone))[0].cycles


def _in_order_cycles(source: CompiledModel, cycle_budget: int | None) -> float:
    """Return the cycles of the same network without loads hoisted over computation."""
    compiled = source.compiled
    in_order = compile_network(source.model, compiled.machine, replace(compiled.options, reorder=False))
    return time_loaded(LoadedProgram.of(in_order), cycle_budget)[0].cycles


def trace(loaded: LoadedProgram, cycle_budget: int | None = None) -> tuple[TimedProgram, dict[str, Any]]:
    """Return the timed program and its trace for Perfetto; raises InputError if the run is too long for a trace."""
    timed, _ = time_loaded(loaded, cycle_budget)
    if len(timed.steps) > _MOST_TRACED_ITEMS:
        raise InputError(
            f"The run has {len(timed.steps):,} items, a trace holds at most {_MOST_TRACED_ITEMS:,}",
            why="A trace has several events per item, and the browser that shows them holds them all in memory",
            next_step="Trace a smaller network or input (--dim); `harness npu run` reports the times of the layers",
        )
    labels = tuple(map(LayerLabel, loaded.program.layers))
    if loaded.source is not None:
        layers = zip(loaded.source.compiled.graph.layers, loaded.source.operators, strict=True)
        labels = tuple(LayerLabel(layer.name, operators, layer.nodes) for layer, operators in layers)
    return timed, chrome_trace(timed.timing, loaded.machine, labels, costs=timed.costs)
