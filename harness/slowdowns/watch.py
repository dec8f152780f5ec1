"""The watch campaign: the probes that show best whether a layer became slower, run often enough to show it.

A profile measures every probe a dozen times, which tells a latency to a percent or so of the *probe*. What changes by
two percent is a layer of it. So each layer that takes a noticeable part of a network is watched by a probe of its own:
within its context, or several copies of it behind each other, whichever needs least time on the device. A layer that
takes far more alone is watched alone, too: it reads and writes other memories there, and whether the network, whose
memories are full, is like the one or the other nobody tells.

Beside them stand the null probes that are subtracted from these, others of varied sizes, and the whole networks. All
are visited in rounds of random order; what needs more runs is loaded several times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.measure.policy import RepeatPolicy
from harness.network.network import Network
from harness.probe.batches import MAX_BATCH_LOADS, MAX_BATCH_WEIGHT_BYTES, Batch, Visits, probe_of
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Sample
from harness.slowdowns.estimates import Estimates, estimate_profile, place_of
from harness.slowdowns.overheads import varied_nulls
from harness.slowdowns.power import LEVEL, runs_needed, smallest_change_s
from harness.slowdowns.series import WatchingProbe, WatchSeries, layer_subject, watching_probes
from harness.slowdowns.subjects import Detectable

SHOWN = 0.02
"""The change of a layer for which runs are planned."""
SHARE = 0.01
"""Part of a network's latency, all places of a layer together, from which on it is watched."""
_MARGIN = 0.6
"""Layers are watched from this part of SHARE on: a dozen runs tell a latency no better."""
ROUNDS = 24
"""Rounds of a watch campaign: random moments of it that every probe is visited at."""
_FEWEST_A_VISIT, _MOST_A_VISIT = 2, 8
_MOST_COPIES = 12
_MOST_RUNS = ROUNDS * _MOST_A_VISIT * _MOST_COPIES
_WORTH = 2.0
"""What is extra is watched where it needs so many times the most runs at most: then these show nearly as much."""
_NULLS = 9
_COMMON_RUNS = 8
"""Runs of all probes together, as a multiple of those of the probe that is run most."""
_HALF = 0.5
_TRIES = 8
DEFAULT_BUDGET_S = 120.0


@dataclass(frozen=True)
class WatchPlan:
    """A watch campaign: its probes, how often they are visited, about how long it takes on the device, what it shows.

    `detectable` is by the spreads of the profile, for a device whose nights differ in little else.
    """

    plan: ProbePlan
    policy: RepeatPolicy
    device_s: float
    detectable: tuple[Detectable, ...]


@dataclass(frozen=True)
class _Due:
    """A layer to be watched by one of some probes, and what it takes there; what is extra must fit into the budget."""

    layer: LayerProbes
    options: Sequence[WatchingProbe]
    latency_s: float
    is_extra: bool


@dataclass(frozen=True)
class _Choice:
    """A layer with a probe that watches it and the null probe beside that; `runs` are those that a night needs."""

    layer: LayerProbes
    is_extra: bool
    probe: str
    baseline: str
    copies: int
    latency_s: float
    spread_s: float
    run_s: float
    runs: float


