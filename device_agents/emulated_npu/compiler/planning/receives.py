"""Adds the RECEIVEs of a core: it waits for a message before the first command that reads the data of the message.

Messages of one sender arrive in the order in which they were sent: waiting for one is waiting for all before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.regions import Region, overlap
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer
from device_agents.emulated_npu.unit_commands import EXTERNAL, Command, Function, Operand

NO_BARRIERS: Mapping[int, Mapping[int, int]] = MappingProxyType({})


@dataclass(frozen=True)
class ReceivedValue:
    """A value in memory; it locates operands exactly."""

    value: Value
    buffer: Buffer


@dataclass(frozen=True)
class Message:
    """A message to a core; no command that reads the target of a notice has to wait for it."""

    target: Operand
    is_notice: bool = False


def messages_to(
    core: int, sent: Mapping[int, Mapping[int, Command]], notices: Mapping[int, Collection[int]]
) -> dict[int, list[Message]]:
    """Return the messages to a core, by sender, in order.

    `sent` has the SENDs of each core by their places, and `notices` the places of those that announce no data.
    """
    found = {
        sender: [
            Message(command.target, place in notices.get(sender, ()))
            for place, command in own.items()
            if command.peer == core
        ]
        for sender, own in sent.items()
    }
    return {sender: messages for sender, messages in found.items() if messages}


def with_receives(
    commands: Sequence[Command],
    arriving: Mapping[int, Sequence[Message]],
    places: Iterable[ReceivedValue],
    barriers: Mapping[int, Mapping[int, int]] = NO_BARRIERS,
) -> list[Command]:
    """Return the commands with a RECEIVE for every message; `places` are the values that arrive.

    `barriers` has, by the place of a command, how many messages of each sender it awaits whatever it reads.
    A RECEIVE belongs to the layer of the command after it.
    """
    if not arriving:
        return list(commands)
    inbox = _Inbox(arriving, tuple(places))
    result: list[Command] = []
    for place, command in enumerate(commands):
        for sender, count in barriers.get(place, {}).items():
            result.extend(inbox.take(sender, count, command.layer))
        for operand in command.sources:
            if operand.descriptor.space in EXTERNAL:
                result.extend(inbox.awaited(operand, command.layer))
        result.append(command)
    result.extend(inbox.rest(commands[-1].layer if commands else -1))
    return result


class _Inbox:
    """The messages of a core that it has not received yet."""

    def __init__(self, arriving: Mapping[int, Sequence[Message]], places: Sequence[ReceivedValue]) -> None:
        self._arriving = arriving
        self._taken = dict.fromkeys(arriving, 0)
        self._places = sorted(places, key=lambda place: (place.buffer.space, place.buffer.address))
        self._starts = [(place.buffer.space, place.buffer.address) for place in self._places]
        found: dict[int, dict[int, list[_Arrival]]] = {}
        for sender, messages in arriving.items():
            for number, message in enumerate(messages):
                if not message.is_notice:
                    place = self._place_of(message.target)
                    arrival = _Arrival(number, *message.target.span, _region(message.target, self._places[place]))
                    found.setdefault(place, {}).setdefault(sender, []).append(arrival)
        self._messages = {
            place: {sender: _Arrivals(arrivals) for sender, arrivals in senders.items()}
            for place, senders in found.items()
        }
        self._known: dict[Operand, list[tuple[int, int]]] = {}

    def awaited(self, operand: Operand, layer: int) -> Iterator[Command]:
        """Yield RECEIVEs for the data that an operand reads and that have not arrived."""
        for sender, number in self._needed(operand):
            yield from self.take(sender, number + 1, layer)

    def rest(self, layer: int) -> Iterator[Command]:
        """Yield RECEIVEs for all remaining messages."""
        for sender, messages in self._arriving.items():
            yield from self.take(sender, len(messages), layer)

    def take(self, sender: int, end: int, layer: int) -> Iterator[Command]:
        """Yield RECEIVEs for the messages of a sender before the one with number `end`."""
        for message in self._arriving[sender][self._taken[sender] : end]:
            yield Command(Function.RECEIVE, message.target, peer=sender, layer=layer)
        self._taken[sender] = max(self._taken[sender], end)

    def _needed(self, operand: Operand) -> list[tuple[int, int]]:
        """Return the last message of each sender whose data an operand reads."""
        if operand not in self._known:
            found = []
            low, high = operand.span
            place = self._place_of(operand)
            if place in self._messages and self._places[place].buffer.space is operand.descriptor.space:
                region = _region(operand, self._places[place])
                for sender, messages in self._messages[place].items():
                    last = messages.last(low, high, region)
                    if last is not None:
                        found.append((sender, last))
            self._known[operand] = found
        return self._known[operand]

    def _place_of(self, operand: Operand) -> int:
        """Return the place in which the operand begins; an operand never spans two values."""
        return bisect_right(self._starts, (operand.descriptor.space, operand.span[0])) - 1


@dataclass(frozen=True)
class _Arrival:
    """The data of a message: its number, its range of bytes, and its region if that is known."""

    number: int
    low: int
    high: int
    region: Region | None


class _Arrivals:
    """The messages of one sender about one value, by address."""

    def __init__(self, messages: Sequence[_Arrival]) -> None:
        self._messages = sorted(messages, key=lambda message: message.low)
        self._lows = [message.low for message in self._messages]
        self._highs = list(accumulate((message.high for message in self._messages), max))

    def last(self, low: int, high: int, region: Region | None) -> int | None:
        """Return the number of the last message with data of a region between two addresses."""
        first, end = bisect_right(self._highs, low), bisect_left(self._lows, high)
        found = [one for one in self._messages[first:end] if one.high > low]
        may_overlap = (one for one in found if not one.region or not region or overlap(one.region, region))
        return max((one.number for one in may_overlap), default=None)


def _region(operand: Operand, place: ReceivedValue) -> Region | None:
    """Return the smallest region of a value that contains an operand; None if the operand crosses its axes."""
    buffer, shape = place.buffer, place.value.shape
    order = [axis for axis in place.value.order if shape[axis] > 1]
    offset = operand.address - buffer.address
    low = [0] * len(shape)
    for axis in order:
        low[axis], offset = divmod(offset, buffer.strides[axis])
    high = [first + 1 for first in low]
    for size, stride in zip(operand.descriptor.dims, operand.descriptor.strides, strict=True):
        if size == 1 or stride == 0:
            continue
        walked = next((axis for axis in order if abs(stride) % buffer.strides[axis] == 0), None)
        if walked is None:
            return None
        reach = (size - 1) * (stride // buffer.strides[walked])
        low[walked] += min(0, reach)
        high[walked] += max(0, reach)
    inside = all(low[axis] >= 0 and high[axis] <= shape[axis] for axis in range(len(shape)))
    return tuple(zip(low, high, strict=True)) if inside and not offset else None
