"""Remove changes that affect all probes alike, of the host or the whole device, from a night's samples.

On some nights the host is a percent slower, on others the clock of the whole device is lower. Both change every probe
by far more than the slow-down of one layer would. The reference is the median of the earlier nights. The deviation of
a probe's total from it is modelled as ::

    deviation = a' * input_bytes + b' * output_bytes + c' + g * own_s + change of the layer

where own_s is the probe's time without the host. The fit takes three steps. Null probes, which contain no layer, give
a', b' and c'. The median over the layers gives g, so that a few changed layers are not mistaken for a change of the
device. Then all probes except whole networks give a', b' and c' again, with outliers excluded (Tukey's biweight).

Each batch is adjusted by itself, because batches are measured at different times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness.array_types import Floats
from harness.latency.robust import huber_weights, robust_spread
from harness.measure.summary import MAD_TO_SIGMA, MEDIAN_EFFICIENCY
from harness.probe.overhead_terms import OverheadTerms
from harness.slowdowns.host_share import HostShare, columns_of, fit_host, is_host_probe
from harness.slowdowns.watch_series import WatchSeries

FEWEST_LAYERS = 5
"""The median over fewer layers could be the change of one of them."""
NULL_ROLES = ("calibration", "null", "auxiliary")
_FEWEST_NULLS = 6
_TUKEY = 4.685
_REWEIGHTINGS = 12
_LARGEST_ERROR = 5.0
"""Layers are used to find the change of the device up to this error, as a multiple of the median error."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The median total of each probe over several nights, and its part without the host."""

    total_s: Mapping[str, float]
    own_s: Mapping[str, float]
    host: HostShare


@dataclass(frozen=True, eq=False)
class AdjustedNight:
    """A night's adjusted samples of layers' probes and networks; `deviation_s` is each probe's from the reference.

    `stderr_s` are standard errors of `deviation_s`; both include null probes, `samples` does not. `device` is the
    relative slow-down of the device as a whole, with its standard error, and `host` that of an empty run.
    """

    samples: Mapping[str, Floats]
    deviation_s: Mapping[str, float]
    stderr_s: Mapping[str, float]
    device: float
    device_stderr: float
    host: float


def reference_of(nights: Sequence[WatchSeries]) -> Reference:
    """Return the reference over these nights; each probe counts on the nights that measured it."""
    found: dict[str, list[float]] = {}
    for night in nights:
        for batch in night.centres:
            for probe, (centre_s, _) in batch.items():
                found.setdefault(probe, []).append(centre_s)
    total_s = {probe: float(np.median(values)) for probe, values in found.items()}
    terms = {probe: one.terms for night in nights for probe, one in night.probes.items()}
    roles = {probe: one.role for night in nights for probe, one in night.probes.items()}
    host = fit_host({probe: total_s[probe] for probe in total_s if is_host_probe(roles[probe], terms[probe])}, terms)
    own_s = {probe: max(0.0, total - host.of(terms[probe])) for probe, total in total_s.items()}
    return Reference(total_s, own_s, host)


def adjust(night: WatchSeries, reference: Reference) -> AdjustedNight:
    """Return the night with the changes of the host and of the whole device subtracted."""
    batches = [_Batch(night, number, reference) for number in range(len(night.samples))]
    for batch in batches:
        batch.fit(batch.deviation_s, batch.is_null, partial(huber_weights, spread=1.0))
    device, _ = _device_change(batches)
    for batch in batches:
        batch.fit(batch.deviation_s - device * batch.own_s, ~batch.is_network, _tukey, batch.host_s)
    device, stderr = _device_change(batches)
    samples: dict[str, Floats] = {}
    deviation_s: dict[str, float] = {}
    errors: dict[str, float] = {}
    for batch in batches:
        common_s = batch.host_s + device * batch.own_s
        for at, probe in enumerate(batch.probes):
            deviation_s[probe] = float(batch.deviation_s[at] - common_s[at])
            errors[probe] = float(np.hypot(batch.error_s(at), stderr * batch.own_s[at]))
            if batch.is_watched[at] or batch.is_network[at]:
                samples[probe] = batch.samples[probe] - common_s[at]
    empty_s = float(np.median([batch.empty_s for batch in batches])) if batches else 0.0
    host = empty_s / reference.host.run_s if reference.host.run_s > 0 else 0.0
    return AdjustedNight(samples, deviation_s, errors, device, stderr, host)


