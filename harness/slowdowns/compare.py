"""Tonight's watch against those of earlier nights: what became slower, since when, and what could not be told.

A layer, a network or the device counts as changed where three things agree: the raw samples of tonight are of another
distribution than those of the nights at the current level (Mann-Whitney's rank test), the difference stands out from
the scatter between nights (Student's t), both over all subjects of the night (Holm), and it is large enough to matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.measure.significance import holm
from harness.settings import SLOWDOWN_THRESHOLD
from harness.slowdowns.adjustment import NULLS, FreedNight, Reference, free, reference_of
from harness.slowdowns.findings import Comparison, Finding, fingerprint_changes
from harness.slowdowns.power import LEVEL, level_of_subject
from harness.slowdowns.scatter import USUAL, USUAL_DEVICE, Moved, Prior, Scatter, scatter_of
from harness.slowdowns.series import WatchSeries
from harness.slowdowns.subjects import Subject
from harness.slowdowns.verdicts import Track, detectable, findings_of, judge

_UNLIKE = 0.1
"""Probability that layers scatter by another multiple than null probes, or devices of the clock, do."""
_UNLIKE_DEVICE = 0.005
"""The same of the device as a whole: more would hide whatever becomes slower after one night."""
_CHANGED = 0.1
"""Probability that a probe changed from one night to the next."""


def compare_nights(
    tonight: WatchSeries, earlier: Sequence[WatchSeries], *, threshold: float = SLOWDOWN_THRESHOLD, level: float = LEVEL
) -> Comparison:
    """Compares a night with earlier ones of the same device and clock, in whatever order they are given.

    `threshold` is the smallest change that is told, as a fraction; `level` the probability that anything is told of a
    device that did not change.
    """
    same = [one for one in earlier if (one.device, one.clock) == (tonight.device, tonight.clock)]
    nights = [*sorted(same, key=_order), tonight]
    found = _compare(nights, threshold, level)
    if not any(one.state == "step" for one in found.findings):
        return found
    # A step is news where the night before could not tell it.
    before = _compare(nights[:-1], threshold, level)
    told = {(one.subject, one.is_slower) for one in before.findings if one.state != "passed"}
    findings = (
        replace(one, is_fresh=(one.subject, one.is_slower) not in told) if one.state == "step" else one
        for one in found.findings
    )
    return replace(found, findings=tuple(findings))


def _order(night: WatchSeries) -> tuple[str, int]:
    return night.date, night.campaign


def _compare(nights: Sequence[WatchSeries], threshold: float, level: float) -> Comparison:
    tonight, earlier = nights[-1], nights[:-1]
    changed = fingerprint_changes(earlier[-1].fingerprint, tonight.fingerprint) if earlier else ()
    if not earlier:
        return Comparison(tonight.device, tonight.date, 0, (), (), changed, 0.0, 0.0, 0.0)
    reference = reference_of(earlier)
    freed = [free(night, reference) for night in nights]
    subjects = _subjects(nights, freed, reference)
    each = level_of_subject(level, len(subjects) + 1)
    tracks, scatter = _tracks(nights, freed, reference, subjects, each)
    device = _device_track(nights, freed, reference, each)
    tracks += [device] if device else []
    judged = [judge(track, each) for track in tracks]
    corrected = holm([one.p_value for one in judged])
    findings = [
        finding
        for one, p_value in zip(judged, corrected, strict=True)
        for finding in findings_of(one, p_value, nights, threshold, level / 2, each)
    ]
    hosts = float(np.median([one.host for one in freed[:-1]]))
    return Comparison(
        device=tonight.device,
        date=tonight.date,
        nights=len(earlier),
        findings=tuple(sorted(findings, key=_weight)),
        detectable=tuple(detectable(one, threshold, each) for one in judged),
        changed=changed,
        device_change=freed[-1].device - float(np.median([one.device for one in freed[:-1]])),
        host_change=freed[-1].host - hosts,
        scatter=scatter.value,
    )


def _weight(finding: Finding) -> tuple[bool, int, float]:
    """What matters most comes first: what holds tonight, the device before networks before layers, large changes."""
    return finding.state == "passed", ["device", "network", "layer"].index(finding.kind), -finding.change


@dataclass(frozen=True)
class _Watched:
    """A subject with its probe, what a change of it is a fraction of, and the nights that have it, by their indices."""

    subject: Subject
    probe: str
    unit_s: float
    nights: tuple[int, ...]


def _subjects(nights: Sequence[WatchSeries], freed: Sequence[FreedNight], reference: Reference) -> list[_Watched]:
    """Layers and networks of tonight that an earlier night has, too."""
    found = []
    for subject, probe, unit_s in _named(nights[-1], reference):
        having = tuple(at for at, night in enumerate(freed) if probe in night.samples)
        if unit_s > 0 and len(having) > 1 and having[-1] == len(nights) - 1:
            found.append(_Watched(subject, probe, unit_s, having))
    return found


def _tracks(
    nights: Sequence[WatchSeries],
    freed: Sequence[FreedNight],
    reference: Reference,
    subjects: Sequence[_Watched],
    each: float,
) -> tuple[list[Track], Scatter]:
    """The subjects over the nights, each to be judged at that level, with the scatter that their errors hold."""
    moved = [_moved(one.probe, [freed[at] for at in one.nights], reference) for one in subjects]
    scatter = scatter_of(moved, Prior(_usual_scatter(nights[-1], freed, reference), _UNLIKE, _CHANGED))
    tracks = []
    for one, off, (errors_s, freedom) in zip(subjects, moved, scatter.errors(moved, each), strict=True):
        samples = tuple(freed[at].samples[one.probe] for at in one.nights)
        values = (tuple(map(float, off.moved_s)), tuple(map(float, errors_s)))
        tracks.append(Track(one.subject, one.nights, *values, freedom, one.unit_s, samples))
    return tracks, scatter


def _moved(probe: str, nights: Sequence[FreedNight], reference: Reference) -> Moved:
    moved, errors = ([night.moved_s[probe] for night in nights], [night.stderr_s[probe] for night in nights])
    return Moved(np.array(moved), np.array(errors), reference.total_s[probe])


def _usual_scatter(tonight: WatchSeries, freed: Sequence[FreedNight], reference: Reference) -> float:
    """What is thought of the layers' scatter before it is looked at.

    On a device's own clock null probes say how nights scatter; to a processor's caches they are too small for that.
    """
    usual = USUAL[tonight.clock]
    if tonight.clock != "device":
        return usual
    nulls = [
        _moved(probe, [night for night in freed if probe in night.moved_s], reference)
        for probe, record in tonight.probes.items()
        if record.role in NULLS and probe in reference.total_s
    ]
    return scatter_of(nulls, Prior(usual, 0.0, _CHANGED)).value


def _named(night: WatchSeries, reference: Reference) -> list[tuple[Subject, str, float]]:
    """What was watched: the subject, its probe, and what a change of it is a fraction of."""
    found: list[tuple[Subject, str, float]] = []
    for layer in night.layers:
        if layer.probe in reference.total_s and layer.baseline in reference.total_s:
            host_s, baseline_s = (reference.host.of(night.probes[one].terms) for one in (layer.probe, layer.baseline))
            both_s = reference.total_s[layer.probe] - reference.total_s[layer.baseline]
            own_s = both_s - (host_s - baseline_s)
            found.append((layer.subject, layer.probe, own_s))
    for probe, record in night.probes.items():
        if record.role == "network" and probe in reference.total_s:
            subject = Subject("network", record.label)
            found.append((subject, probe, reference.total_s[probe]))
    return found


def _device_track(
    nights: Sequence[WatchSeries], freed: Sequence[FreedNight], reference: Reference, each: float
) -> Track | None:
    """The device as a whole; None where too few layers tell it. All samples of layers count, each as its own change."""
    if not freed[-1].device_stderr:
        return None
    having = tuple(at for at, night in enumerate(freed) if night.device_stderr)
    if len(having) < 2:
        return None
    slower, stderr = (np.array([getattr(freed[at], name) for at in having]) for name in ("device", "device_stderr"))
    prior = Prior(USUAL_DEVICE[nights[-1].clock], _UNLIKE_DEVICE, _CHANGED)
    scatter = scatter_of([Moved(slower[:-1], stderr[:-1], 1.0)], prior)
    ((errors, freedom),) = scatter.errors([Moved(slower, stderr, 1.0)], each)
    samples = []
    for at in having:
        watched = [probe for probe in nights[at].one_a_layer if reference.own_s.get(probe, 0.0) > 0]
        parts = [(freed[at].samples[probe] - reference.total_s[probe]) / reference.own_s[probe] + freed[at].device
                 for probe in watched if probe in freed[at].samples]  # fmt: skip
        samples.append(np.concatenate(parts))
    values = (tuple(map(float, slower)), tuple(map(float, errors)))
    return Track(Subject("device", nights[-1].device), having, *values, freedom, 1.0, tuple(samples))
