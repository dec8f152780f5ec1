"""Dependences between commands, by the bytes that they access (S2.5).

Commands conflict if they access the same bytes of a memory and one of them writes. Views are compared by their bounding
ranges and, if these overlap, by their residues: two channel slices of one map interleave in memory without a common
byte. The result may contain false conflicts, but it misses none.

Loads of features, loads into SB, stores, computes of the CP queue and computes of the VFU queue are streams, and each
keeps its order; loads and stores of the LLC queue are three more. So only the latest conflicting command of each stream
matters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Operand, Space

LOAD, STORE, COMPUTE, WEIGHTS, VECTOR, CACHED_LOAD, CACHED_STORE, CACHED_WEIGHTS = range(8)
LOADS = (LOAD, WEIGHTS, CACHED_LOAD, CACHED_WEIGHTS)
STORES = (STORE, CACHED_STORE)
UNITS = (COMPUTE, VECTOR)
_CACHED = {LOAD: CACHED_LOAD, STORE: CACHED_STORE, WEIGHTS: CACHED_WEIGHTS}
# If more accesses than this share a range, each counts as touching all of it: bounded work, a few false conflicts.
_MOST_ACCESSES = 24
_BOTTOM, _TOP = -(1 << 62), 1 << 62


Conflicts = Sequence[int]
"""By stream the position of the latest earlier command that a command must follow; -1 if there is none.

