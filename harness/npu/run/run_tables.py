"""A run, and what the compiler chose, as text tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from device_agents.emulated_npu.reports.statistics import LayerRow
from harness.npu.loading import CompiledModel
from harness.npu.npu_options import RowSort
from harness.npu.run.core_run import CoreRun
from harness.npu.run.run_fields import compile_fields, json_fields
from harness.npu.text_tables import NAME_WIDTH, Facts, Part, Table
from harness.text import byte_size, four_digits, milliseconds, printable

_SHOWN_WAITS = 3
_SHOWN_CONVOLUTIONS = 8


def run_tables(run: CoreRun, sort: RowSort = "order", top: int = 0) -> list[Part]:
    """Return the table of the layers in an order, of the first `top` if it is not 0, and the facts of the whole run."""
    return [_layer_table(run, sort, top), Facts(tuple(_summary(run)))]


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
    fields = json_fields(run)
    cycles, waiting = fields["cycles"], fields["waiting_queue"].upper()
    yield "time", f"{cycles:,.0f} cycles, {milliseconds(fields['seconds'])} ms on {fields['machine']}"
    busier = max(fields["io_cycles"], fields["compute_cycles"])
    yield (
        "formula",
        f"{fields['formula_cycles']:,.0f} cycles = wait {fields['formula_cycles'] - busier:,.0f}"
        f" + max(IO {fields['io_cycles']:,.0f}, compute {fields['compute_cycles']:,.0f})",
    )
    yield "wait", f"{fields['wait_cycles']:,.0f} cycles of the {waiting} queue, control {fields['control_cycles']:,.0f}"
    for wait in fields["waits"][:_SHOWN_WAITS]:
        yield "", _wait(wait)
    used = fields["utilisation"]
    yield (
        "utilisation",
        f"MFU {used['mfu']:.1%} of its multiply-adds; busy: MFU {used['mfu_busy']:.1%}, VFU {used['vfu_busy']:.1%},"
        f" IO {used['io_busy']:.1%}",
    )
    extra = fields["redundant_macs"]
    yield (
        "MACs",
        f"{fields['macs']:,}" + ("" if extra is None else f", {extra:,} of them multiplications by zero or repeated"),
    )
    yield from _memory_lines(run, fields["memories"], fields["tensor_classes"])
    yield "energy", _shares(fields["energy_uj"], "uJ")
    yield "area", _shares(fields["area_mm2"], "mm2")
    yield from _size_lines(fields)
    yield from _convolution_lines(fields)
    if run.in_order_cycles is not None:
        yield "reordering", f"saves {run.reorder_gain:.2%} of {run.in_order_cycles:,.0f} cycles"
    if fields["max_rel_error"] is not None:
        compared = fields["compared"][len(run.outputs) :]
        beside = f"; also compared: {', '.join(compared)}, because an output after it is saturated" if compared else ""
        error = f"{fields['max_rel_error']:.2g} of the largest value"
        yield "values", f"largest difference from ONNX Runtime {error}{beside}"
    took = [("compile", fields["compile_s"]), ("functional", fields["functional_s"]), ("timing", fields["timing_s"])]
    yield "took", ", ".join(f"{label} {seconds:.2f} s" for label, seconds in took if seconds is not None)


def _wait(wait: Mapping[str, Any]) -> str:
    head = "at the end" if wait["instruction"] is None else _instruction(wait["instruction"], wait["layer"])
    return f"{wait['cycles']:,.0f}: {head} for {_instruction(wait['due_instruction'], wait['due_layer'])}"


def _instruction(number: object, layer: object) -> str:
    return f"instruction {number}" + (f" ({layer})" if layer else "")


def _memory_lines(
    run: CoreRun, memories: dict[str, dict[str, int]], classes: dict[str, dict[str, int]] | None
) -> Iterator[tuple[str, str]]:
    external = [f"{name.upper()} {_moved(memories[name])}" for name in ("ddr", "llc") if memories[name]["bytes"]]
    yield "external", "; ".join(external)
    for name, moved in (classes or {}).items():
        if moved["read_bytes"] or moved["written_bytes"]:
            words = name.replace("_", " ").replace("input output", "in- and outputs")
            yield "", f"{words}: {_moved(moved)}"
    peaks = [
        f"{label} {byte_size(memories[name]['peak_bytes'])} of {byte_size(memories[name]['bytes'])}"
        for name, label in (("nb", "NB"), ("sb", "SB"))
    ]
    halo = memories["halo"]
    peaks.append(f"halo buffer {byte_size(halo['peak_bytes'])} of {byte_size(halo['reserved_bytes'])} reserved")
    shared = " (one buffer)" if run.timed.machine.shared_buffer else ""
    yield "high water", ", ".join(peaks) + shared


def _moved(moved: Mapping[str, int]) -> str:
    return f"{byte_size(moved['read_bytes'])} read, {byte_size(moved['written_bytes'])} written"


def _shares(parts: Mapping[str, float], unit: str) -> str:
    """Return the total, and the parts above a thousandth of it in percent."""
    total = parts["total"]
    shown = [f"{name.upper()} {part / total:.1%}" for name, part in parts.items() if part > total / 1000]
    return f"{four_digits(total)} {unit}: {', '.join(shown[:-1])}" if total else f"0 {unit}"


def _size_lines(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if fields["hardware_layers"] is not None:
        yield (
            "network",
            f"ONNX nodes {fields['onnx_nodes']} ({fields['free_nodes']} take no time), hardware layers"
            f" {fields['hardware_layers']}, chains {fields['chains']}, passes {fields['passes']}",
        )
    counts = fields["instructions"]
    kinds = ", ".join(f"{name.upper()} {counts[name]:,}" for name in ("io", "mfu", "vfu", "config", "control"))
    issued = f", {counts['issued']:,} issued" if "issued" in counts else ""
    yield "program", f"{counts['total']:,} instructions ({kinds}){issued}"


def _convolution_lines(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the convolutions by DFT, those that stay direct although DFT is forced, and the cycles of the setup."""
    by_dft, direct = fields["by_dft"] or (), fields["stayed_direct"] or ()
    for label, one in zip(("by DFT", *("",) * len(by_dft)), by_dft[:_SHOWN_CONVOLUTIONS], strict=False):
        what = f"{one['blocks']:,} blocks of {one['block_length']}, {one['bins']:,} bins each"
        work = f"{one['real_multiplications']:,} real multiplications"
        kernels = f"{one['kernel_dfts']:,} kernel DFTs in {one['kernel_level'].upper()}"
        yield label, f"{printable(one['layer'], NAME_WIDTH)}: {what}, {work}, {kernels}"
    if len(by_dft) > _SHOWN_CONVOLUTIONS:
        yield "", f"and {len(by_dft) - _SHOWN_CONVOLUTIONS} more; --json has them all"
    if direct:
        shown = [f"{printable(one['layer'], NAME_WIDTH)} ({one['reason']})" for one in direct[:_SHOWN_CONVOLUTIONS]]
        rest = len(direct) - len(shown)
        yield "stay direct", ", ".join(shown) + (f" and {rest} more; --json has them all" if rest else "")
    if fields["setup_cycles"]:
        yield "setup", f"{fields['setup_cycles']:,.0f} cycles, once when the program is loaded"


