"""The latency of every subject over the nights, divided into levels: a step is where a new level begins."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.summary import Z_95
from harness.slowdowns.detection_power import LEVEL
from harness.slowdowns.findings import Subject, fingerprint_changes
from harness.slowdowns.night_tracks import Nights, all_tracks
from harness.slowdowns.verdicts import Track, levels
from harness.slowdowns.watch_series import WatchSeries


@dataclass(frozen=True)
class NightLatency:
    """A subject's latency on one night with half of its 95 % interval, and the latency of the level of that night.

    The device as a whole has relative latencies: 1 is its usual speed.
    """

    night: str
    latency_s: float
    halfwidth_s: float
    level_s: float


@dataclass(frozen=True)
class Step:
    """A night on which another level begins; `change` is relative to the level before, `causes` as in a finding."""

    night: str
    change: float
    causes: tuple[str, ...]


@dataclass(frozen=True)
class SubjectHistory:
    """A subject over the nights that watched it, oldest first, and its steps."""

    subject: Subject
    nights: tuple[NightLatency, ...]
    steps: tuple[Step, ...]


def histories(nights: Sequence[WatchSeries], threshold: float) -> tuple[SubjectHistory, ...]:
    """Return the histories of the subjects of the last night: the device, networks, then layers, longest first.

    Nights are in order; those of another device or clock than the last one are left out. Steps below `threshold` are
    not marked; LEVEL is the probability that a device without any change has a step.
    """
    last = nights[-1]
    same = [one for one in nights if (one.device, one.clock) == (last.device, last.clock)]
    if len(same) < 2:
        return ()
    tracks, _, each = all_tracks(Nights.of(same), LEVEL)
    found = [_history(track, same, threshold, each) for track in tracks]
    order = ["device", "network", "layer"]
    return tuple(sorted(found, key=lambda one: (order.index(one.subject.kind), -one.nights[-1].latency_s)))


def _history(track: Track, series: Sequence[WatchSeries], threshold: float, each: float) -> SubjectHistory:
    found = levels(track.deviation_s, track.error_s, each, track.freedom)
    level_of = {night: one.value for one in found for night in one.nights}
    values = tuple(
        NightLatency(series[at].date, track.unit_s + deviation_s, Z_95 * error_s, track.unit_s + level_of[place])
        for place, (at, deviation_s, error_s) in enumerate(
            zip(track.nights, track.deviation_s, track.error_s, strict=True)
        )
    )
    steps = []
    for place, (before, after) in enumerate(itertools.pairwise(values), 1):
        change = after.level_s / before.level_s - 1 if before.level_s > 0 else 0.0
        if abs(change) >= threshold:
            at = track.nights[place]
            causes = fingerprint_changes(series[at - 1].fingerprint, series[at].fingerprint)
            steps.append(Step(after.night, change, causes))
    return SubjectHistory(track.subject, values, tuple(steps))
