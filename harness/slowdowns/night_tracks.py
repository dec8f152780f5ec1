"""Subjects that are watched on several nights: the deviations of each from a reference, and their errors.

A subject is a layer, a network, or the device as a whole. Its track holds its deviation on each night, with an error
that includes how much such subjects scatter from night to night (`night_scatter`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.slowdowns.adjustment import NULL_ROLES, AdjustedNight, Reference, adjust, reference_of
from harness.slowdowns.detection_power import level_of_subject
from harness.slowdowns.findings import Subject
from harness.slowdowns.night_scatter import Deviations, Prior, Scatter, scatter_of
from harness.slowdowns.verdicts import Track
from harness.slowdowns.watch_series import WatchSeries

_UNUSUAL = 0.1
"""Probability that layers scatter by another multiple than null probes, or unlike layers of other devices."""
_UNUSUAL_DEVICE = 0.005
"""Probability that a device as a whole scatters unlike others; a larger one would hide each slow-down for a night."""
USUAL = {"cpu": 0.01, "wall": 0.02, "device": 0.0001}
"""Usual scatter of a probe's total between nights by clock, as a fraction; assumed until there are data."""
USUAL_DEVICE = {"cpu": 0.015, "wall": 0.03, "device": 0.0005}
"""Usual scatter of the device as a whole."""


@dataclass(frozen=True)
class SubjectProbe:
    """A subject with the probe that watches it, which holds `copies` of it.

    Changes are fractions of `unit_s`, the latency of one copy; `nights` are indices.
    """

    subject: Subject
    probe: str
    unit_s: float
    copies: int
    nights: tuple[int, ...]


@dataclass(frozen=True)
class Nights:
    """The nights of a comparison, tonight last, with their adjusted samples and the reference."""

    series: Sequence[WatchSeries]
    adjusted: Sequence[AdjustedNight]
    reference: Reference

    @classmethod
    def of(cls, series: Sequence[WatchSeries]) -> Nights:
        """Adjust nights in order, tonight last; the reference is over the nights before tonight."""
        reference = reference_of(series[:-1])
        return cls(series, [adjust(night, reference) for night in series], reference)

    def having(self, probe: str) -> tuple[int, ...]:
        """Return the nights that have samples of a probe."""
        return tuple(at for at, night in enumerate(self.adjusted) if probe in night.samples)


def all_tracks(nights: Nights, level: float) -> tuple[list[Track], Scatter, float]:
    """Return the tracks of all subjects, the device last; the scatter of layers and networks; each subject's level.

    The subjects are tonight's layers and networks that an earlier night also has. They share the significance `level`.
    """
    tonight = len(nights.series) - 1
    subjects = [
        one for one in _watched_subjects(nights) if one.unit_s > 0 and len(one.nights) > 1 and one.nights[-1] == tonight
    ]
    each = level_of_subject(level, len(subjects) + 1)
    tracks, scatter = _tracks_of(nights, subjects, each)
    device = _device_track(nights, each)
    return [*tracks, *([device] if device else [])], scatter, each


def _watched_subjects(nights: Nights) -> Iterator[SubjectProbe]:
    """Yield tonight's layers and networks that the reference has, with their latency over the earlier nights."""
    tonight, reference = nights.series[-1], nights.reference
    for layer in tonight.layers:
        if {layer.probe, layer.baseline} <= reference.total_s.keys():
            host_s, baseline_s = (reference.host.of(tonight.probes[one].terms) for one in (layer.probe, layer.baseline))
            both_s = reference.total_s[layer.probe] - reference.total_s[layer.baseline]
            unit_s = (both_s - (host_s - baseline_s)) / layer.copies
            yield SubjectProbe(layer.subject, layer.probe, unit_s, layer.copies, nights.having(layer.probe))
    for probe, record in tonight.probes.items():
        if record.role == "network" and probe in reference.total_s:
            subject = Subject("network", record.label)
            yield SubjectProbe(subject, probe, reference.total_s[probe], 1, nights.having(probe))


def _tracks_of(nights: Nights, subjects: Sequence[SubjectProbe], each: float) -> tuple[list[Track], Scatter]:
    """Return the track of each subject, for verdicts at the level `each`, and the scatter that their errors include."""
    deviations = [_deviations(one.probe, [nights.adjusted[at] for at in one.nights], nights) for one in subjects]
    scatter = scatter_of(deviations, Prior(_usual_scatter(nights), _UNUSUAL))
    tracks = []
    for one, own, (errors_s, freedom) in zip(subjects, deviations, scatter.errors(deviations, each), strict=True):
        samples = tuple(nights.adjusted[at].samples[one.probe] for at in one.nights)
        values = (tuple(map(float, own.deviation_s / one.copies)), tuple(map(float, errors_s / one.copies)))
        tracks.append(Track(one.subject, one.nights, *values, freedom, one.unit_s, samples))
    return tracks, scatter


def _deviations(probe: str, adjusted: Sequence[AdjustedNight], nights: Nights) -> Deviations:
    deviation_s = np.array([night.deviation_s[probe] for night in adjusted])
    errors_s = np.array([night.stderr_s[probe] for night in adjusted])
    return Deviations(deviation_s, errors_s, nights.reference.total_s[probe])


def _usual_scatter(nights: Nights) -> float:
    """Return the scatter of layers that is expected before their data.

    On a device's own clock null probes show how nights scatter. On a processor they are too small: they stay in cache.
    """
    tonight = nights.series[-1]
    usual = USUAL[tonight.clock]
    if tonight.clock != "device":
        return usual
    nulls = [
        _deviations(probe, [night for night in nights.adjusted if probe in night.deviation_s], nights)
        for probe, record in tonight.probes.items()
        if record.role in NULL_ROLES and probe in nights.reference.total_s
    ]
    return scatter_of(nulls, Prior(usual, 0.0)).value


def _device_track(nights: Nights, each: float) -> Track | None:
    """Return the track of the device as a whole, with the samples of all layers; None if too few layers are watched."""
    adjusted = nights.adjusted
    having = tuple(at for at, night in enumerate(adjusted) if night.device_stderr)
    if not adjusted[-1].device_stderr or len(having) < 2:
        return None
    slower, stderr = (np.array([getattr(adjusted[at], name) for at in having]) for name in ("device", "device_stderr"))
    tonight = nights.series[-1]
    prior = Prior(USUAL_DEVICE[tonight.clock], _UNUSUAL_DEVICE)
    scatter = scatter_of([Deviations(slower[:-1], stderr[:-1], 1.0)], prior)
    ((errors, freedom),) = scatter.errors([Deviations(slower, stderr, 1.0)], each)
    samples = tuple(_relative_samples(nights, at) for at in having)
    values = (tuple(map(float, slower)), tuple(map(float, errors)))
    return Track(Subject("device", tonight.device), having, *values, freedom, 1.0, samples)


def _relative_samples(nights: Nights, at: int) -> Floats:
    """Return the samples of all layers of a night, each as its relative change plus that of the device."""
    night, reference = nights.adjusted[at], nights.reference
    return np.concatenate(
        [
            (night.samples[probe] - reference.total_s[probe]) / reference.own_s[probe] + night.device
            for probe in nights.series[at].one_a_layer
            if reference.own_s.get(probe, 0.0) > 0 and probe in night.samples
        ]
    )