def compile_tables(source: CompiledModel, setup_cycles: float, explain: bool) -> list[Part]:
    """Return the compiler's decision for each chain, and the size of the program; `explain` adds the other ways."""
    fields = compile_fields(source, setup_cycles, explain)
    rows = [row for decision in fields["decisions"] for row in _decision_rows(decision, explain)]
    predicted = (
        f"{milliseconds(fields['predicted_s'])} ms on {fields['machine']}, compiled in {fields['compile_s']:.2f} s"
    )
    return [
        Table(("chain", "layers", "way", "predicted ms", "NB", "SB", "halo"), rows, left=3),
        Facts((("predicted", predicted), *_size_lines(fields), *_convolution_lines(fields))),
    ]


def _decision_rows(decision: Mapping[str, Any], explain: bool) -> Iterator[tuple[str, ...]]:
    names = decision["layers"]
    ends = [printable(name, NAME_WIDTH) for name in (names[0], names[-1])]
    label = ends[0] if len(names) == 1 else " … ".join(ends)
    yield label, str(len(names)), "* " * explain + decision["chosen"]["label"], *_needs(decision["chosen"])
    if explain:
        for choice in decision["others"]:
            yield "", "", "  " + choice["label"], *_needs(choice)
        if decision["layer_by_layer_s"] is not None and len(names) > 1:
            yield "", "", "  layer by layer, halo fetched again", milliseconds(decision["layer_by_layer_s"]), "", "", ""


def _needs(choice: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the predicted time and the bytes of the on-chip memories."""
    return milliseconds(choice["predicted_s"]), *(
        byte_size(choice[f"{memory}_bytes"]) for memory in ("nb", "sb", "halo")
    )
