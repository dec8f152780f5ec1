"""A night freed of what all its probes have in common: the host's share, and the device as a whole.

On one night the host is a percent slower, on another the clock of the whole device is lower. Either moves every
probe, by far more than what is looked for in one of them. Against a reference, the middle of the earlier nights, the
totals of a night are `moved = a' * input_bytes + b' * output_bytes + c' + g * own + change of the layer`, where `own`
is what of a probe is not the host's. Null probes tell a', b' and c' first, as no layer is in them; `g` is the median
over the layers, so that neither one that changed nor a few can pass for the device; then all but whole networks fit a',
b' and c' again, those that do not fit left out (Tukey's biweight).

Each batch is freed by itself, as it was measured at times of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.measure.summary import MAD_TO_SIGMA
from harness.probe.overhead_terms import OverheadTerms
from harness.slowdowns.overheads import HostShare, columns_of, fit_host, tells_host
from harness.slowdowns.series import WatchSeries

Array = np.ndarray[Any, np.dtype[np.float64]]

FEWEST_LAYERS = 5
"""Layers from which on their median can be told from one of them."""
_FEWEST_NULLS = 6
NULLS = ("calibration", "null", "auxiliary")
_TUKEY = 4.685
_HUBER = 1.345
_REWEIGHTINGS = 12
_MEDIAN_EFFICIENCY = 1.2533
_TELLING = 5.0
"""Errors of a layer's change up to which it tells something of the device, as a multiple of the middle one."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What each probe took in the middle of several nights, and what of that is not the host's."""

    total_s: Mapping[str, float]
    own_s: Mapping[str, float]
    host: HostShare


@dataclass(frozen=True, eq=False)
class FreedNight:
    """A night's samples of layers' probes and networks, freed; `moved_s` is how far each is off the reference.

    `stderr_s` are of `moved_s`; both have null probes, too, whose samples nobody needs. `device` is how much slower the
    device as a whole was, with its standard error; `host` how much more an empty run took, as fractions.
    """

    samples: Mapping[str, Array]
    moved_s: Mapping[str, float]
    stderr_s: Mapping[str, float]
    device: float
    device_stderr: float
    host: float


def reference_of(nights: Sequence[WatchSeries]) -> Reference:
    """The reference over these nights; each probe counts where it was measured."""
    found: dict[str, list[float]] = {}
    for night in nights:
        for batch in night.centres:
            for probe, (centre_s, _) in batch.items():
                found.setdefault(probe, []).append(centre_s)
    total_s = {probe: float(np.median(values)) for probe, values in found.items()}
    terms = {probe: one.terms for night in nights for probe, one in night.probes.items()}
    roles = {probe: one.role for night in nights for probe, one in night.probes.items()}
    host = fit_host({probe: total_s[probe] for probe in total_s if tells_host(roles[probe], terms[probe])}, terms)
    own_s = {probe: max(0.0, total - host.of(terms[probe])) for probe, total in total_s.items()}
    return Reference(total_s, own_s, host)


def free(night: WatchSeries, reference: Reference) -> FreedNight:
    """The night, freed of what is common to its probes, beside the reference."""
    batches = [_Batch(night, number, reference) for number in range(len(night.samples))]
    for batch in batches:
        batch.fit_nulls()
    device, stderr = _device(batches)
    for batch in batches:
        batch.fit(device)
    device, stderr = _device(batches)
    samples: dict[str, Array] = {}
    moved: dict[str, float] = {}
    errors: dict[str, float] = {}
    for batch in batches:
        for at, probe in enumerate(batch.probes):
            common_s = float(batch.host_s[at] + device * batch.own_s[at])
            moved[probe] = float(batch.moved_s[at] - common_s)
            errors[probe] = float(np.hypot(batch.error_s(at), stderr * batch.own_s[at]))
            if batch.is_layer[at] or batch.is_network[at]:
                samples[probe] = batch.samples[probe] - common_s
    empty_s = float(np.median([batch.empty_s for batch in batches])) if batches else 0.0
    host = empty_s / reference.host.run_s if reference.host.run_s > 0 else 0.0
    return FreedNight(samples, moved, errors, device, stderr, host)


class _Batch:
    """One batch of a night while it is freed: arrays over those probes that the reference has."""

    def __init__(self, night: WatchSeries, number: int, reference: Reference) -> None:
        self.samples = night.samples[number]
        self.probes = sorted(probe for probe in self.samples if probe in reference.total_s)
        centres = [night.centres[number][probe] for probe in self.probes]
        total_s = np.array([reference.total_s[probe] for probe in self.probes])
        self.moved_s = np.array([centre for centre, _ in centres]) - total_s
        self.stderr_s = np.array([stderr for _, stderr in centres])
        self.own_s = np.array([reference.own_s[probe] for probe in self.probes])
        roles = [night.probes[probe].role for probe in self.probes]
        watched = {layer.probe for layer in night.layers}
        self.is_one_a_layer = np.array([probe in night.one_a_layer for probe in self.probes], dtype=bool)
        self.is_null = np.array([role in NULLS for role in roles], dtype=bool)
        self.is_network = np.array([role == "network" for role in roles], dtype=bool)
        self.is_layer = np.array([probe in watched for probe in self.probes], dtype=bool)
        self.columns = _columns([night.probes[one].terms for one in self.probes], self.is_null, reference.host)
        self.host_s = np.zeros(len(self.probes))
        self.covariance = np.zeros((self.columns.shape[1],) * 2)
        self.empty_s = 0.0

    def fit_nulls(self) -> None:
        """The host by null probes alone."""
        self._fit(self.moved_s, self.is_null, _HUBER, None)

    def fit(self, device: float) -> None:
        """The host by all but whole networks, once it is known how much the device as a whole changed."""
        self._fit(self.moved_s - device * self.own_s, ~self.is_network, _TUKEY, self.host_s)

    def error_s(self, at: int) -> float:
        """The error of what a probe is off without the host's share; null probes have told most of that themselves."""
        fitted = 0.0 if self.is_null[at] else float(self.columns[at] @ self.covariance @ self.columns[at])
        return float(np.sqrt(self.stderr_s[at] ** 2 + fitted))

    def _fit(self, moved_s: Array, used: Any, bound: float, start: Array | None) -> None:
        columns, wanted, weight = self.columns[used], moved_s[used], 1 / self.stderr_s[used]
        if len(wanted) < columns.shape[1] + 1:
            return
        residual = None if start is None else (wanted - start[used]) * weight
        trust = np.ones(len(wanted))
        fitted = np.zeros(columns.shape[1])
        for _ in range(_REWEIGHTINGS):
            if residual is not None:
                scale = max(1.0, MAD_TO_SIGMA * float(np.median(abs(residual))))
                trust = _trust(residual / scale, bound)
            scaled = columns * (weight * np.sqrt(trust))[:, None]
            fitted = np.linalg.lstsq(scaled, wanted * weight * np.sqrt(trust), rcond=None)[0]
            residual = (wanted - columns @ fitted) * weight
        scale = max(1.0, MAD_TO_SIGMA * float(np.median(abs(residual))) if residual is not None else 1.0)
        scaled = columns * (weight * np.sqrt(trust))[:, None]
        self.covariance = scale**2 * np.linalg.pinv(scaled.T @ scaled)
        self.host_s = self.columns @ fitted
        self.empty_s = float(fitted[0])


