"""The cost sheet published with the NVDLA hardware, in exact integers and fractions, rounded where the sheet rounds."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import ceil_div

_CHANNEL_ATOM = 16
_KERNEL_ATOM = 32
_KERNELS_TOGETHER = 128
_WINOGRAD_WEIGHTS = Fraction(16, 9)
_WINOGRAD_MACS = Fraction(9, 4)
_KB = 1024
_CYCLES_PER_KB_AT_1_GB_PER_S = 1000


def _round_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


@dataclass(frozen=True)
class SheetMachine:
    """The parameters of the sheet, at 1 GHz and one byte per element.

    Features and weights share the convolution buffer of `buffer_kb`. A `dram_gb_per_s` of None means no limit.
    `winograd` divides the work of 3 x 3 kernels by 9/4 and multiplies their weights by 16/9.
    """

    macs: int
    buffer_kb: int
    dram_gb_per_s: Fraction | None
    winograd: bool = True


@dataclass(frozen=True)
class SheetLayer:
    """A row of the sheet: a convolution or fully connected layer with the layers fused behind it.

    `output_height` and `output_width` are the size after a fused pooling. If `padded` is false, only multiply-adds at
    valid positions count. `first` marks the row that reads the image.
    """

    name: str
    in_channels: int
    height: int
    width: int
    kernels: int
    kernel_h: int
    kernel_w: int
    stride: int
    padded: bool
    output_height: int
    output_width: int
    residual: bool
    fully_connected: bool
    first: bool

    @property
    def channels(self) -> int:
        """Input channels after the stride is unfolded into channels, rounded up to whole atoms."""
        return _round_up(self.in_channels * self.stride * self.stride, _CHANNEL_ATOM)

    @property
    def taps(self) -> int:
        """Kernel positions after the stride is unfolded into channels."""
        return ceil_div(self.kernel_h, self.stride) * ceil_div(self.kernel_w, self.stride)


class SheetVolumes(NamedTuple):
    """Tensor sizes of a row in KB of 1024 elements; the sheet's columns X, Y, Z, AA and AB."""

    features: Fraction
    feature_rows: Fraction
    output: Fraction
    kernel_group: Fraction
    weights: Fraction


_SIZE_COLUMNS = ("in_channels", "height", "width", "kernels", "kernel_h", "kernel_w", "stride")


def read_sheet(path: Path) -> tuple[SheetLayer, ...]:
    """Return the rows of a CSV with the columns layer, kind, in_channels, height, ..., padded and pooled.

    A pooled row takes its output size from the input of the next row.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    following = [*rows[1:], {}]
    return tuple(_sheet_layer(row, after, row is rows[0]) for row, after in zip(rows, following, strict=True))


def _sheet_layer(row: Mapping[str, str], following: Mapping[str, str], first: bool) -> SheetLayer:
    sizes = {column: int(row[column]) for column in _SIZE_COLUMNS}
    output_height, output_width = (
        int(following[axis]) if row["pooled"] == "1" else ceil_div(sizes[axis], sizes["stride"])
        for axis in ("height", "width")
    )
    return SheetLayer(
        name=row["layer"],
        **sizes,
        padded=row["padded"] == "1",
        output_height=output_height,
        output_width=output_width,
        residual="elwise" in row["kind"],
        fully_connected=row["kind"] == "fc",
        first=first,
    )


def _is_winograd(layer: SheetLayer, machine: SheetMachine) -> bool:
    return machine.winograd and layer.kernel_h == layer.kernel_w == 3


def sheet_volumes(layer: SheetLayer, machine: SheetMachine) -> SheetVolumes:
    """Return columns X, Y, Z, AA and AB of a row."""
    out_h, out_w = ceil_div(layer.height, layer.stride), ceil_div(layer.width, layer.stride)
    rows = layer.kernel_h + 1 if layer.first else min(layer.kernel_h, out_h)
    output_channels = _round_up(layer.kernels, _CHANNEL_ATOM)
    kernel_group = Fraction(layer.channels * layer.taps * _KERNEL_ATOM, _KB)
    weights = Fraction(layer.channels * layer.taps * layer.kernels, _KB)
    return SheetVolumes(
        features=Fraction(layer.channels * out_h * out_w, _KB),
        feature_rows=Fraction(layer.channels * out_w * rows, _KB),
        output=Fraction(output_channels * layer.output_height * layer.output_width, _KB),
        kernel_group=kernel_group if kernel_group < machine.buffer_kb else Fraction(machine.buffer_kb, 2),
        weights=weights * _WINOGRAD_WEIGHTS if _is_winograd(layer, machine) else weights,
    )


def sheet_traffic_kb(layer: SheetLayer, machine: SheetMachine) -> Fraction:
    """Return the external traffic of a row in KB: one operand stays in the buffer, the other streams past it.

    Raises `ValueError` if the feature rows that a kernel needs fill the whole buffer.
    """
    volumes = sheet_volumes(layer, machine)
    if layer.first:
        features_stay = volumes.feature_rows < volumes.kernel_group
    else:
        features_stay = volumes.features < volumes.weights
    if features_stay:
        resident, passing, reserve = volumes.features, volumes.weights, volumes.kernel_group
    else:
        resident, passing, reserve = volumes.weights, volumes.features, volumes.feature_rows
    room = machine.buffer_kb - reserve
    if room <= 0:
        raise ValueError(f"{layer.name}: {float(reserve):g} KB of feature rows fill a buffer of {machine.buffer_kb} KB")
    rounds = max(1, -(-resident // room))
    return rounds * passing + resident + volumes.output * (2 if layer.residual else 1)


def sheet_dram_cycles(layer: SheetLayer, machine: SheetMachine) -> int:
    """Return the memory cycles of a row; here the sheet counts a KB as 1000 bytes."""
    if machine.dram_gb_per_s is None:
        return 0
    return -(-sheet_traffic_kb(layer, machine) * _CYCLES_PER_KB_AT_1_GB_PER_S // machine.dram_gb_per_s)


def sheet_mac_cycles(layer: SheetLayer, machine: SheetMachine) -> Fraction:
    """Return the multiplier cycles of a row; not rounded, as in the sheet."""
    valid_h = layer.height if layer.padded else layer.height - layer.kernel_h + 1
    valid_w = layer.width if layer.padded else layer.width - layer.kernel_w + 1
    plane = ceil_div(valid_h, layer.stride) * ceil_div(valid_w, layer.stride)
    if layer.fully_connected:
        kernels = Fraction(_round_up(layer.kernels * 16, _KERNELS_TOGETHER), 16)
    else:
        kernels = Fraction(_round_up(layer.kernels, _KERNELS_TOGETHER))
    taps = Fraction(layer.kernel_h * layer.kernel_w, layer.stride * layer.stride)
    cycles = layer.channels * plane * kernels * taps / machine.macs
    return cycles / _WINOGRAD_MACS if _is_winograd(layer, machine) else cycles


def layer_cycles(layer: SheetLayer, machine: SheetMachine) -> Fraction:
    """Return the cycles of a row: the larger of memory and multiplier cycles."""
    return max(Fraction(sheet_dram_cycles(layer, machine)), sheet_mac_cycles(layer, machine))


def network_cycles(layers: Iterable[SheetLayer], machine: SheetMachine) -> Fraction:
    """Return the cycles of a network: the sum of its rows. Frames per second are 1e9 divided by it."""
    return sum((layer_cycles(layer, machine) for layer in layers), Fraction())
