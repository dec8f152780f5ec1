"""The geometry of a chain: the part of every value that each pass loads, computes and keeps (S3.2, S3.3).

The output of the chain's last layer is cut into tiles along some axes. A pass computes one tile; the last axis varies
fastest. chain_cutting.py derives the parts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.regions import (
    EMPTY,
    Interval,
    Region,
    hull,
    is_empty,
    read_region,
    union,
    whole,
)

HaloMode = Literal["retain", "recompute"]


@dataclass(frozen=True)
class Cut:
    """A cut of the last layer's output along `axis` into tiles of `size`; a ragged tile comes last."""

    axis: int
    size: int
    mode: HaloMode = "retain"


@dataclass(frozen=True)
class AxisTrack:
    """A value along one cut: its axis, and for every tile the new part and the part in the buffer.

    `new` and `held` are intervals of the value's axis. What is held but not new comes from the halo.
    """

    axis: int
    mode: HaloMode
    new: tuple[Interval, ...]
    held: tuple[Interval, ...]

    def halo(self, tile: int) -> Interval:
        """Return what tile `tile` takes over from the tile before it."""
        if tile == 0 or self.mode == "recompute":
            return EMPTY
        return self.held[tile][0], min(self.new[tile][0], self.held[tile - 1][1])

    @functools.cached_property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        """The sizes of the new, held and taken-over parts of every tile; tiles of equal sizes take the same time."""
        sizes = []
        before = None if self.mode == "recompute" else self.held[0][0] if self.held else None
        for (begin, end), (first, stop) in zip(self.new, self.held, strict=True):  # as `halo`, for all tiles
            taken = 0 if before is None else (begin if begin < before else before) - first
            sizes.append((end - begin, stop - first, taken if taken > 0 else 0))
            if before is not None:
                before = stop
        return tuple(sizes)

    @functools.cached_property
    def most(self) -> tuple[int, ...]:
        """The largest of each of `sizes`."""
        return tuple(map(max, zip(*self.sizes, strict=True)))

    @functools.cached_property
    def span(self) -> Interval:
        """Everything that is ever held."""
        return functools.reduce(union, self.held, EMPTY)


Tile = tuple[int, ...]


def count_tiles(layer: HardwareLayer, cuts: Sequence[Cut]) -> int:
    """Return the number of tiles into which cuts divide a layer's output."""
    return math.prod(tile_counts(layer, cuts))


def tile_counts(layer: HardwareLayer, cuts: Sequence[Cut]) -> tuple[int, ...]:
    """Return the number of tiles along each cut of a layer's output."""
    return tuple(ceil_div(layer.output.axes[cut.axis].size, cut.size) for cut in cuts)


@dataclass(frozen=True)
class Chain:
    """Layers to run as one chain; `stored` are the values that they store off chip.

    Chains of all networks with the same `number` take the same time; None where it is not known.
    """

    layers: tuple[HardwareLayer, ...]
    stored: frozenset[str]
    number: int | None = None

    @functools.cached_property
    def key(self) -> object:
        """What distinguishes the chain from all others of its network."""
        outputs = [(layer.index, layer.output.value, layer.output.start, layer.output.shape) for layer in self.layers]
        return tuple(outputs), self.stored

    @functools.cached_property
    def made(self) -> Mapping[str, Region]:
        """The part of each value that the layers compute."""
        made: dict[str, Region] = {}
        for layer in self.layers:
            _extend(made, layer.output.value, layer.output.value_region)
        return made

    @functools.cached_property
    def regions(self) -> Mapping[str, Region]:
        """The part of each value that the layers read or compute."""
        regions: dict[str, Region] = {}
        for layer in self.layers:
            output = whole(layer.output.shape)
            for place, view in enumerate(layer.reads):
                _extend(regions, view.value, view.value_region_of(read_region(layer, place, output)))
            _extend(regions, layer.output.value, layer.output.value_region_of(output))
        return regions

    @functools.cached_property
    def lives(self) -> Mapping[str, tuple[int, int]]:
        """The first and the last layer that need each value where it does not stay from pass to pass."""
        last = {view.value: place for place, one in enumerate(self.layers) for view in (*one.reads, one.output)}
        first = {layer.output.value: place for place, layer in reversed(list(enumerate(self.layers)))}
        last.update(dict.fromkeys(self.stored & self.made.keys(), len(self.layers)))
        return {name: (first.get(name, 0), last[name]) for name in self.regions}


