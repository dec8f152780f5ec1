"""The area of one core and the last-level cache by macro: multipliers, lanes and memories, in a process of 45 nm.

Wiring, interfaces and DDR are not counted, nor is control unless the file has a figure for it, so an area compares
machines of one kind and is no die size. A machine file overrides each figure in its table `area`. Without it, the
figures are:

- Arithmetic: W. Dally, High-performance hardware for machine learning (NIPS 2015 tutorial), units synthesised for TSMC
  45 nm: multipliers of int8 282, float16 1640, float32 7700 um2; adders of int32 137, float32 4184 um2. A multiplier of
  8 bits adds in int32, the others in float32. These figures have not been checked against the slides again.
  A lane of the vector unit has one multiplier and one adder.
- SRAM: a cell of 0.25 um2 a bit (UMC, 45 nm, 2006). Choice: cells take 70 % of a macro.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from device_agents.emulated_npu.machine.description import Machine
from device_agents.emulated_npu.unit_commands import DataType

_UM2_PER_MM2 = 1e6
_MULTIPLY_ADD_UM2 = {DataType.INT8: 282 + 137, DataType.FLOAT16: 1640 + 4184, DataType.FLOAT32: 7700 + 4184}
_SRAM_UM2_PER_BYTE = 8 * 0.25 / 0.7


@dataclass(frozen=True)
class MacroAreas:
    """The area of each macro in mm2. With one shared buffer, NB is all of it and SB is 0."""

    mfu: float
    vfu: float
    nb: float
    sb: float
    llc: float
    control: float

    @property
    def total(self) -> float:
        """Sum of all macros."""
        return float(sum(astuple(self)))


def macro_areas(machine: Machine) -> MacroAreas:
    """Return the area of a core's arithmetic and buffers and of the last-level cache, in mm2."""
    area, unit_um2 = machine.area, _MULTIPLY_ADD_UM2[machine.data_type]
    sram = area.sram_um2_per_byte or _SRAM_UM2_PER_BYTE
    sb_bytes = 0 if machine.shared_buffer else machine.sb_bytes
    return MacroAreas(
        mfu=machine.mfu.multipliers * (area.mac_um2 or unit_um2) / _UM2_PER_MM2,
        vfu=machine.vfu.lanes * (area.lane_um2 or unit_um2) / _UM2_PER_MM2,
        nb=machine.nb_bytes * (area.nb_um2_per_byte or sram) / _UM2_PER_MM2,
        sb=sb_bytes * (area.sb_um2_per_byte or sram) / _UM2_PER_MM2,
        llc=machine.llc.bytes * (area.llc_um2_per_byte or sram) / _UM2_PER_MM2,
        control=area.control_um2 / _UM2_PER_MM2,
    )


def area_mm2(machine: Machine) -> float:
    """Return the sum of `macro_areas`."""
    return macro_areas(machine).total
