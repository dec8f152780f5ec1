"""The description of a machine: units, memories, queues and the host that drives it.

The fields below are the keys of a machine file, the nested dataclasses its tables. Each number has a `ValueRange`,
which catches a wrong unit and keeps sums of picoseconds and addresses within 64 bits. `OPTIONAL_KEYS` may be missing
from a file; by default they have no effect.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NamedTuple

from device_agents.emulated_npu.unit_commands import DataType, Queue

Dataflow = Literal["dot-product", "weight-stationary", "output-stationary", "input-stationary"]
Packing = Literal["none", "row", "stride"]
DepthwiseUnit = Literal["vfu", "mfu"]


class ValueRange(NamedTuple):
    """The lowest and the highest value of a number."""

    low: float
    high: float


MAX_CORES = 65_536
_Cycles = Annotated[int, ValueRange(0, 1_000_000)]
_Bytes = Annotated[int, ValueRange(1, 2**40)]
_BytesOrNone = Annotated[int, ValueRange(0, 2**40)]
_QueueDepth = Annotated[int, ValueRange(1, 65_536)]
_QueueDepthOrNone = Annotated[int, ValueRange(0, 65_536)]
_BytesPerS = Annotated[float, ValueRange(0, 1e18)]
_LatencyNs = Annotated[float, ValueRange(0, 1e6)]
_UpToAnHour = Annotated[float, ValueRange(0, 3_600)]
_Fraction = Annotated[float, ValueRange(0, 1)]
_Lanes = Annotated[float, ValueRange(0, 2**24)]
_Columns = Annotated[int, ValueRange(0, 2**24)]
_PortBytes = Annotated[int, ValueRange(0, 2**24)]
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
    - `held_columns`: output channels whose sums are kept next to the array. Features are read from NB once for this
      many; 0: for `columns`.
    """

    rows: Annotated[int, ValueRange(1, 65_536)]
    columns: Annotated[int, ValueRange(1, 65_536)]
    dataflow: Dataflow
    packing: Packing
    startup_cycles: _Cycles
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
    startup_cycles: _Cycles


@dataclass(frozen=True)
class Memory:
    """A memory off the core: DDR or the last-level cache (LLC). An LLC of 0 bytes is absent.

    `weight_compression` (optional): bytes of weights per byte that is read for them, on the way to SB.
    """

    bytes: _BytesOrNone
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
    """The processor that drives the NPU: the costs of an inference outside the NPU's own work."""

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


@dataclass(frozen=True)
class CoreKind:
    """The cores `first` to `last` of a machine, which are like the core of another machine.

    `core` has the units, buffers, queues and clock of these cores; what all cores share is that of the machine.
    """

    first: int
    last: int
    core: Machine


