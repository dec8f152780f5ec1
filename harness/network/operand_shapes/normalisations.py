"""Normalisations, and operators with a number for each channel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.network.operand_shapes.node_operands import NodeOperands, Rule, axis_of_input, must_be, must_fit

_GROUP_SCALES_OF_CHANNELS = 21
"""The opset since which GroupNormalization has a scale for each channel, not for each group."""


def per_channel(names: Sequence[str]) -> Rule:
    """Operands after the input with one number for each of its channels."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        read = operands.shape(0)
        if read is None or len(read) < 2:
            return
        for place, what in enumerate(names, 1):
            yield from must_be(what, operands.shape(place), (read[1],))

    return rule


def group_normalization(operands: NodeOperands) -> Iterator[str]:
    """A GroupNormalization."""
    read, groups = operands.shape(0), operands.number("num_groups", 1)
    if read is None or len(read) < 2:
        return
    if read[1] % groups:
        yield f"Its {read[1]} channels cannot be divided into {groups} groups"
    size = read[1] if operands.opset >= _GROUP_SCALES_OF_CHANNELS else groups
    for place, what in ((1, "scale"), (2, "bias")):
        shape = operands.shape(place)
        if shape is not None and math.prod(shape) not in (1, size):
            yield from must_be(what, shape, (size,))


def layer_normalization(operands: NodeOperands) -> Iterator[str]:
    """A normalisation over the last axes."""
    read = operands.shape(0)
    yield from axis_of_input(-1)(operands)
    if read is not None:
        yield from must_fit("scale", operands.shape(1), read)
        yield from must_fit("bias", operands.shape(2), read)


def slope(operands: NodeOperands) -> Iterator[str]:
    """A PRelu."""
    read = operands.shape(0)
    if read is not None:
        yield from must_fit("slope", operands.shape(1), read)
