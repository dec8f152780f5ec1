"""The plan of a watch campaign: the probes that best detect a slower layer, run often enough to detect it.

Each layer with a noticeable part of a network's latency has its own probe: the layer within its context, or a stack of
copies, whichever needs less device time. A layer that is far slower without its context is also watched without it: in
a network, whose memories are full, it may behave like either. The campaign also contains the null probes that are
subtracted from these, null probes of various sizes, and the whole networks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.measure.device_requests import settling_runs
from harness.measure.policy import RepeatPolicy
from harness.network.network import Network
from harness.probe.batches import MAX_BATCH_LOADS, MAX_BATCH_WEIGHT_BYTES, Batch, Visits, probe_of
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Sample
from harness.slowdowns.detection_power import LEVEL, runs_needed, smallest_change_s
from harness.slowdowns.findings import Detectable
from harness.slowdowns.host_share import varied_nulls
from harness.slowdowns.profile_summary import ProfileSummary, place_of, summarise_profile
from harness.slowdowns.watch_series import WatchingProbe, WatchSeries, layer_subject, watching_probes

SHOWN = 0.02
"""The relative change of a layer for which runs are planned."""
SHARE = 0.01
"""Layers with at least this part of a network's latency are watched; all occurrences of a layer are added up."""
_MARGIN = 0.6
"""Layers are watched from this multiple of SHARE on, because a dozen runs determine their latency no better."""
ROUNDS = 24
"""Rounds of a watch campaign; every probe is visited once in each, in random order."""
_FEWEST_A_VISIT, _MOST_A_VISIT = 2, 8
_MOST_COPIES = 12
_MOST_RUNS = ROUNDS * _MOST_A_VISIT * _MOST_COPIES
_WORTH = 2.0
"""Extra layers are watched if they need at most this multiple of the maximum number of runs."""
_NULLS = 9
_COMMON_RUNS = 8
"""Runs of all probes together, as a multiple of the runs of the most frequent probe."""
_HALF = 0.5
_TRIES = 8
DEFAULT_BUDGET_S = 120.0


@dataclass(frozen=True)
class WatchPlan:
    """A watch campaign: its probes and visits, its approximate device time, and the changes that it detects.

    `detectable` assumes the spreads of the profile, and a device whose nights scatter little beyond them.
    """

    plan: ProbePlan
    policy: RepeatPolicy
    device_s: float
    detectable: tuple[Detectable, ...]


@dataclass(frozen=True)
class _Target:
    """A layer to watch, the probes to choose from, and its latency there; extra layers are dropped if time is short."""

    layer: LayerProbes
    options: Sequence[WatchingProbe]
    latency_s: float
    is_extra: bool


@dataclass(frozen=True)
class _Choice:
    """A layer with the probe that watches it and its null probe; `runs` are those that a night needs."""

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
    """Plan the watch campaign after a profile campaign of these networks; return None if there is nothing to watch.

    `profiled` are the profile's samples by probe. Layers that `before` watched keep their probes, so that nights can be
    compared. If `budget_s` of device time does not suffice, the most expensive probes get fewer runs. `level` is the
    probability of a false alarm with which the nights will be compared.
    """
    profile = summarise_profile(plan, profiled, clock)
    wholes = [(network_probe(network), network) for network in networks]
    visits: Visits = "cold" if clock == "device" else "warm"
    held = {one.probe for one in before.layers} if before else set()
    choices = _fitting(_choices(profile, wholes, held, level), held, profile, visits, _HALF * budget_s)
    if not choices:
        return None
    subjects = len(choices) + len(wholes) + 1
    chosen = [plan.probes[probe] for one in choices for probe in (one.baseline, one.probe)]
    largest_bytes = max(probe.terms.input_bytes for probe in (*chosen, *(whole for whole, _ in wholes)))
    nulls = [plan.probes[name] for name in varied_nulls(plan, largest_bytes, _NULLS) if name in profile.measured]
    probes = {probe.id: probe for probe in (*chosen, *nulls, *(whole for whole, _ in wholes))}
    run_s = {probe: one.latency_s for probe, one in profile.measured.items()}
    run_s.update((whole.id, profile.network_s(network, whole)) for whole, network in wholes)
    untimed_s = sum(_load_s(run_s[probe], 0, visits) for probe in probes)
    a_visit = _runs_a_visit(choices, (_HALF * budget_s - untimed_s) / (ROUNDS * sum(run_s[probe] for probe in probes)))
    base = ROUNDS * a_visit
    load_s = {probe: _load_s(run_s[probe], a_visit, visits) for probe in probes}
    left_s = budget_s - sum(load_s.values())
    for _ in range(_TRIES):  # copies of null probes, which each batch repeats, take time as well
        copies = _affordable(choices, base, load_s, left_s)
        copies.update(_of_nulls([probe.id for probe in nulls], copies, len(probes)))
        batches = _batches([(probe, copies.get(probe.id, 1)) for probe in probes.values()], nulls, visits, a_visit)
        device_s = sum(load_s[probe_of(load)] for batch in batches for load in batch.loads)
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


