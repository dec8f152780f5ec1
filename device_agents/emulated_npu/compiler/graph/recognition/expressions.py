"""Matches arithmetic expressions among the nodes of a model, in whatever order an exporter wrote them.

A product is a number times factors, a sum is a number plus terms. Both are flattened first, so that association and
commutation do not matter. Division by a number counts as multiplication.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from device_agents.emulated_npu.compiler.graph.constants import scalar_of
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, ParsedModel

_NEUTRAL = {"Mul": 1.0, "Add": 0.0}
_TOLERANCE = 1e-4  # files have constants such as 1.41421 or 0.797885


@dataclass(frozen=True)
class Match:
    """The tensor that is bound to the pattern's variable, and the nodes matched so far."""

    variable: str = ""
    nodes: frozenset[str] = frozenset()

    def with_nodes(self, nodes: frozenset[str]) -> Match:
        """Return the match with these nodes added."""
        return Match(self.variable, self.nodes | nodes)


@dataclass(frozen=True)
class Flat:
    """A flattened product or sum: the number, the other operands, and the nodes that compute it."""

    number: float
    operands: tuple[str, ...]
    nodes: frozenset[str]


class Expressions:
    """Reads a model's tensors as expressions."""

    def __init__(self, source: ParsedModel) -> None:
        self._source = source

    def producer(self, tensor: str) -> OnnxNode | None:
        """Return the node that writes a tensor."""
        return self._source.producers.get(tensor)

    def number(self, tensor: str) -> float | None:
        """Return the value of a constant with one known element, else None."""
        constant = self._source.constants.get(tensor)
        return None if constant is None else scalar_of(constant)

    def is_inner(self, tensor: str) -> bool:
        """Return whether exactly one node reads the tensor, once."""
        return len(self._source.readers.get(tensor, ())) == 1 and tensor not in self._source.outputs

    def flat(self, tensor: str, op: str) -> Flat:
        """Return the tensor as a product (op "Mul") or a sum (op "Add")."""
        node = self.producer(tensor)
        number = _NEUTRAL[op]
        if node is None or not (node.op == op or ((op, node.op) == ("Mul", "Div") and self.number(node.inputs[1]))):
            return Flat(number, (tensor,), frozenset())
        operands: list[str] = []
        nodes = frozenset({node.name})
        for place, name in enumerate(node.inputs):
            value = self.number(name)
            if value is None:
                part = self.flat(name, op) if self.is_inner(name) else Flat(_NEUTRAL[op], (name,), frozenset())
                value, nodes = part.number, nodes | part.nodes
                operands.extend(part.operands)
            if op == "Add":
                number += value
            else:
                number = number / value if node.op == "Div" and place == 1 else number * value
        return Flat(number, tuple(operands), nodes)


class Pattern(Protocol):
    """A form that a tensor may have."""

    def matches(self, found: Expressions, tensor: str, match: Match) -> Iterator[Match]:
        """Yield every match of the tensor that extends the given match."""


@dataclass(frozen=True)
class Variable:
    """The variable of the pattern: the same tensor at every place."""

    def matches(self, found: Expressions, tensor: str, match: Match) -> Iterator[Match]:
        """Match any tensor at the first place, and the same tensor at the others."""
        if found.number(tensor) is None and match.variable in ("", tensor):
            yield Match(tensor, match.nodes)


@dataclass(frozen=True)
class _Flattened:
    """A number and other operands, in any order."""

    op: ClassVar[str]
    number: float
    operands: tuple[Pattern, ...]

    def matches(self, found: Expressions, tensor: str, match: Match) -> Iterator[Match]:
        """Match the operands in any order."""
        flat = found.flat(tensor, self.op)
        if len(flat.operands) != len(self.operands) or not _close(flat.number, self.number):
            return
        for order in set(itertools.permutations(flat.operands)):
            yield from _all(found, order, self.operands, match.with_nodes(flat.nodes))


class ProductOf(_Flattened):
    """A number times factors."""

    op = "Mul"


class SumOf(_Flattened):
    """A number plus terms."""

    op = "Add"


@dataclass(frozen=True)
class Apply:
    """An operator on one pattern, with known values of its attributes and of its further inputs."""

    op: str
    argument: Pattern
    attributes: Mapping[str, float] = field(default_factory=dict)
    numbers: tuple[float, ...] = ()

    def matches(self, found: Expressions, tensor: str, match: Match) -> Iterator[Match]:
        """Match a tensor that this operator writes."""
        node = found.producer(tensor)
        if node is None or node.op != self.op or not self._agrees(found, node):
            return
        yield from self.argument.matches(found, node.inputs[0], match.with_nodes(frozenset({node.name})))

    def _agrees(self, found: Expressions, node: OnnxNode) -> bool:
        for name, value in self.attributes.items():
            given: Any = node.attribute(name)
            if given is None or not _close(given, value):
                return False
        given_numbers = [found.number(name) for name in node.inputs[1:] if name]
        return len(given_numbers) == len(self.numbers) and all(
            given is not None and _close(given, value) for given, value in zip(given_numbers, self.numbers, strict=True)
        )


@dataclass(frozen=True)
class Either:
    """One of several patterns."""

    options: tuple[Pattern, ...]

    def matches(self, found: Expressions, tensor: str, match: Match) -> Iterator[Match]:
        """Match the first option, then the next."""
        for option in self.options:
            yield from option.matches(found, tensor, match)


def _close(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * 1e-2)


def _all(found: Expressions, tensors: tuple[str, ...], patterns: tuple[Pattern, ...], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for first in patterns[0].matches(found, tensors[0], match):
        yield from _all(found, tensors[1:], patterns[1:], first)