@dataclass(frozen=True)
class Geometry:
    """A chain cut into tiles. `tracks[name][d]` is None if value `name` does not change along cut `d`.

    `regions` are the used parts of each value. Values in `loaded` come from outside the chain; values in `stored` are
    read outside it or are outputs of the network.
    """

    layers: tuple[HardwareLayer, ...]
    cuts: tuple[Cut, ...]
    counts: tuple[int, ...]
    tracks: Mapping[str, tuple[AxisTrack | None, ...]]
    regions: Mapping[str, Region]
    loaded: tuple[str, ...]
    stored: frozenset[str]

    def tiles(self) -> Iterator[Tile]:
        """Yield the indices of the passes in the order in which they run."""
        return itertools.product(*(range(count) for count in self.counts))

    @functools.cached_property
    def _innermost(self) -> int | None:
        """The place of the cut that consecutive passes differ by; None for one pass."""
        return max((place for place, count in enumerate(self.counts) if count > 1), default=None)

    def is_resident(self, name: str) -> bool:
        """Return whether consecutive passes share the same part of a value."""
        return self._innermost is not None and self.tracks[name][self._innermost] is None

    def is_active(self, name: str, tile: Tile) -> bool:
        """Return whether a pass loads or computes some of a value; passes share parts that do not change."""
        for track, index, count in zip(reversed(self.tracks[name]), reversed(tile), reversed(self.counts), strict=True):
            if track is not None and count > 1:
                break
            if track is None and index > 0:
                return False
        return not is_empty(self.new_region(name, tile))

    def new_region(self, name: str, tile: Tile) -> Region:
        """Return the part of a value that a pass loads or computes."""
        return self._region(name, tile, "new")

    def held_region(self, name: str, tile: Tile) -> Region:
        """Return the part of a value that a pass has in its buffer."""
        return self._region(name, tile, "held")

    def _region(self, name: str, tile: Tile, part: Literal["new", "held"]) -> Region:
        region = list(self.regions[name])
        is_new = part == "new"
        for track, index in zip(self.tracks[name], tile, strict=True):
            if track is not None:
                region[track.axis] = (track.new if is_new else track.held)[index]
        return tuple(region)

    def stored_region(self, name: str, tile: Tile) -> Region:
        """Return the part of a computed value that no earlier pass has stored."""
        region = list(self.new_region(name, tile))
        for track, index in zip(self.tracks[name], tile, strict=True):
            if track is not None and track.mode == "recompute" and index:
                low, high = region[track.axis]
                region[track.axis] = (max(low, track.new[index - 1][1]), high)
        return tuple(region)

    def output_region(self, layer: HardwareLayer, tile: Tile) -> Region:
        """Return the part of a layer's output, on the axes of its view, that a pass computes."""
        region = list(layer.output.region)
        value = self.new_region(layer.output.value, tile)
        for place, track in enumerate(self.tracks[layer.output.value]):
            axis = self.output_axis(layer, place)
            if track is not None and axis is not None:
                unit, first = layer.output.axes[axis].step, layer.output.start[track.axis]
                low, high = value[track.axis]
                region[axis] = ((low - first) // unit, (high - first) // unit)
        return tuple(region)

    def output_axis(self, layer: HardwareLayer, place: int) -> int | None:
        """Return the axis of a layer's output that follows the cut with this number; None if none does."""
        track = self.tracks[layer.output.value][place]
        walked = [axis for axis, one in enumerate(layer.output.axes) if track is not None and one.base == track.axis]
        return max(walked, key=lambda axis: layer.output.axes[axis].step, default=None)

    def halos(self, name: str, tile: Tile) -> Iterator[tuple[int, Region]]:
        """Yield what a pass takes over from earlier passes: the place of the cut, and the region.

        A region covers the new part along later cuts and the held part along earlier cuts. The regions do not overlap;
        together with the new part they are the held part.
        """
        tracks = self.tracks[name]
        for place, track in enumerate(tracks):
            if track is not None:
                yield from self._slab(name, tile, place, track.halo(tile[place]))

    def kept(self, name: str, tile: Tile) -> Iterator[tuple[int, Region]]:
        """Yield what a pass keeps for later passes: the place of the cut, and the region."""
        for place, track in enumerate(self.tracks[name]):
            if track is not None and tile[place] + 1 < self.counts[place]:
                yield from self._slab(name, tile, place, track.halo(tile[place] + 1))

    def _slab(self, name: str, tile: Tile, place: int, halo: Interval) -> Iterator[tuple[int, Region]]:
        if halo[1] <= halo[0]:
            return
        region = list(self.regions[name])
        for other, (track, index) in enumerate(zip(self.tracks[name], tile, strict=True)):
            if track is not None:
                region[track.axis] = halo if other == place else (track.held if other < place else track.new)[index]
        if not is_empty(region):
            yield place, tuple(region)


def _extend(regions: dict[str, Region], name: str, region: Region) -> None:
    """Extend the region of a value to contain another one."""
    regions[name] = hull((regions[name], region)) if name in regions else region
