"""All layers of a campaign together: every probe is one equation of one system.

`total = what precedes the layer + layer + a * input_bytes + b * output_bytes + c + auxiliary layers`. The unknowns are
the overhead coefficients, what precedes each layer (the probe without it), and each layer in its context, by itself
(S1.1), and after a copy of itself. Probes with and without a layer determine it; terms common to all probes are
solved for once. The covariance shows the errors that layers share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Floats
from harness.latency.chain_latencies import SIGNED, chain_equations, chain_latencies
from harness.latency.chain_shares import LayerShares, shares
from harness.latency.layer_latency import CampaignData, Latency, positive
from harness.latency.overhead import COLUMNS, Overhead, row_of
from harness.latency.robust import robust_spread
from harness.latency.sparse_system import Equation, Solution, solve
from harness.latency.sum_errors import (
    border_errors,
    check_residuals,
    disagreements,
    reach_errors,
    root_mean_square,
)
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
_LAYERS = ("layer ", "alone ", "repeated ", *SIGNED)
"""Prefixes of unknowns that may come out negative: a layer without latency does so half of the time."""


@dataclass(frozen=True)
class JointFit:
    """Layer latencies of one campaign.

    `covariance` in s² has the order of `places`. `shares` are the layers' parts of their chains, none where the device
    reports no chains. `network_errors` are the relative errors of the sums of networks beyond the errors of their
    layers, as windows show them, by network; `sum_error` is that of other sums: the root of the mean square of these
    networks without what borders of windows add, or the scatter of null probes about the overhead model if that is
    larger. `repeated` is each layer after a copy of itself. `scale` is the robust spread of residuals in standard
    errors over the `redundant` equations, 1 where the additive model holds; `condition` is the system's condition
    number.
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
        _latency(solution, _in_context(layer), measured[layer.in_context], measured[layer.null]) for layer in layers
    )
    at = [solution.index(_in_context(layer)) for layer in layers]
    in_context = _by_chain_place(chains, dict(zip(places, latencies, strict=True)))
    errors = disagreements(chains, solution, in_context) | check_residuals(chains, solution, data.terms, measured)
    errors |= reach_errors(chains, solution)
    borders = border_errors(chains, solution)
    sum_error = max(overhead.scatter, root_mean_square(errors.values()))
    return JointFit(
        places=places,
        latencies=latencies,
        covariance=solution.covariance.between(np.array(at, int)),
        shares=shares(chain_latencies(chains, solution), in_context),
        network_errors={
            network: max(overhead.scatter, errors.get(network, sum_error), borders.get(network, 0.0))
            for network in errors | borders
        },
        sum_error=sum_error,
        repeated={
            place: _latency(solution, _repeated(layer), measured[layer.stacks[-1]])
            for place, layer in zip(places, layers, strict=True)
            if layer.stacks and all(stack in measured for stack in layer.stacks)
        },
        scale=scale,
        redundant=int(solution.redundant.sum()),
        condition=solution.condition,
    )


def _solve(equations: dict[tuple[str, ...], Equation], roles: Mapping[str, str]) -> tuple[Solution, float]:
    """Solve, then twice again with the errors of each role of probes enlarged to the scatter of its residuals.

    Returns the last solution, and the scale of the first one.
    """
    signed = {name for equation in equations.values() for name in equation.amounts if name.startswith(_LAYERS)}
    solution = first = solve(list(equations.values()), signed)
    for _ in range(REWEIGHTINGS):
        spread = _spread_by_role([roles[name[0]] for name in equations], solution)
        equations = {
            name: replace(one, stderr_s=one.stderr_s * spread.get(roles[name[0]], 1.0))
            for name, one in equations.items()
        }
        solution = solve(list(equations.values()), signed)
    return solution, first.scale