def _trust(residual: Array, bound: float) -> Array:
    """Huber's weights, or Tukey's, which are none for what does not fit at all."""
    size = abs(residual) / bound
    if bound == _HUBER:
        return np.asarray(1 / np.maximum(1.0, size))
    return np.asarray(np.where(size < 1, (1 - np.minimum(size, 1.0) ** 2) ** 2, 1e-9))


def _columns(terms: Sequence[OverheadTerms], is_null: Any, host: HostShare) -> Array:
    """Columns of what the host may do, in units of an empty run where the null probes cannot tell more apart."""
    sizes = np.array([columns_of(one) for one in terms]).reshape(-1, 3)
    told = sizes[is_null]
    scale = np.maximum(sizes.max(axis=0), 1.0) if len(sizes) else np.ones(3)
    if len(told) >= _FEWEST_NULLS and np.linalg.matrix_rank(told / scale, tol=1e-2) == sizes.shape[1]:
        return np.asarray(sizes / scale)
    share = np.array([host.of(one) for one in terms])
    return np.asarray((share / host.run_s if host.run_s > 0 else np.ones(len(terms)))[:, None])


def _device(batches: Sequence[_Batch]) -> tuple[float, float]:
    """The median over the layers of how much slower they were; nothing where they are too few to tell.

    All count alike, so that a few large ones cannot outweigh the others, but for those that tell nothing.
    """
    parts = [
        ((batch.moved_s - batch.host_s)[used], batch.stderr_s[used], batch.own_s[used])
        for batch in batches
        for used in [batch.is_one_a_layer]
    ]
    moved, stderr, own = (np.concatenate(one) if parts else np.zeros(0) for one in zip(*parts, strict=True))
    moved, stderr, own = moved[own > 0], stderr[own > 0], own[own > 0]
    if len(own) < FEWEST_LAYERS:
        return 0.0, 0.0
    slower, error = moved / own, stderr / own
    told = error <= _TELLING * np.median(error)
    middle = float(np.median(slower[told]))
    uneven = MAD_TO_SIGMA * float(np.median(abs(slower[told] - middle) / error[told]))
    spread = _MEDIAN_EFFICIENCY * float(np.sqrt(told.sum()) / np.sum(1 / error[told]))
    return middle, max(1.0, uneven) * spread
