"""One run of the emulated NPU as data: the fields of the JSON object and the rows of the CSV file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.cli.npu_convolutions import convolution_fields
from harness.cli.npu_source import CompiledModel
from harness.cli.npu_values import Checked
from harness.files import spreadsheet_csv

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.planning.chain_planner import Decision
    from device_agents.emulated_npu.compiler.planning.search import Choice
    from device_agents.emulated_npu.inference import TimedProgram
    from device_agents.emulated_npu.reports.accounting import MovedBytes
    from device_agents.emulated_npu.reports.statistics import LayerRow
    from device_agents.emulated_npu.unit_commands import Space

_PS_PER_S = 1e12


@dataclass(frozen=True)
class Run:
    """A timed run. Of a program file `source` is None, and what only the compiler knows is missing.

    `setup_cycles` are those of the program's setup, which runs once when it is loaded.
    """

    name: str
    timed: TimedProgram
    timing_s: float
    setup_cycles: float = 0.0
    source: CompiledModel | None = None
    checked: Checked | None = None
    marginal_cycles: tuple[float, ...] | None = None
    in_order_cycles: float | None = None

    @cached_property
    def rows(self) -> tuple[LayerRow, ...]:
        """Counters of every layer; the last row is the total."""
        from device_agents.emulated_npu.reports.accounting import useful_macs
        from device_agents.emulated_npu.reports.statistics import layer_rows

        timed = self.timed
        useful = None if self.source is None else useful_macs(self.source.compiled)
        *rows, total = layer_rows(
            timed.timing, timed.machine, timed.program.layers, useful_macs=useful, costs=timed.costs
        )
        return (*rows, replace(total, mfu_utilisation=_mfu_utilisation(timed, rows)))

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """ONNX's operators of every layer, as far as they are known."""
        return ("",) * len(self.timed.program.layers) if self.source is None else self.source.operators

    @cached_property
    def moved_by_memory(self) -> Mapping[Space, MovedBytes]:
        """Bytes out of and into DDR and the last-level cache."""
        from device_agents.emulated_npu.reports.accounting import moved_by_memory

        return moved_by_memory(self.timed.steps, self.timed.costs)

    @cached_property
    def peak_bytes(self) -> Mapping[Space, int]:
        """High-water marks of the on-chip memories."""
        from device_agents.emulated_npu.reports.accounting import peak_bytes

        return peak_bytes(self.timed.timing.schedule)

    @cached_property
    def instructions(self) -> dict[str, int]:
        """Instructions of the program by class, in all, and as issued with loops unrolled."""
        from device_agents.emulated_npu.reports.accounting import instruction_counts, issued_instructions

        counts = instruction_counts(self.timed.program)
        return {**counts, "total": sum(counts.values()), "issued": issued_instructions(self.timed.steps)}


def _mfu_utilisation(timed: TimedProgram, rows: Sequence[LayerRow]) -> float:
    """Multiply-adds of the matrix unit, without those of depthwise layers, over what it could do in all cycles."""
    mfu = timed.machine.mfu
    macs = sum(row.macs for row in rows if row.mfu_busy_cycles)
    possible = timed.cycles * mfu.rows * mfu.columns
    return macs / possible if possible else 0.0


@dataclass(frozen=True)
class Made:
    """A compiled network, and the cycles of its setup, which runs once when the program is loaded."""

    source: CompiledModel
    setup_cycles: float


def json_fields(run: Run) -> dict[str, Any]:
    """The fields of `npu run --json`."""
    timed, total, checked, source = run.timed, run.rows[-1], run.checked, run.source
    timing, known = timed.timing, None if source is None else total.useful_macs or 0
    return {
        "network": run.name,
        "machine": timed.machine.name,
        "cycles": timed.cycles,
        "seconds": timing.makespan_ps / _PS_PER_S,
        "setup_cycles": run.setup_cycles,
        "formula_cycles": timing.cycles(timed.formula.total_ps),
        "wait_cycles": timing.cycles(timing.wait_ps),
        "waiting_queue": timing.waiting_queue.name.lower(),
        "io_cycles": timing.cycles(timing.io_ps),
        "compute_cycles": timing.cycles(timing.cp_ps),
        "mfu_cycles": timing.cycles(timing.mfu_ps),
        "vfu_cycles": timing.cycles(timing.vfu_ps),
        "control_cycles": timing.cycles(timing.control_ps),
        "macs": total.macs,
        "useful_macs": known,
        "redundant_macs": None if known is None else total.macs - known,
        "utilisation": {
            "mfu": total.mfu_utilisation,
            "mfu_busy": total.mfu_busy,
            "vfu_busy": total.vfu_busy,
            "io_busy": total.io_busy,
        },
        "ddr_bytes": total.ddr_read_bytes + total.ddr_written_bytes,
        "llc_bytes": total.llc_read_bytes + total.llc_written_bytes,
        "memories": _memories(run),
        "tensor_classes": _tensor_classes(run),
        "instructions": run.instructions,
        **_graph_fields(source),
        **convolution_fields(source),
        "max_rel_error": None if checked is None else checked.max_rel_error,
        "compile_s": None if source is None else source.compile_s,
        "functional_s": None if checked is None else checked.functional_s,
        "timing_s": run.timing_s,
        "reorder": _reorder(run),
        "layers": [_layer(run, place) for place in range(len(run.rows) - 1)],
        "no_layer_cycles": timing.cycles(timing.no_layer_ps),
        "waits": [*_waits(run)],
    }


