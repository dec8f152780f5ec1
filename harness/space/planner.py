"""Plan rounds of layers to measure: an even sample of the whole space, each round predicted before it is measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.predictor.features.layer_features import LEAST_SAMPLES, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.predictor import Predictor
from harness.settings import SPACE_COUNT, SPACE_TARGET
from harness.space.configuration import Configuration
from harness.space.drawn_layers import even_layers
from harness.space.space import LayerSpace
from harness.space.space_profile import RoundResult, SpaceResult

_FIRST_SHARE = 0.2
_LEAST_FIRST = 40
_GROWTH = 2.0
OVER_BUDGET = "budget"
"""Why rounds ended if even a small one would have taken too long."""
_SEEDS = 1 << 32
"""scikit-learn accepts seeds below this."""


@dataclass(frozen=True)
class Round:
    """The layers to measure together."""

    number: int
    layers: tuple[Configuration, ...]


Parts = Sequence[TrainingExample]
"""The layers as which a device executes one layer of a space; none if it refuses it."""
Measure = Callable[[Round], Sequence[Parts] | None]
"""Returns the measured parts of a round's layers; None, at once, if the budget is too small for the round."""


def explore(
    space: LayerSpace,
    measure: Measure,
    *,
    count: int = SPACE_COUNT,
    target: float = SPACE_TARGET,
    seed: int = 0,
) -> SpaceResult:
    """Measure at most `count` layers, in rounds, until the median error of a round's predictions is within `target`.

    The layers are an even sample of the space. The first round takes each kind in turn; the others are in random order,
    so that the error of a round holds for the rest. A round that is too large for the budget is halved. The same
    space, seed, latencies and budget lead to the same rounds. Raises the errors of `even_layers` and `measure`.
    """
    samples: list[TrainingExample] = []
    results: list[RoundResult] = []
    predictor: Predictor | None = None
    layers = even_layers(space, count, seed)
    first = min(count, max(_LEAST_FIRST, round(count * _FIRST_SHARE)))
    rest = np.random.default_rng(seed).permutation(np.arange(min(first, len(layers)), len(layers)))
    order = [*range(min(first, len(layers))), *rest.tolist()]
    done, measured, size, within_reach = 0, 0, first, True
    while done < len(order):
        plan = Round(len(results), tuple(layers[place] for place in order[done : done + size]))
        answer = measure(plan)
        if answer is None and len(plan.layers) > _LEAST_FIRST:
            size = max(_LEAST_FIRST, len(plan.layers) // 2)
            continue
        if answer is None:
            return SpaceResult(tuple(results), measured, OVER_BUDGET)
        trained, done = done, done + len(plan.layers)
        found = [parts for parts in answer if parts]
        measured += len(found)
        error = _median_error(predictor, found)
        results.append(RoundResult(plan.number, len(found), len(answer) - len(found), error))
        samples += itertools.chain.from_iterable(found)
        if error is not None and error <= target:
            return SpaceResult(tuple(results), measured, "target")
        # At best, an error falls as fast as the number of layers grows.
        within_reach = within_reach and (error is None or error * trained <= target * len(order))
        predictor = None
        if within_reach and done < len(order) and len({sample.layer for sample in samples}) >= LEAST_SAMPLES:
            predictor = fit_predictor(samples, seed=seed % _SEEDS)
        size = max(_LEAST_FIRST, round(done * _GROWTH))
    return SpaceResult(tuple(results), measured, "count" if len(order) >= count else "exhausted")


def _median_error(predictor: Predictor | None, layers: Sequence[Parts]) -> float | None:
    """Return the median error of predictions; a layer with an unknown operator is off by its whole latency."""
    if predictor is None or not layers:
        return None
    known = [parts for parts in layers if all(predictor.knows([part.layer for part in parts]))]
    found = iter(predictor.predict_all([part.layer for parts in known for part in parts]))
    errors = [1.0] * (len(layers) - len(known))
    for parts in known:
        predicted_s = sum(next(found).latency_s for _ in parts)
        errors.append(abs(predicted_s / sum(part.latency_s for part in parts) - 1.0))
    return float(np.median(errors))
