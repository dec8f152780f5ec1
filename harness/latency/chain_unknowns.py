"""The unknowns of chains in the joint system: chains, meetings of two, and the reach of long windows."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.probe.chain_plan import ChainProbes

SIGNED = ("chain ", "meeting ", "reach ")
"""Prefixes of unknowns that may come out negative."""


def chain_name(chain: ChainProbes) -> str:
    """Return the unknown that stands for a chain by itself."""
    return f"chain {chain.alone}"


def meeting_name(chain: ChainProbes, behind: ChainProbes) -> str:
    """Return the unknown that stands for what two chains take together beyond each by itself."""
    # Two networks may divide one window into two chains in two ways.
    return f"meeting {chain.meeting} {chain.alone} {behind.alone}"


def is_known(chain: ChainProbes, measured: Collection[str]) -> bool:
    """Return whether the windows of a chain by itself were measured."""
    return chain.alone in measured and (not chain.alone_null or chain.alone_null in measured)


@dataclass(frozen=True)
class LongWindow:
    """A window of several chains; `inside` are the unknown reaches of the long windows in it."""

    held: Sequence[ChainProbes]
    probe: str
    null: str
    inside: tuple[str, ...] = ()

    @property
    def reach(self) -> str:
        """The unknown that stands for what the window takes beyond everything else in it."""
        # Two networks may divide one window into chains in two ways.
        return f"reach {self.probe} {self.held[0].alone}"

    def is_known(self, measured: Collection[str]) -> bool:
        """Return whether the window and the chains in it were measured."""
        windows = (name for name in (self.probe, self.null) if name)
        return all(name in measured for name in windows) and all(is_known(one, measured) for one in self.held)


def long_windows(chains: Sequence[ChainProbes]) -> Iterator[LongWindow]:
    """Yield the check windows of a device that chains layers, then the windows across two of them.

    Windows of neighbours have none: on a processor, the differences of long windows are mostly noise.
    """
    checks = {}
    for at, first in enumerate(chains):
        held = chains[at : at + first.checked]
        if first.check and first.ordered and all(one.network == first.network for one in held):
            checks[at] = LongWindow(held, first.check, first.check_null)
    yield from checks.values()
    for (at, one), (last, other) in itertools.pairwise(checks.items()):
        if chains[at].across and chains[at].network == chains[last].network:
            held = chains[at : last + len(other.held)]
            yield LongWindow(held, chains[at].across, chains[at].across_null, (one.reach, other.reach))
