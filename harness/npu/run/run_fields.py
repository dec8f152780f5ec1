"""A run and a compilation as data: the fields of the JSON objects and the rows of the CSV file."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision
from device_agents.emulated_npu.compiler.planning.search.choices import Choice
from device_agents.emulated_npu.machine import MacroAreas, macro_areas
from device_agents.emulated_npu.reports.accounting import RunEnergy, instruction_counts
from device_agents.emulated_npu.unit_commands import Space
from harness.npu.loading import CompiledModel
from harness.npu.run.core_run import CoreRun


def json_fields(run: CoreRun) -> dict[str, Any]:
    """Return the fields of `npu run --json`."""
    timed, total, checked, source = run.timed, run.rows[-1], run.checked, run.source
    timing = timed.timing
    return {
        "network": run.name,
        "machine": timed.machine.name,
        "cycles": timed.cycles,
        "seconds": timing.makespan_ps / PS_PER_S,
        "setup_cycles": run.setup_cycles,
        "formula_cycles": timing.cycles(timed.formula.total_ps),
        "wait_cycles": timing.cycles(timing.wait_ps),
        "waiting_queue": timing.waiting_queue.name.lower(),
        "io_cycles": timing.cycles(timing.transfer_ps),
        "compute_cycles": timing.cycles(timing.compute_ps),
        "mfu_cycles": timing.cycles(timing.mfu_ps),
        "vfu_cycles": timing.cycles(timing.vfu_ps),
        "control_cycles": timing.cycles(timing.control_ps),
        "macs": total.macs,
        "useful_macs": None if source is None else total.useful_macs or 0,
        "redundant_macs": run.redundant_macs,
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
        "area_mm2": _parts(macro_areas(timed.machine)),
        "energy_uj": _parts(run.energy),
        "instructions": run.instructions,
        **_graph_fields(source),
        **_convolution_fields(source),
        "max_rel_error": None if checked is None else checked.max_rel_error,
        "compared": None if checked is None else checked.compared,
        "compile_s": None if source is None else source.compile_s,
        "functional_s": None if checked is None else checked.functional_s,
        "timing_s": run.timing_s,
        "reorder": _reorder(run),
        "layers": [_layer(run, index) for index in range(len(run.rows) - 1)],
        "no_layer_cycles": timing.cycles(timing.no_layer_ps),
        "waits": [*_waits(run)],
    }


def _graph_fields(source: CompiledModel | None) -> dict[str, int | None]:
    if source is None:
        return dict.fromkeys(("onnx_nodes", "free_nodes", "hardware_layers", "chains", "passes"))
    return {
        "onnx_nodes": source.onnx_nodes,
        "free_nodes": source.free_nodes,
        "hardware_layers": len(source.compiled.graph.layers),
        "chains": len(source.compiled.chains),
        "passes": source.passes,
    }


def _convolution_fields(source: CompiledModel | None) -> dict[str, list[dict[str, Any]] | None]:
    if source is None:
        return dict.fromkeys(("by_dft", "stayed_direct"))
    by_dft = [
        {
            "layer": one.name,
            "block_length": one.length,
            "blocks": one.blocks,
            "kernel_level": one.kernel_level.name.lower(),
            "bins": one.bins,
            "real_multiplications": one.multiplications,
            "kernel_dfts": one.kernel_transforms,
        }
        for one in source.by_dft
    ]
    direct = [{"layer": one.name, "reason": one.reason} for one in source.stayed_direct]
    return {"by_dft": by_dft, "stayed_direct": direct}


def _memories(run: CoreRun) -> dict[str, dict[str, int]]:
    """Return each memory's size, what the program reserves, and its high-water mark or the bytes moved."""
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


def _tensor_classes(run: CoreRun) -> dict[str, dict[str, int]] | None:
    moved = run.moved_by_class
    return None if moved is None else {str(name): asdict(each) for name, each in moved.items()}


def _parts(whole: MacroAreas | RunEnergy) -> dict[str, float]:
    """Return the parts by name, and their sum as `total`."""
    return {**asdict(whole), "total": whole.total}