def _graph_fields(source: CompiledModel | None) -> dict[str, int | None]:
    if source is None:
        return dict.fromkeys(("onnx_nodes", "free_nodes", "hardware_layers", "chains", "passes"))
    graph, compiled = source.compiled.graph, source.compiled
    return {
        "onnx_nodes": graph.node_count + source.model.free_nodes,
        "free_nodes": len(graph.free_nodes) + source.model.free_nodes,
        "hardware_layers": len(graph.layers),
        "chains": len(compiled.chains),
        "passes": sum(plan.passes for plan in compiled.plans),
    }


def _memories(run: Run) -> dict[str, dict[str, int]]:
    """Of every memory its size, what the program takes of it, its high-water mark or what was moved."""
    from device_agents.emulated_npu.unit_commands import Space

    machine, footprint = run.timed.machine, run.timed.program.footprint
    sizes = {
        Space.DDR: (machine.ddr.bytes, footprint.ddr_bytes),
        Space.LLC: (machine.llc.bytes, footprint.llc_bytes),
        Space.NB: (machine.nb_bytes, footprint.nb_bytes),
        Space.SB: (machine.sb_bytes, footprint.sb_bytes),
        Space.HALO: (machine.halo_bytes, footprint.halo_bytes),
    }
    found: dict[str, dict[str, int]] = {}
    for space, (size, reserved) in sizes.items():
        found[space.name.lower()] = {"bytes": size, "reserved_bytes": reserved}
        if space in run.peak_bytes:
            found[space.name.lower()]["peak_bytes"] = run.peak_bytes[space]
        else:
            found[space.name.lower()] |= asdict(run.moved_by_memory[space])
    return found


def _tensor_classes(run: Run) -> dict[str, dict[str, int]] | None:
    from device_agents.emulated_npu.reports.accounting import moved_by_class

    if run.source is None:
        return None
    moved = moved_by_class(run.timed.steps, run.source.compiled, run.timed.costs)
    return {str(name): asdict(each) for name, each in moved.items()}


def reorder_gain(run: Run) -> float:
    """By what fraction hoisting loads shortens the run."""
    return 1 - run.timed.cycles / run.in_order_cycles if run.in_order_cycles else 0.0


def _reorder(run: Run) -> dict[str, float] | None:
    if run.in_order_cycles is None:
        return None
    return {"cycles": run.timed.cycles, "in_order_cycles": run.in_order_cycles, "gain": reorder_gain(run)}


def _layer(run: Run, place: int) -> dict[str, Any]:
    nodes = [] if run.source is None else list(run.source.compiled.graph.layers[place].nodes)
    marginal = None if run.marginal_cycles is None else run.marginal_cycles[place]
    known = {"op": run.operators[place], "nodes": nodes, "chain": _chain_of(run).get(place)}
    return {**asdict(run.rows[place]), **known, "marginal_cycles": marginal}


def _chain_of(run: Run) -> dict[int, int]:
    chains = () if run.source is None else run.source.compiled.chains
    return {layer: number for number, chain in enumerate(chains) for layer in chain}


def _waits(run: Run) -> Iterator[dict[str, Any]]:
    """Idle time of the busier queue by the instruction at its head and the one that this waited for, longest first."""
    names, timing = run.timed.program.layers, run.timed.timing
    for wait in sorted(timing.waits, key=lambda wait: -wait.ps):
        yield {
            "cycles": timing.cycles(wait.ps),
            "instruction": None if wait.pc < 0 else wait.pc,
            "layer": None if wait.layer < 0 else names[wait.layer],
            "due_instruction": None if wait.due_pc < 0 else wait.due_pc,
            "due_layer": None if wait.due_layer < 0 else names[wait.due_layer],
        }


def layers_csv(run: Run) -> str:
    """A row for every layer and the total, with what is not known left empty."""
    rows = [_layer(run, place) for place in range(len(run.rows) - 1)]
    total = {**asdict(run.rows[-1]), "op": "", "nodes": [], "chain": None, "marginal_cycles": None}
    return spreadsheet_csv(total, [{**row, "nodes": " ".join(row["nodes"])}.values() for row in (*rows, total)])


def compile_fields(made: Made, explain: bool) -> dict[str, Any]:
    """The fields of `npu compile --json`."""
    from device_agents.emulated_npu.reports.accounting import instruction_counts

    source, compiled = made.source, made.source.compiled
    counts = instruction_counts(compiled.program)
    return {
        "network": source.model.name,
        "machine": compiled.machine.name,
        "compile_s": source.compile_s,
        "predicted_s": sum(decision.chosen.predicted_ps for decision in compiled.decisions) / _PS_PER_S,
        "instructions": {**counts, "total": sum(counts.values())},
        "code_bytes": len(compiled.program.code),
        "footprint": asdict(compiled.program.footprint),
        **_graph_fields(source),
        **convolution_fields(source),
        "setup_cycles": made.setup_cycles,
        "decisions": [
            {
                "layers": [compiled.graph.layers[place].name for place in chain_layers(decision.chosen)],
                "chosen": _choice(decision.chosen),
                **(_others(decision) if explain else {}),
            }
            for decision in compiled.decisions
        ],
    }


def chain_layers(choice: Choice) -> Sequence[int]:
    """Indices of the layers that a choice runs."""
    return sorted({layer.index for plan in choice.chains for layer in plan.layers})


def _others(decision: Decision) -> dict[str, Any]:
    singly_ps = decision.singly_ps
    return {
        "others": [_choice(choice) for choice in decision.others],
        "layer_by_layer_s": None if singly_ps is None else singly_ps / _PS_PER_S,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "label": choice.label,
        "predicted_s": choice.predicted_ps / _PS_PER_S,
        "passes": sum(plan.passes for plan in choice.chains),
        "nb_bytes": max(plan.nb_bytes for plan in choice.chains),
        "sb_bytes": max(plan.sb_bytes for plan in choice.chains),
        "halo_bytes": max(plan.halo_bytes for plan in choice.chains),
    }
