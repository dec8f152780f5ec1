"""The unknowns of the joint system; `joint` states the equations that they are in."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from harness.latency.overhead import COLUMNS, row_of
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import LayerProbes

Kind = Literal["overhead", "in front", "layer", "alone", "start", "repeated", "chain", "boundary", "excess"]
_TIMES_OF_LAYERS = ("layer", "alone", "repeated", "chain", "boundary", "excess")


@dataclass(frozen=True)
class Unknown:
    """An unknown of a kind; `of` is the overhead's column, or the probes that no other unknown of this kind has."""

    kind: Kind
    of: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.of if self.kind == "overhead" else (self.kind, *self.of))

    @property
    def may_be_negative(self) -> bool:
        """Whether it is the time of layers: the estimate of a layer that takes no time is negative half of the time."""
        return self.kind in _TIMES_OF_LAYERS


def coefficient(column: str) -> Unknown:
    """Return the overhead's coefficient of a column."""
    return Unknown("overhead", (column,))


def in_front(null: str, batch: int | None = None) -> Unknown:
    """Return what precedes the layers of a probe, as its null probe shows it, in one batch or in all."""
    return Unknown("in front", (null,) if batch is None else (null, f"of batch {batch}"))


def in_context(layer: LayerProbes) -> Unknown:
    """Return the layer in its context; two contexts may share a probe, since indices always come from outside."""
    return Unknown("layer", (layer.in_context,))


def alone(layer: LayerProbes) -> Unknown:
    """Return the layer without a context (S1.1)."""
    return Unknown("alone", (layer.layer,))


def stack_start(layer: LayerProbes) -> Unknown:
    """Return the first of several copies of a layer with what precedes it, which may differ from that of one copy."""
    return Unknown("start", (layer.stacks[0],))


def repeated(layer: LayerProbes) -> Unknown:
    """Return the layer after a copy of itself."""
    return Unknown("repeated", (layer.stacks[0],))


def chain_alone(chain: ChainProbes) -> Unknown:
    """Return a chain by itself."""
    return Unknown("chain", (chain.alone,))


def boundary(chain: ChainProbes, behind: ChainProbes) -> Unknown:
    """Return the boundary term of two chains; two networks may divide one window into two chains in two ways."""
    return Unknown("boundary", (chain.meeting, chain.alone, behind.alone))


def excess(window: str, first: ChainProbes) -> Unknown:
    """Return the excess of a long window; two networks may divide one window into chains in two ways."""
    return Unknown("excess", (window, first.alone))


def amounts_of(
    terms: OverheadTerms, contents: Mapping[Unknown, float], merged: Collection[str] = ()
) -> dict[Unknown, float]:
    """Return the amount of each unknown in a probe's total: its overhead's, without `merged` columns, and contents."""
    overhead = zip(COLUMNS, row_of(terms), strict=True)
    return {**{coefficient(column): amount for column, amount in overhead if column not in merged}, **contents}