def plan_watch(
    plan: ProbePlan,
    networks: Sequence[Network],
    profiled: Mapping[str, Sequence[Sample]],
    clock: str,
    *,
    before: WatchSeries | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    level: float = LEVEL,
) -> WatchPlan | None:
    """The watch campaign that follows a profile campaign of these networks; None where there is nothing to watch.

    `profiled` are the profile's samples by probe. Layers that `before` watched stay watched by the same probe, so that
    nights can be compared. What `budget_s` of time on the device does not allow for gets fewer runs, the dearest first.
    `level` is the probability of a false alarm with which the nights will be compared.
    """
    known = estimate_profile(plan, profiled, clock)
    wholes = [(network_probe(network), network) for network in networks]
    visits: Visits = "cold" if clock == "device" else "warm"
    cost = 2.0 if visits == "warm" else 1.0  # an untimed run before each visit's timed ones, at most
    held = {one.probe for one in before.layers} if before else set()
    choices = _fitting(_choices(known, wholes, held, level), held, known, _HALF * budget_s / cost)
    if not choices:
        return None
    subjects = len(choices) + len(wholes) + 1
    chosen = [plan.probes[probe] for one in choices for probe in (one.baseline, one.probe)]
    largest_bytes = max(probe.terms.input_bytes for probe in (*chosen, *(whole for whole, _ in wholes)))
    nulls = [plan.probes[name] for name in varied_nulls(plan, largest_bytes, _NULLS) if name in known.measured]
    probes = {probe.id: probe for probe in (*chosen, *nulls, *(whole for whole, _ in wholes))}
    run_s = {probe: one.latency_s for probe, one in known.measured.items()}
    run_s.update((whole.id, known.network_s(network, whole)) for whole, network in wholes)
    round_s = ROUNDS * sum(run_s[probe] for probe in probes)
    a_visit = _runs_a_visit(choices, _HALF * budget_s / (cost * round_s))
    base = ROUNDS * a_visit
    left_s = budget_s - cost * a_visit * round_s
    for _ in range(_TRIES):  # null probes that are loaded more often, and once more in each batch, take time as well
        copies = _affordable(choices, base, left_s / cost)
        copies.update(_of_nulls([probe.id for probe in nulls], copies, len(probes)))
        batches = _batches([(probe, copies.get(probe.id, 1)) for probe in probes.values()], nulls, visits, a_visit)
        device_s = cost * base * sum(run_s[probe_of(load)] for batch in batches for load in batch.loads)
        if device_s <= budget_s or max(copies.values()) == 1:
            break
        left_s -= device_s - budget_s
    reference = plan.probes[plan.reference]
    watching: dict[LayerProbes, set[str]] = {}
    for one in choices:
        watching.setdefault(one.layer, set()).add(one.probe)
    layers = tuple(_watched(layer, named) for layer, named in watching.items())
    return WatchPlan(
        ProbePlan({reference.id: reference, **probes}, layers, batches, reference.id, plan.rules, plan.auxiliary),
        RepeatPolicy(runs=ROUNDS),
        device_s,
        tuple(_detectable(one, base * copies.get(one.probe, 1), (subjects, level)) for one in choices),
    )


def _choices(known: Estimates, wholes: Sequence[tuple[Probe, Network]], held: set[str], level: float) -> list[_Choice]:
    """Layers that take enough of a network, or that probes `held` from the night before, each with what watches it.

    One whose context hides most of what it takes alone is watched in both ways: nobody knows which the network is like.
    """
    weights = [known.weights(network, whole) for whole, network in wholes]
    due: list[_Due] = []
    alone: dict[WatchingProbe, _Due] = {}  # alone a layer is the same in all contexts: it is watched under the first
    hidden: set[WatchingProbe] = set()
    for layer in known.plan.layers:
        place, (within, (by_itself,)) = place_of(layer), watching_probes(layer)
        weight = max(one.get(place, 0.0) for one in weights)
        within_s, alone_s = known.within_s.get(place, 0.0), known.alone_s.get(place, 0.0)
        takes_enough = within_s * weight >= _MARGIN * SHARE
        is_hidden = alone_s * weight >= _MARGIN * SHARE and alone_s > within_s / _HALF
        if within_s and (takes_enough or is_hidden or any(one.probe in held for one in within)):
            due.append(_Due(layer, within, within_s, is_extra=not takes_enough))
        if alone_s:
            has_context = known.is_measured(layer.in_context, layer.null)
            alone.setdefault(by_itself, _Due(layer, (by_itself,), alone_s, is_extra=has_context))
            if is_hidden or by_itself.probe in held:
                hidden.add(by_itself)
    due += [one for by_itself, one in alone.items() if by_itself in hidden]
    asked = (len(due) + len(wholes) + 1, level)
    return [_choose(known, one, held, asked) for one in due]


def _choose(known: Estimates, due: _Due, held: set[str], asked: tuple[int, float]) -> _Choice:
    """The probe that was there before, or the one that needs least time, of those that show the layer."""
    showing = []
    for one in due.options:
        if known.is_measured(one.probe, one.baseline):
            shown_s = known.difference_s(one.probe, one.baseline)
            if shown_s > _HALF * one.copies * due.latency_s:
                spread_s = known.spread_s[one.probe]
                runs = runs_needed(SHOWN * one.copies * due.latency_s, spread_s, *asked)
                run_s = known.measured[one.probe].latency_s
                showing.append(_Choice(due.layer, due.is_extra, *one, due.latency_s, spread_s, run_s, runs))
    return min([one for one in showing if one.probe in held] or showing, key=lambda one: one.runs * one.run_s)


