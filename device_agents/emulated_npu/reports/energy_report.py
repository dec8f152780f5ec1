"""The energy of a run: every multiply-add, operation of a lane and byte of a memory times its figure.

Bytes of NB and SB are the fewest that the buffers must move (`sram_traffic` in timing/cost/matrix_cost.py); transfers
fill and empty them as well. Bytes of DDR and the last-level cache are payload, compressed as they are read. The links
of a chip are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import energy_figures
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.cost.matrix_cost import sram_traffic
from device_agents.emulated_npu.timing.cost.vector_cost import vector_operations
from device_agents.emulated_npu.unit_commands import Command, Space

_PJ_PER_UJ = 1e6
_UJ_PER_MW_PS = 1e-9


@dataclass(frozen=True)
class RunEnergy:
    """The energy of a run in microjoules by its causes; `static` is power times the time of the run."""

    mfu: float
    vfu: float
    nb: float
    sb: float
    llc: float
    ddr: float
    static: float

    @property
    def total(self) -> float:
        """Sum of all causes."""
        return float(sum(astuple(self)))


def run_energy(steps: Iterable[IssuedStep], costs: CostModel, makespan_ps: int) -> RunEnergy:
    """Return the energy of the steps of a program that takes `makespan_ps`."""
    numbers = Counter(step.item for step in steps if isinstance(step.item, Command))
    counts: Counter[str] = Counter()
    for command, number in numbers.items():
        for name, count in _accesses(command, costs).items():
            counts[name] += count * number
    figures = energy_figures(costs.machine)
    return RunEnergy(
        mfu=counts["mac"] * figures.mac_pj / _PJ_PER_UJ,
        vfu=counts["lane"] * figures.lane_pj / _PJ_PER_UJ,
        nb=counts["nb"] * figures.nb_pj_per_byte / _PJ_PER_UJ,
        sb=counts["sb"] * figures.sb_pj_per_byte / _PJ_PER_UJ,
        llc=counts["llc"] * figures.llc_pj_per_byte / _PJ_PER_UJ,
        ddr=counts["ddr"] * figures.ddr_pj_per_byte / _PJ_PER_UJ,
        static=figures.static_mw * makespan_ps * _UJ_PER_MW_PS,
    )


def _accesses(command: Command, costs: CostModel) -> dict[str, int]:
    """Return the multiply-adds, operations of lanes and bytes of each memory of one command."""
    cost, sram = costs.cost(command), sram_traffic(costs.machine.mfu, command)
    counts = {
        "nb": sram.nb_read_bytes + sram.nb_written_bytes,
        "sb": sram.sb_read_bytes + sram.sb_written_bytes,
        "llc": sum(one.read_bytes + one.written_bytes for one in cost.traffic if one.space is Space.LLC),
        "ddr": sum(one.read_bytes + one.written_bytes for one in cost.traffic if one.space is Space.DDR),
    }
    if cost.on_mfu:
        counts["mac"] = cost.macs
    elif not command.function.is_transfer:
        counts["lane"] = vector_operations(command, costs.machine.vfu.special_cycles)
    return counts
