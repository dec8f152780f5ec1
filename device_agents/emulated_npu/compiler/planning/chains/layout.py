"""Addresses of the chains' buffers on chip: neighbouring chains use opposite ends of a memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import aligned, aligned_down
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan
from device_agents.emulated_npu.machine import Machine


@dataclass(frozen=True)
class ScratchpadLayout:
    """Where the buffers of chains lie in NB and SB, so that a chain can begin before its predecessor ends.

    Chains use the lower and the upper end in turn. `nb_top` and `sb_top` are where the upper buffers end: they leave
    room for any two neighbours if the memory is large enough. In a machine with one buffer both are the same, and the
    weights of a chain follow its features.
    """

    nb_top: int
    sb_top: int
    halo_bytes: int
    one_buffer: bool

    @classmethod
    def of(cls, machine: Machine, plans: Sequence[ChainPlan]) -> ScratchpadLayout:
        """Return the layout for chains that run one after the other on a machine."""
        halo_bytes = max((plan.halo_bytes for plan in plans), default=0)
        nb_sizes, sb_sizes = [aligned(plan.nb_bytes) for plan in plans], [aligned(plan.sb_bytes) for plan in plans]
        if machine.shared_buffer:
            both = [sum(sizes) for sizes in zip(nb_sizes, sb_sizes, strict=True)]
            top = min(machine.nb_bytes - halo_bytes, _neighbours_bytes(both))
            return cls(top, top, halo_bytes, one_buffer=True)
        nb_top = min(machine.nb_bytes - halo_bytes, _neighbours_bytes(nb_sizes))
        return cls(nb_top, min(machine.sb_bytes, _neighbours_bytes(sb_sizes)), halo_bytes, one_buffer=False)

    @property
    def bytes(self) -> tuple[int, int, int, int]:
        """Bytes of NB, SB, the halo buffer and the one buffer, in the order of `Footprint`."""
        return self.nb_top, self.sb_top, self.halo_bytes, self.nb_top + self.halo_bytes if self.one_buffer else 0

    def bases(self, turn: int, plan: ChainPlan) -> tuple[int, int]:
        """Return the addresses in NB and SB where the buffers of the chain with this number begin."""
        upper = turn % 2 == 1
        if self.one_buffer:
            nb_base = aligned_down(self.nb_top - aligned(plan.nb_bytes) - plan.sb_bytes) if upper else 0
            return nb_base, nb_base + aligned(plan.nb_bytes)
        if not upper:
            return 0, 0
        return aligned_down(self.nb_top - plan.nb_bytes), aligned_down(self.sb_top - plan.sb_bytes)


def _neighbours_bytes(sizes: Sequence[int]) -> int:
    """Return the maximum number of bytes that a chain, or two neighbouring chains, need."""
    pairs = (first + second for first, second in itertools.pairwise(sizes))
    return max(max(sizes, default=0), max(pairs, default=0))
