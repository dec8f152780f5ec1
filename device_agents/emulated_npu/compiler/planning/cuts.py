"""Candidate cuts of the output of a chain's last layer, from coarse to fine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.regions import can_cut, cut_axis, is_windowed
from device_agents.emulated_npu.compiler.planning.tiling import Cut
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.unit_commands import Function

Cuts = tuple[Cut, ...]


def candidate_cuts(
    layer: HardwareLayer, tile: tuple[int, int] | None, values: Mapping[str, Value]
) -> Iterator[list[Cuts]]:
    """Yield groups of cuts, one more axis in each group, from coarse to fine; with a forced `tile`, only that cut.

    The forced tile is the height and width along the last two spatial axes.
    """
    axes = [axis for axis in _cut_axes(layer) if _is_plain(layer, axis)]
    if tile is not None and is_windowed(layer):
        last = len(layer.output.axes) - 1
        yield [tuple(Cut(axis, size) for axis, size in zip((last - 1, last), tile, strict=True) if axis in axes)]
        return
    if not is_windowed(layer):  # windows follow the layer before row by row, in any memory order
        order = values[layer.output.value].order
        axes.sort(key=lambda axis: order.index(layer.output.base(axis)))  # parts that lie together in memory
    yield [()]
    for place, axis in enumerate(axes):
        outer = tuple(Cut(before, 1) for before in axes[:place])
        yield [(*outer, Cut(axis, size)) for size in _tile_sizes(layer.output.axes[axis].size)]


def _cut_axes(layer: HardwareLayer) -> list[int]:
    """Return the axes of the output that can be cut, the outermost first."""
    shape = layer.output.shape
    if not shape:
        return []
    if is_windowed(layer) or layer.function is Function.LRN:
        axes = [0, *range(2, len(shape))]
        if layer.function in (Function.POOL_MAX, Function.POOL_AVERAGE):
            axes.append(1)
    else:
        axes = list(range(len(shape) - 1))
        if layer.function not in (Function.CONVOLVE, Function.GATHER):
            axes.append(len(shape) - 1)
    return [axis for axis in axes if shape[axis] > 1 and can_cut(layer, axis)]


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


def first_guess(layer: HardwareLayer, candidates: Sequence[Cuts], wanted_tiles: float) -> int:
    """Return the place of the first cut into about that many tiles; candidates go from coarse to fine."""
    for place, cuts in enumerate(candidates):
        if not cuts or layer.output.axes[cuts[-1].axis].size >= wanted_tiles * cuts[-1].size:
            return place
    return len(candidates) - 1


def first_that_fits(count: int, guess: int, attempt: Callable[[int], object]) -> int:
    """Return the first candidate for which `attempt` does not raise DoesNotFit; without one, raise that of the last.

    If a candidate fits, all later ones fit, because they are finer. The search starts from `guess`.
    """
    place = guess
    if not _fits(place, attempt):
        attempt(count - 1)
        while not _fits(place, attempt):
            place += 1
    while place > 0 and place <= guess and _fits(place - 1, attempt):
        place -= 1
    return place


def _fits(place: int, attempt: Callable[[int], object]) -> bool:
    try:
        attempt(place)
    except DoesNotFit:
        return False
    return True
