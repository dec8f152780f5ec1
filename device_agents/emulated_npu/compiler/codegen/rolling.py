"""Finds loops in a list of items: bodies that repeat with addresses that advance by constants (S2.5).

The search goes from the outside in: it chooses the repetitions in a range of items that save most, then searches the
body of each. Within a body, items are equal only if the enclosing loops advance them equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from device_agents.emulated_npu.compiler.codegen.repetitions import repetitions
from device_agents.emulated_npu.isa.settings_words import settings_words
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Item, Operand
from device_agents.emulated_npu.unit_settings import Settings

Steps = tuple[int, int, int, int, int]

OPERANDS = ("target", "first", "second", "third", "fourth")


@dataclass(frozen=True)
class RolledItem:
    """An item as in the first iteration of its enclosing loops, and how they advance it.

    `steps` has for every enclosing loop, outermost first, the bytes that an iteration adds to the address of each
    operand (in the order of OPERANDS; 0 if there is none).
    """

    item: Item
    steps: tuple[Steps, ...]


@dataclass(frozen=True)
class Straight:
    """Items in sequence."""

    entries: tuple[RolledItem, ...]


@dataclass(frozen=True)
class Loop:
    """`count` iterations of a body."""

    count: int
    body: tuple[CodePart, ...]


CodePart = Straight | Loop


def roll(items: Sequence[Item]) -> tuple[CodePart, ...]:
    """Return the items with repetitions as loops, chosen greedily for the shortest code."""
    if not items:
        return ()
    signatures, addresses = _interned(items)
    return _Roller(items, addresses).nodes(0, signatures, ())


def advance(node: CodePart, level: int, iterations: int) -> CodePart:
    """Return a node of the body of the loop at `level` (0 is the outermost) after some iterations, without the loop."""
    if isinstance(node, Loop):
        return Loop(node.count, tuple(advance(inner, level, iterations) for inner in node.body))
    return Straight(
        tuple(
            RolledItem(_advanced(entry, level, iterations), entry.steps[:level] + entry.steps[level + 1 :])
            for entry in node.entries
        )
    )


def _advanced(entry: RolledItem, level: int, iterations: int) -> Item:
    item, moves = entry.item, [iterations * step for step in entry.steps[level]]
    if not isinstance(item, Command) or not any(moves):
        return item
    operands: dict[str, Any] = {}
    for name, move in zip(OPERANDS, moves, strict=True):
        operand = getattr(item, name)
        operands[name] = operand and Operand(operand.descriptor, operand.address + move)
    return replace(item, **operands)


def _interned(items: Sequence[Item]) -> tuple[Array, Array]:
    """Return a number (n) for each item without its addresses, equal for equal items, and the addresses (n, 5)."""
    numbers: dict[Any, int] = {}
    known: dict[int, int] = {}

    def number(part: Descriptor | Settings) -> int:
        found = known.get(id(part))
        if found is None:
            # Settings are compared by words, because the values 0.0 and -0.0 are equal.
            key = settings_words(part) if isinstance(part, Settings) else part
            found = known[id(part)] = numbers.setdefault(key, len(numbers))
        return found

    signatures, addresses = [], []
    for item in items:
        if isinstance(item, Command):
            operands = (item.target, item.first, item.second, item.third, item.fourth)
            shapes = [-1 if operand is None else number(operand.descriptor) for operand in operands]
            flags = item.accumulate, item.peer, item.own_queue
            key: Any = (item.function, *shapes, number(item.settings), *flags, item.layer)
            addresses.append([0 if operand is None else operand.address for operand in operands])
        else:
            key = item
            addresses.append([0, 0, 0, 0, 0])
        signatures.append(numbers.setdefault(key, len(numbers)))
    return np.array(signatures, np.int64), np.array(addresses, np.int64)


class _Roller:
    def __init__(self, items: Sequence[Item], addresses: Array) -> None:
        self._items, self._addresses = items, addresses
        # Linear in the addresses: bodies advance equally if and (but for collisions) only if fingerprints do.
        self._fingerprints = addresses.astype(np.uint64) @ _MULTIPLIERS

    def nodes(self, start: int, signatures: Array, steps: tuple[Array, ...]) -> tuple[CodePart, ...]:
        """Return the items from `start` on, one per signature, in loops that advance them by `steps`."""
        size = len(signatures)
        addresses = self._addresses[start : start + size]
        found: list[CodePart] = []
        at = 0
        for begin, period, count in repetitions(signatures, addresses, self._fingerprints[start : start + size]):
            if begin > at:
                found.append(self._straight(start, at, begin, steps))
            body = slice(begin, begin + period)
            step = addresses[begin + period : begin + 2 * period] - addresses[body]
            inner = _numbered(np.column_stack((signatures[body], step)))
            found.append(Loop(count, self.nodes(start + begin, inner, (*(one[body] for one in steps), step))))
            at = begin + period * count
        if size > at:
            found.append(self._straight(start, at, size, steps))
        return tuple(found)

    def _straight(self, start: int, low: int, high: int, steps: tuple[Array, ...]) -> Straight:
        items = self._items[start + low : start + high]
        if not steps:
            return Straight(tuple([RolledItem(item, ()) for item in items]))
        columns: list[list[Steps]] = [[tuple(row) for row in one[low:high].tolist()] for one in steps]
        return Straight(
            tuple([RolledItem(item, tuple(rows)) for item, rows in zip(items, zip(*columns, strict=True), strict=True)])
        )


_MULTIPLIERS = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)


def _numbered(rows: Array) -> Array:
    """Return a number for each row, equal for equal rows."""
    numbers: Array = np.unique(rows, axis=0, return_inverse=True)[1]
    return numbers.reshape(-1)
