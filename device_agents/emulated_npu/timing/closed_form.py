"""Closed forms published by others, which need no program and no simulation.

Three of them: the cost sheet that was published with the NVDLA hardware (`network_cycles`), the compute cycles
of SCALE-Sim's systolic arrays (`weight_stationary_cycles` and its two siblings), and the multiply-adds and
external elements of chained layers cut into tiles, as in DeFiNES (`halo_macs`, `chained_elements`). The
emulator is held to them; the systolic forms are also its cost of a matrix command.

All arithmetic is exact, in integers and fractions: rounding happens where the source rounds and nowhere else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from device_agents.emulated_npu.emulator_errors import DoesNotFit, EmulatorError


def ceil_div(value: int, divisor: int) -> int:
    """The quotient rounded up."""
    return -(-value // divisor)


def _round_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


# --- The sheet of NVDLA -----------------------------------------------------------------------------------------

_CHANNEL_ATOM = 16
_KERNEL_ATOM = 32
_KERNELS_TOGETHER = 128
_WINOGRAD_WEIGHTS = Fraction(16, 9)
_WINOGRAD_MACS = Fraction(9, 4)
_KB = 1024
_CYCLES_PER_KB_AT_1_GB_PER_S = 1000


@dataclass(frozen=True)
class SheetMachine:
    """The parameters of the sheet, at 1 GHz and one byte an element.

    `buffer_kb` is the convolution buffer, shared by features and weights; `dram_gb_per_s` is None where memory
    never limits; `winograd` halves and more the work of 3 x 3 kernels for 16/9 of their weights.
    """

    macs: int
    buffer_kb: int
    dram_gb_per_s: Fraction | None
    winograd: bool = True


@dataclass(frozen=True)
class SheetLayer:
    """A row of the sheet: a convolution or fully connected layer with whatever is fused behind it.

    `output_height` and `output_width` are those after a fused pooling. `padded` is false where multiply-adds
    are counted on the valid positions alone; `first` marks the row that reads the image.
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
        """Channels of one atom after a stride is unfolded into channels."""
        return _round_up(self.in_channels * self.stride * self.stride, _CHANNEL_ATOM)

    @property
    def taps(self) -> int:
        """Kernel positions that are left after the stride is unfolded into channels."""
        return ceil_div(self.kernel_h, self.stride) * ceil_div(self.kernel_w, self.stride)


class SheetVolumes(NamedTuple):
    """What a row moves or keeps, in KB of 1024 elements; the sheet's columns X, Y, Z, AA and AB."""

    features: Fraction
    feature_rows: Fraction
    output: Fraction
    kernel_group: Fraction
    weights: Fraction


