"""Plan rounds of layers to measure: an even sample of the whole space, each round predicted before it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.predictor.features.layer_features import LEAST_SAMPLES, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.predictor import Predictor
from harness.settings import SPACE_COUNT, SPACE_TARGET
from harness.space.configuration import Configuration
from harness.space.drawn_layers import SpaceLayers
from harness.space.space_profile import RoundResult, SpaceResult

_FIRST_SHARE = 0.2
_LEAST_FIRST = 40
_GROWTH = 0.5
OVER_BUDGET = "budget"
"""Why rounds ended if the next one would have taken too long."""
_SEEDS = 1 << 32
"""scikit-learn accepts seeds below this."""


@dataclass(frozen=True)
class Round:
    """The layers to measure together."""

    number: int
    layers: tuple[Configuration, ...]


Measure = Callable[[Round], Sequence[float | None] | None]
"""Returns the latencies of a round's layers in seconds, None for refused ones; None for the whole round if the budget
is too small."""


def explore(
    source: SpaceLayers,
    measure: Measure,
    *,
    count: int = SPACE_COUNT,
    target: float = SPACE_TARGET,
    seed: int = 0,
) -> SpaceResult:
    """Measure at most `count` layers, in rounds, until the median error of a round's predictions is within `target`.

    The layers are an even sample of the space. The first round takes each kind in turn; the others are in random order,
    so that the error of a round holds for the rest. The same source, seed and latencies lead to the same rounds. Raises
    the errors of `source` and `measure`.
    """
    samples: list[TrainingExample] = []
    results: list[RoundResult] = []
    predictor: Predictor | None = None
    layers = source.spread(count, seed)
    first = min(count, max(_LEAST_FIRST, round(count * _FIRST_SHARE)))
    rest = np.random.default_rng(seed).permutation(np.arange(min(first, len(layers)), len(layers)))
    order = [*range(min(first, len(layers))), *rest.tolist()]
    done, size = 0, first
    while done < len(order):
        plan = Round(len(results), tuple(layers[place] for place in order[done : done + size]))
        latencies = measure(plan)
        if latencies is None:
            return SpaceResult(tuple(results), len(samples), OVER_BUDGET)
        done += len(plan.layers)
        found = _samples(plan.layers, latencies)
        error = _median_error(predictor, found)
        results.append(RoundResult(plan.number, len(found), len(latencies) - len(found), error))
        samples += found
        if error is not None and error <= target:
            return SpaceResult(tuple(results), len(samples), "target")
        if done < len(order) and len({sample.layer for sample in samples}) >= LEAST_SAMPLES:
            predictor = fit_predictor(samples, seed=seed % _SEEDS)
        size = max(_LEAST_FIRST, round(done * _GROWTH))
    return SpaceResult(tuple(results), len(samples), "count" if len(order) >= count else "exhausted")


def _samples(layers: Sequence[Configuration], latencies: Sequence[float | None]) -> list[TrainingExample]:
    pairs = zip(layers, latencies, strict=True)
    return [TrainingExample(layer.features, latency) for layer, latency in pairs if latency is not None]


def _median_error(predictor: Predictor | None, samples: Sequence[TrainingExample]) -> float | None:
    """Return the median error of predictions; a layer of an unknown operator is off by its whole latency."""
    if predictor is None or not samples:
        return None
    known = predictor.knows([sample.layer for sample in samples])
    found = iter(predictor.predict_all([one.layer for one, is_known in zip(samples, known, strict=True) if is_known]))
    errors = [
        abs(next(found).latency_s / sample.latency_s - 1.0) if is_known else 1.0
        for sample, is_known in zip(samples, known, strict=True)
    ]
    return float(np.median(errors))
