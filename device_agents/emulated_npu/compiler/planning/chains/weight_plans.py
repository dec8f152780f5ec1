"""How the second operands of a chain reach SB: which stay there, and which are fetched in every pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import aligned, aligned_down
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import (
    WeightLoad,
    cut_weights,
    gather_loads,
    packed_bytes,
    round_bytes,
    uses_weight_buffer,
)
from device_agents.emulated_npu.compiler.planning.chains.layer_commands import factor_axes
from device_agents.emulated_npu.compiler.planning.chains.tiling import Geometry
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine

_FACTOR_BYTES = 32 << 10
"""Small second factors of products are fetched together, in loads of up to about this size."""

_WAIT_SHARE = 0.25
"""How much of the wait for the first load of streamed weights counts: most of it arrives while other chains compute."""

_MOST_OF_SB = 0.9
"""Share of SB that weights of one pass may take: those that are fetched once need no more, and neighbours need room."""

_SLOTS = 8
"""Number of loads that SB holds at the same time, so that they arrive while other layers compute."""


@dataclass(frozen=True)
class WeightPlan:
    """How the second operand of a layer reaches SB.

    Resident weights lie at `addresses[0]` and are fetched in the first pass. Resident second factors of a product are
    fetched when a pass needs others than the pass before it, into `addresses` in turn. Other weights and factors are
    fetched in every pass, load after load, into `addresses` in turn. `together` is the number of second factors of a
    product per load.
    """

    resident: bool
    loads: tuple[WeightLoad, ...]
    addresses: tuple[int, ...]
    together: int = 1


@dataclass(frozen=True)
class _HeldFactors:
    """Second factors that consecutive passes share: `count` matrices at most, those of the innermost axis `together`.

    `changes` is whether later passes need others.
    """

    block: WeightLoad
    count: int
    together: int
    changes: bool

    @property
    def bytes(self) -> int:
        """The size of all matrices of a pass."""
        return aligned(self.count * self.block.bytes)


def plan_weights(geometry: Geometry, machine: Machine, sb_bytes: int) -> tuple[dict[int, WeightPlan], int]:
    """Return the plans of all second operands by layer, and the bytes of SB that they need; raises DoesNotFit."""
    layers = [layer for layer in geometry.layers if uses_weight_buffer(layer)]
    fixed = {layer.index: packed_bytes(layer, machine) for layer in layers if layer.weights is not None}
    held = _held_factors(geometry, layers, machine, sb_bytes)
    return _Buffer(layers, fixed, held, machine, sb_bytes).plans(math.prod(geometry.counts))


class _Buffer:
    """Divides SB between the second operands of a chain; `fixed` has the bytes of constant weights by layer."""

    def __init__(
        self,
        layers: Sequence[HardwareLayer],
        fixed: Mapping[int, int],
        held: Mapping[int, _HeldFactors],
        machine: Machine,
        sb_bytes: int,
    ) -> None:
        self._layers, self._fixed, self._held, self._machine, self._sb_bytes = layers, fixed, held, machine, sb_bytes
        self._sizes = {**fixed, **{index: one.bytes for index, one in held.items()}}

    def plans(self, passes: int) -> tuple[dict[int, WeightPlan], int]:
        """Return the plans by layer, and the bytes that they need."""
        streamed, share = self._streamed(passes)
        plans, top = self._resident([layer for layer in self._layers if layer.index not in streamed], passes)
        moving = [layer for layer in self._layers if layer.index in streamed]
        slot_bytes = self._slot_bytes(moving, passes, share // 2)
        try:
            slots = {layer.index: self._loads(layer, slot_bytes) for layer in moving}
        except DoesNotFit:  # use all of SB, at the cost that neighbouring chains cannot fetch ahead
            slot_bytes = aligned_down((self._sb_bytes - top) // 2)
            slots = {layer.index: self._loads(layer, slot_bytes) for layer in moving}
        most_bytes = min(_FACTOR_BYTES, aligned_down((self._sb_bytes - top) // 2))
        together = {layer.index: _together(layer, slots[layer.index], most_bytes) for layer in moving}
        most = {index: max(load.bytes for load in parts) * together[index] for index, parts in slots.items()}
        largest = aligned(max(most.values(), default=0))
        number = max(2, min(_SLOTS, share // largest)) if largest else 2
        addresses = tuple(top + place * largest for place in range(number))
        plans.update({index: WeightPlan(False, parts, addresses, together[index]) for index, parts in slots.items()})
        return plans, top + number * largest

    def _slot_bytes(self, moving: Sequence[HardwareLayer], passes: int, most_bytes: int) -> int:
        """Return the bytes of a load of streamed weights, at most `most_bytes`, and a round of columns if possible."""
        sizes = [self._fixed.get(layer.index, 0) for layer in moving]
        rounds = [round_bytes(layer, self._machine) for layer in moving if layer.weights is not None]
        least_bytes = self._least_bytes(sum(sizes), passes, passes)
        return aligned_down(min(most_bytes, max(least_bytes, *rounds))) if rounds else aligned_down(most_bytes)

    def _least_bytes(self, fetched_bytes: int, fetches: int, passes: int) -> int:
        """Return the bytes of a load for which weights that are fetched this often take the shortest time.

        Every load has the latency of the memory, and a block the start-up of the matrix unit in each pass; units wait
        for the first load. So a larger SB holds more loads, not larger ones. For what arrives within a cycle, no unit
        waits.
        """
        machine = self._machine
        in_a_cycle = int(machine.ddr.bytes_per_s / machine.clock_hz)
        each_s = fetches * machine.ddr.latency_ns * 1e-9 + passes * machine.mfu.startup_cycles / machine.clock_hz
        waited = math.isqrt(round(fetched_bytes * each_s * machine.ddr.bytes_per_s / _WAIT_SHARE))
        return max(in_a_cycle, waited)

    def _streamed(self, passes: int) -> tuple[set[int], int]:
        """Return the layers whose second operands are fetched in every pass, and the bytes for their loads."""
        streamed = {layer.index for layer in self._layers if layer.index not in self._sizes}
        needed = sum(map(aligned, self._sizes.values()))
        most = self._sb_bytes if passes > 1 or self._held else int(_MOST_OF_SB * self._sb_bytes)
        if not streamed and needed <= most:
            return streamed, self._sb_bytes
        share = self._sb_bytes // 2
        room = self._sb_bytes - 2 * (share // 2)
        for index, size in sorted(self._sizes.items(), key=lambda item: -item[1]):
            if passes > 1 and aligned(size) <= room:
                room -= aligned(size)
            else:
                streamed.add(index)
        return streamed, share

    def _resident(self, layers: Sequence[HardwareLayer], passes: int) -> tuple[dict[int, WeightPlan], int]:
        """Return the plans of operands that stay, and where they end.

        Factors that change have two places if there is room: the next ones arrive while the present ones are in use.
        """
        changing = [self._held[one.index].bytes for one in layers if one.index in self._held]
        needed = sum(aligned(self._sizes[layer.index]) for layer in layers)
        turns = 2 if needed + sum(changing) <= self._sb_bytes // (1 if len(layers) == len(self._layers) else 2) else 1
        plans: dict[int, WeightPlan] = {}
        top = 0
        for layer in layers:
            held = self._held.get(layer.index)
            if held is None:
                loads = self._resident_loads(layer, passes)
                plans[layer.index] = WeightPlan(True, loads, (top,))
                top += aligned(self._sizes[layer.index])
                continue
            places = turns if held.changes else 1
            addresses = tuple(top + place * held.bytes for place in range(places))
            plans[layer.index] = WeightPlan(True, (held.block,), addresses, held.together)
            top += places * held.bytes
        return plans, top

    def _resident_loads(self, layer: HardwareLayer, passes: int) -> tuple[WeightLoad, ...]:
        """Return the loads of weights that stay: units start when the first of them is there."""
        load_bytes = self._least_bytes(self._sizes[layer.index], 1, passes)
        least_bytes = max(load_bytes, round_bytes(layer, self._machine))
        return gather_loads(cut_weights(layer, self._machine, min(self._sb_bytes, least_bytes)), load_bytes)

    def _loads(self, layer: HardwareLayer, slot_bytes: int) -> tuple[WeightLoad, ...]:
        """Return loads that fit a slot; the second factor of a product is loaded block by block."""
        return gather_loads(cut_weights(layer, self._machine, slot_bytes), slot_bytes if layer.weights else 0)


def _held_factors(
    geometry: Geometry, layers: Sequence[HardwareLayer], machine: Machine, sb_bytes: int
) -> dict[int, _HeldFactors]:
    """Return the second factors, by layer, that consecutive passes share and that fit in one block each."""
    found = {}
    for layer in layers:
        if layer.weights is not None or not _is_shared(geometry, layer):
            continue
        try:
            blocks = cut_weights(layer, machine, sb_bytes)
        except DoesNotFit:
            continue
        if len(blocks) == 1:
            counts = _factor_counts(geometry, layer)
            changes = math.prod(counts) < math.prod(layer.inputs[1].axes[axis].size for axis in _axes(layer))
            together = counts[-1] if counts else 1
            found[layer.index] = _HeldFactors(WeightLoad(blocks), math.prod(counts), together, changes)
    return found


def _axes(layer: HardwareLayer) -> tuple[int, ...]:
    return factor_axes(layer.inputs[1])


def _is_shared(geometry: Geometry, layer: HardwareLayer) -> bool:
    """Return whether consecutive passes compute different parts of a product with the same second factors."""
    for place in reversed(range(len(geometry.counts))):
        if geometry.counts[place] > 1:
            axis = geometry.output_axis(layer, place)
            return axis is not None and axis not in _axes(layer)
    return False


def _factor_counts(geometry: Geometry, layer: HardwareLayer) -> list[int]:
    """Return the maximum number of indices along each batch axis of the second factor that a pass needs."""
    counts = {axis: layer.output.axes[axis].size for axis in _axes(layer)}
    for place, track in enumerate(geometry.tracks[layer.output.value]):
        axis = geometry.output_axis(layer, place)
        if track is not None and axis in counts:
            counts[axis] = track.most[0] // layer.output.axes[axis].step
    return list(counts.values())


def _together(layer: HardwareLayer, loads: Sequence[WeightLoad], most_bytes: int) -> int:
    """Return how many second factors of a product are fetched per load, to make it worth its latency."""
    if layer.weights is not None or len(loads) > 1 or loads[0].blocks[0].vector_bytes:
        return 1
    axes = _axes(layer)
    return max(1, min(layer.inputs[1].axes[axes[-1]].size, most_bytes // loads[0].bytes)) if axes else 1
