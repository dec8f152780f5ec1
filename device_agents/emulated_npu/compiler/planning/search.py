"""Searches the ways to run one chain, by predicted time: its cuts, its halo, and what stays on chip."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.regions import is_windowed, size_of
from device_agents.emulated_npu.compiler.options import Options, ResidencyChoice
from device_agents.emulated_npu.compiler.planning.chain import (
    MAX_PASSES,
    Chain,
    ChainPlan,
    Room,
    countless,
    element_type,
    packed_bytes,
    plan_chain,
)
from device_agents.emulated_npu.compiler.planning.chain_commands import ChainWriter, ComputeStep, Externals
from device_agents.emulated_npu.compiler.planning.cuts import Cuts, candidate_cuts, first_guess, first_that_fits
from device_agents.emulated_npu.compiler.planning.tiling import (
    DividesParts,
    Geometry,
    HaloMode,
    NotTileable,
    Tile,
    count_tiles,
    cut_chain,
)
from device_agents.emulated_npu.compiler.planning.weights import slice_outputs, uses_weight_buffer
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.unit_commands import Function, Queue

_LEAVING = (Function.STORE, Function.SEND)
_MANY_PASSES = 32
"""With fewer passes, their shape matters little."""
_RETAIN: tuple[HaloMode, ...] = ("retain",)
_RECOMPUTE: tuple[HaloMode, ...] = ("recompute",)


@dataclass(frozen=True)
class Choice:
    """A way to run some layers, as one chain or several in sequence, with its predicted time."""

    label: str
    chains: tuple[ChainPlan, ...]
    predicted_ps: int


@dataclass(frozen=True)
class ChainEstimate:
    """The predicted time of some layers as one chain, and the room that they need."""

    predicted_ps: int
    nb_bytes: int
    halo_bytes: int

    def fits(self, room: Room) -> bool:
        """Return whether the room is large enough."""
        needed_bytes = self.nb_bytes + max(self.halo_bytes, room.reserved_bytes)
        return self.halo_bytes <= room.halo_bytes and needed_bytes <= room.nb_bytes


@dataclass(frozen=True)
class _Effort:
    """The limits of a search: stages of cuts, tiles of a chain, plans per cut, cuts finer than the first that fits."""

    stages: int
    tiles: int
    plans: int
    finer: int


_QUICK = _Effort(stages=3, tiles=32, plans=1, finer=0)
_LARGE = _Effort(stages=3, tiles=4096, plans=2, finer=2)
_LARGE_MAP = 1 << 15
"""Pixels of a map for which more than a quick search pays: it is cut into many tiles, and they have much halo."""
_THOROUGH = _Effort(stages=99, tiles=MAX_PASSES, plans=99, finer=1)


class ChainSearch:
    """Searches for plans of chains on a machine."""

    def __init__(self, values: Mapping[str, Value], machine: Machine, options: Options, externals: Externals) -> None:
        self._values, self._machine, self._options, self._externals = values, machine, options, externals
        self._costs = CostModel(machine)
        self._computing: dict[object, tuple[int, int]] = {}

    def estimate(self, chain: Chain, room: Room) -> ChainEstimate:
        """Return a quick estimate of a good choice; raises as `choices`."""
        parts = self._sweep_parts(chain, room)
        found: list[ChainEstimate] = []
        if not parts or self._residency(chain.layers[0]) != "weights":
            with contextlib.nullcontext() if not parts else contextlib.suppress(DoesNotFit, NotTileable):
                found += map(self._estimated, self._coarsest(chain, room, _effort(chain)))
        if parts:
            first, last = (self._fastest(replace(chain, layers=(part,)), room)[1] for part in (parts[0], parts[-1]))
            total_ps = (len(parts) - 1) * first.predicted_ps + last.predicted_ps  # all but the last are equal
            nb_bytes, halo_bytes = max(first.nb_bytes, last.nb_bytes), max(first.halo_bytes, last.halo_bytes)
            found.append(ChainEstimate(total_ps, nb_bytes, halo_bytes))
        return min(found, key=lambda estimate: estimate.predicted_ps)

    def choices(self, chain: Chain, room: Room) -> Iterator[Choice]:
        """Yield all choices around the coarsest cut that fits; raises DoesNotFit, or NotTileable, if there is none."""
        sweeps: list[tuple[ChainPlan, ChainEstimate]] = []
        with contextlib.suppress(DoesNotFit, NotTileable):
            parts = self._sweep_parts(chain, room)
            sweeps = [self._fastest(replace(chain, layers=(part,)), room) for part in parts]
        if sweeps:
            total_ps = sum(estimate.predicted_ps for _, estimate in sweeps)
            yield Choice(f"weights resident in {len(sweeps)} sweeps", tuple(plan for plan, _ in sweeps), total_ps)
            if self._residency(chain.layers[0]) == "weights":
                return
        try:
            plans = self._coarsest(chain, room, _THOROUGH)
        except (DoesNotFit, NotTileable):
            if not sweeps:
                raise
            return
        for plan in plans:
            yield Choice(_label(plan), (plan,), self._predicted_ps(plan))

    def _residency(self, layer: HardwareLayer) -> ResidencyChoice:
        """Return what stays on chip, "auto" for whichever is faster."""
        if self._options.residency != "smaller":
            return self._options.residency
        view = layer.inputs[0]
        features = math.prod(view.shape) * element_type(self._values[view.value], self._machine).bytes
        return "features" if features < packed_bytes(layer, self._machine) else "weights"

    def _sweep_parts(self, chain: Chain, room: Room) -> tuple[HardwareLayer, ...]:
        """Return a single layer divided so that the weights of each part stay in SB; () if that is no choice."""
        layer = chain.layers[0]
        if len(chain.layers) > 1 or not uses_weight_buffer(layer) or layer.weights is None:
            return ()
        if self._residency(layer) == "features":
            return ()
        parts = slice_outputs(layer, self._machine, room.sb_bytes // 2)
        return parts if len(parts) > 1 else ()

    def _fastest(self, chain: Chain, room: Room) -> tuple[ChainPlan, ChainEstimate]:
        plans = self._coarsest(chain, room, _effort(chain))
        return min(zip(plans, map(self._estimated, plans), strict=True), key=lambda each: each[1].predicted_ps)

    def _estimated(self, plan: ChainPlan) -> ChainEstimate:
        return ChainEstimate(self._predicted_ps(plan), plan.nb_bytes, plan.halo_bytes)

    def _coarsest(self, chain: Chain, room: Room, effort: _Effort) -> list[ChainPlan]:
        """Return plans for the coarsest cuts that fit, and finer ones; raises DoesNotFit, or NotTileable."""
        problems: list[DoesNotFit] = []
        refused: DoesNotFit | None = None
        last = chain.layers[-1]
        most = effort.tiles if len(chain.layers) > 1 else MAX_PASSES
        stages = candidate_cuts(last, self._options.tile, self._values)
        for stage in itertools.islice(stages, effort.stages):
            found: list[ChainPlan] = []
            for group in stage:
                candidates = [cuts for cuts in group if count_tiles(last, cuts) <= most]
                if not candidates:
                    fewest = min((count_tiles(last, cuts) for cuts in group), default=0)
                    refused = countless(last, fewest) if fewest > MAX_PASSES else refused
                    continue
                wanted = 2 * problems[0].demand_bytes / max(1, room.nb_bytes) if problems else 1.0
                try:
                    found += self._coarsest_whole(candidates, wanted, chain, room, effort)
                except DoesNotFit as error:
                    problems.append(error)
                except NotTileable:
                    continue
                if found and found[0].passes < _MANY_PASSES:
                    break
            if found:
                return found
        if not problems and refused is not None:
            raise refused
        if not problems:
            raise NotTileable(f"{chain.layers[-1].name} cannot be cut along any axis")
        raise min(problems, key=lambda problem: problem.demand_bytes)

    def _coarsest_whole(
        self, candidates: list[Cuts], wanted: float, chain: Chain, room: Room, effort: _Effort
    ) -> list[ChainPlan]:
        """Return `_coarsest_of`, without candidates that divide what a layer of the chain writes as one part."""
        try:
            return self._coarsest_of(candidates, wanted, chain, room, effort)
        except DividesParts:
            whole = [cuts for cuts in candidates if _keeps_parts(chain, cuts)]
            if not whole:
                raise
            return self._coarsest_of(whole, wanted, chain, room, effort)

    def _coarsest_of(
        self, candidates: list[Cuts], wanted: float, chain: Chain, room: Room, effort: _Effort
    ) -> list[ChainPlan]:
        tried: dict[int, list[ChainPlan]] = {}

        def plans(place: int) -> list[ChainPlan]:
            if place not in tried:
                tried[place] = self._variants(chain, candidates[place], room, effort)
            return tried[place]

        first = first_that_fits(len(candidates), first_guess(chain.layers[-1], candidates, wanted), plans)
        found = list(plans(first))
        for place in range(first + 1, min(first + effort.finer, len(candidates) - 1) + 1):
            with contextlib.suppress(DoesNotFit):  # a finer cut may keep more halo than there is room for
                found.extend(plans(place))
        return found

    def _variants(self, chain: Chain, cuts: Cuts, room: Room, effort: _Effort) -> list[ChainPlan]:
        """Return plans of a chain cut in one way, one for each halo mode that fits; raises DoesNotFit."""
        found: list[ChainPlan] = []
        problem: DoesNotFit | None = None
        for modes in self._halo_modes(len(cuts)):
            cut = tuple(replace(item, mode=mode) for item, mode in zip(cuts, modes, strict=True))
            try:
                found.append(plan_chain(chain, self._values, cut, self._machine, room))
            except DoesNotFit as error:
                problem = error
                if error.memory == "NB" and error.demand_bytes > room.nb_bytes:  # does not fit without a halo either
                    break
                continue
            if not found[-1].slabs or len(found) == effort.plans:  # without a halo all modes are the same
                break
        if problem is not None and not found:
            raise problem
        return found

    def _halo_modes(self, cuts: int) -> Iterator[tuple[HaloMode, ...]]:
        choice = self._options.halo
        if choice == "retain-columns" and cuts:
            yield (*_RECOMPUTE * (cuts - 1), *_RETAIN)
            return
        if choice in ("auto", "retain"):
            yield _RETAIN * cuts
        if choice in ("recompute", "refetch") or (choice == "auto" and cuts):
            yield _RECOMPUTE * cuts
        if choice == "retain-columns":
            yield ()

    def _predicted_ps(self, plan: ChainPlan) -> int:
        """Return the time of a chain from the commands of representative passes.

        That is the time of the loads of the first pass, then of the busier queue, then of the last store.
        """
        writer = ChainWriter(plan, self._values, self._machine, self._externals)
        io_ps = cp_ps = fill_ps = drain_ps = 0
        for tile, count in _representatives(plan.geometry):
            filling = not any(tile)
            for step in writer.steps(tile):
                if isinstance(step, ComputeStep):
                    io, cp = self._computing_ps(plan, writer, step)
                    filling = False
                else:
                    duration = self._costs.duration_ps(step)
                    io, cp = (duration, 0) if step.queue is Queue.IO else (0, duration)
                    drain_ps = duration if step.function in _LEAVING else drain_ps
                    fill_ps += io if filling else 0
                io_ps += io * count
                cp_ps += cp * count
        return fill_ps + max(cp_ps, io_ps - fill_ps - drain_ps) + drain_ps

    def _computing_ps(self, plan: ChainPlan, writer: ChainWriter, step: ComputeStep) -> tuple[int, int]:
        """Return the time on both queues; it depends only on shapes, so that equal steps share it."""
        layer = step.layer
        weights = plan.weights.get(layer.index)
        sizes = tuple(map(size_of, step.region))
        key = (layer.index, layer.output.start, sizes, weights and (weights.resident, weights.loads))
        known = self._computing.get(key)
        if known is None:
            io_ps = cp_ps = 0
            for command in writer.compute(step):
                if command.queue is Queue.IO:
                    io_ps += self._costs.duration_ps(command)
                else:
                    cp_ps += self._costs.duration_ps(command)
            known = self._computing[key] = (io_ps, cp_ps)
        return known


def _effort(chain: Chain) -> _Effort:
    maps = (layer.output.shape[2:] for layer in chain.layers if is_windowed(layer))
    return _LARGE if any(math.prod(pixels) >= _LARGE_MAP for pixels in maps) else _QUICK


def _keeps_parts(chain: Chain, cuts: Cuts) -> bool:
    try:
        cut_chain(chain.layers, cuts, chain.stored)
    except NotTileable:
        return False
    return True


def _label(plan: ChainPlan) -> str:
    parts = [f"{plan.passes} passes" if plan.passes > 1 else "one pass"]
    if plan.slabs:
        parts.append("halo retained")
    elif plan.passes > 1 and any(cut.mode == "recompute" for cut in plan.geometry.cuts):
        parts.append("halo fetched again" if len(plan.layers) == 1 else "halo recomputed")
    if any(not weights.resident for weights in plan.weights.values()):
        parts.append("weights streamed" if plan.passes == 1 else "features resident, weights streamed")
    elif plan.weights and plan.passes > 1:
        parts.append("weights resident")
    return ", ".join(parts)


def _representatives(geometry: Geometry) -> Iterator[tuple[Tile, int]]:
    """Yield passes that differ from each other, with the number of equal passes; the first pass comes first."""
    columns = []
    for place, count in enumerate(geometry.counts):
        groups: dict[object, list[int]] = {}
        sizes = [track.sizes for tracks in geometry.tracks.values() if (track := tracks[place]) is not None]
        for tile, shape in enumerate(zip(*sizes, strict=True) if sizes else itertools.repeat((), count)):
            groups.setdefault((tile == 0, shape), []).append(tile)
        columns.append([(tiles[0], len(tiles)) for tiles in groups.values()])
    for combination in itertools.product(*columns):
        yield tuple(first for first, _ in combination), math.prod(number for _, number in combination)
