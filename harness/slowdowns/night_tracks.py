"""Subjects that are watched on several nights: the deviations of each from a reference, and their scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import t as student

from harness.array_types import Floats
from harness.slowdowns.adjustment import NULL_ROLES, AdjustedNight, Reference, adjust, reference_of
from harness.slowdowns.detection_power import level_of_subject
from harness.slowdowns.findings import Subject
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
_USUAL_FREEDOM = 4.0
"""Degrees of freedom of the usual scatter."""
_CHANGED = 0.1
"""Probability that a probe really changed from one night to the next."""
_CHANGED_BY = 10.0
"""Scale of the Cauchy distribution of real changes, as a multiple of the usual scatter."""
_LOWEST, _HIGHEST, _STEPS = 0.03, 1.0, 200
_HELD = -25.0
"""Logarithm of a posterior relative to its maximum, down to which the second grid reaches."""
_OUTER = 0.05
"""Two-sided probability at which Student's distribution matches the posterior, for 95 % intervals."""
_HALVINGS = 50
_AT_ONCE = 4096
_FREEDOMS = np.geomspace(0.5, 1e6, 400)


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


def all_tracks(nights: Nights, level: float) -> tuple[list[Track], Scatter, float]:
    """Return the tracks of all subjects, the device last; the scatter of layers and networks; each subject's level.

    The subjects share the significance `level`.
    """
    subjects = _common_subjects(nights)
    each = level_of_subject(level, len(subjects) + 1)
    tracks, scatter = _tracks_of(nights, subjects, each)
    device = _device_track(nights, each)
    return [*tracks, *([device] if device else [])], scatter, each


def _common_subjects(nights: Nights) -> list[SubjectProbe]:
    """Return tonight's layers and networks that an earlier night also has."""
    found = []
    for subject, probe, unit_s, copies in _watched_subjects(nights.series[-1], nights.reference):
        having = tuple(at for at, night in enumerate(nights.adjusted) if probe in night.samples)
        if unit_s > 0 and len(having) > 1 and having[-1] == len(nights.series) - 1:
            found.append(SubjectProbe(subject, probe, unit_s, copies, having))
    return found


def _watched_subjects(night: WatchSeries, reference: Reference) -> list[tuple[Subject, str, float, int]]:
    """Return each watched subject with its probe, its latency over the earlier nights, and its copies in the probe."""
    found: list[tuple[Subject, str, float, int]] = []
    for layer in night.layers:
        if layer.probe in reference.total_s and layer.baseline in reference.total_s:
            host_s, baseline_s = (reference.host.of(night.probes[one].terms) for one in (layer.probe, layer.baseline))
            both_s = reference.total_s[layer.probe] - reference.total_s[layer.baseline]
            found.append((layer.subject, layer.probe, (both_s - (host_s - baseline_s)) / layer.copies, layer.copies))
    for probe, record in night.probes.items():
        if record.role == "network" and probe in reference.total_s:
            found.append((Subject("network", record.label), probe, reference.total_s[probe], 1))
    return found


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


@dataclass(frozen=True, eq=False)
class Deviations:
    """A probe's deviations on some nights, with standard errors from its samples, and its total."""

    deviation_s: Floats
    stderr_s: Floats
    total_s: float


@dataclass(frozen=True)
class Prior:
    """The distribution of the scatter before any data.

    `usual` is the usual scatter. With probability `tail`, below one, the device is unusual, and its scatter has a
    half-Cauchy distribution that reaches up to the whole total.
    """

    usual: float
    tail: float

    def log_density(self, tried: Floats) -> Floats:
        """Return the log density of the logarithm of the scatter."""
        half = _USUAL_FREEDOM / 2
        scale = math.log(2) - math.lgamma(half) + half * math.log(half)
        usual = scale - _USUAL_FREEDOM * (np.log(tried / self.usual) + self.usual**2 / (2 * tried**2))
        if not self.tail:
            return np.asarray(usual)
        other = np.log(2 / math.pi * tried / self.usual) - np.log1p(np.square(tried / self.usual))
        return np.asarray(np.logaddexp(math.log(1 - self.tail) + usual, math.log(self.tail) + other))


