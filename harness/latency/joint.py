"""The joint system: every probe of a campaign is one linear equation, and one fit solves them all.

The unknowns are times (`Unknown`); `overhead = a * input_bytes + b * output_bytes + c + further terms` has the probe's
own amounts and common coefficients. In these equations, a null probe is the same without the layer, and a null window
the same without its layers:

    probe                              | total
    calibration                        | overhead
    null probe, null window            | overhead + front
    layer in context                   | overhead + front + layer
    layer without context (S1.1)       | overhead + alone
    stack of k copies of a layer       | overhead + start + (k - 1) * repeated
    window of a chain                  | overhead + front + chain
    window of two chains               | overhead + front + both chains + their boundary
    long window                        | overhead + front + all chains, boundaries and excesses in it + its own excess

`sparse_system` solves them by weighted, robust least squares. `front`, `start` and the overhead cannot be negative; the
times of layers may be: the estimate of a layer that takes no time is negative half of the time. The covariance of the
unknowns shows the errors that layers share.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Floats
from harness.latency.chain_latencies import chain_latencies
from harness.latency.chain_shares import LayerShares, shares
from harness.latency.chain_windows import window_contents
from harness.latency.layer_latency import CampaignData, Latency, positive
from harness.latency.overhead import Overhead
from harness.latency.robust import robust_spread
from harness.latency.sparse_system import Equation, Solution, solve
from harness.latency.sum_errors import (
    border_errors,
    disagreements,
    long_window_errors,
    neighbour_window_errors,
    root_mean_square,
)
from harness.latency.unknowns import Unknown, alone, amounts_of, in_context, in_front, repeated, stack_start
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

Place = tuple[str, str]
"""Digest of a layer's key, and its context."""
MISFIT = 3.0
"""Spread of the residuals, in standard errors, beyond which a device contradicts the additive model."""
LEAST_ERROR = 1e-4
"""Relative error added to every total, so that none counts as exact."""
REWEIGHTINGS = 2
FEWEST_RESIDUALS = 20


@dataclass(frozen=True)
class JointFit:
    """Layer latencies of one campaign.

    `covariance` in s² has the order of `places`. `shares` are the layers' parts of their chains, none where the device
    reports no chains. `network_errors` are, by network, the relative errors of sums beyond the errors of their layers,
    as windows show them. `sum_error` is that of any other sum: the root mean square of these networks without what
    borders of windows add, or the scatter of null probes about the overhead model if that is larger. `repeated` is each
    layer after a copy of itself. `scale` is the robust spread of residuals in standard errors over the `redundant`
    equations, 1 where the additive model holds; `condition` is the system's condition number.
    """

    places: tuple[Place, ...]
    latencies: tuple[Latency, ...]
    covariance: Floats
    shares: LayerShares
    network_errors: Mapping[str, float]
    sum_error: float
    repeated: Mapping[Place, Latency]
    scale: float
    redundant: int
    condition: float


def fit_joint(data: CampaignData, overhead: Overhead) -> JointFit:
    """Solve one campaign, without layers whose probes were refused.

    `overhead` is the fit to the null probes, whose scatter and columns apply to all. Raises IllConditionedDesign.
    """
    chains, measured = data.chains, data.summaries
    layers = [one for one in data.layers if {one.in_context, one.null} <= measured.keys() and not one.is_view]
    solution, scale = _solve(_equations(data, layers, overhead), data.roles)
    places = tuple((layer.key.digest, layer.context) for layer in layers)
    latencies = tuple(
        _latency(solution, in_context(layer), measured[layer.in_context], measured[layer.null]) for layer in layers
    )
    of_places = _by_chain_place(chains, dict(zip(places, latencies, strict=True)))
    errors = disagreements(chains, solution, of_places) | neighbour_window_errors(data, solution)
    errors |= long_window_errors(chains, solution)
    borders = border_errors(chains, solution)
    sum_error = max(overhead.scatter, root_mean_square(errors.values()))
    return JointFit(
        places=places,
        latencies=latencies,
        covariance=solution.covariance.between(np.array([solution.index(in_context(one)) for one in layers], int)),
        shares=shares(chain_latencies(chains, solution), of_places),
        network_errors={
            network: max(overhead.scatter, errors.get(network, sum_error), borders.get(network, 0.0))
            for network in errors | borders
        },
        sum_error=sum_error,
        repeated={
            place: _latency(solution, repeated(layer), measured[layer.stacks[-1]])
            for place, layer in zip(places, layers, strict=True)
            if layer.stacks and all(stack in measured for stack in layer.stacks)
        },
        scale=scale,
        redundant=int(solution.redundant.sum()),
        condition=solution.condition,
    )