@dataclass(frozen=True)
class Machine:
    """A core, the number of cores, and the memories of a chip.

    With `shared_buffer`, NB and SB are one SRAM of `nb_bytes` that the compiler divides. The compiler carves the halo
    buffer out of NB; `halo_bytes` is its largest size. Each core has its own buffers, units and queues; the cores of a
    chip share `llc` and `ddr`.

    Optional, by default as without the key:

    - `io_outstanding`: transfers of the IO queue in flight. The latency of a transfer passes while those before it
      move their data; 1: it begins when the transfer before it has ended.
    - `nb_port_bytes`, `sb_port_bytes`: bytes that the units read from and write to NB, and read from SB, in a cycle;
      0: as many as they need.
    - `vfu_queue_depth`: entries of a queue of the VFU, which then has its own server and works while the MFU does.
      0: MFU and VFU share the CP queue.
    - `llc_queue_depth`: entries of a queue for transfers between the last-level cache and the core, which then has a
      separate server and works while the IO queue moves data of DDR. 0: all transfers share the IO queue. Several
      cores that share a cache share its bandwidth, and run with one queue each.
    - `kinds`: cores that differ from the others.
    """

    name: str
    clock_hz: Annotated[int, ValueRange(1_000, 10**12)]
    data_type: DataType
    mfu: Mfu
    vfu: Vfu
    nb_bytes: _Bytes
    sb_bytes: _Bytes
    shared_buffer: bool
    halo_bytes: _BytesOrNone
    llc: Memory
    ddr: Memory
    io_queue_depth: _QueueDepth
    cp_queue_depth: _QueueDepth
    issue_cycles: _Cycles
    cores: Cores
    host: Host
    area: Area = Area()
    energy: Energy = Energy()
    io_outstanding: Annotated[int, ValueRange(1, 1_024)] = 1
    nb_port_bytes: _PortBytes = 0
    sb_port_bytes: _PortBytes = 0
    vfu_queue_depth: _QueueDepthOrNone = 0
    llc_queue_depth: _QueueDepthOrNone = 0
    kinds: tuple[CoreKind, ...] = ()

    def of_core(self, core: int) -> Machine:
        """Return the machine whose cores are all like one core of this machine."""
        for kind in self.kinds:
            if kind.first <= core <= kind.last:
                shared = {name: getattr(self, name) for name in SHARED_KEYS}
                return replace(kind.core, name=self.name, **shared)
        return replace(self, kinds=()) if self.kinds else self

    @property
    def sharing_caches(self) -> Machine:
        """The machine as several cores use it: the transfers of each are in its IO queue."""
        kinds = tuple(replace(kind, core=replace(kind.core, llc_queue_depth=0)) for kind in self.kinds)
        return replace(self, llc_queue_depth=0, kinds=kinds)

    @property
    def queue_depths(self) -> dict[Queue, int]:
        """The queues that the machine has, with their depths; each queue has a server."""
        depths = (self.io_queue_depth, self.cp_queue_depth, self.vfu_queue_depth, self.llc_queue_depth)
        return {queue: depth for queue, depth in zip(Queue, depths, strict=True) if depth}

    def queue_of(self, queue: Queue) -> Queue:
        """Return the queue that a queue of a program is on this machine.

        It is CP for the VFU if the units share a queue, and IO for the last-level cache if all transfers do.
        """
        if queue is Queue.VFU and not self.vfu_queue_depth:
            return Queue.CP
        return Queue.IO if queue is Queue.LLC and not self.llc_queue_depth else queue

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of all fields except name, area and energy; independent of how the file is written.

        A key that is missing and one with its default have the same digest.
        """
        canonical = dataclasses.asdict(self)
        for name in ("name", "area", "energy"):
            del canonical[name]
        for key, default in _TIMED_DEFAULTS.items():
            _drop_default(canonical, key, default)
        canonical["data_type"] = self.data_type.name.lower()
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


SHARED_KEYS: Final = ("data_type", "llc", "ddr", "cores", "host", "area", "energy")
"""What the cores of a machine have in common, whatever their kind."""


def _defaults(kind: Any, prefix: str) -> dict[str, Any]:
    """Return the defaults of a table's optional keys, by their dotted names."""
    fields = dataclasses.fields(kind)
    return {prefix + each.name: each.default for each in fields if each.default is not dataclasses.MISSING}


_TIMED_DEFAULTS: Final = {
    **_defaults(Mfu, "mfu."),
    **_defaults(Memory, "llc."),
    **_defaults(Memory, "ddr."),
    **_defaults(Cores, "cores."),
    **{key: value for key, value in _defaults(Machine, "").items() if key not in ("area", "energy")},
}
_AREA_TOGETHER: Final = ("area.mac_um2", "area.lane_um2", "area.sram_um2_per_byte")
OPTIONAL_KEYS: Final = frozenset(
    {"area", "energy", *_TIMED_DEFAULTS, *_defaults(Energy, "energy."), *_defaults(Area, "area.")}
    - set(_AREA_TOGETHER)  # a table of areas has all three
)
"""Keys that may be missing from a machine file, and tables that may."""


def _drop_default(content: dict[str, Any], key: str, default: Any) -> None:
    *tables, name = key.split(".")
    for table in tables:
        content = content[table]
    if content[name] == default:
        del content[name]