def _reorder(run: CoreRun) -> dict[str, float] | None:
    if run.in_order_cycles is None:
        return None
    return {"cycles": run.timed.cycles, "in_order_cycles": run.in_order_cycles, "gain": run.reorder_gain}


def _layer(run: CoreRun, index: int) -> dict[str, Any]:
    nodes = [] if run.source is None else list(run.source.compiled.graph.layers[index].nodes)
    marginal = None if run.marginal_cycles is None else run.marginal_cycles[index]
    known = {"op": run.operators[index], "nodes": nodes, "chain": _chain_of(run).get(index)}
    return {**asdict(run.rows[index]), **known, "marginal_cycles": marginal}


def _chain_of(run: CoreRun) -> dict[int, int]:
    chains = () if run.source is None else run.source.compiled.chains
    return {layer: number for number, chain in enumerate(chains) for layer in chain}


def _waits(run: CoreRun) -> Iterator[dict[str, Any]]:
    """Yield the idle times with the instructions that wait and are waited for."""
    names, timing = run.timed.program.layers, run.timed.timing
    for wait in run.waits:
        yield {
            "cycles": timing.cycles(wait.ps),
            "instruction": None if wait.pc < 0 else wait.pc,
            "layer": None if wait.layer < 0 else names[wait.layer],
            "due_instruction": None if wait.due_pc < 0 else wait.due_pc,
            "due_layer": None if wait.due_layer < 0 else names[wait.due_layer],
        }


def layer_rows(run: CoreRun) -> list[dict[str, Any]]:
    """Return the rows of the CSV file: one for every layer, then the total; None means unknown."""
    rows = [_layer(run, index) for index in range(len(run.rows) - 1)]
    total = {**asdict(run.rows[-1]), "op": "", "nodes": [], "chain": None, "marginal_cycles": None}
    return [{**row, "nodes": " ".join(row["nodes"])} for row in (*rows, total)]


def compile_fields(source: CompiledModel, setup_cycles: float, explain: bool) -> dict[str, Any]:
    """Return the fields of `npu compile --json`; `explain` adds the ways that were not chosen."""
    compiled = source.compiled
    counts = instruction_counts(compiled.program)
    return {
        "network": source.model.name,
        "machine": compiled.machine.name,
        "compile_s": source.compile_s,
        "predicted_s": source.predicted_s,
        "instructions": {**counts, "total": sum(counts.values())},
        "code_bytes": len(compiled.program.code),
        "footprint": asdict(compiled.program.footprint),
        **_graph_fields(source),
        **_convolution_fields(source),
        "setup_cycles": setup_cycles,
        "decisions": [
            {
                "layers": [compiled.graph.layers[index].name for index in chain_layers(decision.chosen)],
                "chosen": _choice(decision.chosen),
                **(_others(decision) if explain else {}),
            }
            for decision in compiled.decisions
        ],
    }


def chain_layers(choice: Choice) -> Sequence[int]:
    """Return the indices of the layers that a choice runs."""
    return sorted({layer.index for plan in choice.chains for layer in plan.layers})


def _others(decision: Decision) -> dict[str, Any]:
    singly_ps = decision.singly_ps
    return {
        "others": [_choice(choice) for choice in decision.others],
        "layer_by_layer_s": None if singly_ps is None else singly_ps / PS_PER_S,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    nb_bytes, sb_bytes, halo_bytes = bytes_of(choice)
    return {
        "label": choice.label,
        "predicted_s": choice.predicted_ps / PS_PER_S,
        "passes": sum(plan.passes for plan in choice.chains),
        "nb_bytes": nb_bytes,
        "sb_bytes": sb_bytes,
        "halo_bytes": halo_bytes,
    }


def bytes_of(choice: Choice) -> tuple[int, int, int]:
    """Return the bytes of NB, SB and the halo buffer that a choice needs."""
    needs = [(plan.nb_bytes, plan.sb_bytes, plan.halo_bytes) for plan in choice.chains]
    nb_bytes, sb_bytes, halo_bytes = map(max, zip(*needs, strict=True))
    return nb_bytes, sb_bytes, halo_bytes