def read_sheet(path: Path) -> tuple[SheetLayer, ...]:
    """The rows of a CSV with the columns layer, kind, in_channels, height, ..., padded and pooled.

    A row that is pooled hands the next row its input, so that is where the size after pooling is taken from.
    Raises `EmulatorError` for a missing column, a value that is no number, or a file that cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise ValueError("it has no rows")
        return tuple(
            _sheet_layer(row, following, first=index == 0)
            for index, (row, following) in enumerate(zip(rows, [*rows[1:], None], strict=True))
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise EmulatorError(
            f"{path.name} is not a sheet of layers", why, "See tests/anchors for the columns"
        ) from error


_SIZE_COLUMNS = ("in_channels", "height", "width", "kernels", "kernel_h", "kernel_w", "stride")


def _sheet_layer(row: Mapping[str, str], following: Mapping[str, str] | None, first: bool) -> SheetLayer:
    sizes = {column: int(row[column]) for column in _SIZE_COLUMNS}
    if min(sizes.values()) < 1:
        raise ValueError(f"{row['layer']} has a size below 1")
    output_height, output_width = (ceil_div(sizes[axis], sizes["stride"]) for axis in ("height", "width"))
    if row["pooled"] == "1":
        if following is None:
            raise ValueError(f"{row['layer']} is pooled, but no row follows that tells the size")
        output_height, output_width = int(following["height"]), int(following["width"])
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
    """Columns X, Y, Z, AA and AB of a row."""
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
    """External KB of a row: one operand stays in the buffer, the other passes by as often as that takes.

    Raises `DoesNotFit` where the rows of the features that a kernel needs fill the whole buffer.
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
        what = f"{layer.name}: {float(reserve):g} KB of feature rows do not fit a buffer of {machine.buffer_kb} KB"
        raise DoesNotFit(what, "the sheet keeps the rows that one kernel needs in it", "Enlarge buffer_kb")
    rounds = max(1, -(-resident // room))
    return rounds * passing + resident + volumes.output * (2 if layer.residual else 1)


def sheet_dram_cycles(layer: SheetLayer, machine: SheetMachine) -> int:
    """Cycles of the external memory for a row; the sheet takes a KB for 1000 bytes here."""
    if machine.dram_gb_per_s is None:
        return 0
    return -(-sheet_traffic_kb(layer, machine) * _CYCLES_PER_KB_AT_1_GB_PER_S // machine.dram_gb_per_s)


def sheet_mac_cycles(layer: SheetLayer, machine: SheetMachine) -> Fraction:
    """Cycles of the multipliers for a row; not rounded, as in the sheet."""
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
    """Cycles of a row: the longer of memory and multipliers."""
    return max(Fraction(sheet_dram_cycles(layer, machine)), sheet_mac_cycles(layer, machine))


def network_cycles(layers: Iterable[SheetLayer], machine: SheetMachine) -> Fraction:
    """Cycles of a network: the sum of its rows; frames a second are 1e9 over it."""
    return sum((layer_cycles(layer, machine) for layer in layers), Fraction())


# --- Systolic arrays --------------------------------------------------------------------------------------------


def weight_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """Compute cycles of an m x k by k x n product where each fold holds rows x columns weights.

    As SCALE-Sim counts them (Samajdar et al., arXiv:1811.02883): m output pixels, n filters, k products each;
    a fold loads its weights in `rows` cycles, then streams m vectors through the skewed array.
    """
    return ceil_div(k, rows) * ceil_div(n, columns) * (2 * rows + columns + m - 2) - 1


def output_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """As `weight_stationary_cycles`, where each fold holds rows x columns sums."""
    return ceil_div(m, rows) * ceil_div(n, columns) * (rows + columns + k - 2) - 1


def input_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """As `weight_stationary_cycles`, where each fold holds rows x columns inputs."""
    return ceil_div(k, rows) * ceil_div(m, columns) * (2 * rows + columns + n - 2) - 1


# --- Chains of valid convolutions, cut into tiles ---------------------------------------------------------------


class ValidConvolution(NamedTuple):
    """A convolution with a square kernel, stride 1 and no padding."""

    kernel: int
    in_channels: int
    out_channels: int


class HaloMacs(NamedTuple):
    """Multiply-adds of a chain by what happens to the halo."""

    recompute: int
    one_direction: int
    retained: int


def _margins(layers: Sequence[ValidConvolution]) -> list[int]:
    """By how much each layer's output exceeds the chain's last output, along either axis."""
    margins, margin = [], 0
    for layer in reversed(layers):
        margins.append(margin)
        margin += layer.kernel - 1
    return margins[::-1]


def halo_macs(
    layers: Sequence[ValidConvolution], width: int, height: int, tile_width: int, tile_height: int
) -> HaloMacs:
    """Multiply-adds of a chain whose last output of width x height is computed tile by tile.

    Recomputed: every tile computes all of its pyramid. One direction: what tiles share along the width is kept
    (DeFiNES: horizontally cached). Retained: kept along both (fully cached). The last tile of a row or column
    counts with its own size. Mei et al., DeFiNES, HPCA 2023 (S3.8).
    """
    columns, rows = ceil_div(width, tile_width), ceil_div(height, tile_height)
    recompute = one_direction = retained = 0
    for layer, margin in zip(layers, _margins(layers), strict=True):
        products = layer.kernel**2 * layer.in_channels * layer.out_channels
        across, down = width + columns * margin, height + rows * margin
        recompute += across * down * products
        one_direction += (width + margin) * down * products
        retained += (width + margin) * (height + margin) * products
    return HaloMacs(recompute, one_direction, retained)


def _intermediate_elements(layers: Sequence[ValidConvolution], width: int, height: int) -> int:
    return sum(
        (width + margin) * (height + margin) * layer.out_channels
        for layer, margin in zip(layers[:-1], _margins(layers)[:-1], strict=True)
    )


def chained_elements(layers: Sequence[ValidConvolution], width: int, height: int) -> int:
    """External activation elements of a chain that keeps its halo: its input read, its output written (S3.1)."""
    margin = sum(layer.kernel - 1 for layer in layers)
    read = (width + margin) * (height + margin) * layers[0].in_channels
    return read + width * height * layers[-1].out_channels


def layer_by_layer_elements(layers: Sequence[ValidConvolution], width: int, height: int) -> int:
    """External activation elements without chaining: every intermediate is written once and read once more."""
    return chained_elements(layers, width, height) + 2 * _intermediate_elements(layers, width, height)
