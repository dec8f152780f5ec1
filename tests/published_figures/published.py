"""Published figures beside ours; `python -m benchmarks.emulator.published` prints them.

The TOML files of this folder hold every figure with its source, configuration and tolerance.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from published_figures.nvdla_sheet import SheetLayer, SheetMachine, network_cycles, read_sheet
from published_figures.tiled_chains import ValidConvolution, chained_elements, halo_macs, layer_by_layer_elements

from device_agents.emulated_npu.timing.cost.matrix_cost import systolic_cycles

FOLDER = Path(__file__).resolve().parent
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Comparison:
    """A published figure, ours, and the largest difference allowed, in the unit of the figure."""

    anchor: str
    quantity: str
    published: float
    ours: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether our figure is within the tolerance."""
        return abs(self.ours - self.published) <= self.tolerance

    @property
    def error_percent(self) -> float:
        """Difference of our figure from the published one, in percent."""
        return 100 * (self.ours / self.published - 1)


def read_anchor(name: str) -> dict[str, Any]:
    """Return the content of an anchor's TOML file."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def resnet50_sheet() -> tuple[SheetLayer, ...]:
    """Return the rows of NVDLA's sheet."""
    return read_sheet(FOLDER / read_anchor("nvdla_resnet50")["layers"])


def sheet_machine(row: dict[str, Any], winograd: bool) -> SheetMachine:
    """Return the parameters of the sheet for a row of the anchor."""
    return SheetMachine(row["macs"], row["buffer_kb"], Fraction(row["dram_gb_per_s"]), winograd)


def sheet_fps(machine: SheetMachine) -> float:
    """Return the frames per second of ResNet-50 by the sheet."""
    return NS_PER_S / float(network_cycles(resnet50_sheet(), machine))


def nvdla_comparisons() -> Iterator[Comparison]:
    """Yield the sheet's cycles, the primer's table with and without Winograd, and the bandwidth sweep."""
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
    """Return the weight-stationary cycles of a row of the ResNet-18 anchor."""
    side = -(-(layer["size"] - layer["kernel"] + layer["stride"]) // layer["stride"])
    depth = layer["kernel"] ** 2 * layer["in_channels"]
    return systolic_cycles("weight-stationary", side * side, layer["out_channels"], depth, rows, columns)[0]


def systolic_comparisons() -> Iterator[Comparison]:
    """Yield the layers of ResNet-18 whose cycles are published, and the network."""
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
    """Return the layers of the halo anchor."""
    return [ValidConvolution(**layer) for layer in read_anchor("halo_fsrcnn")["layers"]]


def halo_comparisons() -> Iterator[Comparison]:
    """Yield multiply-adds by tile size and treatment of the halo, and external activations."""
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
    """Return every published figure that a closed form is compared with."""
    return (*nvdla_comparisons(), *systolic_comparisons(), *halo_comparisons())
