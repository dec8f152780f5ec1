"""The geometry of a chain: the part of every value that each pass loads, computes and keeps (S3.2, S3.3).

The output of the chain's last layer is cut into tiles along some axes. A pass computes one tile; the last axis varies
fastest. Along each axis the parts are derived from the last layer back to the first, independently of other axes:

- `retain`: every element is computed or loaded once. A pass adds the new part `[end of the pass before, end)`; the part
  that the next pass needs again is the halo.
- `recompute`: a pass computes or loads all that it needs, including the halo.
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
    axis_reader,
    can_cut,
    cut_axis,
    hull,
    is_empty,
    read_axis,
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


class NotTileable(Exception):
    """The layers cannot be cut together along that axis."""


class DividesParts(NotTileable):
    """The layers can be cut along that axis, but not into tiles of that size."""


Tile = tuple[int, ...]


def count_tiles(layer: HardwareLayer, cuts: Sequence[Cut]) -> int:
    """Return the number of tiles into which cuts divide a layer's output."""
    return math.prod(_counts(layer, cuts))


def _counts(layer: HardwareLayer, cuts: Sequence[Cut]) -> tuple[int, ...]:
    return tuple(ceil_div(layer.output.axes[cut.axis].size, cut.size) for cut in cuts)


@dataclass(frozen=True)
class Chain:
    """Layers to run as one chain; `stored` are the values that they store off chip."""

    layers: tuple[HardwareLayer, ...]
    stored: frozenset[str]

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

    def is_resident(self, name: str) -> bool:
        """Return whether consecutive passes share the same part of a value."""
        for track, count in zip(reversed(self.tracks[name]), reversed(self.counts), strict=True):
            if count > 1:
                return track is None
        return False

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
        region = list(self.regions[name])
        for other, (track, index) in enumerate(zip(self.tracks[name], tile, strict=True)):
            if track is not None:
                region[track.axis] = halo if other == place else (track.held if other < place else track.new)[index]
        if not is_empty(region):
            yield place, tuple(region)


def cut_chain(chain: Chain, cuts: Sequence[Cut]) -> Geometry:
    """Cut a chain. Raises NotTileable."""
    return _Cutter(chain, tuple(cuts)).run()


