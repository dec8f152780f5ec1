"""The description of a machine: units, memories, queues and the host that drives it.

The fields below are the keys of a machine file, the nested dataclasses its tables. Each number has a `ValueRange`,
which catches a wrong unit and keeps sums of picoseconds and addresses within 64 bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from device_agents.emulated_npu.unit_commands import DataType

Dataflow = Literal["dot-product", "weight-stationary", "output-stationary", "input-stationary"]
Packing = Literal["none", "row", "stride"]


class ValueRange(NamedTuple):
    """The lowest and the highest value of a number."""

    low: float
    high: float


MAX_CORES = 65_536
_Cycles = Annotated[int, ValueRange(0, 1_000_000)]
_Bytes = Annotated[int, ValueRange(1, 2**40)]
_BytesOrNone = Annotated[int, ValueRange(0, 2**40)]
_QueueDepth = Annotated[int, ValueRange(1, 65_536)]
_BytesPerS = Annotated[float, ValueRange(0, 1e18)]
_LatencyNs = Annotated[float, ValueRange(0, 1e6)]
_UpToAnHour = Annotated[float, ValueRange(0, 3_600)]
_Fraction = Annotated[float, ValueRange(0, 1)]


@dataclass(frozen=True)
class Mfu:
    """The matrix unit: a `rows` x `columns` array that does one multiply-add per element and cycle.

    Rows reduce, columns are output channels. The dot-product `dataflow` has no fill time; the stationary ones follow
    SCALE-Sim's closed forms. `packing` (dot-product only) selects what fills the rows: input channels ("none"), a row
    of the window ("row": kernel width x channels), or channels x strides ("stride", as in NVDLA's sheet).
    """

    rows: Annotated[int, ValueRange(1, 65_536)]
    columns: Annotated[int, ValueRange(1, 65_536)]
    dataflow: Dataflow
    packing: Packing
    startup_cycles: _Cycles


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
    """A memory off the core: DDR or the last-level cache (LLC). An LLC of 0 bytes is absent."""

    bytes: _BytesOrNone
    bytes_per_s: _BytesPerS
    latency_ns: _LatencyNs
    burst_bytes: Annotated[int, ValueRange(0, 65_536)]


@dataclass(frozen=True)
class Interconnect:
    """A link that all its senders share; one of 0 bytes/s is absent."""

    bytes_per_s: _BytesPerS
    latency_ns: _LatencyNs


@dataclass(frozen=True)
class Cores:
    """`chips` chips of `per_chip` cores each, numbered through all chips.

    `link` joins the cores of a chip; `chip_link` is the way out of each chip. Each chip has an LLC and a DDR.
    """

    per_chip: Annotated[int, ValueRange(1, 1_024)]
    chips: Annotated[int, ValueRange(1, 1_024)]
    link: Interconnect
    chip_link: Interconnect

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
    """Area of a multiply-add, of a lane of the vector unit and of a byte of SRAM; 0: the figure of `area.py`.

    The table may be missing from a machine file. It changes neither programs nor times.
    """

    mac_um2: Annotated[float, ValueRange(0, 1e9)] = 0.0
    lane_um2: Annotated[float, ValueRange(0, 1e9)] = 0.0
    sram_um2_per_byte: Annotated[float, ValueRange(0, 1e9)] = 0.0


@dataclass(frozen=True)
class Machine:
    """A core, the number of cores, and the memories of a chip.

    With `shared_buffer`, NB and SB are one SRAM of `nb_bytes` that the compiler divides. The compiler carves the halo
    buffer out of NB; `halo_bytes` is its largest size. Each core has its own buffers, units and queues; the cores of a
    chip share `llc` and `ddr`.
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

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of all fields except name and area; independent of how the file is written."""
        canonical = dataclasses.asdict(self)
        del canonical["name"], canonical["area"]
        canonical["data_type"] = self.data_type.name.lower()
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()
