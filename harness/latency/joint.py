"""All layers of a campaign at once: every probe is one equation of one system.

`total = what stands in front + layer + a * input_bytes + b * output_bytes + c + auxiliary layers`. Unknown are the
overhead coefficients, what stands in front of a layer (the probe without it), each layer in its context, by itself
(S1.1), and behind a copy of itself. Layers differ from their probes' other contents by what is measured with and
without them; what all share is solved for once, and the covariance says what errors they have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.latency.chain_latencies import (
    SIGNED,
    LayerShares,
    chain_equations,
    chain_latencies,
    check_residuals,
    shares,
)  # fmt: skip
from harness.latency.layer_latency import Latency, positive
from harness.latency.overhead import COLUMNS, Overhead, row_of
from harness.latency.sparse_system import Equation, Solution, solve
from harness.measure.summary import MAD_TO_SIGMA, Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

Place = tuple[str, str]
"""Digest of a layer's key, and its context."""
MISFIT = 3.0
"""Spread of the residuals, in standard errors, beyond which a device contradicts the additive model."""
LEAST_ERROR = 1e-4
"""Relative error that every total is believed to have, so that none is taken for exact."""
REWEIGHTINGS = 2
FEWEST_RESIDUALS = 20
_NULL_ROLES = ("calibration", "auxiliary")


@dataclass(frozen=True)
class JointFit:
    """Layer latencies of one campaign.

    `covariance` in s² has the order of `places`. `shares` are what layers take of the chains that they run in, none
    where the device tells no chains. `sum_error` is the relative error of sums of layers that are right each for
    itself: the scatter of null probes about the overhead model, or what windows of several chains show. `repeated`
    is each layer behind a copy of itself. `scale` is the robust spread of
    residuals in standard errors over `redundant` equations: 1 where the additive model holds; `condition` that of the
    system.
    """

    places: tuple[Place, ...]
    latencies: tuple[Latency, ...]
    covariance: Array
    shares: LayerShares
    sum_error: float
    repeated: Mapping[Place, Latency]
    scale: float
    redundant: int
    condition: float


def fit_joint(
    layers: Sequence[LayerProbes],
    chains: Sequence[ChainProbes],
    roles: Mapping[str, str],
    terms: Mapping[str, OverheadTerms],
    measured: Mapping[str, Measurement],
    overhead: Overhead,
) -> JointFit:
    """Solves one campaign; layers whose probes were refused are left out.

    `roles` and `terms` are those of all probes; `overhead` is the fit to null probes alone, whose scatter and columns
    hold for all. Raises IllConditionedDesign.
    """
    import numpy as np

    known = [layer for layer in layers if {layer.in_context, layer.null} <= measured.keys()]
    scatter = overhead.scatter
    equations = _equations(known, roles, terms, measured, max(scatter, LEAST_ERROR))
    for name, (probe, amounts) in chain_equations(chains, terms, measured).items():
        equations[name] = _equation(measured[probe], amounts, LEAST_ERROR)
    untold = frozenset(overhead.untold)
    equations = {name: _without(equation, untold) for name, equation in equations.items()}
    # Less than nothing is what a layer without latency gives half of the time: `positive` makes the best of that.
    signed = {name for equation in equations.values() for name in equation.amounts if name.startswith(_LAYERS)}
    solution = first = solve(list(equations.values()), signed)
    for _ in range(REWEIGHTINGS):  # how far each kind of probe is off the additive model, it tells by itself
        spread = _spread_by_role([roles[name[0]] for name in equations], solution)
        equations = {
            name: replace(one, stderr_s=one.stderr_s * spread.get(roles[name[0]], 1.0))
            for name, one in equations.items()
        }
        solution = solve(list(equations.values()), signed)
    places = tuple((layer.key.digest, layer.context) for layer in known)
    found = {
        place: _latency(solution, _in_context(layer), samples)
        for layer, (place, samples) in zip(known, _samples(known, measured), strict=True)
    }
    checks = check_residuals(chains, solution, terms, measured)
    at = [solution.index(_in_context(layer)) for layer in known]
    return JointFit(
        places=places,
        latencies=tuple(found.values()),
        covariance=solution.covariance[np.ix_(at, at)],
        shares=shares(chain_latencies(chains, solution), _by_label(chains, found)),
        sum_error=max(scatter, math.sqrt(sum(one**2 for one in checks) / max(1, len(checks)))),
        repeated={
            (layer.key.digest, layer.context): _latency(solution, _repeated(layer), measured[layer.stacks[-1]].samples)
            for layer in known
            if layer.stacks and all(stack in measured for stack in layer.stacks)
        },
        scale=first.scale,
        redundant=int(solution.redundant.sum()),
        condition=solution.condition,
    )


