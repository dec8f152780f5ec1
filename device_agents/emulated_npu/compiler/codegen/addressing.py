"""How the addresses of operands advance in loops, and the registers and slots that a loop nest needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from device_agents.emulated_npu.compiler.codegen.rolling import CodePart, Loop, RolledItem
from device_agents.emulated_npu.isa.settings_words import settings_words
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Item
from device_agents.emulated_npu.unit_settings import Settings


class LoopStrides(NamedTuple):
    """The strides of an address: bytes per iteration of these loops (by number), outermost first.

    The first and the last step are not zero. In all other loops the address is constant.
    """

    loops: tuple[int, ...]
    steps: tuple[int, ...]


Address = tuple[LoopStrides | None, int]
"""The strides of an address (None: constant), and its value in the first iteration of every loop."""

ZERO: Address = (None, 0)
"""The address that register 0 always holds."""

Words = tuple[int, ...]


class CodeItem(NamedTuple):
    """An item and, for a command, the addresses of its operands and the words of its settings."""

    item: Item
    target: Address = ZERO
    sources: tuple[Address | None, ...] = ()
    settings: Words = ()


@dataclass(frozen=True)
class LoopNest:
    """A loop, and what it and its inner loops use, in the order of appearance."""

    number: int
    node: Loop
    body: tuple[LoopNest | CodeItem, ...]
    addresses: dict[Address, None] = field(default_factory=dict)
    descriptors: dict[Descriptor, None] = field(default_factory=dict)
    settings: dict[Words, None] = field(default_factory=dict)

    @property
    def inner(self) -> list[LoopNest]:
        """The loops directly inside."""
        return [part for part in self.body if isinstance(part, LoopNest)]

    @property
    def own(self) -> dict[LoopStrides, list[int]]:
        """The strides whose outermost loop is this one, each with the start addresses."""
        found: dict[LoopStrides, list[int]] = {}
        for course, start in self.addresses:
            if course is not None and course.loops[0] == self.number:
                found.setdefault(course, []).append(start)
        return found

    @property
    def still(self) -> list[Address]:
        """The addresses that are constant while this loop runs."""
        numbers = set(self.numbers())
        return [address for address in self.addresses if address[0] is None or numbers.isdisjoint(address[0].loops)]

    @property
    def least_registers(self) -> int:
        """Registers that the nest holds at one time with one register for each stride, without operands."""
        return 1 + len(self.own) + max((part.least_registers for part in self.inner), default=0)

    @property
    def most_registers(self) -> int:
        """Registers that the nest holds at one time with one register for each advancing address."""
        return 1 + sum(map(len, self.own.values())) + max((part.most_registers for part in self.inner), default=0)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of this loop and all inside it."""
        yield self.number
        for part in self.inner:
            yield from part.numbers()


_STANDING: tuple[tuple[int, ...], ...] = ((),) * 5


class Addressing:
    """Numbers the loops of a program and finds the strides of the addresses in them."""

    def __init__(self) -> None:
        self._numbers = count()
        self._words: dict[int, tuple[Settings, Words]] = {}

    def parts(self, nodes: Sequence[CodePart], path: tuple[int, ...] = ()) -> Iterator[LoopNest | CodeItem]:
        """Yield the nodes inside the loops of `path`, as loop nests and code items."""
        for node in nodes:
            if isinstance(node, Loop):
                yield self._nest(node, path)
            else:
                for entry in node.entries:
                    yield self._use(entry, path)

    def _nest(self, node: Loop, path: tuple[int, ...]) -> LoopNest:
        number = next(self._numbers)
        nest = LoopNest(number, node, tuple(self.parts(node.body, (*path, number))))
        for part in nest.body:
            if isinstance(part, LoopNest):
                nest.addresses.update(part.addresses)
                nest.descriptors.update(part.descriptors)
                nest.settings.update(part.settings)
            elif isinstance(part.item, Command):
                operands = (part.item.target, *part.item.sources)
                nest.addresses.update(
                    (address, None) for address in (part.target, *part.sources) if address is not None
                )
                nest.descriptors.update((operand.descriptor, None) for operand in operands)
                nest.settings[part.settings] = None
        return nest

    def _use(self, entry: RolledItem, path: tuple[int, ...]) -> CodeItem:
        item = entry.item
        if not isinstance(item, Command):
            return CodeItem(item)
        moves = zip(*entry.steps, strict=True) if path else _STANDING
        courses = [_course(path, steps) for steps in moves]
        sources = (item.first, item.second, item.third, item.fourth)
        pairs = zip(courses[1:], sources, strict=True)
        addresses = tuple([None if operand is None else (course, operand.address) for course, operand in pairs])
        return CodeItem(item, (courses[0], item.target.address), addresses, self._settings_words(item.settings))

    def _settings_words(self, settings: Settings) -> Words:
        known = self._words.get(id(settings))
        if known is None:
            known = self._words[id(settings)] = (settings, settings_words(settings))
        return known[1]


def _course(path: tuple[int, ...], steps: tuple[int, ...]) -> LoopStrides | None:
    moving = [level for level, step in enumerate(steps) if step]
    if not moving:
        return None
    span = slice(moving[0], moving[-1] + 1)
    return LoopStrides(path[span], steps[span])
