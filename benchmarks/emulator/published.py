"""Compare the emulator with published figures: sheets and models of machines, and measured times of chips.

    python -m benchmarks.emulator.published

Prints tables of docs/emulator_figures.md in Markdown. The published figures are data of the tests.
"""

import argparse

import fsrcnn
import nvdla
from published_figures.chips import chip_figures
from published_figures.published import comparisons

from benchmarks.generated_page import print_head, print_row
from device_agents.emulated_npu.timing.simulation import simulate_program


def closed_forms() -> None:
    """Print closed forms beside published figures."""
    print_head("anchor", "quantity", "published", "ours", "error")
    for each in comparisons():
        figures = f"{each.published:g}", f"{each.ours:.6g}", f"{each.error_percent:+.2f} %"
        print_row(each.anchor, each.quantity, *figures)


def nvdla_rows() -> None:
    """Print frames per second of the event-driven model, with and without a barrier between layers."""
    print_head("MACs", "sheet without Winograd", "barrier between layers", "error", "no barrier")
    for row in nvdla.ROWS:
        fenced, free = (nvdla.frames_per_s(row["macs"], fences) for fences in (True, False))
        error = fenced / row["direct_fps"] - 1
        print_row(row["macs"], row["direct_fps"], f"{fenced:.2f}", f"{error:+.1%}", f"{free:.2f}")


def fsrcnn_tiles() -> None:
    """Print multiply-adds, external elements and time of FSRCNN for each way of handling the halo."""
    print_head("tile", "halo", "G MACs", "external M elements", "ms")
    machine = fsrcnn.anchor_machine()
    for tile in fsrcnn.ANCHOR["macs"]["tiles"][:3]:
        for halo in ("recompute", "retain-columns", "retain"):
            compiled = fsrcnn.chained(tile["width"], tile["height"], halo)
            _row(f"{tile['width']} x {tile['height']}", halo, compiled, machine)
    _row("whole rows", "layer by layer", fsrcnn.layer_by_layer(), machine)


def _row(tile: str, halo: str, compiled: fsrcnn.Compiled, machine: fsrcnn.Machine) -> None:
    moved = fsrcnn.count(compiled)
    time_ms = simulate_program(compiled.program, machine).makespan_ps / 1e9
    print_row(tile, halo, f"{moved.macs / 1e9:.4f}", f"{moved.external / 1e6:.3f}", f"{time_ms:.2f}")


def chips() -> None:
    """Print measured times of chips beside those of the machines that describe them."""
    print_head("chip", "network", "published ms", "ours ms", "error", "cause")
    for each in chip_figures():
        ours_ms = each.ours_ms()
        network = each.network if each.part == "network" else f"{each.network}, {each.part}"
        figures = f"{each.published_ms:g}", f"{ours_ms:.4g}", f"{each.error(ours_ms):+.1%}"
        print_row(each.system, network, *figures, each.cause)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    closed_forms()
    print()
    nvdla_rows()
    print()
    fsrcnn_tiles()
    print()
    chips()