Streams after the last one that occurs are omitted. These imply all other conflicts, by the order within a stream or
through their own conflicts.
"""


def latest_of(conflicts: Conflicts, streams: Sequence[int]) -> int:
    """Return the latest of the conflicts with some streams."""
    return max(conflicts[stream] for stream in streams if stream < len(conflicts))


def in_order(conflicts: Sequence[Conflicts], order: Sequence[int]) -> list[list[int]]:
    """Return the conflicts of the commands at the positions of an order that keeps them and the streams."""
    places = [-1] * (len(order) + 1)  # the last is that of no command
    for place, position in enumerate(order):
        places[position] = place
    return [[places[each] for each in conflicts[position]] for position in order]


# The access of an operand: position, stream, whether it writes, number of its residues (0: may touch every byte).
_Access = tuple[int, int, bool, int]
_State = tuple[_Access, ...]
# (modulus, phase, span): a view touches only bytes whose address modulo `modulus` lies in [phase, phase + span).
_Residue = tuple[int, int, int]
# The access of a command: memory, whether it writes, first byte, one past the last, number of the residues, and their
# largest modulus (0 without residues).
_Range = tuple[Space, bool, int, int, int, int]


def stream_of(command: Command) -> int:
    """Return the stream of a command: LOAD (also GATHER), WEIGHTS (loads into SB), STORE, COMPUTE, or VECTOR.

    VECTOR is that of computes of the VFU queue; the streams of the LLC queue are CACHED.
    """
    if not command.function.is_transfer:
        return VECTOR if command.own_queue else COMPUTE
    stream = STORE
    if command.function in (Function.LOAD, Function.GATHER):
        stream = WEIGHTS if command.target.descriptor.space is Space.SB else LOAD
    return _CACHED[stream] if command.own_queue else stream


SEPARATE = tuple(Space)
ONE_BUFFER = (Space.DDR, Space.LLC, Space.NB, Space.NB, Space.HALO)
"""The memory of each space: in SEPARATE each has its own; in ONE_BUFFER, SB and NB are the same memory."""


def dependencies(
    commands: Sequence[Command], memory_of: Sequence[int] = SEPARATE, accesses: Accesses | None = None
) -> Sequence[Conflicts]:
    """Return the conflicts of every command of a sequential program: read after write, write after read or write."""
    return latest_conflicts(commands, [stream_of(command) for command in commands], memory_of, accesses)


def latest_conflicts(
    commands: Sequence[Command],
    streams: Sequence[int],
    memory_of: Sequence[int] = SEPARATE,
    accesses: Accesses | None = None,
) -> list[list[int]]:
    """Return by stream the latest earlier command that each command conflicts with, -1 for none.

    `streams` has the stream of every command. These imply all other conflicts, as in `Conflicts`. `accesses` may have
    those of commands of other programs.
    """
    count = max(WEIGHTS, *streams) + 1 if streams else 0
    known = accesses or Accesses()
    kept = [_Memory(known.relations) for _ in Space]
    memories = [kept[memory] for memory in memory_of]
    result = []
    for position, (command, stream) in enumerate(zip(commands, streams, strict=True)):
        latest = [-1] * count
        for space, writes, low, high, residues, modulus in known.of(command):
            memory = memories[space]
            if writes:
                memory.write(low, high, modulus, (position, stream, True, residues), latest)
            else:
                memory.read(low, high, modulus, (position, stream, False, residues), latest)
        result.append(latest)
    return result


_APART, _OVERLAP, _COVERS = range(3)


class _Relations(dict[int, int]):
    """How views with some residues relate to earlier ones with overlapping ranges, by the number of their residues.

    The relation is _APART, _OVERLAP or _COVERS.
    """

    def __init__(self, later: int, residues: Sequence[tuple[_Residue, ...]]) -> None:
        super().__init__()
        self._later, self._residues = later, residues

    def __missing__(self, earlier: int) -> int:
        one, other = self._residues[self._later], self._residues[earlier]
        found = self[earlier] = _APART if _apart(one, other) else _COVERS if _covers(one, other) else _OVERLAP
        return found


class Accesses:
    """The bytes that commands touch, found once for each command.

    A view touches a bounding range, and numbered residues, so that two are compared only once.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Command, tuple[_Range, ...]]] = {}
        self._shapes: dict[int, tuple[Descriptor, int, int, tuple[_Residue, ...], int, dict[int, int]]] = {}
        self._numbers: dict[tuple[_Residue, ...], int] = {(): 0}
        self._residues: list[tuple[_Residue, ...]] = [()]
        self.relations = [_Relations(0, self._residues)]

    def of(self, command: Command) -> tuple[_Range, ...]:
        """Return what a command reads, and then what it writes."""
        found = self._known.get(id(command))
        if found is None:
            ranges = [self._range(operand, writes=False) for operand in command.sources]
            if command.function is not Function.SEND:  # its target is in another core's memory
                ranges.append(self._range(command.target, writes=True))
            # The entry keeps the command alive, so that its id stays unique; the same holds for descriptors.
            found = self._known[id(command)] = command, tuple(ranges)
        return found[1]

    def _range(self, operand: Operand, *, writes: bool) -> _Range:
        descriptor, address = operand.descriptor, operand.address
        shape = self._shapes.get(id(descriptor))
        if shape is None:
            found = _residues(descriptor)
            largest = max((modulus for modulus, _, _ in found), default=0)
            shape = self._shapes[id(descriptor)] = (descriptor, *descriptor.extent, found, largest, {})
        _, low, high, residues, largest, numbers = shape
        number = 0
        if residues:
            place = address % largest  # the other moduli divide the largest one
            if place not in numbers:
                numbers[place] = self._number(residues, address)
            number = numbers[place]
        return descriptor.space, writes, address + low, address + high, number, largest

    def _number(self, residues: tuple[_Residue, ...], address: int) -> int:
        moved = tuple([(modulus, (address + phase) % modulus, span) for modulus, phase, span in residues])
        if moved not in self._numbers:
            self._numbers[moved] = len(self._residues)
            self.relations.append(_Relations(len(self._residues), self._residues))
            self._residues.append(moved)
        return self._numbers[moved]