@dataclass(frozen=True, eq=False)
class Scatter:
    """Possible standard deviations, as fractions, with the probability of each."""

    tried: Floats
    weight: Floats

    @property
    def value(self) -> float:
        """The median."""
        return float(np.interp(0.5, np.cumsum(self.weight), self.tried))

    def errors(self, probes: Sequence[Deviations], level: float) -> list[tuple[Floats, float]]:
        """Return, for each probe, the standard errors of its nights and their degrees of freedom.

        With these, the quantiles of Student's distribution match the posterior's at `level`, where tests decide.
        """
        if not probes:
            return []
        sampled = np.array([float(np.square(one.stderr_s).min()) for one in probes])
        total_s = np.array([one.total_s for one in probes])
        spread = np.sqrt(sampled[:, None] + np.square(total_s[:, None] * self.tried))
        outer, deep = (self._quantile(spread, probability) for probability in (_OUTER, level))
        ratios = student.isf(level / 2, _FREEDOMS) / student.isf(_OUTER / 2, _FREEDOMS)
        freedom = np.interp(-deep / outer, -ratios, _FREEDOMS)
        variance = np.square(outer / student.isf(_OUTER / 2, freedom))
        between = np.maximum(variance - sampled, 0.0)
        return [
            (np.sqrt(np.square(one.stderr_s) + more), float(known))
            for one, more, known in zip(probes, between, freedom, strict=True)
        ]

    def _quantile(self, spread: Floats, probability: float) -> Floats:
        """Return the size that is exceeded in either direction with this probability, for each row of `spread`."""
        low, high = np.zeros(len(spread)), 40 * spread.max(axis=1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            beyond = 2 * ndtr(-middle[:, None] / spread) @ self.weight > probability
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        return np.asarray(high)


def scatter_of(probes: Sequence[Deviations], prior: Prior) -> Scatter:
    """Return the scatter of probes over nights."""
    steps = np.concatenate([np.zeros((3, 0)), *map(_steps, probes)], axis=1)
    lowest, highest = _LOWEST * prior.usual, max(_HIGHEST, prior.usual / _LOWEST)
    tried = np.geomspace(lowest, highest, _STEPS)
    held = _posterior(tried, steps, prior)
    among = np.flatnonzero(held > held.max() + _HELD)
    tried = np.geomspace(tried[max(0, among[0] - 1)], tried[min(_STEPS - 1, among[-1] + 1)], _STEPS)
    held = _posterior(tried, steps, prior)
    return Scatter(tried, np.exp(held - logsumexp(held)))


def _posterior(tried: Floats, steps: Floats, prior: Prior) -> Floats:
    """Return the logarithms of posterior probabilities, up to a constant."""
    held = prior.log_density(tried)
    for part in np.array_split(steps, math.ceil(steps.shape[1] / _AT_ONCE) or 1, axis=1):
        held += np.sum(_log_likelihood(part, tried[:, None], prior), axis=1)
    return np.asarray(held)


def _log_likelihood(steps: Floats, tried: Floats, prior: Prior) -> Floats:
    """Return log likelihoods of differences (columns) under scatters (rows); a probe changed or did not."""
    off_s, error_s, total_s = steps
    spread_s = np.hypot(error_s, tried * total_s)
    same = -0.5 * np.square(off_s / spread_s) - np.log(spread_s * math.sqrt(2 * math.pi))
    scale_s = _CHANGED_BY * np.hypot(error_s, prior.usual * total_s)
    changed = -np.log1p(np.square(off_s / scale_s)) - np.log(math.pi * scale_s)
    return np.asarray(np.logaddexp(math.log(1 - _CHANGED) + same, math.log(_CHANGED) + changed))


def _steps(probe: Deviations) -> Floats:
    """Return each difference from one night to the next, its error, and the total; a step counts only once."""
    errors = np.hypot(probe.stderr_s[1:], probe.stderr_s[:-1]) / 2**0.5
    return np.stack([np.diff(probe.deviation_s) / 2**0.5, errors, np.full(len(errors), probe.total_s)])
