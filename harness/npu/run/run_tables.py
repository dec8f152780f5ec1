"""A run, and what the compiler chose, as text tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision
from device_agents.emulated_npu.compiler.planning.search.choices import Choice
from device_agents.emulated_npu.machine import MacroAreas, macro_areas
from device_agents.emulated_npu.reports.accounting import MovedBytes, RunEnergy, instruction_counts
from device_agents.emulated_npu.reports.statistics import LayerRow
from device_agents.emulated_npu.timing.attribution import WaitTime
from device_agents.emulated_npu.timing.simulation import Timing
from device_agents.emulated_npu.unit_commands import Space
from harness.npu.loading import CompiledModel
from harness.npu.npu_options import RowSort
from harness.npu.run.core_run import CoreRun
from harness.npu.run.run_fields import bytes_of, chain_layers
from harness.text import NAME_WIDTH, Facts, Part, Table, byte_size, four_digits, milliseconds, printable

_SHOWN_WAITS = 3
_SHOWN_CONVOLUTIONS = 8


def run_tables(run: CoreRun, sort: RowSort = "order", top: int = 0) -> tuple[Table, Facts]:
    """Return the table of the layers in an order, of the first `top` if it is not 0, and the facts of the whole run."""
    return _layer_table(run, sort, top), tuple(_summary(run))


def _layer_table(run: CoreRun, sort: RowSort, top: int) -> Table:
    """Return the rows of the layers, and last that of the whole run."""
    header = ("layer", "operators", "cycles", "share", "MACs", "MFU", "external", "bound by")
    marginal = run.marginal_cycles
    found = list(zip(run.rows, (*run.operators, ""), strict=True))
    layers, rows = sorted(found[:-1], key=lambda one: _place(one[0], sort)), []
    for row, op in [*layers[: top or None], found[-1]]:
        used = "" if row.mfu_utilisation is None else f"{row.mfu_utilisation:.1%}"
        moved = _moved_bytes(row)
        share = row.cycles / run.timed.cycles if run.timed.cycles else 0.0
        macs = f"{row.macs:,}" if row.macs else ""
        cells = (f"{row.cycles:,.0f}", f"{share:.1%}", macs, used, byte_size(moved), row.bound)
        extra = () if marginal is None else (f"{marginal[row.layer]:,.0f}" if row.layer >= 0 else "",)
        rows.append((printable(row.name, NAME_WIDTH), printable(op, NAME_WIDTH), *cells, *extra))
    return Table((*header, *(() if marginal is None else ("marginal",))), rows, left=2)


def _moved_bytes(row: LayerRow) -> int:
    return row.ddr_read_bytes + row.ddr_written_bytes + row.llc_read_bytes + row.llc_written_bytes


def _place(row: LayerRow, sort: RowSort) -> tuple[float, str]:
    sizes = {"cycles": row.cycles, "macs": row.macs or 0, "bytes": _moved_bytes(row)}
    return -float(sizes.get(sort, 0)), row.name if sort == "name" else ""


def _summary(run: CoreRun) -> Iterator[tuple[str, str]]:
    timed, timing, total = run.timed, run.timed.timing, run.rows[-1]
    seconds = timing.makespan_ps / PS_PER_S
    yield "time", f"{timed.cycles:,.0f} cycles, {milliseconds(seconds)} ms on {timed.machine.name}"
    formula, io, compute = map(timing.cycles, (timed.formula.total_ps, timing.transfer_ps, timing.compute_ps))
    yield (
        "formula",
        f"{formula:,.0f} cycles = wait {formula - max(io, compute):,.0f} + max(IO {io:,.0f}, compute {compute:,.0f})",
    )
    waited, control = timing.cycles(timing.wait_ps), timing.cycles(timing.control_ps)
    yield "wait", f"the {timing.waiting_queue.name} queue waits {waited:,.0f} cycles, control {control:,.0f} more"
    for wait in run.waits[:_SHOWN_WAITS]:
        yield "", _wait(wait, timing, timed.program.layers)
    yield (
        "utilisation",
        f"MFU {total.mfu_utilisation:.1%} of its multiply-adds; busy: MFU {total.mfu_busy:.1%},"
        f" VFU {total.vfu_busy:.1%}, IO {total.io_busy:.1%}",
    )
    extra = run.redundant_macs
    yield (
        "MACs",
        f"{total.macs:,}" + ("" if extra is None else f", {extra:,} of them multiplications by zero or repeated"),
    )
    yield from _memory_lines(run)
    yield "energy", _shares(run.energy, "µJ")
    yield "area", _shares(macro_areas(timed.machine), "mm²")
    yield from _size_lines(run.source, run.instructions)
    yield from _convolution_lines(run.source, run.setup_cycles)
    if run.in_order_cycles is not None:
        yield "reordering", f"saves {run.reorder_gain:.2%} of {run.in_order_cycles:,.0f} cycles"
    if run.checked is not None:
        compared = run.checked.compared[len(run.outputs) :]
        beside = f"; also compared: {', '.join(compared)}, because an output after it is saturated" if compared else ""
        error = f"{run.checked.max_rel_error:.2g} of the largest value"
        yield "values", f"largest difference from ONNX Runtime {error}{beside}"
    took = [
        ("compile", None if run.source is None else run.source.compile_s),
        ("functional", None if run.checked is None else run.checked.functional_s),
        ("timing", run.timing_s),
    ]
    yield "took", ", ".join(f"{label} {seconds:.2f} s" for label, seconds in took if seconds is not None)


def _wait(wait: WaitTime, timing: Timing, layers: Sequence[str]) -> str:
    head = "the end of the run" if wait.pc < 0 else _instruction(wait.pc, wait.layer, layers)
    return f"{timing.cycles(wait.ps):,.0f} cycles: {head} waits for {_instruction(wait.due_pc, wait.due_layer, layers)}"


def _instruction(number: int, layer: int, layers: Sequence[str]) -> str:
    return f"instruction {None if number < 0 else number}" + (f" ({layers[layer]})" if layer >= 0 else "")


def _memory_lines(run: CoreRun) -> Iterator[tuple[str, str]]:
    machine, peak_bytes = run.timed.machine, run.peak_bytes
    external = [(Space.DDR, machine.ddr), (Space.LLC, machine.llc)]
    moved = [f"{space.name} {_moved(run.moved_by_memory[space])}" for space, memory in external if memory.bytes]
    yield "external", "; ".join(moved)
    for name, bytes_moved in (run.moved_by_class or {}).items():
        if bytes_moved.read_bytes or bytes_moved.written_bytes:
            words = name.replace("_", " ").replace("input output", "in- and outputs")
            yield "", f"{words}: {_moved(bytes_moved)}"
    peaks = [
        f"{space.name} {byte_size(peak_bytes[space])} of {byte_size(size)}"
        for space, size in ((Space.NB, machine.nb_bytes), (Space.SB, machine.sb_bytes))
    ]
    reserved = byte_size(run.timed.program.footprint.halo_bytes)
    peaks.append(f"halo buffer {byte_size(peak_bytes[Space.HALO])} of {reserved} reserved")
    yield "high water", ", ".join(peaks) + (" (one buffer)" if machine.shared_buffer else "")


def _moved(moved: MovedBytes) -> str:
    return f"{byte_size(moved.read_bytes)} read, {byte_size(moved.written_bytes)} written"


def _shares(whole: MacroAreas | RunEnergy, unit: str) -> str:
    """Return the total, and the parts above a thousandth of it in percent."""
    total = whole.total
    shown = [f"{name.upper()} {part / total:.1%}" for name, part in asdict(whole).items() if part > total / 1000]
    return f"{four_digits(total)} {unit}: {', '.join(shown)}" if total else f"0 {unit}"


def _size_lines(source: CompiledModel | None, counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    if source is not None:
        compiled = source.compiled
        yield (
            "network",
            f"ONNX nodes {source.onnx_nodes} ({source.free_nodes} take no time), hardware layers"
            f" {len(compiled.graph.layers)}, chains {len(compiled.chains)}, passes {source.passes}",
        )
    kinds = ", ".join(f"{name.upper()} {counts[name]:,}" for name in ("io", "mfu", "vfu", "config", "control"))
    issued = f", {counts['issued']:,} issued" if "issued" in counts else ""
    yield "program", f"{counts['total']:,} instructions ({kinds}){issued}"


def _convolution_lines(source: CompiledModel | None, setup_cycles: float) -> Iterator[tuple[str, str]]:
    """Yield the convolutions by DFT, those that stay direct although DFT is forced, and the cycles of the setup."""
    by_dft, direct = ((), ()) if source is None else (source.by_dft, source.stayed_direct)
    for label, one in zip(("by DFT", *("",) * len(by_dft)), by_dft[:_SHOWN_CONVOLUTIONS], strict=False):
        what = f"{one.blocks:,} blocks of {one.length}, {one.bins:,} bins each"
        work = f"{one.multiplications:,} real multiplications"
        kernels = f"{one.kernel_transforms:,} kernel DFTs in {one.kernel_level.name}"
        yield label, f"{printable(one.name, NAME_WIDTH)}: {what}, {work}, {kernels}"
    if len(by_dft) > _SHOWN_CONVOLUTIONS:
        yield "", f"and {len(by_dft) - _SHOWN_CONVOLUTIONS} more; --json has them all"
    if direct:
        shown = [f"{printable(one.name, NAME_WIDTH)} ({one.reason})" for one in direct[:_SHOWN_CONVOLUTIONS]]
        rest = len(direct) - len(shown)
        yield "stay direct", ", ".join(shown) + (f" and {rest} more; --json has them all" if rest else "")
    if setup_cycles:
        yield "setup", f"{setup_cycles:,.0f} cycles, once when the program is loaded"


def compile_tables(source: CompiledModel, setup_cycles: float, explain: bool) -> list[Part]:
    """Return the compiler's decision for each chain, and the size of the program; `explain` adds the other ways."""
    compiled = source.compiled
    rows = [row for decision in compiled.decisions for row in _decision_rows(decision, compiled.graph, explain)]
    machine = compiled.machine.name
    predicted = f"{milliseconds(source.predicted_s)} ms on {machine}, compiled in {source.compile_s:.2f} s"
    counts = instruction_counts(compiled.program)
    sizes = _size_lines(source, {**counts, "total": sum(counts.values())})
    return [
        Table(("chain", "layers", "way", "predicted ms", "NB", "SB", "halo"), rows, left=3),
        (("predicted", predicted), *sizes, *_convolution_lines(source, setup_cycles)),
    ]


def _decision_rows(decision: Decision, graph: Graph, explain: bool) -> Iterator[tuple[str, ...]]:
    names = [graph.layers[index].name for index in chain_layers(decision.chosen)]
    ends = [printable(name, NAME_WIDTH) for name in (names[0], names[-1])]
    label = ends[0] if len(names) == 1 else " … ".join(ends)
    yield label, str(len(names)), "* " * explain + decision.chosen.label, *_needs(decision.chosen)
    if explain:
        for choice in decision.others:
            yield "", "", "  " + choice.label, *_needs(choice)
        if decision.singly_ps is not None and len(names) > 1:
            yield "", "", "  layer by layer, halo fetched again", _ms(decision.singly_ps), "", "", ""


def _needs(choice: Choice) -> tuple[str, ...]:
    """Return the predicted time and the bytes of the on-chip memories."""
    return _ms(choice.predicted_ps), *map(byte_size, bytes_of(choice))


def _ms(ps: float) -> str:
    return milliseconds(ps / PS_PER_S)
