"""The parts of a machine: units, memories, links and the host; each is a table of a machine file.

Each number has a `ValueRange`, which catches a wrong unit and keeps sums of picoseconds and addresses within 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

Dataflow = Literal["dot-product", "weight-stationary", "output-stationary", "input-stationary"]
Packing = Literal["none", "row", "stride"]
DepthwiseUnit = Literal["vfu", "mfu"]


class ValueRange(NamedTuple):
    """The lowest and the highest value of a number."""

    low: float
    high: float


Cycles = Annotated[int, ValueRange(0, 1_000_000)]
BytesOrNone = Annotated[int, ValueRange(0, 2**40)]
_BytesPerS = Annotated[float, ValueRange(0, 1e18)]
_LatencyNs = Annotated[float, ValueRange(0, 1e6)]
_UpToAnHour = Annotated[float, ValueRange(0, 3_600)]
_Fraction = Annotated[float, ValueRange(0, 1)]
_Lanes = Annotated[float, ValueRange(0, 2**24)]
_Columns = Annotated[int, ValueRange(0, 2**24)]
_Um2 = Annotated[float, ValueRange(0, 1e9)]
_Pj = Annotated[float, ValueRange(0, 1e9)]


@dataclass(frozen=True)
class Mfu:
    """The matrix unit: an array that does one multiply-add per element and cycle.

    The array has `rows` x `columns` elements for each of `pixel_rows` x `pixel_columns` output pixels. Rows reduce,
    columns are output channels. The dot-product `dataflow` has no fill time; the stationary ones follow SCALE-Sim's
    closed forms. `packing` (dot-product only) selects what fills the rows: input channels ("none"), a row of the window
    ("row": kernel width x channels), or channels x strides ("stride", as in NVDLA's sheet).

    Optional, by default as without the key:

    - `pixel_rows`, `pixel_columns` (dot-product only): output pixels that are computed side by side. A map is rounded
      up to whole blocks of them; an output of one row whose kernel has one row, such as a matrix product, puts all of
      them side by side.
    - `step_cycles` (packing "none" only): the reduction advances in steps of so many cycles. A step takes `rows` x
      `step_cycles` channels of one position of the window, or `rows` channels of `step_cycles` positions: whichever
      needs fewer steps.
    - `preloads_weights` (weight- and input-stationary): a second set of registers is loaded while the array computes,
      so that a fold follows the one before it without loading or draining the array.
    - `depthwise`: the unit of depthwise convolutions. On the MFU columns are channels; rows hold the window row with
      packing "row" and one position otherwise. A stationary array computes channel by channel.
    - `output_lanes`: elements that leave the array in a cycle; 0: as many as it computes.
    - `residual_lanes`: elements of a residual that are added in a cycle, after the product; 0: the addition is free.
    - `held_columns`: output channels whose sums are kept beside the array. Features are read from NB once for so many;
      0: for `columns`.
    """

    rows: Annotated[int, ValueRange(1, 65_536)]
    columns: Annotated[int, ValueRange(1, 65_536)]
    dataflow: Dataflow
    packing: Packing
    startup_cycles: Cycles
    pixel_rows: Annotated[int, ValueRange(1, 65_536)] = 1
    pixel_columns: Annotated[int, ValueRange(1, 65_536)] = 1
    step_cycles: Annotated[int, ValueRange(1, 65_536)] = 1
    preloads_weights: bool = False
    depthwise: DepthwiseUnit = "vfu"
    output_lanes: _Lanes = 0.0
    residual_lanes: _Lanes = 0.0
    held_columns: _Columns = 0

    @property
    def pixels(self) -> int:
        """Output pixels that are computed side by side."""
        return self.pixel_rows * self.pixel_columns

    @property
    def multipliers(self) -> int:
        """Multiply-adds in a cycle."""
        return self.rows * self.columns * self.pixels


@dataclass(frozen=True)
class Vfu:
    """The vector unit: `lanes` simple operations per cycle.

    A division or transcendental function occupies a lane for `special_cycles`.
    """

    lanes: Annotated[int, ValueRange(1, 2**24)]
    special_cycles: Annotated[int, ValueRange(1, 1_000_000)]
    startup_cycles: Cycles


@dataclass(frozen=True)
class Memory:
    """A memory off the core: DDR or the last-level cache (LLC). An LLC of 0 bytes is absent.

    `weight_compression` (optional): bytes of weights per byte that is read for them, on the way to SB.
    """

    bytes: BytesOrNone
    bytes_per_s: _BytesPerS
    latency_ns: _LatencyNs
    burst_bytes: Annotated[int, ValueRange(0, 65_536)]
    weight_compression: Annotated[float, ValueRange(1, 1_000)] = 1.0


@dataclass(frozen=True)
class Interconnect:
    """A link that all its senders share; one of 0 bytes/s is absent."""

    bytes_per_s: _BytesPerS
    latency_ns: _LatencyNs


@dataclass(frozen=True)
class Cores:
    """`chips` chips of `per_chip` cores each, numbered through all chips.

    `link` joins the cores of a chip; `chip_link` is the way out of each chip. Each chip has an LLC and a DDR.

    `multicast` (optional): a read of these memories reaches every core of a group that asks for the same bytes while
    they are on their way; by default each core has its own read.
    """

    per_chip: Annotated[int, ValueRange(1, 1_024)]
    chips: Annotated[int, ValueRange(1, 1_024)]
    link: Interconnect
    chip_link: Interconnect
    multicast: bool = False

    @property
    def count(self) -> int:
        """Cores on all chips."""
        return self.per_chip * self.chips

    def chip_of(self, core: int) -> int:
        """Return the chip of a core."""
        return core // self.per_chip


@dataclass(frozen=True)
class Noise:
    """Disturbances of the host: log-normal jitter, slow drift, rare spikes and throttling.

    Jitter, drift and spike probability are fractions. After `throttle_after_s` everything takes `throttle_slowdown`
    times as long (1: no throttling). The defaults disturb nothing; a machine file has every value.
    """

    jitter: _Fraction = 0.0
    drift: Annotated[float, ValueRange(0, 0.99)] = 0.0
    drift_period_s: Annotated[float, ValueRange(1e-3, 1e9)] = 1.0
    spike_probability: _Fraction = 0.0
    spike_s: _UpToAnHour = 0.0
    throttle_after_s: Annotated[float, ValueRange(0, 1e9)] = math.inf
    throttle_slowdown: Annotated[float, ValueRange(1, 1_000)] = 1.0


@dataclass(frozen=True)
class Host:
    """The processor that drives the NPU: the costs of an inference beside the NPU's own work."""

    preprocess_s_per_byte: _Fraction
    postprocess_s_per_byte: _Fraction
    dma_bytes_per_s: Annotated[float, ValueRange(1, 1e18)]
    dma_setup_s: _UpToAnHour
    driver_s: _UpToAnHour
    noise: Noise


@dataclass(frozen=True)
class Area:
    """Area of a multiply-add, of a lane of the vector unit and of a byte of SRAM; 0: that of `area_and_energy.py`.

    `nb_um2_per_byte`, `sb_um2_per_byte` and `llc_um2_per_byte` (optional; 0: `sram_um2_per_byte`) are those of the
    macros of one memory. `control_um2` (optional) is the rest of a core. The table may be missing from a machine file.
    It changes neither programs nor times.
    """

    mac_um2: _Um2 = 0.0
    lane_um2: _Um2 = 0.0
    sram_um2_per_byte: _Um2 = 0.0
    nb_um2_per_byte: _Um2 = 0.0
    sb_um2_per_byte: _Um2 = 0.0
    llc_um2_per_byte: _Um2 = 0.0
    control_um2: _Um2 = 0.0


@dataclass(frozen=True)
class Energy:
    """Energy of a multiply-add, of an operation of a lane and of a byte of a memory; 0: that of `area_and_energy.py`.

    `static_mw` is the power of the core and its memories whatever they do. The table and each of its keys may be
    missing from a machine file. It changes neither programs nor times.
    """

    mac_pj: _Pj = 0.0
    lane_pj: _Pj = 0.0
    nb_pj_per_byte: _Pj = 0.0
    sb_pj_per_byte: _Pj = 0.0
    llc_pj_per_byte: _Pj = 0.0
    ddr_pj_per_byte: _Pj = 0.0
    static_mw: Annotated[float, ValueRange(0, 1e9)] = 0.0


USUAL_AREA, USUAL_ENERGY = Area(), Energy()
"""What a machine file without these tables has."""
