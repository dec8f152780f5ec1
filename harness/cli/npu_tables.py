"""One run of the emulated NPU, and what the compiler chose, for the reader of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.cli.npu_convolutions import convolution_lines
from harness.cli.npu_report import Made, Run, chain_layers, compile_fields, json_fields, reorder_gain
from harness.cli.output import milliseconds, print_table
from harness.text import printable

_SHOWN_WAITS = 3
_WIDTH = 48


def show_run(run: Run) -> None:
    """The table of the layers, and below it what holds for the whole run."""
    print_table(*_layer_table(run), left=2)
    print()
    for label, text in _summary(run):
        print(f"{label:<13}{printable(text)}")


def _layer_table(run: Run) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    header = ("layer", "operators", "cycles", "share", "MACs", "MFU", "external", "bound by")
    marginal = run.marginal_cycles
    rows = []
    for row, op in zip(run.rows, (*run.operators, ""), strict=True):
        used = "" if row.mfu_utilisation is None else f"{row.mfu_utilisation:.1%}"
        moved = row.ddr_read_bytes + row.ddr_written_bytes + row.llc_read_bytes + row.llc_written_bytes
        share = row.cycles / run.timed.cycles if run.timed.cycles else 0.0
        macs = f"{row.macs:,}" if row.macs else ""
        cells = (f"{row.cycles:,.0f}", f"{share:.1%}", macs, used, _size(moved), row.bound)
        extra = () if marginal is None else (f"{marginal[row.layer]:,.0f}" if row.layer >= 0 else "",)
        rows.append((printable(row.name, _WIDTH), printable(op, _WIDTH), *cells, *extra))
    return (*header, *(() if marginal is None else ("marginal",))), rows


def _summary(run: Run) -> Iterator[tuple[str, str]]:
    found = json_fields(run)
    cycles, waiting = found["cycles"], found["waiting_queue"].upper()
    yield "time", f"{cycles:,.0f} cycles, {milliseconds(found['seconds'])} ms on {found['machine']}"
    busier = max(found["io_cycles"], found["compute_cycles"])
    yield (
        "formula",
        f"{found['formula_cycles']:,.0f} cycles = wait {found['formula_cycles'] - busier:,.0f}"
        f" + max(IO {found['io_cycles']:,.0f}, compute {found['compute_cycles']:,.0f})",
    )
    yield "wait", f"{found['wait_cycles']:,.0f} cycles of the {waiting} queue, control {found['control_cycles']:,.0f}"
    for wait in found["waits"][:_SHOWN_WAITS]:
        yield "", _wait(wait)
    used = found["utilisation"]
    yield (
        "utilisation",
        f"MFU {used['mfu']:.1%} of its multiply-adds; busy: MFU {used['mfu_busy']:.1%}, VFU {used['vfu_busy']:.1%},"
        f" IO {used['io_busy']:.1%}",
    )
    extra = found["redundant_macs"]
    yield "MACs", f"{found['macs']:,}" + ("" if extra is None else f", {extra:,} of them computed again")
    yield from _memory_lines(run, found["memories"], found["tensor_classes"])
    yield from _size_lines(found)
    yield from convolution_lines(found)
    if run.in_order_cycles is not None:
        yield "re-ordering", f"saves {reorder_gain(run):.2%} of {run.in_order_cycles:,.0f} cycles"
    if found["max_rel_error"] is not None:
        yield "values", f"largest difference from ONNX Runtime {found['max_rel_error']:.2g} of the largest output"
    took = [("compile", found["compile_s"]), ("functional", found["functional_s"]), ("timing", found["timing_s"])]
    yield "took", ", ".join(f"{label} {seconds:.2f} s" for label, seconds in took if seconds is not None)


def _wait(wait: Mapping[str, Any]) -> str:
    head = "at the end" if wait["instruction"] is None else _instruction(wait["instruction"], wait["layer"])
    return f"{wait['cycles']:,.0f}: {head} for {_instruction(wait['due_instruction'], wait['due_layer'])}"


def _instruction(number: object, layer: object) -> str:
    return f"instruction {number}" + (f" ({layer})" if layer else "")


def _memory_lines(
    run: Run, memories: dict[str, dict[str, int]], classes: dict[str, dict[str, int]] | None
) -> Iterator[tuple[str, str]]:
    external = [
        f"{name.upper()} {_size(memories[name]['read_bytes'])} read, {_size(memories[name]['written_bytes'])} written"
        for name in ("ddr", "llc")
        if memories[name]["bytes"]
    ]
    yield "external", "; ".join(external)
    for name, moved in (classes or {}).items():
        if moved["read_bytes"] or moved["written_bytes"]:
            words = name.replace("_", " ").replace("input output", "in- and outputs")
            yield "", f"{words}: {_size(moved['read_bytes'])} read, {_size(moved['written_bytes'])} written"
    peaks = [
        f"{label} {_size(memories[name]['peak_bytes'])} of {_size(memories[name]['bytes'])}"
        for name, label in (("nb", "NB"), ("sb", "SB"))
    ]
    halo = memories["halo"]
    peaks.append(f"halo buffer {_size(halo['peak_bytes'])} of {_size(halo['reserved_bytes'])} reserved")
    shared = " (one buffer)" if run.timed.machine.shared_buffer else ""
    yield "high water", ", ".join(peaks) + shared


def _size_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if found["hardware_layers"] is not None:
        yield (
            "network",
            f"ONNX nodes {found['onnx_nodes']} ({found['free_nodes']} cost nothing), hardware layers"
            f" {found['hardware_layers']}, chains {found['chains']}, passes {found['passes']}",
        )
    counts = found["instructions"]
    kinds = ", ".join(f"{name.upper()} {counts[name]:,}" for name in ("io", "mfu", "vfu", "config", "control"))
    issued = f", {counts['issued']:,} issued" if "issued" in counts else ""
    yield "program", f"{counts['total']:,} instructions ({kinds}){issued}"


def show_compiled(made: Made, explain: bool) -> None:
    """Size of the program and every decision, with `explain` also what was not chosen."""
    found, source = compile_fields(made, explain), made.source
    rows = []
    for decision in source.compiled.decisions:
        names = [source.compiled.graph.layers[place].name for place in chain_layers(decision.chosen)]
        ends = [printable(name, _WIDTH) for name in (names[0], names[-1])]
        label = ends[0] if len(names) == 1 else " … ".join(ends)
        for choice in (decision.chosen, *(decision.others if explain else ())):
            plans, is_chosen = choice.chains, choice is decision.chosen
            rows.append(
                (
                    label if is_chosen else "",
                    str(len(names)) if is_chosen else "",
                    ("* " if is_chosen else "  ") * explain + choice.label,
                    milliseconds(choice.predicted_ps / 1e12),
                    _size(max(plan.nb_bytes for plan in plans)),
                    _size(max(plan.sb_bytes for plan in plans)),
                    _size(max(plan.halo_bytes for plan in plans)),
                )
            )
        if explain and decision.singly_ps is not None and len(names) > 1:
            singly = milliseconds(decision.singly_ps / 1e12)
            rows.append(("", "", "  layer by layer, halo fetched again", singly, "", "", ""))
    print_table(("chain", "layers", "way", "predicted ms", "NB", "SB", "halo"), rows, left=3)
    print()
    predicted, took = milliseconds(found["predicted_s"]), found["compile_s"]
    print(f"{'predicted':<13}{predicted} ms on {printable(found['machine'])}, compiled in {took:.2f} s")
    for label, text in (*_size_lines(found), *convolution_lines(found)):
        print(f"{label:<13}{printable(text)}")


def _size(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B" if count else "0"
