"""The description of a machine: its parts (parts.py), memories, queues and cores.

The fields are the keys of a machine file. `OPTIONAL_KEYS` may be missing from a file: by default the machine has no
such feature; areas and energies then have the usual figures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from device_agents.emulated_npu.machine.parts import (
    USUAL_AREA,
    USUAL_ENERGY,
    Area,
    BytesOrNone,
    Cores,
    Cycles,
    Energy,
    Host,
    Memory,
    Mfu,
    ValueRange,
    Vfu,
)
from device_agents.emulated_npu.unit_commands import DataType, Queue

MAX_CORES = 65_536
_Bytes = Annotated[int, ValueRange(1, 2**40)]
_QueueDepth = Annotated[int, ValueRange(1, 65_536)]
_QueueDepthOrNone = Annotated[int, ValueRange(0, 65_536)]
_PortBytes = Annotated[int, ValueRange(0, 2**24)]


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
    halo_bytes: BytesOrNone
    llc: Memory
    ddr: Memory
    io_queue_depth: _QueueDepth
    cp_queue_depth: _QueueDepth
    issue_cycles: Cycles
    cores: Cores
    host: Host
    area: Area = USUAL_AREA
    energy: Energy = USUAL_ENERGY
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
