"""Addresses of weights in SB: places that let them arrive early, or where they stay from input to input.

The planner lays out SB for two neighbouring chains, so that a block, what one load writes, often goes where the one
before it is still in use. In the order of the program few blocks live at the same time, so that most of SB is free. A
block may not arrive before the last command has read what it replaces: `SpreadWeights` assigns it the least recently
used part of SB, which lets it arrive first.

If SB has room for the weights of a core beside what else it holds, `keep_weights` gives them addresses of their own,
and their loads leave the program: they run once, before the first input. Weights that a run loads most often for their
size come first, as long as there is room.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from device_agents.emulated_npu.arithmetic import ALIGNMENT_BYTES, aligned
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space, plain_bytes

_NEVER = -1
_OPERANDS = ("first", "second", "third", "fourth")


class SpreadWeights:
    """Gives weights other addresses in `sb_bytes` of SB.

    Other ways to run a network share most commands, so that what each one accesses is found once.
    """

    def __init__(self, sb_bytes: int) -> None:
        self._sb_bytes = sb_bytes
        self._accesses: dict[int, _BufferAccesses] = {}  # these keep the command alive, so that its id stays unique
        self._moved: dict[object, Command] = {}

    def commands(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands with other addresses in SB.

        Requires: commands whose results are correct if each ends before the next begins.
        Ensures: the same results. Bytes of SB that are read but never loaded stay where they are, and so does
        everything if a command reads bytes of several loads, or some that a load wrote only in part.
        """
        found = _blocks(map(self._accesses_of, commands))
        result = list(commands)
        if found is None:
            return result
        blocks, kept_from = found
        if any(block.stop > kept_from for block in blocks):
            return result
        room = _WeightBuffer(min(self._sb_bytes, kept_from))
        shifts: dict[int, list[tuple[str, int]]] = {}
        for together in _overlapping(blocks):
            for block, address in zip(together, room.addresses(together), strict=True):
                for position, name in block.uses if address != block.start else ():
                    shifts.setdefault(position, []).append((name, address - block.start))
        for position, shifted in shifts.items():
            result[position] = self._shifted(result[position], shifted)
        return result

    def _accesses_of(self, command: Command) -> _BufferAccesses:
        found = self._accesses.get(id(command))
        if found is None:
            found = self._accesses[id(command)] = _BufferAccesses.of(command)
        return found

    def _shifted(self, command: Command, shifts: Sequence[tuple[str, int]]) -> Command:
        """Return a command whose operands lie so many bytes further on; `_accesses` keeps the command alive."""
        key = id(command), tuple(shifts)
        if key not in self._moved:
            moved: dict[str, Operand] = {}
            for name, shift in shifts:
                operand: Operand = getattr(command, name)
                moved[name] = Operand(operand.descriptor, operand.address + shift)
            self._moved[key] = command.with_operands(moved)
        return self._moved[key]


class _BufferAccesses(NamedTuple):
    """The bytes of SB that a command reads, with the names of the operands, and those that it writes."""

    command: Command
    reads: tuple[tuple[str, int, int], ...]
    written: tuple[int, int] | None

    @classmethod
    def of(cls, command: Command) -> _BufferAccesses:
        reads = []
        for name in _OPERANDS:
            operand = getattr(command, name)
            if operand is not None and operand.descriptor.space is Space.SB:
                reads.append((name, *operand.span))
        target = command.target
        return cls(command, tuple(reads), target.span if target.descriptor.space is Space.SB else None)


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


def _blocks(commands: Iterable[_BufferAccesses]) -> tuple[list[_Block], int] | None:
    """Return the blocks in the order of their loads, and the first byte that is read but not loaded.

    None if a command reads bytes of several blocks.
    """
    blocks: list[_Block] = []
    held: HeldBytes[_Block] = HeldBytes()
    kept_from = 1 << 62
    for position, (_, reads, written) in enumerate(commands):
        for name, start, stop in reads:
            touched = held.touched(start, stop)
            if not touched:
                kept_from = min(kept_from, start)
                continue
            (low, high, block), *more = touched
            if more or start < low or high < stop:
                return None
            block.last = position
            block.uses.append((position, name))
        if written is not None:
            blocks.append(_Block(*written, position, position, [(position, "target")]))
            held = held.written(*written, blocks[-1])
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