class _Cutter:
    def __init__(self, chain: Chain, cuts: tuple[Cut, ...]) -> None:
        self._layers, self._cuts, self._stored = chain.layers, cuts, chain.stored
        self._made, self._regions = chain.made, chain.regions
        self._counts = _counts(chain.layers[-1], cuts)

    def run(self) -> Geometry:
        columns = [self._along(cut, count) for cut, count in zip(self._cuts, self._counts, strict=True)]
        tracks = {name: tuple(column.get(name) for column in columns) for name in self._regions}
        for name, found in tracks.items():
            axes = [track.axis for track in found if track is not None]
            if len(set(axes)) < len(axes):
                raise NotTileable(f"two cuts divide the same axis of {name}")
        loaded = tuple(name for name in self._regions if name not in self._made)
        stored = self._stored & frozenset(self._made)
        return Geometry(self._layers, self._cuts, self._counts, tracks, self._regions, loaded, stored)

    def _along(self, cut: Cut, count: int) -> dict[str, AxisTrack]:
        """Return the tracks of the values that change along one cut, from the last layer back."""
        if count == 1:
            return {}
        last = self._layers[-1].output
        size, unit, base = last.axes[cut.axis].size, last.axes[cut.axis].step, last.base(cut.axis)
        axes: dict[str, int | None] = {last.value: base}
        start = last.start[base]
        tiles = [(first, min(first + cut.size, size)) for first in range(0, size, cut.size)]
        needs = {last.value: [(start + unit * low, start + unit * high) for low, high in tiles]}
        computed: dict[str, AxisTrack | None] = {}
        for layer in reversed(self._layers):
            name = layer.output.value
            if name not in computed:
                computed[name] = self._finish(name, axes, needs, cut)
            self._propagate(layer, computed, axes, needs, count)
        tracks = {name: track for name, track in computed.items() if track is not None}
        for name in axes.keys() - self._made.keys():
            axis = axes[name]
            if axis is not None:
                tracks[name] = _track(axis, cut.mode, needs[name], None)
        return tracks

    def _finish(
        self, name: str, axes: dict[str, int | None], needs: dict[str, list[Interval]], cut: Cut
    ) -> AxisTrack | None:
        axis = axes.get(name)
        if axis is None:
            if name in axes:
                return None
            # No layer of the chain reads it, so that the cut does not determine its parts.
            raise NotTileable(f"{name} is not part of what the chain's last layer needs")
        return _track(axis, cut.mode, needs[name], self._made[name][axis] if name in self._stored else None)

    def _propagate(
        self,
        layer: HardwareLayer,
        computed: Mapping[str, AxisTrack | None],
        axes: dict[str, int | None],
        needs: dict[str, list[Interval]],
        count: int,
    ) -> None:
        """Add what a layer reads, tile by tile, to the needs of its inputs; tracks in `computed` are final."""
        track = computed[layer.output.value]
        axis, unit, first = None, 1, 0
        if track is not None:
            found = cut_axis(layer.output, track.axis)
            own = layer.output.value_region[track.axis]
            if found is None or own != self._made[layer.output.value][track.axis]:
                raise NotTileable(f"{layer.name} writes part of an axis that is cut")
            axis, unit = found
            first = own[0]
            if any((end - first) % unit for interval in track.new for end in interval):
                raise DividesParts(f"{layer.name} writes parts that the cut divides")
            if not can_cut(layer, axis):
                raise NotTileable(f"{layer.name} works along the axis that is cut")
        for place, view in enumerate(layer.reads):
            target = None if axis is None else read_axis(layer, place, axis)
            base = None if target is None else view.axes[target].base
            if view.value in axes and axes[view.value] != base:
                if view.value in self._made:
                    raise NotTileable(f"the readers of {view.value} need different parts of it")
                base = None
            axes[view.value] = base
            if base is None or track is None or target is None or axis is None:
                continue
            have = needs.setdefault(view.value, [EMPTY] * count)
            known = computed.get(view.value)
            reader = axis_reader(layer, place, axis, target)
            for tile, (low, high) in enumerate(track.new):
                needed = reader(((low - first) // unit, (high - first) // unit))
                have[tile] = union(have[tile], needed)
                # The layer reads between two writers of the value, whose parts are final.
                if known is not None and union(known.held[tile], needed) != known.held[tile]:
                    raise NotTileable(f"{layer.name} needs more of {view.value} than later layers")


def _extend(regions: dict[str, Region], name: str, region: Region) -> None:
    """Extend the region of a value to contain another one."""
    regions[name] = hull((regions[name], region)) if name in regions else region


def _track(axis: int, mode: HaloMode, needs: Sequence[Interval], complete: Interval | None) -> AxisTrack:
    """Return the track for the needed parts; `complete` is the part of the axis that must be computed in any case."""
    if mode == "recompute":
        return _recomputed(axis, needs, complete)
    first = min((low for low, high in needs if low < high), default=0)
    end = first if complete is None else complete[0]
    new: list[Interval] = []
    held: list[Interval] = []
    for tile, low in enumerate(_needed_later(needs)):
        begin = end if complete is not None or low is None or low < end else low
        stop = needs[tile][1]
        end = begin if stop < begin else stop
        if complete is not None and tile == len(needs) - 1:
            end = complete[1]
        new.append((begin, end))
        held.append((begin if low is None or begin < low else low, end))
    return AxisTrack(axis, "retain", tuple(new), tuple(held))


def _needed_later(needs: Sequence[Interval]) -> list[int | None]:
    """Return for every tile the lowest index that it or a later tile needs; None if none needs anything."""
    lowest: list[int | None] = [None] * len(needs)
    low: int | None = None
    for tile in range(len(needs) - 1, -1, -1):
        first, stop = needs[tile]
        if first < stop:
            low = first if low is None or first < low else low
        lowest[tile] = low
    return lowest


def _recomputed(axis: int, needs: Sequence[Interval], complete: Interval | None) -> AxisTrack:
    if complete is None:
        return AxisTrack(axis, "recompute", tuple(needs), tuple(needs))
    parts: list[Interval] = []
    end = complete[0]
    for tile, (low, high) in enumerate(needs):
        stop = complete[1] if tile == len(needs) - 1 else max(high, end)
        parts.append((min(low, end) if low < high else end, stop))
        end = stop
    return AxisTrack(axis, "recompute", tuple(parts), tuple(parts))
