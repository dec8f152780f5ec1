"""Area and energy of one core and the last-level cache, in a process of 45 nm at 0.9 V.

Use areas and energies only to compare machines of one kind with each other; an area is not a die size. Wiring,
interfaces and DDR have no area, and control has one only if the file gives it. The energy of clock and leakage is
included only through `static_mw`. A machine file overrides each figure in its tables `area` and `energy`. Without them,
the figures are:

- Area of arithmetic: W. Dally, High-performance hardware for machine learning (NIPS 2015 tutorial), units synthesised
  for TSMC 45 nm: multipliers of int8 282, float16 1640, float32 7700 um2; adders of int32 137, float32 4184 um2. A
  multiplier of 8 bits adds in int32, the others in float32. These figures have not been checked against the slides
  again. A lane of the vector unit has one multiplier and one adder.
- Area of SRAM: a cell of 0.25 um2 a bit (UMC, 45 nm, 2006). Choice: cells take 70 % of a macro.
- Energy: M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, figure 1.1.9, quoted from
  memory. Multipliers: int8 0.2, float16 1.1, float32 3.7 pJ; adders: int32 0.1, float16 0.4, float32 0.9 pJ. A
  multiplier of 8 bits adds in int32; a lane multiplies and adds. Caches: 10, 20 and 100 pJ for 64 bits of 8 KB, 32 KB
  and 1 MB; in between and beyond, the energy follows a power of the size. NB, SB and the last-level cache count as such
  memories. DRAM: 1.3 to 2.6 nJ for 64 bits. Choice: the middle.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple, dataclass

from device_agents.emulated_npu.machine.description import Machine
from device_agents.emulated_npu.machine.parts import Energy
from device_agents.emulated_npu.unit_commands import DataType

_UM2_PER_MM2 = 1e6
_MULTIPLY_ADD_UM2 = {DataType.INT8: 282 + 137, DataType.FLOAT16: 1640 + 4184, DataType.FLOAT32: 7700 + 4184}
_SRAM_UM2_PER_BYTE = 8 * 0.25 / 0.7
_MULTIPLY_ADD_PJ = {DataType.INT8: 0.2 + 0.1, DataType.FLOAT16: 1.1 + 0.4, DataType.FLOAT32: 3.7 + 0.9}
_WORD_BYTES = 8
_CACHE_PJ_PER_WORD = ((8_192, 10.0), (32_768, 20.0), (1_048_576, 100.0))
_DRAM_PJ_PER_BYTE = 1_950 / _WORD_BYTES


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


def energy_figures(machine: Machine) -> Energy:
    """Return the figures of a machine: those of its file, and the published ones where it has none."""
    own, unit_pj = machine.energy, _MULTIPLY_ADD_PJ[machine.data_type]
    return Energy(
        mac_pj=own.mac_pj or unit_pj,
        lane_pj=own.lane_pj or unit_pj,
        nb_pj_per_byte=own.nb_pj_per_byte or _cache_pj_per_byte(machine.nb_bytes),
        sb_pj_per_byte=own.sb_pj_per_byte or _cache_pj_per_byte(machine.sb_bytes),
        llc_pj_per_byte=own.llc_pj_per_byte or _cache_pj_per_byte(machine.llc.bytes),
        ddr_pj_per_byte=own.ddr_pj_per_byte or _DRAM_PJ_PER_BYTE,
        static_mw=own.static_mw,
    )


def _cache_pj_per_byte(size_bytes: int) -> float:
    """Return the energy of a byte of a cache, by the power law through the two published sizes nearest to it."""
    if size_bytes == 0:
        return 0.0
    pairs = list(itertools.pairwise(_CACHE_PJ_PER_WORD))
    (low, low_pj), (high, high_pj) = next((pair for pair in pairs if size_bytes <= pair[1][0]), pairs[-1])
    power = math.log(high_pj / low_pj) / math.log(high / low)
    return low_pj * math.pow(size_bytes / low, power) / _WORD_BYTES
