"""Cuts a chain into tiles: the parts of all values that each pass needs, from the last layer back to the first.

Along each axis the parts are derived independently of other axes:

- `retain`: every element is computed or loaded once. A pass adds the new part `[end of the pass before, end)`; the part
  that the next pass needs again is the halo.
- `recompute`: a pass computes or loads all that it needs, including the halo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.regions import (
    EMPTY,
    Interval,
    axis_reader,
    can_cut,
    cut_axis,
    read_axis,
    union,
)
from device_agents.emulated_npu.compiler.planning.chains.tiling import (
    AxisTrack,
    Chain,
    Cut,
    Geometry,
    HaloMode,
    tile_counts,
)


class NotTileable(Exception):
    """The layers cannot be cut together along that axis."""


class DividesParts(NotTileable):
    """The layers can be cut along that axis, but not into tiles of that size."""


def cut_chain(chain: Chain, cuts: Sequence[Cut]) -> Geometry:
    """Cut a chain. Raises NotTileable."""
    return _Cutter(chain, tuple(cuts)).run()


class _Cutter:
    def __init__(self, chain: Chain, cuts: tuple[Cut, ...]) -> None:
        self._layers, self._cuts, self._stored = chain.layers, cuts, chain.stored
        self._made, self._regions = chain.made, chain.regions
        self._counts = tile_counts(chain.layers[-1], cuts)

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
                    raise NotTileable(f"{layer.name} needs more of {view.value} than the layers after it")


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
