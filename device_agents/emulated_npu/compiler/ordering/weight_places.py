"""Assign each block of weights to the least recently used part of SB, so that it can be loaded early.

The planner lays out SB for two neighbouring chains, so that a block often goes where the one before it is still in use.
A block is what one load writes. In the order of the program few blocks live at the same time, so that most of SB is
free. A block may not arrive before the last command has read what it replaces: the oldest place lets it arrive first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from device_agents.emulated_npu.arithmetic import ALIGNMENT_BYTES, aligned
from device_agents.emulated_npu.compiler.ordering.residency import HeldBytes
from device_agents.emulated_npu.unit_commands import Command, Operand, Space

_NEVER = -1
_OPERANDS = ("first", "second", "third", "fourth")


def spread_weights(commands: Sequence[Command], sb_bytes: int) -> list[Command]:
    """Return the commands with other addresses in SB, of which they use `sb_bytes`.

    Requires: commands whose results are correct if each ends before the next begins.
    Ensures: the same results. Bytes of SB that are read but never loaded stay where they are, and so does everything if
    a command reads bytes of several loads, or some that a load wrote only in part.
    """
    found = _blocks(commands)
    if found is None:
        return list(commands)
    blocks, kept_from = found
    if any(block.stop > kept_from for block in blocks):
        return list(commands)
    room = _WeightBuffer(min(sb_bytes, kept_from))
    moved: dict[int, dict[str, Operand]] = {}
    for together in _overlapping(blocks):
        for block, address in zip(together, room.addresses(together), strict=True):
            for position, name in block.uses if address != block.start else ():
                operand: Operand = getattr(commands[position], name)
                there = Operand(operand.descriptor, operand.address + address - block.start)
                moved.setdefault(position, {})[name] = there
    result = list(commands)
    for position, operands in moved.items():
        result[position] = replace(result[position], **operands)  # type: ignore[arg-type]
    return result


@dataclass(slots=True)
class _Block:
    """Bytes [start, stop) of SB that the command at `first` loads and that at `last` reads last.

    `uses` are the operands that address them: the position of the command and the name of its field.
    """

    start: int
    stop: int
    first: int
    last: int
    uses: list[tuple[int, str]] = field(default_factory=list)

    @property
    def room_bytes(self) -> int:
        """Its size, rounded up to the alignment."""
        return aligned(self.stop - self.start)


def _blocks(commands: Sequence[Command]) -> tuple[list[_Block], int] | None:
    """Return the blocks in the order of their loads, and the first byte that is read but not loaded.

    None if a command reads bytes of several blocks.
    """
    blocks: list[_Block] = []
    held: HeldBytes[_Block] = HeldBytes()
    kept_from = 1 << 62
    for position, command in enumerate(commands):
        for name in _OPERANDS:
            operand: Operand | None = getattr(command, name)
            if operand is None or operand.descriptor.space is not Space.SB:
                continue
            start, stop = operand.span
            touched = held.touched(start, stop)
            if not touched:
                kept_from = min(kept_from, start)
                continue
            (low, high, block), *more = touched
            if more or start < low or high < stop:
                return None
            block.last = position
            block.uses.append((position, name))
        if command.target.descriptor.space is Space.SB:
            start, stop = command.target.span
            blocks.append(_Block(start, stop, position, position, [(position, "target")]))
            held = held.written(start, stop, blocks[-1])
    return blocks, kept_from


def _overlapping(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Yield groups of consecutive blocks: nothing of a group lives when the next one begins."""
    group: list[_Block] = []
    last = _NEVER
    for block in blocks:
        if group and block.first > last:
            yield group
            group = []
        group.append(block)
        last = max(last, block.last)
    if group:
        yield group


class _WeightBuffer:
    """SB, and the last command that reads what lies in each part of it."""

    def __init__(self, size_bytes: int) -> None:
        self._used = HeldBytes(((0, size_bytes, _NEVER),))

    def addresses(self, blocks: Sequence[_Block]) -> list[int]:
        """Return addresses of blocks: the places that are oldest, or those they have if they do not fit otherwise."""
        before = self._used
        found = []
        for block in blocks:
            address = self._oldest(block.room_bytes, block.first)
            if address is None:
                self._used = before
                for each in blocks:
                    self._used = self._used.written(each.start, each.stop, each.last)
                return [each.start for each in blocks]
            self._used = self._used.written(address, address + block.room_bytes, block.last)
            found.append(address)
        return found

    def _oldest(self, size: int, first: int) -> int | None:
        """Return the address of the least recently used free bytes; None if there is no such place."""
        best, newest = None, first
        parts = self._used.parts
        for place, (start, _, _) in enumerate(parts):
            if start % ALIGNMENT_BYTES or start + size > parts[-1][1]:
                continue
            last = _NEVER
            for low, _, used in parts[place:]:
                if low >= start + size or last >= newest:
                    break
                last = max(last, used)
            if last < newest:
                best, newest = start, last
        return best
