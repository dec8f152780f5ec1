"""Moves values of a group from unique addresses to their final addresses, which several values share.

Messages are matched with commands by address. For that, every value first needs a unique address.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, buffer_bytes
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space

_FIRST_ADDRESS = 1 << 48
"""The first of the unique addresses; it is beyond every memory."""


@dataclass(frozen=True)
class Relocation:
    """The addresses of values before the move, in ascending order, and by how many bytes each value moves."""

    starts: tuple[int, ...]
    moves: tuple[int, ...]
    own: Mapping[str, Buffer]

    @classmethod
    def of(cls, values: Iterable[Value], buffers: Mapping[str, Buffer]) -> Relocation:
        """Return the relocation of values to their final `buffers`."""
        starts, moves = [], []
        own: dict[str, Buffer] = {}
        address = _FIRST_ADDRESS
        for value in values:
            final = buffers[value.name]
            starts.append(address)
            moves.append(final.address - address)
            own[value.name] = final.moved(address, final.origin)
            address += aligned(buffer_bytes(value.shape, final.dtype))
        return cls(tuple(starts), tuple(moves), own)

    def apart(self, externals: Externals) -> Externals:
        """Return the externals with the values at unique addresses."""
        return replace(externals, values={**externals.values, **self.own})

    def moved(self, commands: Sequence[Command], group: frozenset[int]) -> list[Command]:
        """Return the commands of a core of the group with the values at their final addresses.

        The target of a SEND to a core of another group lies in the memory of that group and stays.
        """
        if not self.starts:
            return list(commands)
        return [self._moved(command, group) for command in commands]

    def _moved(self, command: Command, group: frozenset[int]) -> Command:
        elsewhere = command.function is Function.SEND and command.peer not in group
        target = command.target if elsewhere else self._operand(command.target)
        first, second = (operand and self._operand(operand) for operand in (command.first, command.second))
        if target is command.target and first is command.first and second is command.second:
            return command
        return replace(command, target=target, first=first, second=second)

    def _operand(self, operand: Operand) -> Operand:
        if operand.address < _FIRST_ADDRESS or operand.descriptor.space not in (Space.DDR, Space.LLC):
            return operand
        place = bisect_right(self.starts, operand.address + operand.descriptor.extent[0]) - 1
        return Operand(operand.descriptor, operand.address + self.moves[place])
