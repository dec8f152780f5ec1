"""Layer latencies of one campaign by any of the estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from harness.latency.joint import JointFit, Place, fit_joint
from harness.latency.layer_latency import RESOLUTION_SIGMAS, Latency, chained, subtracted
from harness.latency.overhead import Overhead
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import LayerProbes

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

Method = Literal["joint", "chain", "difference", "regression"]
METHODS: tuple[Method, ...] = get_args(Method)
DISAGREEMENT_Z = 3.0
RELEVANT_SHARE = 0.05
LEAST_LATENCY_S = 1e-12
"""What stands for nothing in a table, whose latencies are positive."""


@dataclass(frozen=True)
class Measured:
    """What a campaign brought: layers and chains, role, terms and visits of each probe, a summary of its samples."""

    layers: Sequence[LayerProbes]
    chains: Sequence[ChainProbes]
    roles: Mapping[str, str]
    terms: Mapping[str, OverheadTerms]
    visits: Mapping[str, str]
    summaries: Mapping[str, Measurement]


@dataclass(frozen=True)
class LayerLatencies:
    """Latencies by place, their covariance in s² in the same order, and which other estimators disagree.

    Where the device tells chains, places with a neighbourhood hold a layer's share of the chain that it runs in.
    `additivity` is the robust spread of the joint system's residuals in standard errors, None for other methods;
    `sum_error` the relative error of sums beyond that of their layers.
    """

    latencies: Mapping[Place, Latency]
    covariance: Array
    flags: Mapping[Place, str]
    additivity: float | None
    sum_error: float


def estimate_layers(measured: Measured, method: Method, overhead: Overhead) -> LayerLatencies:
    """The layers of a campaign by one estimator; layers that it cannot tell are left out.

    `overhead` is that fitted on the campaign's null probes. Raises IllConditionedDesign.
    """
    import numpy as np

    if method == "joint":
        fit = fit_joint(measured.layers, measured.chains, measured.roles, measured.terms, measured.summaries, overhead)
        found = dict(zip(fit.places, fit.latencies, strict=True))
        shared, covariance = _shares(fit, measured)
        together = np.zeros((len(found) + len(shared),) * 2)
        together[: len(found), : len(found)] = fit.covariance
        together[len(found) :, len(found) :] = covariance
        flags = _flags(measured, fit, overhead)
        return LayerLatencies({**found, **shared}, together, flags, fit.scale, fit.sum_error)
    latencies = {}
    for layer in measured.layers:
        latency = (
            chained(layer, measured.summaries)
            if method == "chain"
            else subtracted(layer, method, measured.terms, measured.summaries, overhead)
        )
        if latency is not None:
            latencies[layer.key.digest, layer.context] = latency
    variances = [latency.stderr_s**2 for latency in latencies.values()]
    return LayerLatencies(latencies, np.diag(np.array(variances, float)), {}, None, overhead.scatter)


def _shares(fit: JointFit, measured: Measured) -> tuple[dict[Place, Latency], Array]:
    """What layers take of their chains by place, with their covariance; the mean where a place occurs again."""
    import numpy as np

    places = list(dict.fromkeys(fit.shares.places))
    rows = {place: row for row, place in enumerate(places)}
    mean = np.zeros((len(places), len(fit.shares.places)))
    for at, place in enumerate(fit.shares.places):
        mean[rows[place], at] = 1.0
    mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1.0)
    values, covariance = mean @ fit.shares.values, mean @ fit.shares.covariance @ mean.T
    taken = [measured.summaries[chain.alone].samples for chain in measured.chains if chain.alone in measured.summaries]
    fewest = min(taken, default=1)
    views = {place for chain in measured.chains for place in chain.views} - rows.keys()
    nothing = np.zeros((len(views), len(views)))
    together = np.block([[covariance, np.zeros((len(rows), len(views)))], [np.zeros((len(views), len(rows))), nothing]])
    shared = {
        place: Latency(float(values[row]), float(np.sqrt(max(covariance[row, row], 0.0))),
                       bool(values[row] ** 2 >= RESOLUTION_SIGMAS**2 * covariance[row, row]), fewest)
        for place, row in rows.items()
    }  # fmt: skip
    return {**shared, **dict.fromkeys(sorted(views), Latency(LEAST_LATENCY_S, 0.0, False, fewest))}, together


def _flags(measured: Measured, fit: JointFit, overhead: Overhead) -> dict[Place, str]:
    """For each place the estimators that differ by more than three standard errors and 5 %: `chain +12%`."""
    known = {(layer.key.digest, layer.context): layer for layer in measured.layers}
    flags = {}
    for place, joint in zip(fit.places, fit.latencies, strict=True):
        others = {
            "chain": fit.repeated.get(place),
            "difference": subtracted(known[place], "difference", measured.terms, measured.summaries, overhead),
            "regression": subtracted(known[place], "regression", measured.terms, measured.summaries, overhead),
        }
        words = [f"{name} {_change(joint, other):+.0%}" for name, other in others.items() if _differs(joint, other)]
        if words and joint.resolved:
            flags[place] = ", ".join(words)
    return flags


def _differs(joint: Latency, other: Latency | None) -> bool:
    if other is None:
        return False
    beyond = abs(other.latency_s - joint.latency_s) / math.hypot(joint.stderr_s, other.stderr_s)
    return beyond > DISAGREEMENT_Z and abs(_change(joint, other)) > RELEVANT_SHARE


def _change(joint: Latency, other: Latency | None) -> float:
    return 0.0 if other is None else other.latency_s / joint.latency_s - 1
