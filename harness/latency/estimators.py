"""Layer latencies of one campaign by any of the estimators."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from harness.array_types import Floats
from harness.latency.joint import JointFit, Place, fit_joint
from harness.latency.layer_latency import (
    REGRESSIONS,
    RESOLUTION_SIGMAS,
    CampaignData,
    Combination,
    Latency,
    Subtraction,
    covariance_of,
    misfit_s,
    slope,
    subtracted,
    subtraction,
)
from harness.latency.method_names import LatencyMethod
from harness.latency.overhead import Overhead
from harness.measure.summary import mad_sigma
from harness.probe.probe_plan import LayerProbes

DISAGREEMENT_Z = 3.0
RELEVANT_SHARE = 0.05
RELEVANT_NETWORK_SHARE = 0.01
_LEAST_RATIO = 0.01
"""A latency of another estimator counts as at least this part of the joint one: it may be negative."""
_FEWEST_USUAL = 20
"""Layers that show what difference to `joint` is usual for an estimator."""
LEAST_LATENCY_S = 1e-12
"""Stands for zero in a table, whose latencies are positive."""


@dataclass(frozen=True)
class LayerLatencies:
    """Latencies by place, their covariance in s² in the same order, and the estimators that disagree.

    Where the device reports chains, places with a neighbourhood hold the layer's share of the chain that it runs in.
    `additivity` is the robust spread of the joint system's residuals in standard errors, None for other methods.
    `sum_error` is the relative error of sums beyond that of their layers, `network_errors` that of single networks.
    """

    latencies: Mapping[Place, Latency]
    covariance: Floats
    flags: Mapping[Place, str]
    additivity: float | None
    sum_error: float
    network_errors: Mapping[str, float] = field(default_factory=dict)


def estimate_layers(data: CampaignData, method: LatencyMethod, overhead: Overhead) -> LayerLatencies:
    """Return the layers of a campaign by one estimator, without those that it cannot determine.

    `overhead` is the fit to the campaign's null probes. Raises IllConditionedDesign.
    """
    if method == "joint":
        fit = fit_joint(data, overhead)
        found = dict(zip(fit.places, fit.latencies, strict=True))
        shared, covariance = _shares(fit, data)
        together = np.zeros((len(found) + len(shared),) * 2)
        together[: len(found), : len(found)] = fit.covariance
        together[len(found) :, len(found) :] = covariance
        flags = _flags(data, fit, overhead)
        return LayerLatencies({**found, **shared}, together, flags, fit.scale, fit.sum_error, fit.network_errors)
    views = dict.fromkeys(_views(data), _no_time(1))
    combined = ((one, _combination(one, method, data, overhead)) for one in data.layers if not one.is_view)
    parts = {(layer.key.digest, layer.context): one for layer, one in combined if one is not None}
    latencies = {place: one.latency(data.summaries, overhead) for place, one in parts.items()}
    covariance = np.pad(covariance_of(list(parts.values()), data.summaries, overhead), (0, len(views)))
    return LayerLatencies({**latencies, **views}, covariance, {}, None, overhead.scatter)


def _views(data: CampaignData) -> list[Place]:
    """Return the places of layers that take no time in their context, as the device reports."""
    return sorted({(layer.key.digest, layer.context) for layer in data.layers if layer.is_view})


def _no_time(samples: int) -> Latency:
    """Return the latency of a layer that takes no time."""
    return Latency(LEAST_LATENCY_S, 0.0, False, samples, 0.0, 0.0)


def _combination(
    layer: LayerProbes, method: Literal["chain"] | Subtraction, data: CampaignData, overhead: Overhead
) -> Combination | None:
    if method == "chain":
        return slope(layer, data.summaries)
    found = subtraction(layer, method, data)
    if found is None or method not in REGRESSIONS:
        return found
    return replace(found, misfit_s=misfit_s(layer, data, overhead))


def _shares(fit: JointFit, data: CampaignData) -> tuple[dict[Place, Latency], Floats]:
    """Return the layers' shares of their chains by place, with their covariance; the mean where a place recurs.

    Layers that take no time, as the device reports, are among them.
    """
    places = list(dict.fromkeys(fit.shares.places))
    rows = {place: row for row, place in enumerate(places)}
    mean = np.zeros((len(places), len(fit.shares.places)))
    for at, place in enumerate(fit.shares.places):
        mean[rows[place], at] = 1.0
    mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1.0)
    values, covariance = mean @ fit.shares.values, mean @ fit.shares.covariance @ mean.T
    taken = [data.summaries[chain.alone].samples for chain in data.chains if chain.alone in data.summaries]
    fewest = min(taken, default=1)
    shared = {}
    for place, value, variance in zip(places, values, np.diag(covariance), strict=True):
        resolved = bool(value**2 >= RESOLUTION_SIGMAS**2 * variance)
        stderr_s = float(np.sqrt(max(variance, 0.0)))
        shared[place] = Latency(float(value), stderr_s, resolved, fewest, float(value), stderr_s)
    views = {*_views(data), *(place for chain in data.chains for place in chain.views)} - rows.keys()
    padded = np.pad(covariance, (0, len(views)))
    return {**shared, **dict.fromkeys(sorted(views), _no_time(fewest))}, padded


def _flags(data: CampaignData, fit: JointFit, overhead: Overhead) -> dict[Place, str]:
    """Return for each place the estimators that would change a network noticeably: `chain +12%`.

    They differ by more than three standard errors, 5 % of the layer, and 1 % of the layers of a network that has it,
    beyond what loads from the device's own memory explain. They also differ from what is usual for this estimator,
    which may be above `joint` for most layers of a device.
    """
    layers = {(layer.key.digest, layer.context): layer for layer in data.layers}
    joint = dict(zip(fit.places, fit.latencies, strict=True))
    resolved = [place for place, one in joint.items() if one.resolved]
    smallest_s = _smallest_networks(layers, joint)
    flags: dict[Place, list[str]] = defaultdict(list)
    for name in ("chain", "difference", "regression-terms"):
        others = {place: _other(name, layers[place], fit.repeated.get(place), data, overhead) for place in resolved}
        found = {place: other for place, other in others.items() if other is not None}
        ratios = {
            place: math.log(max(other.remainder_s / joint[place].latency_s, _LEAST_RATIO))
            for place, other in found.items()
        }
        usual, spread = _usual(list(ratios.values()))
        for place in (place for place, ratio in ratios.items() if abs(ratio - usual) > DISAGREEMENT_Z * spread):
            loads_s = _loads_s(name, layers[place], data, overhead)
            other = _beyond_loads(found[place], joint[place], *loads_s)
            if _disagrees(joint[place], other, RELEVANT_NETWORK_SHARE * smallest_s[place]):
                flags[place].append(f"{name} {other.remainder_s / joint[place].latency_s - 1:+.0%}")
    return {place: ", ".join(words) for place, words in flags.items()}


def _loads_s(
    name: Literal["chain"] | Subtraction, layer: LayerProbes, data: CampaignData, overhead: Overhead
) -> tuple[float, float]:
    """Return the time in which the device loads the inputs of the baseline and of the probe from its own memory.

    A layer after others finds its inputs on chip, and so do copies of a layer.
    """
    if name == "chain":
        return 0.0, 0.0
    baseline = data.terms[layer.auxiliary].input_bytes if name == "difference" else 0
    byte_s = overhead.coefficients["loaded_bytes"].value
    return byte_s * baseline, byte_s * data.terms[layer.layer].input_bytes


def _beyond_loads(other: Latency, joint: Latency, below_s: float, above_s: float) -> Latency:
    """Move another estimate towards the joint one by at most the loads."""
    nearest_s = min(max(joint.remainder_s, other.remainder_s - above_s), other.remainder_s + below_s)
    return replace(other, remainder_s=nearest_s)


def _other(
    name: Literal["chain"] | Subtraction,
    layer: LayerProbes,
    repeated: Latency | None,
    data: CampaignData,
    overhead: Overhead,
) -> Latency | None:
    """Return a layer's latency by another estimator; that of copies is part of the joint fit."""
    return repeated if name == "chain" else subtracted(layer, name, data, overhead)


def _usual(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the median of an estimator's logarithmic ratios and their robust spread, zero for few."""
    if len(ratios) < _FEWEST_USUAL:
        return 0.0, 0.0
    return statistics.median(ratios), mad_sigma(ratios)


def _smallest_networks(layers: Mapping[Place, LayerProbes], latencies: Mapping[Place, Latency]) -> dict[Place, float]:
    """Return for each place the seconds of all different layers of the network with the least of those that have it."""
    sums: dict[str, float] = defaultdict(float)
    for place, one in latencies.items():
        for network in layers[place].networks:
            sums[network] += one.latency_s
    return {
        place: min((sums[network] for network in layers[place].networks), default=one.latency_s)
        for place, one in latencies.items()
    }


def _disagrees(joint: Latency, other: Latency, least_s: float) -> bool:
    """Return whether the difference is large, at least `least_s`, and beyond its error."""
    change_s = abs(other.remainder_s - joint.remainder_s)
    is_large = abs(other.remainder_s / joint.latency_s - 1) > RELEVANT_SHARE and change_s > least_s
    return is_large and change_s > DISAGREEMENT_Z * math.hypot(joint.stderr_s, other.stderr_s)
