"""A node with the shapes of what it reads, and the rules that many operators share."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.array_types import Array
from harness.network.network import Node

Shape = tuple[int, ...]
_MOST_AXIS = (1 << 31) - 1
_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class NodeOperands:
    """A node with the shapes of its operands, None for absent ones, and the values of constants by their places.

    `opset` is the version of ONNX's operators.
    """

    node: Node
    shapes: Sequence[Shape | None]
    values: Mapping[int, Array]
    opset: int

    def shape(self, place: int) -> Shape | None:
        """Return the shape of the operand at a place; None if it is absent."""
        return self.shapes[place] if place < len(self.shapes) else None

    def number(self, name: str, default: int) -> int:
        """Return an attribute of one integer."""
        found = self.node.attribute(name)
        return default if found is None else int(found.i)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute of integers; None if the node does not state it."""
        found = self.node.attribute(name)
        return None if found is None else tuple(found.ints)

    def stated(self, name: str) -> tuple[int, ...]:
        """Return an attribute of one integer; nothing if the node does not state it, or states no integer."""
        found = self.node.attribute(name)
        return () if found is None or found.type != found.INT else (int(found.i),)

    def text(self, name: str, default: str) -> str:
        """Return an attribute of text."""
        found = self.node.attribute(name)
        return default if found is None else bytes(found.s).decode(errors="replace")


Rule = Callable[[NodeOperands], Iterator[str]]
"""Yields why a node cannot be; nothing if it can."""


def must_be(what: str, shape: Shape | None, wanted: Shape) -> Iterator[str]:
    """The operand has exactly a shape."""
    if shape is not None and shape != wanted:
        yield f"Its {what} has shape {list(shape)}; it must have {list(wanted)}"


def must_fit(what: str, shape: Shape | None, into: Shape) -> Iterator[str]:
    """The operand can be broadcast to a shape, which stays as it is."""
    if shape is None:
        return
    ends = zip(shape[::-1], into[::-1], strict=False)
    if len(shape) > len(into) or any(own not in (1, size) for own, size in ends):
        yield f"Its {what} of shape {list(shape)} cannot be broadcast to {list(into)}"


def same_count(what: str, shape: Shape | None, other: Shape) -> Iterator[str]:
    """The operand has as many elements as another one."""
    if shape is not None and math.prod(shape) != math.prod(other):
        yield f"Its {what} has shape {list(shape)}; it must have {list(other)}"


def same_rank(what: str, shape: Shape | None, rank: int) -> Iterator[str]:
    """The operand has a number of dimensions."""
    if shape is not None and len(shape) != rank:
        yield f"Its {what} has {len(shape)} dimensions; it must have {rank}"


def singles(names: Mapping[int, str]) -> Rule:
    """Operands that are one number each, by their places."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        for place, what in names.items():
            shape = operands.shape(place)
            if shape is not None and math.prod(shape) != 1:
                yield f"Its {what} has shape {list(shape)}; it must be one number"

    return rule


def lists(names: Mapping[int, str]) -> Rule:
    """Operands that are lists of numbers, by their places."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        for place, what in names.items():
            yield from same_rank(what, operands.shape(place), 1)

    return rule


def positive(*names: str) -> Rule:
    """Attributes of one or more integers, all of which are above zero."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        for name in names:
            found = min((*(operands.numbers(name) or ()), *operands.stated(name)), default=1)
            if found < 1:
                yield f"Its {name} is {found}; it must be at least 1"

    return rule


def axis_of(operands: NodeOperands, rank: int, default: int = 0) -> int | None:
    """Return the attribute `axis` as a place; None if there is no such axis."""
    axis = operands.number("axis", default)
    return axis % rank if -rank <= axis < rank else None


def axis_of_input(default: int) -> Rule:
    """The attribute `axis` is one of the input's."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        read = operands.shape(0)
        if read is not None and axis_of(operands, len(read), default) is None:
            yield f"Its axis is {operands.number('axis', default)}; its input has {len(read)} dimensions"

    return rule


def any_operator(operands: NodeOperands) -> Iterator[str]:
    """What the attributes `axis` and `auto_pad` may be in any operator; shape inference does not check it."""
    axis = max(operands.stated("axis"), key=abs, default=0)
    if abs(axis) > _MOST_AXIS:  # shape inference reads its lower 32 bits
        yield f"Its axis is {axis}, which no tensor has"
    mode = operands.text("auto_pad", "NOTSET")
    if mode and mode not in _PADS:  # runtimes read an empty one as NOTSET
        yield f"Its auto_pad is {mode[:80]!r}; it must be {', '.join(_PADS[:-1])} or {_PADS[-1]}"
