"""Values of a group first in places of their own, then where they share addresses by turns.

Which message brings what a command reads is found by addresses: for that, each value has to lie by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value, written_part
from device_agents.emulated_npu.compiler.planning.allocation import aligned
from device_agents.emulated_npu.compiler.planning.lowering import Externals
from device_agents.emulated_npu.compiler.planning.placement import Buffer, buffer_bytes
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space

_FIRST_ADDRESS = 1 << 48
"""Behind every memory."""


@dataclass(frozen=True)
class Relocation:
    """From places of their own, in order of address, by how many bytes values move to those that they share."""

    starts: tuple[int, ...]
    moves: tuple[int, ...]
    own: Mapping[str, Buffer]

    @classmethod
    def of(cls, values: Iterable[Value], buffers: Mapping[str, Buffer]) -> Relocation:
        """For values that lie in `buffers` in the end."""
        starts, moves = [], []
        own: dict[str, Buffer] = {}
        address = _FIRST_ADDRESS
        for value in values:
            final = buffers[value.name]
            starts.append(address)
            moves.append(final.address - address)
            own[value.name] = own[written_part(value.name)] = final.moved(address, final.origin)
            address += aligned(buffer_bytes(value.shape, final.dtype))
        return cls(tuple(starts), tuple(moves), own)

    def apart(self, externals: Externals) -> Externals:
        """With the values in places of their own."""
        return replace(externals, values={**externals.values, **self.own})

    def moved(self, commands: Sequence[Command], group: frozenset[int]) -> list[Command]:
        """The commands of a core of the group with the values where they lie in the end.

        The target of a SEND to a core of another group is in the memory of that one.
        """
        if not self.starts:
            return list(commands)
        return [self._moved(command, group) for command in commands]

    def _moved(self, command: Command, group: frozenset[int]) -> Command:
        elsewhere = command.function is Function.SEND and command.peer not in group
        target = command.target if elsewhere else self._operand(command.target)
        first, second = self._optional(command.first), self._optional(command.second)
        if target is command.target and first is command.first and second is command.second:
            return command
        return replace(command, target=target, first=first, second=second)

    def _optional(self, operand: Operand | None) -> Operand | None:
        return None if operand is None else self._operand(operand)

    def _operand(self, operand: Operand) -> Operand:
        if operand.address < _FIRST_ADDRESS or operand.descriptor.space not in (Space.DDR, Space.LLC):
            return operand
        place = bisect_right(self.starts, operand.address + operand.descriptor.extent[0]) - 1
        return Operand(operand.descriptor, operand.address + self.moves[place])