class _Batch:
    """One batch of a night during the fit, as arrays over the probes that the reference has."""

    def __init__(self, night: WatchSeries, number: int, reference: Reference) -> None:
        self.samples = night.samples[number]
        self.probes = sorted(probe for probe in self.samples if probe in reference.total_s)
        centres = [night.centres[number][probe] for probe in self.probes]
        total_s = np.array([reference.total_s[probe] for probe in self.probes])
        self.deviation_s = np.array([centre for centre, _ in centres]) - total_s
        self.stderr_s = np.array([stderr for _, stderr in centres])
        self.own_s = np.array([reference.own_s[probe] for probe in self.probes])
        roles = [night.probes[probe].role for probe in self.probes]
        watched = {layer.probe for layer in night.layers}
        self.is_one_a_layer = np.array([probe in night.one_a_layer for probe in self.probes], dtype=bool)
        self.is_null = np.array([role in NULL_ROLES for role in roles], dtype=bool)
        self.is_network = np.array([role == "network" for role in roles], dtype=bool)
        self.is_watched = np.array([probe in watched for probe in self.probes], dtype=bool)
        self.columns = _columns([night.probes[one].terms for one in self.probes], self.is_null, reference.host)
        self.host_s = np.zeros(len(self.probes))
        self.covariance = np.zeros((self.columns.shape[1],) * 2)
        self.empty_s = 0.0

    def layer_changes(self) -> Floats:
        """Return the relative change of each layer beyond the host's, and its standard error, as rows."""
        used = self.is_one_a_layer & (self.own_s > 0)
        return np.asarray(np.stack([self.deviation_s - self.host_s, self.stderr_s])[:, used] / self.own_s[used])

    def error_s(self, at: int) -> float:
        """Return the standard error of a probe's deviation; null probes determine the fit, so it adds none to them."""
        fitted = 0.0 if self.is_null[at] else float(self.columns[at] @ self.covariance @ self.columns[at])
        return float(np.sqrt(self.stderr_s[at] ** 2 + fitted))

    def fit(self, deviation_s: Floats, used: Any, weights_of: Any, start: Floats | None = None) -> None:
        """Fit the host's change to the `used` probes by iteratively reweighted least squares.

        `weights_of` returns the weights of scaled residuals; `start` are the host's changes that the first ones use.
        """
        columns, wanted, weight = self.columns[used], deviation_s[used], 1 / self.stderr_s[used]
        if len(wanted) < columns.shape[1] + 1:
            return
        residual = None if start is None else (wanted - start[used]) * weight
        weights = np.ones(len(wanted))
        fitted = np.zeros(columns.shape[1])
        for _ in range(_REWEIGHTINGS):
            if residual is not None:
                weights = weights_of(residual / _scale(residual))
            scaled = columns * (weight * np.sqrt(weights))[:, None]
            fitted = np.linalg.lstsq(scaled, wanted * weight * np.sqrt(weights), rcond=None)[0]
            residual = (wanted - columns @ fitted) * weight
        scale = 1.0 if residual is None else _scale(residual)
        scaled = columns * (weight * np.sqrt(weights))[:, None]
        self.covariance = scale**2 * np.linalg.pinv(scaled.T @ scaled)
        self.host_s = self.columns @ fitted
        self.empty_s = float(fitted[0])


def _scale(residual: Floats) -> float:
    return max(1.0, float(robust_spread(residual)[0]))


def _tukey(residual: Floats) -> Floats:
    size = abs(residual) / _TUKEY
    return np.asarray(np.where(size < 1, (1 - np.minimum(size, 1.0) ** 2) ** 2, 1e-9))


def _columns(terms: Sequence[OverheadTerms], is_null: Any, host: HostShare) -> Floats:
    """Return the columns of the host's change: run, input and output if the null probes differ enough in size.

    Otherwise the only column is the host's share of each probe, in units of an empty run.
    """
    sizes = np.array([columns_of(one) for one in terms]).reshape(-1, 3)
    nulls = sizes[is_null]
    scale = np.maximum(sizes.max(axis=0), 1.0) if len(sizes) else np.ones(3)
    if len(nulls) >= _FEWEST_NULLS and np.linalg.matrix_rank(nulls / scale, tol=1e-2) == sizes.shape[1]:
        return np.asarray(sizes / scale)
    share = np.array([host.of(one) for one in terms])
    return np.asarray((share / host.run_s if host.run_s > 0 else np.ones(len(terms)))[:, None])


def _device_change(batches: Sequence[_Batch]) -> tuple[float, float]:
    """Return the median relative slow-down over the layers, with its standard error; zeros for too few layers.

    Layers with large errors are excluded. The others have equal weights, so that a few large ones cannot outweigh the
    rest.
    """
    slower, error = np.concatenate([np.zeros((2, 0)), *(batch.layer_changes() for batch in batches)], axis=1)
    if len(slower) < FEWEST_LAYERS:
        return 0.0, 0.0
    precise = error <= _LARGEST_ERROR * np.median(error)
    middle = float(np.median(slower[precise]))
    uneven = MAD_TO_SIGMA * float(np.median(abs(slower[precise] - middle) / error[precise]))
    spread = MEDIAN_EFFICIENCY * float(np.sqrt(precise.sum()) / np.sum(1 / error[precise]))
    return middle, max(1.0, uneven) * spread
