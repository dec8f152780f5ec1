"""Overlay the output of a chain on its input if the stores stay behind the loads.

A chain that reads a value for the last time and writes another one part by part frees the parts of the first as it
loads them. The second may overlay the first if it begins so far before it that no store reaches data that a later pass
loads. Both queues keep such loads and stores in order, because they access the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.regions import Region, is_empty
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan, element_type
from device_agents.emulated_npu.compiler.planning.chains.tiling import Tile
from device_agents.emulated_npu.compiler.planning.memory_places import dense_strides
from device_agents.emulated_npu.machine import Machine

Trails = Mapping[tuple[str, str], int]
"""By the names of a value and of the one over it: how many bytes the second must begin before the first, or more."""

_RegionOf = Callable[[str, Tile], Region]

_MOST_PASSES = 256
_FAR = 1 << 62


def trails(
    plans: Sequence[ChainPlan], lives: Sequence[Lifetime], values: Mapping[str, Value], machine: Machine, room: int
) -> Trails:
    """Return the pairs of values of which one may lie over the other, where the values of a chain exceed `room` bytes.

    `lives` are in chains of one core, which run in the order of `plans`.
    """
    found: dict[tuple[str, str], int] = {}
    for place, plan in enumerate(plans):
        living = [life for life in lives if life.first <= place <= life.last]
        if plan.passes > _MOST_PASSES or sum(aligned(life.bytes) for life in living) <= room:
            continue
        ending = [life for life in living if life.last == place and life.name in plan.buffers]
        written = {whole_value(name): name for name in plan.geometry.stored}
        starting = [life for life in living if life.first == place and life.name in written]
        for read, over in itertools.product(ending, starting):
            if read.name not in written:
                distance = _distance(plan, read.name, written[over.name], values, machine)
                if distance < over.bytes:
                    found[read.name, over.name] = aligned(distance)
    return found


def _distance(plan: ChainPlan, read: str, stored: str, values: Mapping[str, Value], machine: Machine) -> int:
    """Return how far before one value another must begin, so that no store reaches what is loaded after it."""
    loads = list(_spans(plan, read, values[read], machine, plan.geometry.new_region))
    stores = list(_spans(plan, stored, values[whole_value(stored)], machine, plan.geometry.stored_region))
    first_reader = min(place for place, layer in enumerate(plan.layers) if read in (view.value for view in layer.reads))
    first_writer = min(place for place, layer in enumerate(plan.layers) if layer.output.value == stored)
    distance = 0
    later = _FAR
    for load, store in zip(reversed(loads), reversed(stores), strict=True):
        if first_reader > first_writer:
            later = min(later, load[0])
        distance = max(distance, store[1] - later)
        later = min(later, load[0])
    return distance


def _spans(
    plan: ChainPlan, name: str, value: Value, machine: Machine, region_of: _RegionOf
) -> Iterator[tuple[int, int]]:
    """Yield first byte and one past the last that each pass moves of a value, (_FAR, 0) for none."""
    item = element_type(value, machine).bytes
    strides = dense_strides(value.shape, value.order, item)
    for tile in plan.geometry.tiles():
        region = region_of(name, tile)
        if is_empty(region) or not plan.geometry.is_active(name, tile):
            yield _FAR, 0
            continue
        low = sum(start * stride for (start, _), stride in zip(region, strides, strict=True))
        yield low, item + sum((stop - 1) * stride for (_, stop), stride in zip(region, strides, strict=True))