def _equations(
    data: CampaignData, layers: Sequence[LayerProbes], overhead: Overhead
) -> dict[tuple[str, ...], Equation]:
    """Return one equation for each probe by its id, and those of chains; layers may share stacks.

    A layer and what precedes it are compared within each batch, where caches are in the same state for both: the pools
    of two networks differ by more than a short layer takes.
    """
    measured = data.summaries
    equations: dict[tuple[str, ...], Equation] = {}

    def add(probe: str, contents: Mapping[str, float], noise: float = LEAST_ERROR, batch: int | None = None) -> None:
        amounts = {**dict(zip(COLUMNS, row_of(data.terms[probe]), strict=True)), **contents}
        total = measured[probe] if batch is None else data.batches[probe][batch]
        equations[(probe,) if batch is None else (probe, f"{batch}")] = _equation(total, amounts, noise)

    for probe in measured:
        # Single auxiliary layers differ in strides and sizes: there are many, and their misfit would dominate a.
        if data.roles[probe] == "calibration":
            add(probe, {}, max(overhead.scatter, LEAST_ERROR))
    for layer in layers:
        for batch in _batches_of(layer, data):
            front = f"in front {layer.null}" if batch is None else f"in front {layer.null} of batch {batch}"
            add(layer.null, {front: 1.0}, batch=batch)
            add(layer.in_context, {front: 1.0, _in_context(layer): 1.0}, batch=batch)
        if layer.layer in measured:
            add(layer.layer, {f"alone {layer.layer}": 1.0})
        if all(stack in measured for stack in layer.stacks):
            for stack, copies in zip(layer.stacks, STACK_COPIES, strict=False):
                # What precedes a stack may have a different latency than before a single layer.
                add(stack, {f"start {layer.stacks[0]}": 1.0, _repeated(layer): float(copies - 1)})
    for name, (probe, amounts) in chain_equations(data.chains, data.terms, measured).items():
        equations[name] = _equation(measured[probe], amounts, LEAST_ERROR)
    return {name: _without(one, overhead.confounded) for name, one in equations.items()}


def _batches_of(layer: LayerProbes, data: CampaignData) -> tuple[int | None, ...]:
    """Return the batches that have a layer both in context and without, or None for all of them together."""
    common = data.batches.get(layer.in_context, {}).keys() & data.batches.get(layer.null, {}).keys()
    return tuple(sorted(common)) or (None,)


def _equation(measurement: Measurement, amounts: Mapping[str, float], noise: float) -> Equation:
    # A single sample has no error estimate; its standard error is set to its own value.
    stderr_s = math.hypot(min(measurement.stderr_s, measurement.latency_s), noise * measurement.latency_s)
    return Equation(amounts, measurement.latency_s, stderr_s)


def _spread_by_role(roles: Sequence[str], solution: Solution) -> dict[str, float]:
    """Return the robust spread of residuals in standard errors by role, at least 1, where there are enough."""
    of = np.array(roles)
    held = {role: solution.residuals[(of == role) & solution.redundant] for role in set(roles)}
    return {
        role: max(1.0, float(robust_spread(residuals)[0]))
        for role, residuals in held.items()
        if len(residuals) >= FEWEST_RESIDUALS
    }


def _without(equation: Equation, columns: Sequence[str]) -> Equation:
    kept = {name: amount for name, amount in equation.amounts.items() if name not in columns}
    return replace(equation, amounts=kept)


def _by_chain_place(chains: Sequence[ChainProbes], found: Mapping[Place, Latency]) -> dict[Place, Latency]:
    """Return latencies in context by the places in chains, whose contexts also name a neighbourhood."""
    places = {place for chain in chains for place in chain.places}
    plain = {(key, context): (key, context.partition("@")[0]) for key, context in places}
    return {place: found[known] for place, known in plain.items() if known in found}


def _in_context(layer: LayerProbes) -> str:
    # A probe's input of indices always comes from outside, so two contexts may share a probe.
    return f"layer {layer.in_context}"


def _repeated(layer: LayerProbes) -> str:
    return f"repeated {layer.stacks[0]}"


def _latency(solution: Solution, name: str, *used: Measurement) -> Latency:
    at = solution.index(name)
    stderr_s = math.sqrt(float(solution.variances[at]))
    return positive(float(solution.values[at]), stderr_s, min(one.samples for one in used))
