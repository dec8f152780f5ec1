"""Published figures beside ours: `python tests/anchors/published.py` prints the table.

Every figure is data in the TOML files beside this one, with its source, configuration and tolerance.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from device_agents.emulated_npu.timing.closed_form import (
    SheetLayer,
    SheetMachine,
    ValidConvolution,
    chained_elements,
    halo_macs,
    layer_by_layer_elements,
    network_cycles,
    read_sheet,
    weight_stationary_cycles,
)

FOLDER = Path(__file__).resolve().parent
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Comparison:
    """One published figure, ours, and by how much they may differ (in the figure's own unit)."""

    anchor: str
    quantity: str
    published: float
    ours: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether ours is within the tolerance."""
        return abs(self.ours - self.published) <= self.tolerance

    @property
    def error_percent(self) -> float:
        """Ours against the published figure."""
        return 100 * (self.ours / self.published - 1)


def read_anchor(name: str) -> dict[str, Any]:
    """The content of an anchor's TOML file."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def resnet50_sheet() -> tuple[SheetLayer, ...]:
    """The rows of NVDLA's sheet."""
    return read_sheet(FOLDER / read_anchor("nvdla_resnet50")["layers"])


def sheet_machine(row: dict[str, Any], winograd: bool) -> SheetMachine:
    """The parameters of the sheet that a row of the anchor says."""
    return SheetMachine(row["macs"], row["buffer_kb"], Fraction(row["dram_gb_per_s"]), winograd)


def sheet_fps(machine: SheetMachine) -> float:
    """Frames a second of ResNet-50 by the sheet."""
    return NS_PER_S / float(network_cycles(resnet50_sheet(), machine))


def nvdla_comparisons() -> Iterator[Comparison]:
    """The sheet's cycles, the primer's table with and without Winograd, the sweep of the bandwidth."""
    anchor = read_anchor("nvdla_resnet50")
    sheet, primer, sweep = anchor["sheet"], anchor["primer"], anchor["bandwidth"]
    cycles = network_cycles(resnet50_sheet(), sheet_machine(sheet, winograd=True))
    yield Comparison("NVDLA", "cycles at the sheet's defaults", sheet["cycles"], float(cycles), 0)
    for row in primer["rows"]:
        tolerance = max(row["half_digit"], primer["relative_tolerance"] * row["fps"])
        ours = sheet_fps(sheet_machine(row, winograd=True))
        yield Comparison("NVDLA", f"fps, {row['macs']} MACs", row["fps"], ours, tolerance)
        ours = sheet_fps(sheet_machine(row, winograd=False))
        quantity = f"fps, {row['macs']} MACs, no Winograd"
        yield Comparison("NVDLA", quantity, row["direct_fps"], ours, primer["direct_half_digit"])
    for point in sweep["points"]:
        ours = sheet_fps(sheet_machine({**sweep, **point}, winograd=True))
        quantity = f"fps, {sweep['macs']} MACs at {point['dram_gb_per_s']} GB/s"
        yield Comparison("NVDLA", quantity, point["fps"], ours, point["half_digit"])


def systolic_layer_cycles(layer: dict[str, Any], rows: int, columns: int) -> int:
    """Weight-stationary cycles of a row of the ResNet-18 anchor."""
    side = -(-(layer["size"] - layer["kernel"] + layer["stride"]) // layer["stride"])
    depth = layer["kernel"] ** 2 * layer["in_channels"]
    return weight_stationary_cycles(side * side, layer["out_channels"], depth, rows, columns)


def systolic_comparisons() -> Iterator[Comparison]:
    """The layers of ResNet-18 whose cycles are published, and the network."""
    anchor = read_anchor("systolic_resnet18")
    cycles = {
        layer["name"]: systolic_layer_cycles(layer, anchor["rows"], anchor["columns"]) for layer in anchor["layers"]
    }
    for layer in anchor["layers"]:
        if "cycles" in layer:
            quantity = f"cycles, {layer['name']}"
            yield Comparison("SCALE-Sim", quantity, layer["cycles"], cycles[layer["name"]], 0)
    yield Comparison("SCALE-Sim", "cycles, ResNet-18", anchor["cycles"], sum(cycles.values()), 0)


def fsrcnn_layers() -> list[ValidConvolution]:
    """The layers of the halo anchor."""
    return [ValidConvolution(**layer) for layer in read_anchor("halo_fsrcnn")["layers"]]


def halo_comparisons() -> Iterator[Comparison]:
    """Multiply-adds by tile size and treatment of the halo, and external activations."""
    anchor = read_anchor("halo_fsrcnn")
    layers, size = fsrcnn_layers(), (anchor["width"], anchor["height"])
    for tile in anchor["macs"]["tiles"]:
        counted = halo_macs(layers, *size, tile["width"], tile["height"])
        for mode, macs in counted._asdict().items():
            quantity = f"G MACs, {tile['width']} x {tile['height']}, {mode}"
            yield Comparison("DeFiNES", quantity, tile[mode], macs / 1e9, anchor["macs"]["half_digit"])
    external = anchor["external"]
    for mode, elements in (("layer_by_layer", layer_by_layer_elements), ("chained", chained_elements)):
        figure, ours = external[mode], elements(layers, *size) / 1e6
        yield Comparison("DeFiNES", f"M elements, {mode}", figure["elements"], ours, figure["tolerance"])


def comparisons() -> tuple[Comparison, ...]:
    """Every published figure that a closed form is held to."""
    return (*nvdla_comparisons(), *systolic_comparisons(), *halo_comparisons())


def main() -> None:
    """Prints the table."""
    print(f"{'anchor':10} {'quantity':38} {'published':>12} {'ours':>14} {'error':>9}")
    for row in comparisons():
        verdict = "" if row.agrees else "  differs"
        figures = f"{row.published:12,.10g} {row.ours:14,.10g} {row.error_percent:+8.3f}%"
        print(f"{row.anchor:10} {row.quantity:38} {figures}{verdict}")


if __name__ == "__main__":
    main()