T = TypeVar("T")


@dataclass(frozen=True)
class ResidentWeights:
    """The commands of a core with some weights resident in SB.

    `loads` run once; `commands` run for every input. The weights lie in the bytes [start, stop) of SB, where no command
    writes.
    """

    loads: tuple[Command, ...]
    commands: tuple[Command, ...]
    start: int
    stop: int


def keep_weights(
    commands: Sequence[Command], weights: Iterable[tuple[int, int]], sb_bytes: int
) -> ResidentWeights | None:
    """Return the commands with as many weights resident as `sb_bytes` of SB have room for; None if there are none.

    Requires: commands whose results are correct if each ends before the next begins; `weights` are the ranges of DDR,
    from the first byte to one past the last, that no run writes.
    Ensures: the same results, if SB keeps its content from `loads` on and from input to input.
    """
    regions = _Regions(commands, sorted(weights))
    uses = regions.uses(commands)
    if uses is None:
        return None
    tops = [0] * (len(regions.spans) + 1)  # the last is that of other data
    for use in (use for found in uses for use in found):
        tops[use.region] = max(tops[use.region], use.stop)
    for count in range(len(regions.spans), 0, -1):
        kept = sorted(regions.by_benefit[:count])
        others = set(range(len(tops))) - set(kept)
        base = aligned(max(tops[region] for region in others))
        addresses, end = {}, base
        for region in kept:
            addresses[region] = end
            end += aligned(regions.spans[region][1] - regions.spans[region][0])
        if end <= sb_bytes:
            loads = tuple(regions.load(region, address) for region, address in addresses.items())
            moved = (_moved(*pair, regions, addresses) for pair in zip(commands, uses, strict=True))
            return ResidentWeights(loads, tuple(one for one in moved if one is not None), base, end)
    return None


@dataclass(frozen=True)
class _BufferAccess:
    """Bytes [start, stop) of SB that a command accesses.

    They are those of a region of weights, from `source` in DDR on; for other data `region` is `_OTHER`.
    """

    start: int
    stop: int
    region: int
    source: int = 0


_OTHER = -1


class _Regions:
    """The constant bytes of DDR that some commands load into SB, as disjoint spans in the order of their addresses."""

    def __init__(self, commands: Sequence[Command], constants: Sequence[tuple[int, int]]) -> None:
        self._constants = constants
        loaded = Counter(source for source in map(self._constant_source, commands) if source is not None)
        self.spans: list[tuple[int, int]] = []
        sizes: list[int] = []
        for (start, stop), times in sorted(loaded.items()):
            loaded_bytes = times * (stop - start)
            if self.spans and start < self.spans[-1][1]:
                first, end = self.spans.pop()
                start, stop = first, max(end, stop)
                loaded_bytes += sizes.pop()
            self.spans.append((start, stop))
            sizes.append(loaded_bytes)
        self._starts = [start for start, _ in self.spans]
        benefits = [-size / (stop - start) for size, (start, stop) in zip(sizes, self.spans, strict=True)]
        self.by_benefit = sorted(range(len(self.spans)), key=lambda region: (benefits[region], region))

    def load(self, region: int, address: int) -> Command:
        """Return the load of a region to an address of SB."""
        start, stop = self.spans[region]
        there, here = plain_bytes(Space.SB, address, stop - start), plain_bytes(Space.DDR, start, stop - start)
        return Command(Function.LOAD, there, here)

    def _constant_source(self, command: Command) -> tuple[int, int] | None:
        """Return the bytes of DDR that a command copies to SB as they are, if no run writes them."""
        source = command.first
        if source is None or not command.loads_packed_weights or source.descriptor.space is not Space.DDR:
            return None
        if command.target.descriptor.space is not Space.SB:
            return None
        place = bisect_right(self._constants, (source.address, 1 << 62)) - 1
        return source.span if place >= 0 and source.span[1] <= self._constants[place][1] else None

    def uses(self, commands: Sequence[Command]) -> list[list[_BufferAccess]] | None:
        """Return the bytes of SB that each command reads, then those that it writes; None if a use is not clear.

        It is not clear if an operand has bytes of several loads, or if others than a product read weights.
        """
        held: HeldBytes[_BufferAccess] = HeldBytes()
        found = []
        for command in commands:
            uses = []
            for operand in command.sources:
                if operand.descriptor.space is Space.SB:
                    use = _read(operand, held)
                    is_factor = operand is command.second or operand is command.fourth
                    if use is None or (use.region != _OTHER and not is_factor):
                        return None
                    uses.append(use)
            if command.target.descriptor.space is Space.SB:
                written = self._written(command)
                held = held.written(written.start, written.stop, written)
                uses.append(written)
            found.append(uses)
        return found

    def _written(self, command: Command) -> _BufferAccess:
        start, stop = command.target.span
        source = self._constant_source(command)
        if source is None:
            return _BufferAccess(start, stop, _OTHER)
        return _BufferAccess(start, stop, bisect_right(self._starts, source[0]) - 1, source[0])