def _choices(
    profile: ProfileSummary, wholes: Sequence[tuple[Probe, Network]], held: set[str], level: float
) -> list[_Choice]:
    """Choose a probe for each layer with a noticeable share of a network or with a probe `held` from the night before.

    A layer that is far slower without its context is watched in both ways.
    """
    weights = [profile.weights(network, whole) for whole, network in wholes]
    targets: list[_Target] = []
    alone: dict[WatchingProbe, _Target] = {}  # a layer without context is watched once, under its first name
    hidden: set[WatchingProbe] = set()
    for layer in profile.plan.layers:
        place, (within, (by_itself,)) = place_of(layer), watching_probes(layer)
        weight = max(one.get(place, 0.0) for one in weights)
        within_s, alone_s = profile.within_s.get(place, 0.0), profile.alone_s.get(place, 0.0)
        takes_enough = within_s * weight >= _MARGIN * SHARE
        is_hidden = alone_s * weight >= _MARGIN * SHARE and alone_s > within_s / _HALF
        if within_s and (takes_enough or is_hidden or any(one.probe in held for one in within)):
            targets.append(_Target(layer, within, within_s, is_extra=not takes_enough))
        if alone_s:
            has_context = profile.is_measured(layer.in_context, layer.null)
            alone.setdefault(by_itself, _Target(layer, (by_itself,), alone_s, is_extra=has_context))
            if is_hidden or by_itself.probe in held:
                hidden.add(by_itself)
    targets += [one for by_itself, one in alone.items() if by_itself in hidden]
    significance = (len(targets) + len(wholes) + 1, level)
    return [_choose(profile, one, held, significance) for one in targets]


def _choose(profile: ProfileSummary, target: _Target, held: set[str], significance: tuple[int, float]) -> _Choice:
    """Choose the probe of the night before, or the one that needs least time, among those that show the layer."""
    showing = []
    for one in target.options:
        if profile.is_measured(one.probe, one.baseline):
            shown_s = profile.difference_s(one.probe, one.baseline)
            if shown_s > _HALF * one.copies * target.latency_s:
                spread_s = profile.spread_s[one.probe]
                runs = runs_needed(SHOWN * one.copies * target.latency_s, spread_s, *significance)
                run_s = profile.measured[one.probe].latency_s
                showing.append(_Choice(target.layer, target.is_extra, *one, target.latency_s, spread_s, run_s, runs))
    return min([one for one in showing if one.probe in held] or showing, key=lambda one: one.runs * one.run_s)


def _load_s(run_s: float, a_visit: int, visits: Visits) -> float:
    """Return the device time that one load of a probe takes in a watch campaign, with `a_visit` timed runs."""
    untimed = settling_runs(run_s) if visits == "warm" else 0
    return ROUNDS * (a_visit + untimed) * run_s


def _fitting(
    choices: Sequence[_Choice], held: set[str], profile: ProfileSummary, visits: Visits, left_s: float
) -> list[_Choice]:
    """Return all layers that must be watched, and the extra ones that can show a change and fit into the time.

    Extra layers of the night before come first, then the cheapest.
    """
    kept: list[_Choice] = []
    visited: set[str] = set()
    extra = [one for one in choices if one.is_extra and (one.probe in held or one.runs <= _WORTH * _MOST_RUNS)]
    extra.sort(key=lambda one: (one.probe not in held, one.runs * one.run_s))
    for one in (*(one for one in choices if not one.is_extra), *extra):
        added = {one.probe, one.baseline} - visited
        least_s = sum(_load_s(profile.measured[probe].latency_s, _FEWEST_A_VISIT, visits) for probe in added)
        if not one.is_extra or least_s <= left_s:
            kept.append(one)
            visited |= added
            left_s -= least_s
    return kept or list(choices[:1])


def _watched(layer: LayerProbes, chosen: set[str]) -> LayerProbes:
    """Return the layer with only the probes that watch it."""
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
    """Return the runs per visit that the most demanding probe needs, if the time allows as many for all probes."""
    most = max(min(one.runs, _MOST_RUNS) for one in choices)
    wanted = min(_MOST_A_VISIT, math.ceil(most / (ROUNDS * _MOST_COPIES)))
    return max(_FEWEST_A_VISIT, min(wanted, int(affordable)))


def _affordable(choices: Sequence[_Choice], base: int, load_s: Mapping[str, float], left_s: float) -> dict[str, int]:
    """Return how often each probe is loaded for its runs; if time is short, the cheapest probes come first.

    `load_s` is the device time of one load, which has `base` timed runs.
    """
    wanted: dict[str, int] = {}
    for one in choices:
        times = min(_MOST_COPIES, max(1, math.ceil(min(one.runs, _MOST_RUNS) / base)))
        wanted[one.probe] = max(times, wanted.get(one.probe, 1))
    granted = {}
    for probe in sorted(wanted, key=lambda name: (wanted[name] - 1) * load_s[name]):
        times = min(wanted[probe], 1 + max(0, int(left_s / max(load_s[probe], 1e-12))))
        granted[probe] = times
        left_s -= (times - 1) * load_s[probe]
    return granted


def _of_nulls(nulls: Sequence[str], copies: Mapping[str, int], probes: int) -> dict[str, int]:
    """Return how often null probes are loaded, so that the host's share is as precise as the layers' probes."""
    if not nulls:
        return {}
    others = probes + sum(times - 1 for times in copies.values())
    short = _COMMON_RUNS * max(copies.values()) - others
    return dict.fromkeys(nulls, min(_MOST_COPIES, 1 + max(0, math.ceil(short / len(nulls)))))


def _batches(
    loads: Sequence[tuple[Probe, int]], nulls: Sequence[Probe], visits: Visits, a_visit: int
) -> tuple[Batch, ...]:
    """Return batches as large as a device can hold; each holds all null probes, because it is adjusted by itself."""
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
    return tuple(Batch(tuple(batch), visits, a_visit) for batch in batches)


def _loads(probe: Probe, times: int) -> list[str]:
    return [probe.id if copy == 1 else f"{probe.id}.{copy}" for copy in range(1, times + 1)]


def _detectable(choice: _Choice, runs: int, significance: tuple[int, float]) -> Detectable:
    smallest_s = smallest_change_s(choice.spread_s, runs, *significance)
    subject = layer_subject(choice.layer, choice.probe)
    return Detectable(subject, smallest_s / (choice.copies * choice.latency_s))
