"""Layer latencies of one campaign by any of the estimators."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
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
from harness.probe.probe_plan import LayerProbes

DISAGREEMENT_Z = 3.0
RELEVANT_SHARE = 0.05
RELEVANT_NETWORK_SHARE = 0.01
LEAST_LATENCY_S = 1e-12
"""Stands for zero in a table, whose latencies are positive."""


@dataclass(frozen=True)
class LayerLatencies:
    """Latencies by place, their covariance in s² in the same order, and the estimators that disagree.

    Where the device reports chains, places with a neighbourhood hold the layer's share of the chain that it runs in.
    `additivity` is the robust spread of the joint system's residuals in standard errors, None for other methods;
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
    combined = ((layer, _combination(layer, method, data, overhead)) for layer in data.layers)
    parts = {(layer.key.digest, layer.context): one for layer, one in combined if one is not None}
    latencies = {place: one.latency(data.summaries, overhead) for place, one in parts.items()}
    covariance = covariance_of(list(parts.values()), data.summaries, overhead)
    return LayerLatencies(latencies, covariance, {}, None, overhead.scatter)


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
    """Return the layers' shares of their chains by place, with their covariance; the mean where a place recurs."""
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
    views = sorted({place for chain in data.chains for place in chain.views} - rows.keys())
    padded = np.pad(covariance, (0, len(views)))
    return {**shared, **dict.fromkeys(views, Latency(LEAST_LATENCY_S, 0.0, False, fewest, 0.0, 0.0))}, padded


def _flags(data: CampaignData, fit: JointFit, overhead: Overhead) -> dict[Place, str]:
    """Return for each place the estimators that would change a network noticeably: `chain +12%`.

    They differ by more than three standard errors, 5 % of the layer, and 1 % of the layers of a network that has it.
    """
    layers = {(layer.key.digest, layer.context): layer for layer in data.layers}
    smallest_s = _smallest_networks(layers, dict(zip(fit.places, fit.latencies, strict=True)))
    flags = {}
    for place, joint in zip(fit.places, fit.latencies, strict=True):
        others = {
            "chain": fit.repeated.get(place),
            "difference": subtracted(layers[place], "difference", data, overhead),
            "regression-terms": subtracted(layers[place], "regression-terms", data, overhead),
        }
        least_s = RELEVANT_NETWORK_SHARE * smallest_s[place]
        changes = {name: _disagreement(joint, other, least_s) for name, other in others.items() if other is not None}
        words = [f"{name} {change:+.0%}" for name, change in changes.items() if change]
        if words and joint.resolved:
            flags[place] = ", ".join(words)
    return flags


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


def _disagreement(joint: Latency, other: Latency, least_s: float) -> float:
    """Return the relative difference, or 0 where it is small, below `least_s`, or within its error."""
    change_s = abs(other.remainder_s - joint.remainder_s)
    change = other.remainder_s / joint.latency_s - 1
    beyond = change_s / math.hypot(joint.stderr_s, other.stderr_s)
    return change if beyond > DISAGREEMENT_Z and abs(change) > RELEVANT_SHARE and change_s > least_s else 0.0