def _equations(
    layers: Sequence[LayerProbes],
    roles: Mapping[str, str],
    terms: Mapping[str, OverheadTerms],
    measured: Mapping[str, Measurement],
    model_noise: float,
) -> dict[tuple[str, ...], Equation]:
    """One for each probe, by its id; a stack's by its layer, too, as layers may share one."""
    equations: dict[tuple[str, ...], Equation] = {}

    def add(name: tuple[str, ...], probe: str, contents: Mapping[str, float], noise: float = LEAST_ERROR) -> None:
        amounts = {**dict(zip(COLUMNS, row_of(terms[probe]), strict=True)), **contents}
        equations[name] = _equation(measured[probe], amounts, noise)

    for probe in measured:
        if roles[probe] in _NULL_ROLES:
            add((probe,), probe, {}, model_noise)
    for layer in layers:
        front = f"in front {layer.null}"
        add((layer.null,), layer.null, {front: 1.0})
        add((layer.in_context,), layer.in_context, {front: 1.0, _in_context(layer): 1.0})
        if layer.layer in measured:
            add((layer.layer,), layer.layer, {_alone(layer): 1.0})
        if all(stack in measured for stack in layer.stacks):
            for stack, copies in zip(layer.stacks, STACK_COPIES, strict=False):
                # A pool of stacks is another pool: what stands in front may take another time there.
                contents = {f"start {layer.stacks[0]}": 1.0, _repeated(layer): float(copies - 1)}
                add((stack,), stack, contents)
    return equations


def _equation(measurement: Measurement, amounts: Mapping[str, float], noise: float) -> Equation:
    # One sample tells nothing of its error, and is told to be as far off as it is long.
    stderr_s = math.hypot(min(measurement.stderr_s, measurement.latency_s), noise * measurement.latency_s)
    return Equation(amounts, measurement.latency_s, stderr_s)


def _spread_by_role(kinds: Sequence[str], solution: Solution) -> dict[str, float]:
    """By role the robust spread of residuals in standard errors, at least 1, where enough probes tell it."""
    import numpy as np

    of = np.array(kinds)
    held = {role: abs(solution.residuals[(of == role) & solution.redundant]) for role in set(kinds)}
    return {
        role: max(1.0, MAD_TO_SIGMA * float(np.median(residuals)))
        for role, residuals in held.items()
        if len(residuals) >= FEWEST_RESIDUALS
    }


def _without(equation: Equation, columns: frozenset[str]) -> Equation:
    kept = {name: amount for name, amount in equation.amounts.items() if name not in columns}
    return replace(equation, amounts=kept)


def _by_label(chains: Sequence[ChainProbes], found: Mapping[Place, Latency]) -> dict[Place, Latency]:
    """Latencies in context by the labels that chains have for the places of their layers."""
    labelled = {place for chain in chains for place in chain.places}
    plain = {(key, label): (key, label.partition("@")[0]) for key, label in labelled}
    return {place: found[known] for place, known in plain.items() if known in found}


_LAYERS = ("layer ", "alone ", "repeated ", *SIGNED)


def _in_context(layer: LayerProbes) -> str:
    # An index comes from outside in a probe wherever it comes from: two contexts may share a probe.
    return f"layer {layer.in_context}"


def _alone(layer: LayerProbes) -> str:
    return f"alone {layer.layer}"


def _repeated(layer: LayerProbes) -> str:
    return f"repeated {layer.stacks[0]}"


def _samples(layers: Sequence[LayerProbes], measured: Mapping[str, Measurement]) -> list[tuple[Place, int]]:
    return [
        ((layer.key.digest, layer.context), min(measured[layer.in_context].samples, measured[layer.null].samples))
        for layer in layers
    ]


def _latency(solution: Solution, name: str, samples: int) -> Latency:
    at = solution.index(name)
    return positive(float(solution.values[at]), math.sqrt(float(solution.covariance[at, at])), samples)
