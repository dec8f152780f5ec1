"""Normalisations, and operators with a number for each channel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.network.operand_shapes.calls import Call, Rule, axis_of_input, must_be, must_fit

_GROUP_SCALES_OF_CHANNELS = 21
"""The opset since which GroupNormalization has a scale for each channel, not for each group."""


def per_channel(names: Sequence[str]) -> Rule:
    """Operands after the input with one number for each of its channels."""

    def rule(call: Call) -> Iterator[str]:
        read = call.shape(0)
        if read is None or len(read) < 2:
            return
        for place, what in enumerate(names, 1):
            yield from must_be(what, call.shape(place), (read[1],))

    return rule


def group_normalization(call: Call) -> Iterator[str]:
    """A GroupNormalization."""
    read, groups = call.shape(0), call.number("num_groups", 1)
    if read is None or len(read) < 2:
        return
    if read[1] % groups:
        yield f"Its {read[1]} channels cannot be divided into {groups} groups"
    size = read[1] if call.opset >= _GROUP_SCALES_OF_CHANNELS else groups
    for place, what in ((1, "scale"), (2, "bias")):
        shape = call.shape(place)
        if shape is not None and math.prod(shape) not in (1, size):
            yield from must_be(what, shape, (size,))


def layer_normalization(call: Call) -> Iterator[str]:
    """A normalisation over the last axes."""
    read = call.shape(0)
    yield from axis_of_input(-1)(call)
    if read is not None:
        yield from must_fit("scale", call.shape(1), read)
        yield from must_fit("bias", call.shape(2), read)


def slope(call: Call) -> Iterator[str]:
    """A PRelu."""
    read = call.shape(0)
    if read is not None:
        yield from must_fit("slope", call.shape(1), read)
