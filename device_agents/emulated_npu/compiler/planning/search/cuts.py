"""Candidate cuts of the output of a chain's last layer, from coarse to fine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.regions import can_cut, cut_axis, is_windowed, read_axis, takes_pictures
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import multiplies_computed
from device_agents.emulated_npu.compiler.planning.chains.tiling import Cut, count_tiles
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.unit_commands import Function

Cuts = tuple[Cut, ...]
_CHANNELS = 1
_FIRST_SPATIAL = 2


_Stage = tuple[list[Cuts], ...]


class CutCandidates:
    """Candidate cuts of chains; those with the same last layer share them."""

    def __init__(self, tile: tuple[int, int] | None, values: Mapping[str, Value]) -> None:
        self._tile, self._values = tile, values
        self._known: dict[object, tuple[Iterator[_Stage], list[_Stage]]] = {}

    def stages(self, layers: Sequence[HardwareLayer]) -> Iterator[_Stage]:
        """Yield what `candidate_cuts` yields."""
        key = layers[-1].index, layers[-1].output, any(map(multiplies_computed, layers))
        if key not in self._known:
            self._known[key] = candidate_cuts(layers, self._tile, self._values), []
        rest, seen = self._known[key]
        for place in itertools.count():
            if place == len(seen):
                stage = next(rest, None)
                if stage is None:
                    return
                seen.append(stage)
            yield seen[place]


def candidate_cuts(
    layers: Sequence[HardwareLayer], tile: tuple[int, int] | None, values: Mapping[str, Value]
) -> Iterator[tuple[list[Cuts], ...]]:
    """Yield stages of cuts of the last layer, one more axis in each, each with groups of cuts from coarse to fine.

    The groups of a stage are alternatives. These are rows, tiles that are about square, which have less halo, and parts
    of the channels, which have none; or parts that lie together in the output, and in the input, or along any axis if
    the layer reads a value in two places. After products of two computed tensors they are rows of one matrix after the
    other. With a forced `tile`, its height and width along the last two spatial axes are the only cut.
    """
    layer = layers[-1]
    axes = [axis for axis in _cut_axes(layer) if _is_plain(layer, axis)]
    if tile is not None and is_windowed(layer):
        last = len(layer.output.axes) - 1
        yield ([tuple(Cut(axis, size) for axis, size in zip((last - 1, last), tile, strict=True) if axis in axes)],)
        return
    if not is_windowed(layer):  # windows follow the layer before row by row, in any memory order
        order = values[layer.output.value].order
        axes.sort(key=lambda axis: order.index(layer.output.base(axis)))  # parts that lie together in memory
    yield ([()],)
    read_order = [] if is_windowed(layer) else _read_order(layer, axes, values)
    spatial = [axis for axis in axes if axis >= _FIRST_SPATIAL] if is_windowed(layer) else []
    for place, axis in enumerate(axes):
        outer = tuple(Cut(before, 1) for before in axes[:place])
        groups = [[(*outer, Cut(axis, size)) for size in _tile_sizes(layer.output.axes[axis].size)]]
        if axis in spatial[-2:-1]:
            groups.append([(*outer, *square) for square in _squares(layer, *spatial[-2:])])
        if axis in spatial[:1] and _computes_channels_alone(layer):
            channels = layer.output.axes[_CHANNELS].size
            groups.append([(*outer, Cut(_CHANNELS, size)) for size in _tile_sizes(channels)])
        for other in (axes if _reads_apart(layer) else read_order[:1]) if place == 0 else ():
            if other != axis:
                groups.append([(Cut(other, size),) for size in _tile_sizes(layer.output.axes[other].size)])
        if place == 0 and any(map(multiplies_computed, layers)):
            groups.append(_row_by_row(layer, read_order))
        yield tuple(groups)


def _row_by_row(layer: HardwareLayer, read_order: Sequence[int]) -> list[Cuts]:
    """Return cuts into parts of the rows of single matrices, from coarse to fine; none for a single matrix."""
    columns = len(layer.output.axes) - 1
    *matrices, rows = [axis for axis in read_order if axis != columns] or [columns]
    each = tuple(Cut(axis, 1) for axis in matrices)
    return [(*each, Cut(rows, size)) for size in _row_sizes(layer.output.axes[rows].size)] if matrices else []


def _squares(layer: HardwareLayer, height: int, width: int) -> Iterator[Cuts]:
    """Yield cuts along two axes into tiles that are about square, from coarse to fine."""
    sizes = [layer.output.axes[axis].size for axis in (height, width)]
    for side in _tile_sizes(max(sizes)):
        if side < min(sizes):
            yield Cut(height, side), Cut(width, side)


def tiles_per_item(layer: HardwareLayer, cuts: Cuts) -> int:
    """Return the number of tiles of one item of a batch: a picture, or a matrix."""
    items = 1 if is_windowed(layer) else len(layer.output.axes) - 2
    inner = [cut for place, cut in enumerate(cuts) if cut.axis >= items or place == len(cuts) - 1]
    return count_tiles(layer, inner)


def _cut_axes(layer: HardwareLayer) -> list[int]:
    """Return the axes of the output that can be cut, the outermost first."""
    shape = layer.output.shape
    if not shape:
        return []
    if takes_pictures(layer):
        axes = [0, *range(2, len(shape))]
        if layer.function in (Function.POOL_MAX, Function.POOL_AVERAGE):
            axes.append(1)
    else:
        axes = list(range(len(shape) - 1))
        if layer.function not in (Function.CONVOLVE, Function.GATHER):
            axes.append(len(shape) - 1)
    return [axis for axis in axes if shape[axis] > 1 and can_cut(layer, axis)]


def _reads_apart(layer: HardwareLayer) -> bool:
    """Return whether a layer without a window reads a value in two places: a tile holds all that lies between."""
    places = {(view.value, view.start) for view in layer.reads}
    return not layer.function.rule.has_window and len({value for value, _ in places}) < len(places)


def _computes_channels_alone(layer: HardwareLayer) -> bool:
    """Return whether each channel of a map needs only one channel of the input: parts of channels have no halo."""
    return layer.function is not Function.CONVOLVE and can_cut(layer, _CHANNELS) and _is_plain(layer, _CHANNELS)


def _read_order(layer: HardwareLayer, axes: Sequence[int], values: Mapping[str, Value]) -> list[int]:
    """Return the axes along which the layer follows what it reads first, in the order of its memory."""
    if not layer.reads:
        return []
    view = layer.reads[0]
    order = values[view.value].order
    found: dict[tuple[int, int], int] = {}
    for axis in axes:
        target = read_axis(layer, 0, axis)
        walked = None if target is None else view.axes[target]
        if walked is not None and walked.base is not None:
            found[order.index(walked.base), -abs(walked.step)] = axis
    return [found[place] for place in sorted(found)]


def _is_plain(layer: HardwareLayer, axis: int) -> bool:
    """Return whether an axis of the output is an axis of the value, or an interval of one."""
    base = layer.output.axes[axis].base
    found = None if base is None else cut_axis(layer.output, base)
    return found is not None and found[0] == axis


def _tile_sizes(size: int) -> list[int]:
    """Return tile sizes for about 2, 3, 4, 6, 8, 12, … tiles."""
    sizes: list[int] = []
    for count in sorted({*(1 << power for power in range(1, 14)), *(3 << power for power in range(13))}):
        tile = ceil_div(size, count)
        if tile < (sizes[-1] if sizes else size):
            sizes.append(tile)
        if tile == 1:
            break
    return sizes


def _row_sizes(size: int) -> list[int]:
    """Return tile sizes for four numbers of tiles between each power of two and the next.

    Second factors that do not stay in SB are fetched for every tile, so that a few tiles more take longer.
    """
    counts = (round(2 ** (step / 4)) for step in range(4, 53))
    return sorted({ceil_div(size, count) for count in counts} - {size}, reverse=True)


def first_guess(layer: HardwareLayer, candidates: Sequence[Cuts], wanted_tiles: float) -> int:
    """Return the place of the first cut into about that many tiles; candidates go from coarse to fine."""
    for place, cuts in enumerate(candidates):
        items = math.prod(layer.output.axes[cut.axis].size for cut in cuts[:-1] if cut.size == 1)
        if not cuts or items * layer.output.axes[cuts[-1].axis].size >= wanted_tiles * cuts[-1].size:
            return place
    return len(candidates) - 1


def first_that_fits(count: int, guess: int, attempt: Callable[[int], object]) -> int:
    """Return the first candidate for which `attempt` does not raise DoesNotFit; without one, raise that of the last.

    If a candidate fits, all later ones fit, because they are finer. The search starts from `guess`, takes steps that
    double, and bisects the last one: fine cuts take longest to try.
    """
    place, step = guess, 1
    if _fits(place, attempt):
        while place > 0 and _fits(place - 1, attempt):
            place -= 1
        return place
    too_coarse = place
    while not _fits(place, attempt):
        if place == count - 1:
            attempt(place)
        too_coarse, place, step = place, min(place + step, count - 1), 2 * step
    while place - too_coarse > 1:
        middle = (too_coarse + place) // 2
        if _fits(middle, attempt):
            place = middle
        else:
            too_coarse = middle
    return place


def _fits(place: int, attempt: Callable[[int], object]) -> bool:
    try:
        attempt(place)
    except DoesNotFit:
        return False
    return True