def _fitting(choices: Sequence[_Choice], held: set[str], known: Estimates, left_s: float) -> list[_Choice]:
    """All that must be watched, and what is extra where it can show a change and the time goes that far.

    Those of the night before come first, then the cheapest.
    """
    kept: list[_Choice] = []
    visited: set[str] = set()
    extra = [one for one in choices if one.is_extra and (one.probe in held or one.runs <= _WORTH * _MOST_RUNS)]
    extra.sort(key=lambda one: (one.probe not in held, one.runs * one.run_s))
    for one in (*(one for one in choices if not one.is_extra), *extra):
        added = {one.probe, one.baseline} - visited
        least_s = ROUNDS * _FEWEST_A_VISIT * sum(known.measured[probe].latency_s for probe in added)
        if not one.is_extra or least_s <= left_s:
            kept.append(one)
            visited |= added
            left_s -= least_s
    return kept or list(choices[:1])


def _watched(layer: LayerProbes, chosen: set[str]) -> LayerProbes:
    """The layer with those of its probes that watch it, and no others."""
    is_alone, is_within = layer.layer in chosen, not chosen.isdisjoint((layer.in_context, *layer.stacks))
    return replace(
        layer,
        layer=layer.layer if is_alone else "",
        auxiliary=layer.auxiliary if is_alone else "",
        in_context=layer.in_context if layer.in_context in chosen else "",
        null=layer.null if is_within else "",
        stacks=tuple(stack if stack in chosen else "" for stack in layer.stacks),
    )


def _runs_a_visit(choices: Sequence[_Choice], affordable: float) -> int:
    """As many as the probe wants that needs most, where the time allows for so many of all probes."""
    most = max(min(one.runs, _MOST_RUNS) for one in choices)
    wanted = min(_MOST_A_VISIT, math.ceil(most / (ROUNDS * _MOST_COPIES)))
    return max(_FEWEST_A_VISIT, min(wanted, int(affordable)))


def _affordable(choices: Sequence[_Choice], base: int, left_s: float) -> dict[str, int]:
    """How often each probe is loaded: as its runs want it, the cheapest wishes first, as far as the time goes."""
    wanted: dict[str, int] = {}
    for one in choices:
        times = min(_MOST_COPIES, max(1, math.ceil(min(one.runs, _MOST_RUNS) / base)))
        wanted[one.probe] = max(times, wanted.get(one.probe, 1))
    load_s = {one.probe: base * max(one.run_s, 1e-12) for one in choices}
    granted = {}
    for probe in sorted(wanted, key=lambda name: (wanted[name] - 1) * load_s[name]):
        times = min(wanted[probe], 1 + max(0, int(left_s / load_s[probe])))
        granted[probe] = times
        left_s -= (times - 1) * load_s[probe]
    return granted


def _of_nulls(nulls: Sequence[str], copies: Mapping[str, int], probes: int) -> dict[str, int]:
    """How often null probes are loaded: what they tell of the host must not be worse than what is freed by it."""
    if not nulls:
        return {}
    others = probes + sum(times - 1 for times in copies.values())
    short = _COMMON_RUNS * max(copies.values()) - others
    return dict.fromkeys(nulls, min(_MOST_COPIES, 1 + max(0, math.ceil(short / len(nulls)))))


def _batches(
    loads: Sequence[tuple[Probe, int]], nulls: Sequence[Probe], visits: Visits, runs: int
) -> tuple[Batch, ...]:  # fmt: skip
    """Batches as large as a device can hold; the varied null probes are in each, as each is freed by itself."""
    named = {probe.id for probe in nulls}
    shared = [load for probe, times in loads if probe.id in named for load in _loads(probe, times)]
    shared_bytes = sum(times * probe.model.weight_bytes for probe, times in loads if probe.id in named)
    batches: list[list[str]] = []
    weight_bytes = math.inf
    for probe, times in loads:
        if probe.id in named:
            continue
        size = times * probe.model.weight_bytes
        if weight_bytes + size > MAX_BATCH_WEIGHT_BYTES or len(batches[-1]) + times > MAX_BATCH_LOADS:
            batches.append(list(shared))
            weight_bytes = shared_bytes
        batches[-1].extend(_loads(probe, times))
        weight_bytes += size
    return tuple(Batch(tuple(batch), visits, runs) for batch in batches)


def _loads(probe: Probe, times: int) -> list[str]:
    return [probe.id if copy == 1 else f"{probe.id}.{copy}" for copy in range(1, times + 1)]


def _detectable(choice: _Choice, runs: int, asked: tuple[int, float]) -> Detectable:
    smallest_s = smallest_change_s(choice.spread_s, runs, *asked)
    subject = layer_subject(choice.layer, choice.probe)
    return Detectable(subject, smallest_s / (choice.copies * choice.latency_s))