@dataclass(frozen=True)
class _Total:
    """A probe's measured total, in one batch or over all, and what it contains besides the overhead."""

    probe: str
    contents: Mapping[Unknown, float]
    batch: int | None = None


def _solve(equations: Sequence[tuple[str, Equation]], roles: Mapping[str, str]) -> tuple[Solution, float]:
    """Solve, then twice again with the errors of each role of probes enlarged to the scatter of its residuals.

    Returns the last solution, and the scale of the first one.
    """
    held = [equation for _, equation in equations]
    of_roles = [roles[probe] for probe, _ in equations]
    solution = first = solve(held)
    for _ in range(REWEIGHTINGS):
        spread = _spread_by_role(of_roles, solution)
        held = [
            replace(one, stderr_s=one.stderr_s * spread.get(role, 1.0))
            for one, role in zip(held, of_roles, strict=True)
        ]
        solution = solve(held)
    return solution, first.scale


def _equations(data: CampaignData, layers: Sequence[LayerProbes], overhead: Overhead) -> list[tuple[str, Equation]]:
    """Return the different equations of a campaign, each with its probe."""
    found: dict[tuple[object, ...], tuple[str, Equation]] = {}
    for one in _totals(data, layers):
        total = data.summaries[one.probe] if one.batch is None else data.batches[one.probe][one.batch]
        # Single auxiliary layers differ in strides and sizes: there are many, and their misfit would dominate a.
        noise = LEAST_ERROR if one.contents else max(overhead.scatter, LEAST_ERROR)
        # A single sample has no error estimate; its standard error is set to its own value.
        stderr_s = math.hypot(min(total.stderr_s, total.latency_s), noise * total.latency_s)
        amounts = amounts_of(data.terms[one.probe], one.contents, overhead.confounded)
        found[one.probe, one.batch, *one.contents] = one.probe, Equation(amounts, total.latency_s, stderr_s)
    return [*found.values()]


def _totals(data: CampaignData, layers: Sequence[LayerProbes]) -> Iterator[_Total]:
    """Yield what each total contains; layers may share probes.

    A layer and what precedes it are compared within each batch, where caches are in the same state for both: the pools
    of two networks differ by more than a short layer takes.
    """
    measured = data.summaries
    for probe in measured:
        if data.roles[probe] == "calibration":
            yield _Total(probe, {})
    for layer in layers:
        for batch in _batches_of(layer, data):
            front = in_front(layer.null, batch)
            yield _Total(layer.null, {front: 1.0}, batch)
            yield _Total(layer.in_context, {front: 1.0, in_context(layer): 1.0}, batch)
        if layer.layer in measured:
            yield _Total(layer.layer, {alone(layer): 1.0})
        if all(stack in measured for stack in layer.stacks):
            for stack, copies in zip(layer.stacks, STACK_COPIES, strict=False):
                yield _Total(stack, {stack_start(layer): 1.0, repeated(layer): float(copies - 1)})
    for probe, contents in window_contents(data.chains, measured):
        yield _Total(probe, contents)


def _batches_of(layer: LayerProbes, data: CampaignData) -> tuple[int | None, ...]:
    """Return the batches that have a layer both in context and without, or None for all of them together."""
    common = data.batches.get(layer.in_context, {}).keys() & data.batches.get(layer.null, {}).keys()
    return tuple(sorted(common)) or (None,)


def _spread_by_role(roles: Sequence[str], solution: Solution) -> dict[str, float]:
    """Return the robust spread of residuals in standard errors by role, at least 1, where there are enough."""
    of = np.array(roles)
    held = {role: solution.residuals[(of == role) & solution.redundant] for role in set(roles)}
    return {
        role: max(1.0, float(robust_spread(residuals)[0]))
        for role, residuals in held.items()
        if len(residuals) >= FEWEST_RESIDUALS
    }


def _by_chain_place(chains: Sequence[ChainProbes], found: Mapping[Place, Latency]) -> dict[Place, Latency]:
    """Return latencies in context by the places in chains, whose contexts also name a neighbourhood."""
    places = {place for chain in chains for place in chain.places}
    plain = {(key, context): (key, context.partition("@")[0]) for key, context in places}
    return {place: found[known] for place, known in plain.items() if known in found}


def _latency(solution: Solution, unknown: Unknown, *used: Measurement) -> Latency:
    at = solution.index(unknown)
    stderr_s = math.sqrt(float(solution.variances[at]))
    return positive(float(solution.values[at]), stderr_s, min(one.samples for one in used))