class _Memory:
    """One memory, divided into segments with the accesses that a later access may have to follow."""

    def __init__(self, relations: Sequence[_Relations]) -> None:
        self._relations = relations
        self._starts = [_BOTTOM, _TOP]
        self._states: list[_State] = [(), ()]

    def read(self, low: int, high: int, modulus: int, access: _Access, latest: list[int]) -> None:
        """Enter a read of a range and raise `latest` to what it conflicts with."""
        start, end = self._segments(low, high, modulus)
        states = self._states
        for index in range(start, end):
            state = states[index]
            states[index] = self._after_read(state, access, latest) if state else (access,)

    def write(self, low: int, high: int, modulus: int, access: _Access, latest: list[int]) -> None:
        """Enter a write of a range and raise `latest` to what it conflicts with."""
        start, end = self._segments(low, high, modulus)
        states = self._states
        if access[3]:
            for index in range(start, end):
                state = states[index]
                states[index] = self._after_write(state, access, latest) if state else (access,)
            return
        position = access[0]
        for state in states[start:end]:
            for earlier, stream, _, _ in state:
                if latest[stream] < earlier != position:
                    latest[stream] = earlier
        if end - start > 1:
            del self._starts[start + 1 : end], states[start + 1 : end]
        states[start] = (access,)

    def _segments(self, low: int, high: int, modulus: int) -> tuple[int, int]:
        """Return the segments of a range: first, and one past the last.

        The range of a view with gaps may grow by less than a modulus, to bounds that exist or that its neighbours will
        share. Otherwise many interleaved views would divide the memory into as many segments.
        """
        starts = self._starts
        start = bisect_left(starts, low)
        if starts[start] != low:
            if low - starts[start - 1] < modulus:
                start -= 1
                low = starts[start]
            else:
                self._cut(start, low)
        end = bisect_left(starts, high, start)
        if starts[end] != high:
            if modulus:
                high = low - (low - high) // modulus * modulus
            if starts[end] > high:
                self._cut(end, high)
        return start, end

    def _cut(self, index: int, at: int) -> None:
        self._starts.insert(index, at)
        self._states.insert(index, self._states[index - 1])

    def _after_read(self, state: _State, access: _Access, latest: list[int]) -> _State:
        """Return the accesses of a segment after a read; a read replaces earlier reads of its stream that it covers."""
        kept = []
        position, stream, _, residues = access
        relations = self._relations[residues]
        for known in state:
            earlier, its_stream, writes, its_residues = known
            if writes:
                if latest[its_stream] < earlier != position and relations[its_residues] != _APART:
                    latest[its_stream] = earlier
                kept.append(known)
            elif its_stream != stream or relations[its_residues] != _COVERS:
                kept.append(known)
        kept.append(access)
        return tuple(kept) if len(kept) <= _MOST_ACCESSES else _coalesced(kept)

    def _after_write(self, state: _State, access: _Access, latest: list[int]) -> _State:
        """Return the accesses of a segment after a write, which replaces all accesses that it covers."""
        kept = []
        position, _, _, residues = access
        relations = self._relations[residues]
        for known in state:
            relation = relations[known[3]]
            if relation != _APART and latest[known[1]] < known[0] != position:
                latest[known[1]] = known[0]
            if relation != _COVERS:
                kept.append(known)
        kept.append(access)
        return tuple(kept) if len(kept) <= _MOST_ACCESSES else _coalesced(kept)


def _coalesced(accesses: Sequence[_Access]) -> _State:
    """Return one access for each stream, at its last position, that touches everything and writes if any did."""
    last: dict[int, _Access] = {}
    for position, stream, writes, _ in accesses:
        known = last.get(stream, (position, stream, writes, 0))
        last[stream] = (max(position, known[0]), stream, writes or known[2], 0)
    return tuple(last.values())


def _apart(one: tuple[_Residue, ...], other: tuple[_Residue, ...]) -> bool:
    """Return whether two views with overlapping ranges interleave: with one modulus, their residues are disjoint."""
    for modulus, phase, span in one:
        for other_modulus, other_phase, other_span in other:
            if modulus == other_modulus:
                distance = (other_phase - phase) % modulus
                if distance >= span and modulus - distance >= other_span:
                    return True
    return False


def _covers(later: tuple[_Residue, ...], earlier: tuple[_Residue, ...]) -> bool:
    """Return whether every view that interleaves with the later one also interleaves with the earlier one."""
    for modulus, phase, span in later:
        for earlier_modulus, earlier_phase, earlier_span in earlier:
            if modulus == earlier_modulus and (earlier_phase - phase) % modulus + earlier_span <= span:
                break
        else:
            return False
    return True


def _residues(descriptor: Descriptor) -> tuple[_Residue, ...]:
    """Return the residue of every stride that divides all larger strides, if the axes inside it leave gaps."""
    axes = sorted(
        (abs(stride), size, stride)
        for size, stride in zip(descriptor.dims, descriptor.strides, strict=True)
        if size > 1
    )
    found = []
    low, high = 0, descriptor.dtype.bytes
    for index, (modulus, size, stride) in enumerate(axes):
        if modulus > high - low and all(larger % modulus == 0 for larger, _, _ in axes[index:]):
            found.append((modulus, low, high - low))
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return tuple(found)
