"""The layers that a watch campaign watches, and the probe that shows each of them.

Each layer with a noticeable part of a network's latency has its own probe: the layer within its context, or a stack of
copies, whichever needs less device time. A layer that is far slower without its context is also watched without it: in
a network, whose memories are full, it may behave like either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.device_requests import settling_runs
from harness.network.network import Network
from harness.probe.batches import Visits
from harness.probe.probe import Probe
from harness.probe.probe_plan import LayerProbes
from harness.slowdowns.detection_power import runs_needed
from harness.slowdowns.profile_summary import ProfileSummary, place_of
from harness.slowdowns.watch_series import WatchingProbe, watching_probes

SHOWN = 0.02
"""The relative change of a layer for which runs are planned."""
SHARE = 0.01
"""Layers with at least this part of a network's latency are watched; all occurrences of a layer are added up."""
_MARGIN = 0.6
"""Layers are watched from this multiple of SHARE on, because a dozen runs determine their latency no better."""
ROUNDS = 24
"""Rounds of a watch campaign; every probe is visited once in each, in random order."""
FEWEST_A_VISIT, MOST_A_VISIT = 2, 8
MOST_COPIES = 12
MOST_RUNS = ROUNDS * MOST_A_VISIT * MOST_COPIES
_WORTH = 2.0
"""Extra layers are watched if they need at most this multiple of the maximum number of runs."""
_HALF = 0.5


@dataclass(frozen=True)
class _Target:
    """A layer to watch, the probes to choose from, and its latency there; extra layers are dropped if time is short."""

    layer: LayerProbes
    options: Sequence[WatchingProbe]
    latency_s: float
    is_extra: bool


@dataclass(frozen=True)
class WatchedLayer:
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


def layers_to_watch(
    profile: ProfileSummary, wholes: Sequence[tuple[Probe, Network]], held: set[str], level: float
) -> list[WatchedLayer]:
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


def _choose(profile: ProfileSummary, target: _Target, held: set[str], significance: tuple[int, float]) -> WatchedLayer:
    """Choose the probe of the night before, or the one that needs least time, among those that show the layer."""
    showing = []
    for one in target.options:
        if profile.is_measured(one.probe, one.baseline):
            shown_s = profile.difference_s(one.probe, one.baseline)
            if shown_s > _HALF * one.copies * target.latency_s:
                spread_s = profile.spread_s[one.probe]
                runs = runs_needed(SHOWN * one.copies * target.latency_s, spread_s, *significance)
                run_s = profile.measured[one.probe].latency_s
                showing.append(
                    WatchedLayer(target.layer, target.is_extra, *one, target.latency_s, spread_s, run_s, runs)
                )
    return min([one for one in showing if one.probe in held] or showing, key=lambda one: one.runs * one.run_s)


def load_s(run_s: float, a_visit: int, visits: Visits) -> float:
    """Return the device time that one load of a probe takes in a watch campaign, with `a_visit` timed runs."""
    untimed = settling_runs(run_s) if visits == "warm" else 0
    return ROUNDS * (a_visit + untimed) * run_s


def affordable_layers(
    choices: Sequence[WatchedLayer], held: set[str], profile: ProfileSummary, visits: Visits, left_s: float
) -> list[WatchedLayer]:
    """Return all layers that must be watched, and the extra ones that can show a change and fit into the time.

    Extra layers of the night before come first, then the cheapest.
    """
    kept: list[WatchedLayer] = []
    visited: set[str] = set()
    extra = [one for one in choices if one.is_extra and (one.probe in held or one.runs <= _WORTH * MOST_RUNS)]
    extra.sort(key=lambda one: (one.probe not in held, one.runs * one.run_s))
    for one in (*(one for one in choices if not one.is_extra), *extra):
        added = {one.probe, one.baseline} - visited
        least_s = sum(load_s(profile.measured[probe].latency_s, FEWEST_A_VISIT, visits) for probe in added)
        if not one.is_extra or least_s <= left_s:
            kept.append(one)
            visited |= added
            left_s -= least_s
    return kept or list(choices[:1])