def _read(operand: Operand, held: HeldBytes[_BufferAccess]) -> _BufferAccess | None:
    """Return the use of an operand, from what SB holds; None if it has weights of several loads, or only some."""
    start, stop = operand.span
    touched = held.touched(start, stop)
    if all(loaded.region == _OTHER for _, _, loaded in touched):
        return _BufferAccess(start, stop, _OTHER)
    ((low, high, loaded), *more) = touched
    if more or start < low or high < stop:
        return None
    return _BufferAccess(start, stop, loaded.region, loaded.source + start - loaded.start)


def _moved(
    command: Command, uses: Sequence[_BufferAccess], regions: _Regions, addresses: dict[int, int]
) -> Command | None:
    """Return a command that reads its weights from where they stay; None for a load of weights that stay."""
    staying = {use.start: use for use in uses if use.region in addresses}
    if not staying:
        return command
    if command.target.descriptor.space is Space.SB:
        return None

    def moved(operand: Operand | None) -> Operand | None:
        if operand is None or operand.descriptor.space is not Space.SB or operand.span[0] not in staying:
            return operand
        use = staying[operand.span[0]]
        at = addresses[use.region] + use.source - regions.spans[use.region][0]
        return Operand(operand.descriptor, operand.address + at - use.start)

    return replace(command, second=moved(command.second), fourth=moved(command.fourth))


@dataclass(frozen=True)
class HeldBytes(Generic[T]):
    """Disjoint parts of a memory in the order of their addresses: first byte, one past the last, and content."""

    parts: tuple[tuple[int, int, T], ...] = ()

    def written(self, start: int, stop: int, content: T) -> HeldBytes[T]:
        """Return what the memory holds after a write to the bytes [start, stop)."""
        first, last = self._between(start, stop)
        around = self.parts[first:last]
        before = [(low, start, held) for low, _, held in around[:1] if low < start]
        after = [(stop, high, held) for _, high, held in around[-1:] if stop < high]
        return HeldBytes((*self.parts[:first], *before, (start, stop, content), *after, *self.parts[last:]))

    def touched(self, start: int, stop: int) -> tuple[tuple[int, int, T], ...]:
        """Return the parts that have a byte in [start, stop)."""
        first, last = self._between(start, stop)
        return self.parts[first:last]

    def _between(self, start: int, stop: int) -> tuple[int, int]:
        """Return the place of the first part that has a byte in [start, stop), and one past the last."""
        first = bisect_left(self.parts, (start,))
        if first and self.parts[first - 1][1] > start:
            first -= 1
        return first, bisect_left(self.parts, (stop,), first)
