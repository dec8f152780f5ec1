"""The effort of a search for the cuts of a chain: how many it tries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.regions import is_windowed
from device_agents.emulated_npu.compiler.planning.chains.chain import MAX_PASSES, BufferCounts
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import multiplies_computed
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain, HaloMode, count_tiles
from device_agents.emulated_npu.compiler.planning.search.cuts import Cuts, tiles_per_item

_DOUBLE_BUFFERS = BufferCounts(across=2, between=1)


@dataclass(frozen=True)
class Effort:
    """The limits of a search: stages of cuts, tiles of a chain, plans per cut, patience with finer cuts.

    The search for finer cuts ends after `finer` in a row that are not faster. `buffer_counts` are the buffers
    that passes use in turn. With `all_groups`, squares and parts of channels are tried although rows fit, if
    these have much halo.
    """

    stages: int
    tiles: int
    plans: int
    finer: int
    buffer_counts: BufferCounts = _DOUBLE_BUFFERS
    modes: tuple[HaloMode, ...] = ()
    all_groups: bool = False

    def overlapping(self) -> Effort:
        """Return the same effort for plans in which MFU and VFU work on different passes."""
        return replace(self, buffer_counts=replace(self.buffer_counts, between=2))


_QUICK = Effort(stages=3, tiles=32, plans=1, finer=0)
_PRODUCTS = Effort(stages=3, tiles=4096, plans=1, finer=0)
_LARGE = Effort(stages=3, tiles=4096, plans=2, finer=2)
_LARGE_MAP = 1 << 15
"""Pixels of a map for which more than a quick search pays: it is cut into many tiles, and they have much halo."""
THOROUGH = Effort(stages=99, tiles=MAX_PASSES, plans=99, finer=3, all_groups=True)


def effort_of(chain: Chain) -> Effort:
    """Return the effort for a chain whose place in the network is still searched."""
    if any(map(multiplies_computed, chain.layers)):
        return _PRODUCTS
    maps = (layer.output.shape[2:] for layer in chain.layers if is_windowed(layer))
    return _LARGE if any(math.prod(pixels) >= _LARGE_MAP for pixels in maps) else _QUICK


def is_searched(layer: HardwareLayer, cuts: Cuts, most: int) -> bool:
    """Return whether cuts are within a limit of tiles: those of one item, because all items are alike."""
    tiles = count_tiles(layer, cuts)
    return tiles <= most or (tiles <= MAX_PASSES and tiles_per_item(layer, cuts) <= most)
