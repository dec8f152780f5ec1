"""Plan rounds of layers to measure: first the whole space evenly, then the parts where the models disagree."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from harness.array_types import Floats, Ints
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.predictor.fit import LEAST_SAMPLES
from harness.settings import SPACE_COUNT, SPACE_TARGET
from harness.space.committee import Hypotheses, learn_committee, points_of

_FIRST_SHARE = 0.2
_LEAST_FIRST = 40
_GROWTH = 0.5
_CONTROL_SHARE = 0.3
_LEAST_CONTROLS = 20
_POOL_PER_CHOICE = 20
_LEAST_POOL = 1000
_SEEDS = 1 << 32
"""scikit-learn accepts seeds below this."""


class Described(Hashable, Protocol):
    """A layer that can be measured and predicted."""

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""


Layer = TypeVar("Layer", bound=Described)


class Source(Protocol[Layer]):
    """A set of layers to draw from."""

    def random(self, count: int, generator: np.random.Generator, without: frozenset[Layer]) -> list[Layer]:
        """Return up to `count` different layers at random, none of `without`."""

    def spread(self, count: int, seed: int) -> list[Layer]:
        """Return up to `count` different layers that cover everything evenly."""


@dataclass(frozen=True)
class Round(Generic[Layer]):
    """The layers to measure together.

    `chosen` layers lie where the models disagree, or cover the space evenly in the first round. `control` layers are
    drawn at random, so that their prediction error holds for the whole space.
    """

    number: int
    chosen: tuple[Layer, ...]
    control: tuple[Layer, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return all of them."""
        return self.chosen + self.control


@dataclass(frozen=True)
class RoundResult:
    """The result of a round; errors are medians of |error| of layers predicted before they were measured, or None."""

    number: int
    measured: int
    refused: int
    control_error: float | None
    chosen_error: float | None


@dataclass(frozen=True)
class SpaceResult:
    """All rounds, and why they ended: `target`, `count`, `budget` or `exhausted`."""

    rounds: tuple[RoundResult, ...]
    measured: int
    stopped: str


Measure = Callable[[Round[Layer]], Sequence[float | None] | None]
"""Returns the latencies of a round's layers in seconds, None for refused ones; None for the whole round if the budget
is too small."""
Learn = Callable[[Sequence[TrainingExample], int], Hypotheses]


def explore(
    source: Source[Layer],
    measure: Measure[Layer],
    *,
    count: int = SPACE_COUNT,
    target: float = SPACE_TARGET,
    seed: int = 0,
    learn: Learn = learn_committee,
    observe: Callable[[RoundResult], None] = lambda _: None,
) -> SpaceResult:
    """Measure at most `count` layers, in rounds, until the median error of the controls is within `target`.

    The same source, seed and latencies lead to the same rounds. Raises the errors of `source` and `measure`.
    """
    samples: list[TrainingExample] = []
    tried: set[Layer] = set()
    results: list[RoundResult] = []
    first = min(count, max(_LEAST_FIRST, round(count * _FIRST_SHARE)))
    plan = Round(0, tuple(source.spread(first, seed)), ())
    hypotheses: Hypotheses | None = None
    while plan.layers:
        latencies = measure(plan)
        if latencies is None:
            return SpaceResult(tuple(results), len(samples), "budget")
        tried.update(plan.layers)
        results.append(_round_result(plan, latencies, hypotheses))
        observe(results[-1])
        samples += _samples(plan.layers, latencies)
        error = results[-1].control_error
        if error is not None and error <= target:
            return SpaceResult(tuple(results), len(samples), "target")
        if len(tried) >= count:
            return SpaceResult(tuple(results), len(samples), "count")
        hypotheses = learn(samples, seed % _SEEDS) if len(samples) >= LEAST_SAMPLES else None
        size = min(count - len(tried), max(_LEAST_FIRST, round(len(tried) * _GROWTH)))
        plan = next_round(source, hypotheses, frozenset(tried), size, plan.number + 1, seed)
    return SpaceResult(tuple(results), len(samples), "exhausted")


def next_round(
    source: Source[Layer], hypotheses: Hypotheses | None, tried: frozenset[Layer], size: int, number: int, seed: int
) -> Round[Layer]:
    """Return a round of random controls and layers that `choose` picks from a pool; without models, all are random."""
    generator = np.random.default_rng((seed, number))
    controls = size if hypotheses is None else min(size, max(_LEAST_CONTROLS, round(size * _CONTROL_SHARE)))
    control = source.random(controls, generator, tried)
    if hypotheses is None or len(control) < controls or controls == size:
        return Round(number, (), tuple(control))
    taken = tried | frozenset(control)
    pool = source.random(max(_LEAST_POOL, _POOL_PER_CHOICE * size), generator, taken)
    if not pool:
        return Round(number, (), tuple(control))
    features = [layer.features for layer in pool]
    found = choose(points_of(features), hypotheses.opinion(features).disagreement, size - controls, generator)
    return Round(number, tuple(pool[index] for index in found), tuple(control))


def choose(points: Floats, disagreement: Floats, count: int, generator: np.random.Generator) -> list[int]:
    """Return the indices of up to `count` layers of a random pool.

    The weight of a layer is the square root of the disagreement about it. The pool is divided into `count`
    neighbourhoods of equal weight, and one layer of each is drawn by its weight. Large parts of the space and parts
    with disagreement thus get more layers, and no two layers come from the same neighbourhood.
    """
    weight = np.sqrt(np.maximum(disagreement, 1e-6))
    parts = _parts(points, weight, np.arange(len(points)), count)
    return [int(generator.choice(part, p=weight[part] / weight[part].sum())) for part in parts]


def _parts(points: Floats, weight: Floats, index: Ints, count: int) -> list[Ints]:
    """Divide points into `count` parts of about equal weight, each time along the axis with the largest spread."""
    count = min(count, index.size)
    if count < 1:
        return []
    if count == 1:
        return [index]
    own, weights = points[index], weight[index]
    middle = np.average(own, axis=0, weights=weights)
    axis = int(np.argmax(np.average((own - middle) ** 2, axis=0, weights=weights)))
    order = index[np.argsort(own[:, axis], kind="stable")]
    summed = np.cumsum(weight[order])
    left = count // 2
    cut = int(np.searchsorted(summed, summed[-1] * left / count))
    cut = min(max(cut, left), order.size - (count - left))
    return _parts(points, weight, order[:cut], left) + _parts(points, weight, order[cut:], count - left)


def _samples(layers: Sequence[Described], latencies: Sequence[float | None]) -> list[TrainingExample]:
    pairs = zip(layers, latencies, strict=True)
    return [TrainingExample(layer.features, latency) for layer, latency in pairs if latency is not None]


def _round_result(plan: Round[Layer], latencies: Sequence[float | None], hypotheses: Hypotheses | None) -> RoundResult:
    refused = sum(latency is None for latency in latencies)
    split = len(plan.chosen)
    control = _median_error(hypotheses, plan.control, latencies[split:])
    chosen = _median_error(hypotheses, plan.chosen, latencies[:split])
    return RoundResult(plan.number, len(latencies) - refused, refused, control, chosen)


def _median_error(
    hypotheses: Hypotheses | None, layers: Sequence[Described], latencies: Sequence[float | None]
) -> float | None:
    samples = _samples(layers, latencies)
    if not samples or hypotheses is None:
        return None
    predicted = hypotheses.opinion([sample.layer for sample in samples]).log_latency
    return float(np.median(np.abs(np.expm1(predicted - np.log([sample.latency_s for sample in samples])))))
