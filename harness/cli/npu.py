"""`harness npu`: what the emulated NPU makes of a network, and how long that takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import npu_options, npu_split, npu_sweep, options
from harness.cli.npu_files import write_file
from harness.cli.output import note, print_json
from harness.errors import InputError, UsageError

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.options import Options
    from device_agents.emulated_npu.inference import TimedProgram
    from device_agents.emulated_npu.isa.program import Program
    from device_agents.emulated_npu.machine import Machine
    from harness.cli.npu_cores import CoreChoices
    from harness.cli.npu_source import CompiledModel
    from harness.cli.npu_values import Checked

app = typer.Typer(
    no_args_is_help=True,
    help="Compile networks for the emulated NPU, run them there, and see where the time goes.",
)

_PROGRAM_BUDGET_CYCLES = 10**10
_MOST_TRACED_ITEMS = 100_000


@app.command("compile")
def compile_command(
    model: npu_options.Model,
    preset: npu_options.Preset = None,
    machine: npu_options.MachineFile = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the program to this file.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what else was considered for each chain, with predicted times.")
    ] = False,
    chains: npu_options.Chains = "auto",
    halo: npu_options.Halo = "auto",
    tile: npu_options.Tile = None,
    residency: npu_options.Residency = "auto",
    no_reorder: npu_options.NoReorder = False,
    fences: npu_options.Fences = False,
    conv_algorithm: npu_options.ConvAlgorithm = "auto",
    dft_block: npu_options.DftBlock = None,
    dft_kernels: npu_options.DftKernels = "auto",
    dim: options.Dims = None,
    json: options.Json = False,
) -> None:
    """Compile a network to a binary program; weights stay out of it.

    Example: harness npu compile builtin:resnet50 --explain -o resnet50.npu
    """
    from harness.cli import npu_report, npu_source, npu_tables

    choices = npu_options.read_options(
        chains=chains,
        halo=halo,
        tile=tile,
        residency=residency,
        no_reorder=no_reorder,
        fences=fences,
        conv_algorithm=conv_algorithm,
        dft_block=dft_block,
        dft_kernels=dft_kernels,
    )
    target = npu_options.choose_machine(preset, machine)
    compiled = npu_source.compile_network(npu_source.load_model(model, dim), target, choices)
    if output is not None:
        write_file(output, compiled.compiled.program.to_bytes())
    made = npu_report.Made(compiled, _setup_cycles(compiled.compiled.program, target, compiled))
    if json:
        print_json(program=None if output is None else str(output), **npu_report.compile_fields(made, explain))
    else:
        npu_tables.show_compiled(made, explain)


@app.command("run")
def run_command(
    model: npu_options.ModelOrProgram,
    preset: npu_options.Preset = None,
    machine: npu_options.MachineFile = None,
    no_values: Annotated[
        bool, typer.Option("--no-values", help="Time the program; compute nothing and compare nothing.")
    ] = False,
    marginal: Annotated[
        bool, typer.Option("--marginal", help="Add for every layer by how much the run shrinks without it.")
    ] = False,
    compare_reorder: Annotated[
        bool, typer.Option("--compare-reorder", help="Compile once more without re-ordering and tell what it gains.")
    ] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the layers to this file.")] = None,
    chains: npu_options.Chains = "auto",
    halo: npu_options.Halo = "auto",
    tile: npu_options.Tile = None,
    residency: npu_options.Residency = "auto",
    no_reorder: npu_options.NoReorder = False,
    fences: npu_options.Fences = False,
    conv_algorithm: npu_options.ConvAlgorithm = "auto",
    dft_block: npu_options.DftBlock = None,
    dft_kernels: npu_options.DftKernels = "auto",
    cycle_budget: npu_options.CycleBudget = None,
    cores: npu_options.Cores = None,
    groups: npu_options.Groups = None,
    inputs: npu_options.Inputs = None,
    partition: npu_options.PartitionMethod = "both",
    score: npu_options.Score = None,
    threshold: npu_options.Threshold = None,
    max_nodes: npu_options.MaxNodes = None,
    start: npu_options.Start = None,
    add_groups: npu_options.AddGroups = False,
    core_storage: npu_options.CoreStorage = None,
    period_ms: npu_options.Period = None,
    dim: options.Dims = None,
    json: options.Json = False,
) -> None:
    """Run a network on the emulated NPU: its time by layer, and its values beside ONNX Runtime's.

    Large weights are not read from the file but made from a seed, as on a device; small ones are the file's own.
    Machines that do not compute in float32, and program files, have a time but no values.

    With --cores or --groups the network is divided over core groups, which pass activations on and work on several
    inputs at a time: by the split score and balanced by predicted time, side by side.

    Example: harness npu run builtin:squeezenet --marginal, harness npu run builtin:resnet50 --groups 4
    """
    # More threads gain little on matrices of this size and stall each other on a busy machine; read on import of numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from harness.cli import npu_cores, npu_report, npu_tables

    if compare_reorder and no_reorder:
        raise UsageError("--compare-reorder contradicts --no-reorder", next_step="Leave one of them out")
    choices = npu_options.read_options(
        chains=chains,
        halo=halo,
        tile=tile,
        residency=residency,
        no_reorder=no_reorder,
        fences=fences,
        conv_algorithm=conv_algorithm,
        dft_block=dft_block,
        dft_kernels=dft_kernels,
    )
    on_cores = npu_cores.CoreChoices(
        cores=cores,
        groups=groups,
        inputs=inputs,
        method=partition,
        coefficients=tuple(score or ()),
        threshold=threshold,
        node_limit=max_nodes,
        start=start,
        add_groups=add_groups,
        core_storage_bytes=core_storage,
        period_ms=period_ms,
        cycle_budget=cycle_budget,
    )
    on_cores.check()
    source, program, target = _load(model, preset, machine, choices, dim)
    if on_cores.wanted:
        _run_on_cores(source, on_cores, marginal or compare_reorder or csv is not None, not no_values, json)
        return
    if source is None and compare_reorder:
        raise UsageError("--compare-reorder needs a network", why="A program file is compiled already")
    timed, timing_s = _timed(program, target, source, cycle_budget)
    run = npu_report.Run(
        name=model if source is None else source.model.name,
        timed=timed,
        timing_s=timing_s,
        setup_cycles=_setup_cycles(program, target, source),
        source=source,
        checked=None if source is None or no_values else _checked(source),
        marginal_cycles=timed.marginal_cycles() if marginal else None,
        in_order_cycles=_in_order_cycles(source, choices, cycle_budget) if source and compare_reorder else None,
    )
    if csv is not None:
        write_file(csv, npu_report.layers_csv(run).encode())
    if json:
        print_json(**npu_report.json_fields(run))
    else:
        npu_tables.show_run(run)


@app.command("disassemble")
def disassemble_command(
    model: npu_options.ModelOrProgram,
    preset: npu_options.Preset = None,
    machine: npu_options.MachineFile = None,
    chains: npu_options.Chains = "auto",
    halo: npu_options.Halo = "auto",
    tile: npu_options.Tile = None,
    residency: npu_options.Residency = "auto",
    no_reorder: npu_options.NoReorder = False,
    fences: npu_options.Fences = False,
    conv_algorithm: npu_options.ConvAlgorithm = "auto",
    dft_block: npu_options.DftBlock = None,
    dft_kernels: npu_options.DftKernels = "auto",
    dim: options.Dims = None,
    json: options.Json = False,
) -> None:
    """Print the instructions of a network or of a program file; docs/isa.md explains them.

    Example: harness npu disassemble resnet50.npu
    """
    from harness.cli.npu_errors import errors_of_user
    from harness.cli.npu_listing import as_comments, listing, setup_listing

    choices = npu_options.read_options(
        chains=chains,
        halo=halo,
        tile=tile,
        residency=residency,
        no_reorder=no_reorder,
        fences=fences,
        conv_algorithm=conv_algorithm,
        dft_block=dft_block,
        dft_kernels=dft_kernels,
    )
    _, program, target = _load(model, preset, machine, choices, dim)
    with errors_of_user():
        text, setup = listing(program), setup_listing(program)
    if json:
        layers = list(program.layers)
        print_json(machine=target.name, code_bytes=len(program.code), layers=layers, text=text, setup_text=setup)
    else:
        print(text + as_comments(setup), end="")


@app.command("trace")
def trace_command(
    model: npu_options.ModelOrProgram,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the trace to this file.")],
    preset: npu_options.Preset = None,
    machine: npu_options.MachineFile = None,
    chains: npu_options.Chains = "auto",
    halo: npu_options.Halo = "auto",
    tile: npu_options.Tile = None,
    residency: npu_options.Residency = "auto",
    no_reorder: npu_options.NoReorder = False,
    fences: npu_options.Fences = False,
    conv_algorithm: npu_options.ConvAlgorithm = "auto",
    dft_block: npu_options.DftBlock = None,
    dft_kernels: npu_options.DftKernels = "auto",
    cycle_budget: npu_options.CycleBudget = None,
    dim: options.Dims = None,
    json: options.Json = False,
) -> None:
    """Write a run as Chrome trace, which Perfetto (ui.perfetto.dev) shows beside a profile of ONNX Runtime.

    Example: harness npu trace builtin:squeezenet -o squeezenet.trace.json
    """
    import json as encoder

    from device_agents.emulated_npu.reports.trace import LayerLabel, chrome_trace, labels_of_names

    choices = npu_options.read_options(
        chains=chains,
        halo=halo,
        tile=tile,
        residency=residency,
        no_reorder=no_reorder,
        fences=fences,
        conv_algorithm=conv_algorithm,
        dft_block=dft_block,
        dft_kernels=dft_kernels,
    )
    source, program, target = _load(model, preset, machine, choices, dim)
    timed, _ = _timed(program, target, source, cycle_budget)
    _check_traceable(timed)
    labels = labels_of_names(program.layers)
    if source is not None:
        layers = zip(source.compiled.graph.layers, source.operators, strict=True)
        labels = tuple(LayerLabel(layer.name, operators, layer.nodes) for layer, operators in layers)
    trace = chrome_trace(timed.timing, target, labels, costs=timed.costs)
    write_file(output, encoder.dumps(trace, separators=(",", ":"), allow_nan=False).encode())
    events = len(trace["traceEvents"])
    if json:
        print_json(trace=str(output), events=events, cycles=timed.cycles, machine=target.name)
    else:
        print(f"{events:,} events of {timed.cycles:,.0f} cycles on {target.name} written")
        note(f"Next: open {output} in https://ui.perfetto.dev")


app.command("sweep")(npu_sweep.sweep_command)
app.command("split")(npu_split.split_command)


def _run_on_cores(
    source: CompiledModel | None, choices: CoreChoices, with_more: bool, with_values: bool, as_json: bool
) -> None:
    from harness.cli import npu_cores, npu_cores_report

    if source is None:
        raise UsageError("--cores and --groups need a network", why="A program file is compiled for one core")
    if with_more:
        raise UsageError("--marginal, --compare-reorder and --csv are for one core", next_step="Leave them out")
    run = npu_cores.run_on_cores(source, choices, with_values)
    if as_json:
        print_json(**npu_cores_report.json_fields(run))
    else:
        npu_cores_report.show(run)


def _check_traceable(timed: TimedProgram) -> None:
    if len(timed.steps) > _MOST_TRACED_ITEMS:
        raise InputError(
            f"The run has {len(timed.steps):,} items, a trace holds at most {_MOST_TRACED_ITEMS:,}",
            why="Several events of a trace stand for each item, and the browser that shows them needs them in memory",
            next_step="Trace a smaller network or input (--dim); `harness npu run` has the times of the layers",
        )


def _load(
    reference: str, preset: str | None, machine: Path | None, choices: Options, dims: list[str] | None
) -> tuple[CompiledModel | None, Program, Machine]:
    """A network compiled for the machine, or a program file with the machine that it is for."""
    from harness.cli import npu_source

    if npu_source.is_program(reference):
        npu_source.refuse_choices(choices, dims)
        program = npu_source.read_program(Path(reference))
        return None, program, npu_source.machine_of(program, preset, machine)
    target = npu_options.choose_machine(preset, machine)
    source = npu_source.compile_network(npu_source.load_model(reference, dims), target, choices)
    return source, source.compiled.program, target


def _timed(
    program: Program, machine: Machine, source: CompiledModel | None, cycle_budget: int | None
) -> tuple[TimedProgram, float]:
    """The program's time on the machine, and how long timing took; a program file is checked in full first."""
    import time

    from device_agents.emulated_npu.inference import MOST_ITEMS_OF_FILE, check_accesses, time_program
    from harness.cli.npu_errors import errors_of_compiler, errors_of_user

    start = time.perf_counter()
    if source is not None:
        with errors_of_compiler():
            timed = time_program(program, machine, cycle_budget=cycle_budget)
        return timed, time.perf_counter() - start
    with errors_of_user("Mend the program, or compile the network again"):
        budget = cycle_budget or _PROGRAM_BUDGET_CYCLES
        timed = time_program(program, machine, cycle_budget=budget, most_items=MOST_ITEMS_OF_FILE)
        took_s = time.perf_counter() - start
        check_accesses(timed.steps, program, machine)
    return timed, took_s


def _setup_cycles(program: Program, machine: Machine, source: CompiledModel | None) -> float:
    """What the setup of a program takes, once when it is loaded; 0 without one. A program file's is checked, too."""
    from device_agents.emulated_npu.reports.setup_time import setup_alone

    alone = setup_alone(program)
    return 0.0 if alone is None else _timed(alone, machine, source, None)[0].cycles


def _checked(source: CompiledModel) -> Checked | None:
    from harness.cli import npu_values

    return npu_values.check_values(source) if npu_values.can_compare(source) else None


def _in_order_cycles(source: CompiledModel, choices: Options, cycle_budget: int | None) -> float:
    """The time of the same network without loads hoisted over computing."""
    from dataclasses import replace

    from harness.cli import npu_source

    target = source.compiled.machine
    other = npu_source.compile_network(source.model, target, replace(choices, reorder=False))
    return _timed(other.compiled.program, target, other, cycle_budget)[0].cycles
