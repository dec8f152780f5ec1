"""The spatial axes of transposed convolutions, and their phases.

A phase is every `stride`-th output along each axis. Its outputs read consecutive inputs, by every `stride`-th tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant
from device_agents.emulated_npu.compiler.graph.operators.spatial.window_attributes import Window

_MOST_PHASES = 9
"""More layers than these would not share a chain with the copy that joins them, and with their neighbours."""


@dataclass(frozen=True)
class TransposedAxis:
    """One spatial axis: output o sums the inputs `q // stride - j`, q = o + pad, by the taps `q % stride + stride * j`.

    `inputs`, `outputs`, `stride`, `dilation` and `kernel` are those of the node, `pad` is its leading padding.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    @property
    def taps(self) -> int:
        """Taps of each phase, absent ones included."""
        return ceil_div((self.kernel - 1) * self.dilation + 1, self.stride)

    @property
    def first(self) -> int:
        """The group of `stride` positions with the first output."""
        return self.pad // self.stride

    @property
    def groups(self) -> int:
        """How many groups of `stride` positions have outputs."""
        return (self.pad + self.outputs - 1) // self.stride - self.first + 1

    @property
    def start(self) -> int:
        """The first input that the first group reads; negative on the padding."""
        return self.first - self.taps + 1

    def phase(self, index: int) -> tuple[TransposedAxis, slice] | None:
        """Return the outputs `index`, `index + stride`, ... as an axis, and their taps; None if they have no taps."""
        ahead, rest = divmod(index + self.pad, self.stride)
        own = [tap for tap in range(self.kernel) if tap * self.dilation % self.stride == rest]
        if not own:
            return None
        step = self.stride // math.gcd(self.stride, self.dilation)
        pad = ahead - (own[0] * self.dilation - rest) // self.stride
        outputs, dilation = ceil_div(self.outputs, self.stride), step * self.dilation // self.stride
        return TransposedAxis(self.inputs, outputs, len(own), 1, dilation, pad), slice(own[0], None, step)


@dataclass(frozen=True)
class Phase:
    """One phase as a transposed convolution of stride 1, and its taps along each axis."""

    axes: tuple[TransposedAxis, ...]
    taps: tuple[slice, ...]

    def taps_of(self, weights: LazyConstant) -> LazyConstant:
        """Return the weights (C, M, taps...) of the phase."""
        code = weights.quantised
        found = self._taken(weights)
        return found if code is None else replace(found, quantised=replace(code, integers=self._taken(code.integers)))

    def _taken(self, constant: LazyConstant) -> LazyConstant:
        places = (slice(None), slice(None), *self.taps)
        shape = (*constant.shape[:2], *(axis.kernel for axis in self.axes))
        name = f"{constant.name}[{', '.join(f'{each.start}::{each.step}' for each in self.taps)}]"
        return derived(name, shape, constant.dtype, (constant,), lambda array: array[places])


def window_of(axes: Sequence[TransposedAxis]) -> Window:
    """Return the window that computes all phases as channels, over the map from the first input that is read."""
    ones = (1,) * len(axes)
    kernel, before = tuple(axis.taps for axis in axes), tuple(max(0, -axis.start) for axis in axes)
    after = tuple(
        max(0, axis.groups + axis.taps - 1 - pad - (axis.inputs - max(0, axis.start)))
        for axis, pad in zip(axes, before, strict=True)
    )
    return Window(kernel, ones, ones, before, after)


def phases_apart(axes: Sequence[TransposedAxis], columns: int, channels: int) -> tuple[Phase, ...] | None:
    """Return the phases, the last axis varying fastest; None if they cost no less than all of them together.

    The cost is the number of taps, for all outputs and all rounds of so many `columns` that their channels fill.
    """
    phases: list[Phase] = []
    if math.prod(axis.stride for axis in axes) > _MOST_PHASES:
        return None
    for indices in itertools.product(*(range(axis.stride) for axis in axes)):
        found = [axis.phase(index) for axis, index in zip(axes, indices, strict=True)]
        known = [each for each in found if each is not None]
        if len(known) < len(found) or not _reads(each for each, _ in known):
            return None
        phases.append(Phase(*(tuple(column) for column in zip(*known, strict=True))))
    alone, together = ceil_div(channels, columns), ceil_div(len(phases) * channels, columns)
    return tuple(phases) if alone * sum(_taps(one.axes) for one in phases) < together * _taps(axes) else None


def _taps(axes: Iterable[TransposedAxis]) -> int:
    return math.prod(axis.taps * axis.groups for axis in axes)


def _reads(axes: Iterable[TransposedAxis]) -> bool:
    """Return whether the first and the last window along each axis read an input."""
    return all(0 <= axis.pad < axis.inputs + axis.taps - axis.outputs for axis in axes)
