"""The energy of a multiply-add, of an operation of a lane, and of a byte of each memory, in 45 nm at 0.9 V.

Control, wiring, clock and leakage are not counted unless the file has a figure for them, so an energy compares
machines of one kind. A machine file overrides each figure in its table `energy`. Without it, the figures are those of
M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, figure 1.1.9, quoted from memory:

- Multipliers: int8 0.2, float16 1.1, float32 3.7 pJ; adders: int32 0.1, float16 0.4, float32 0.9 pJ. A multiplier of
  8 bits adds in int32. A lane of the vector unit multiplies and adds, too.
- Caches: 10, 20 and 100 pJ for 64 bits of 8 KB, 32 KB and 1 MB; in between and beyond, the energy follows a power of
  the size. NB, SB and the last-level cache count as such memories.
- DRAM: 1.3 to 2.6 nJ for 64 bits. Choice: the middle.
"""

from __future__ import annotations

import itertools
import math

from device_agents.emulated_npu.machine.description import Energy, Machine
from device_agents.emulated_npu.unit_commands import DataType

_MULTIPLY_ADD_PJ = {DataType.INT8: 0.2 + 0.1, DataType.FLOAT16: 1.1 + 0.4, DataType.FLOAT32: 3.7 + 0.9}
_WORD_BYTES = 8
_CACHE_PJ_PER_WORD = ((8_192, 10.0), (32_768, 20.0), (1_048_576, 100.0))
_DRAM_PJ_PER_BYTE = 1_950 / _WORD_BYTES


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
