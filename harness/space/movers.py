"""Configurations of layers that move or combine elements without a product of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.predictor.features.layer_features import LayerFeatures, Pair, channelwise

BROADCAST = "channel"
"""The second operand is one value for each channel, as in a squeeze-and-excitation block."""
PAIRED = ("Add", "Mul", "Sub", "Div")
ORDERS = {"matrix": (0, 2, 1), "channels_last": (0, 2, 3, 1), "heads": (0, 2, 1, 3), "shuffle": (0, 2, 1, 3, 4)}
"""Orders of axes: a matrix and its transpose, maps with channels last, heads of attention, shuffled groups."""


@dataclass(frozen=True)
class Elementwise:
    """An operator on each element of one map, or of two; the second is one value per channel if it is `broadcast`."""

    op: str
    operands: int
    batch: int
    channels: int
    size: Pair
    broadcast: bool = False

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = channelwise(
            f"move/map/{self.op}", batch=self.batch, channels=self.channels, in_size=self.size, out_size=self.size
        )
        run = math.prod(self.size) if self.broadcast or self.op == "PRelu" else 0
        return replace(found, extra_operands=0 if self.broadcast else self.operands - 1, run=run)


@dataclass(frozen=True)
class Rowwise:
    """An operator on (1, rows, columns): along the last axis, on each element, or for ReduceMean along the rows."""

    op: str
    rows: int
    columns: int

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        plane = (self.rows, 1)
        if self.op == "ReduceMean":
            found = channelwise(
                "move/reduce/ReduceMean",
                batch=1,
                channels=self.columns,
                in_size=plane,
                out_size=(1, 1),
                kernel=plane,
            )
            return replace(found, run=self.columns)
        group = "norm" if self.op in ("Softmax", "LayerNormalization") else "map"
        found = channelwise(f"move/{group}/{self.op}", batch=1, channels=self.columns, in_size=plane, out_size=plane)
        return replace(found, extra_operands=int(self.op in PAIRED))


@dataclass(frozen=True)
class Resizing:
    """A map made larger by a whole factor: each pixel repeated (nearest), or interpolated (linear)."""

    batch: int
    channels: int
    size: Pair
    scale: int
    mode: str

    @property
    def out_size(self) -> Pair:
        """Return height and width of the result."""
        return (self.size[0] * self.scale, self.size[1] * self.scale)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = channelwise(
            "move/copy/Resize", batch=self.batch, channels=self.channels, in_size=self.out_size, out_size=self.out_size
        )
        return replace(found, run=1)


@dataclass(frozen=True)
class Joining:
    """`parts` maps of as many channels joined to one (Concat), or one divided into them (Split)."""

    op: str
    parts: int
    batch: int
    channels: int
    size: Pair

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = channelwise(
            f"move/copy/{self.op}",
            batch=self.batch,
            channels=self.channels * self.parts,
            in_size=self.size,
            out_size=self.size,
        )
        return replace(found, run=self.channels * math.prod(self.size))


@dataclass(frozen=True)
class Permutation:
    """A tensor with its axes in another order, one of `ORDERS`; or, with none, flattened behind its first two axes."""

    shape: tuple[int, ...]
    order: str

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        if not self.order:
            return (*self.shape[:2], math.prod(self.shape[2:]))
        return tuple(self.shape[axis] for axis in ORDERS[self.order])

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        *rest, columns = self.shape
        plane = (math.prod(rest), 1)
        name = "move/copy/Transpose" if self.order else "move/view/any/Reshape"
        found = channelwise(name, batch=1, channels=columns, in_size=plane, out_size=plane)
        kept = {"heads": self.shape[-1], "shuffle": math.prod(self.shape[-2:])}
        return replace(found, run=kept.get(self.order, 1) if self.order else 0)


Mover = Elementwise | Rowwise | Resizing | Joining | Permutation
