"""The plan of a watch campaign: the probes that best detect a slower layer, run often enough to detect it.

The campaign contains a probe for each watched layer (`watch_choices`), the null probes that are subtracted from these,
null probes of various sizes, and the whole networks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.measure.policy import RepeatPolicy
from harness.network.network import Network
from harness.probe.batches import MAX_BATCH_LOADS, MAX_BATCH_WEIGHT_BYTES, Batch, Visits, probe_of
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Sample
from harness.slowdowns.detection_power import LEVEL, smallest_change_s
from harness.slowdowns.findings import Detectable
from harness.slowdowns.host_share import varied_nulls
from harness.slowdowns.profile_summary import summarise_profile
from harness.slowdowns.watch_choices import (
    FEWEST_A_VISIT,
    MOST_A_VISIT,
    MOST_COPIES,
    MOST_RUNS,
    ROUNDS,
    WatchedLayer,
    affordable_layers,
    layers_to_watch,
    load_s,
)
from harness.slowdowns.watch_series import WatchSeries, layer_subject

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
    watched = layers_to_watch(profile, wholes, held, level)
    watched = affordable_layers(watched, held, profile, visits, _HALF * budget_s)
    if not watched:
        return None
    chosen = [plan.probes[probe] for one in watched for probe in (one.baseline, one.probe)]
    largest_bytes = max(probe.terms.input_bytes for probe in (*chosen, *(whole for whole, _ in wholes)))
    nulls = [plan.probes[name] for name in varied_nulls(plan, largest_bytes, _NULLS) if name in profile.measured]
    probes = {probe.id: probe for probe in (*chosen, *nulls, *(whole for whole, _ in wholes))}
    run_s = {probe: one.latency_s for probe, one in profile.measured.items()}
    run_s.update((whole.id, profile.network_s(network, whole)) for whole, network in wholes)
    schedule = _schedule(watched, probes, nulls, run_s, visits, budget_s)
    reference = plan.probes[plan.reference]
    named: dict[LayerProbes, set[str]] = {}
    for one in watched:
        named.setdefault(one.layer, set()).add(one.probe)
    layers = tuple(_only(layer, probes_of) for layer, probes_of in named.items())
    significance = (len(watched) + len(wholes) + 1, level)
    return WatchPlan(
        ProbePlan(
            {reference.id: reference, **probes}, layers, schedule.batches, reference.id, plan.rules, plan.auxiliary
        ),
        RepeatPolicy(runs=ROUNDS),
        schedule.device_s,
        tuple(_detectable(one, schedule.runs[one.probe], significance) for one in watched),
    )


@dataclass(frozen=True)
class _Schedule:
    """The batches of a watch campaign, the device time that they take, and the timed runs of each watching probe."""

    batches: tuple[Batch, ...]
    device_s: float
    runs: Mapping[str, int]


def _schedule(
    watched: Sequence[WatchedLayer],
    probes: Mapping[str, Probe],
    nulls: Sequence[Probe],
    run_s: Mapping[str, float],
    visits: Visits,
    budget_s: float,
) -> _Schedule:
    """Plan how often each of the probes is loaded, and in which batches, within `budget_s` of device time.

    A run of each takes `run_s`. Null probes are in every batch, so their copies also take time.
    """
    untimed_s = sum(load_s(run_s[probe], 0, visits) for probe in probes)
    round_s = sum(run_s[probe] for probe in probes)
    a_visit = _runs_a_visit(watched, (_HALF * budget_s - untimed_s) / (ROUNDS * round_s))
    one_load_s = {probe: load_s(run_s[probe], a_visit, visits) for probe in probes}
    left_s = budget_s - sum(one_load_s.values())
    for _ in range(_TRIES):
        copies = _affordable(watched, ROUNDS * a_visit, one_load_s, left_s)
        copies.update(_of_nulls([probe.id for probe in nulls], copies, len(probes)))
        batches = _batches([(probe, copies.get(probe.id, 1)) for probe in probes.values()], nulls, visits, a_visit)
        device_s = sum(one_load_s[probe_of(load)] for batch in batches for load in batch.loads)
        if device_s <= budget_s or max(copies.values()) == 1:
            break
        left_s -= device_s - budget_s
    runs = {one.probe: ROUNDS * a_visit * copies.get(one.probe, 1) for one in watched}
    return _Schedule(batches, device_s, runs)


def _only(layer: LayerProbes, chosen: set[str]) -> LayerProbes:
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


def _runs_a_visit(watched: Sequence[WatchedLayer], affordable: float) -> int:
    """Return the runs per visit that the most demanding probe needs, if the time allows as many for all probes."""
    most = max(min(one.runs, MOST_RUNS) for one in watched)
    wanted = min(MOST_A_VISIT, math.ceil(most / (ROUNDS * MOST_COPIES)))
    return max(FEWEST_A_VISIT, min(wanted, int(affordable)))


def _affordable(
    watched: Sequence[WatchedLayer], base: int, load_s: Mapping[str, float], left_s: float
) -> dict[str, int]:
    """Return how often each probe is loaded for its runs; if time is short, the cheapest probes come first.

    `load_s` is the device time of one load, which has `base` timed runs.
    """
    wanted: dict[str, int] = {}
    for one in watched:
        times = min(MOST_COPIES, max(1, math.ceil(min(one.runs, MOST_RUNS) / base)))
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
    return dict.fromkeys(nulls, min(MOST_COPIES, 1 + max(0, math.ceil(short / len(nulls)))))


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


def _detectable(layer: WatchedLayer, runs: int, significance: tuple[int, float]) -> Detectable:
    smallest_s = smallest_change_s(layer.spread_s, runs, *significance)
    subject = layer_subject(layer.layer, layer.probe)
    return Detectable(subject, smallest_s / (layer.copies * layer.latency_s))
