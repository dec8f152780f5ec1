"""Windows of chains of a network, and the unknown times that their totals contain.

A window of one chain shows that chain. A window of two neighbours shows their boundary term, and a long window its
excess: what it takes beyond the chains, boundary terms and smaller long windows in it.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.latency.unknowns import Unknown, boundary, chain_alone, excess, in_front
from harness.probe.chain_plan import ChainProbes


@dataclass(frozen=True)
class Window:
    """A window of chains, from the index `first` on; its `own` unknown is what it takes beyond its parts.

    It is of use if all `needed` parts are known. The `further` parts are in it as far as they are known.
    """

    probe: str
    null: str
    first: int
    chains: Sequence[ChainProbes]
    own: Unknown
    needed: tuple[Unknown, ...] = ()
    further: tuple[Unknown, ...] = ()

    @property
    def places(self) -> range:
        """The indices of its chains."""
        return range(self.first, self.first + len(self.chains))

    @property
    def probes(self) -> set[str]:
        """The window, and the null window without its layers if it has one."""
        return {self.probe, self.null} - {""}


def boundaries(chains: Sequence[ChainProbes]) -> Iterator[Unknown]:
    """Yield the boundary terms of consecutive chains."""
    return itertools.starmap(boundary, itertools.pairwise(chains))


def windows(chains: Sequence[ChainProbes]) -> Iterator[Window]:
    """Yield all windows of chains; those of a network are in the network's order."""
    for at, chain in enumerate(chains):
        yield Window(chain.alone, chain.alone_null, at, [chain], chain_alone(chain))
        pair = chains[at : at + 2]
        if chain.meeting and len(pair) == 2 and pair[1].network == chain.network:
            needed = tuple(map(chain_alone, pair))
            yield Window(chain.meeting, chain.meeting_null, at, pair, boundary(*pair), needed)
    # On a processor, which runs no chains, the differences of long windows are mostly noise.
    tiles = [tile for tile in tiling_windows(chains) if tile.chains[0].ordered]
    yield from tiles
    for tile, next_tile in itertools.pairwise(tiles):
        start = tile.chains[0]
        if start.across and start.network == next_tile.chains[0].network:
            held = chains[tile.first : next_tile.places.stop]
            yield _long_window(start.across, start.across_null, tile.first, held, (tile.own, next_tile.own))


def tiling_windows(chains: Sequence[ChainProbes]) -> Iterator[Window]:
    """Yield the long windows that tile networks, or overlap by a pair."""
    for at, start in enumerate(chains):
        held = chains[at : at + start.checked]
        if start.check and all(one.network == start.network for one in held):
            yield _long_window(start.check, start.check_null, at, held)


def _long_window(
    probe: str, null: str, first: int, chains: Sequence[ChainProbes], tiles: tuple[Unknown, ...] = ()
) -> Window:
    needed = (*map(chain_alone, chains), *tiles)
    return Window(probe, null, first, chains, excess(probe, chains[0]), needed, tuple(boundaries(chains)))


def window_contents(chains: Sequence[ChainProbes], measured: Collection[str]) -> Iterator[tuple[str, Counter[Unknown]]]:
    """Yield the probes of all windows of use, and how often each unknown other than the overhead is in their totals.

    Two equal chains in a row are twice the same unknown.
    """
    held = {window.own: window for window in windows(chains) if all(probe in measured for probe in window.probes)}
    for window in held.values():
        if held.keys() >= {*window.needed}:
            parts = [window.own, *window.needed, *(part for part in window.further if part in held)]
            if window.null:
                yield window.null, Counter([in_front(window.null)])
                parts.append(in_front(window.null))
            yield window.probe, Counter(parts)
