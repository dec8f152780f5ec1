"""Train a predictor: tiling, roofline, corrections chosen on held-out layers, intervals calibrated on the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from harness.array_types import Floats
from harness.errors import HarnessError, UsageError
from harness.parallel import FEWER_CORES, cores, may_fork, results
from harness.predictor.bounds import bounds_of
from harness.predictor.features.layer_arrays import index_of, layer_arrays
from harness.predictor.features.layer_features import LEAST_SAMPLES, LayerFeatures, TrainingExample
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.feature_matrix import FeatureMatrix
from harness.predictor.roofline.roofline import Roofline
from harness.predictor.roofline.tiling_search import find_tiling
from harness.predictor.stored_parameters import Parameters
from harness.predictor.stored_trees import write_predictor
from harness.predictor.training_data import WAYS, HeldOutPredictions, Training, best_way
from harness.predictor.trees import Corrector
from harness.predictor.uncertainty.coverage import Coverage, hull_of
from harness.predictor.uncertainty.intervals import Calibration, calibrate, joined

Steps = Callable[[int, int], None]
"""Receives how many of how many steps are done."""
_LEAST_SHARED = 500
"""Layers from which parts of them are held out in several processes."""
_TILING_STEPS = 5
"""The search for the tiling takes about so many times as long as all that follows."""
_STORED_DIFFERENCE = 1e-4


def fit_predictor(
    examples: Sequence[TrainingExample],
    *,
    seed: int = 0,
    progress: Steps = lambda _done, _count: None,
) -> Predictor:
    """Learn from measured layers of one device; the same examples and seed give the same predictor.

    A layer measured several times counts once, with its median. `progress` receives how many steps are done. Raises
    UsageError below `LEAST_SAMPLES` layers.
    """
    repeats: dict[LayerFeatures, list[TrainingExample]] = defaultdict(list)
    for example in examples:
        repeats[example.layer].append(example)
    if len(repeats) < LEAST_SAMPLES:
        raise UsageError(
            f"{len(repeats)} measured layers are too few for a predictor",
            why=f"It needs at least {LEAST_SAMPLES}",
            next_step="Measure more layers",
        )
    arrays = layer_arrays(list(repeats))
    latency_s = np.array([np.median([example.latency_s for example in part]) for part in repeats.values()])
    noise = np.array(
        [np.median([example.stderr_s / example.latency_s for example in part]) for part in repeats.values()]
    )
    sources = tuple(frozenset[str]().union(*(example.sources for example in part)) for part in repeats.values())
    import sklearn.ensemble  # noqa: F401 - only loaded libraries are limited
    from threadpoolctl import threadpool_limits

    # On small systems threads wait for each other by spinning, which takes many times as long as one thread.
    with threadpool_limits(1):
        tiling = find_tiling(arrays, latency_s, seed, noise)
        training = Training(tiling.described(arrays), latency_s, noise, sources, tiling, seed)
        return _stored(training, training.roofline(), *_judge(training, progress))


def _judge(training: Training, progress: Steps) -> tuple[dict[str, str], Calibration]:
    """Return how each operator is corrected, and intervals, both from held-out layers.

    Networks are held out whole. Without networks, layers are held out at random, and intervals learn extrapolation
    from the extreme layers that are outside the hull of the others.
    """
    networks, folds, operators = training.networks(), training.folds(), sorted(set(training.arrays.operators))
    everything = dict.fromkeys(operators, tuple(WAYS))
    extremes = [] if networks else training.extremes()
    parts = [*networks, *folds]
    own, held_out = len(parts) + len(extremes) + 1, list[HeldOutPredictions]()
    before = _TILING_STEPS * own
    steps = before + own
    jobs = cores() if len(training.arrays) >= _LEAST_SHARED and may_fork() else 1
    progress(before, steps)
    for one in results(
        lambda at: training.held_out(parts[at], everything), len(parts), jobs, next_step=FEWER_CORES, error=HarnessError
    ):
        held_out.append(one)
        progress(before + len(held_out), steps)
    ways = {operator: best_way(held_out, operator) for operator in operators}
    chosen = {operator: (way,) for operator, way in ways.items()}
    residuals = [part.residuals(ways) for part in held_out]
    outside = [training.held_out(part, chosen).residuals(ways).only(Coverage.OUTSIDE) for part in extremes]
    calibration = calibrate(joined([*residuals, *outside]))
    progress(steps - 1, steps)
    return ways, calibration


def _stored(
    training: Training,
    fitted: tuple[Roofline, FeatureMatrix, Floats],
    ways: Mapping[str, str],
    calibration: Calibration,
) -> Predictor:
    """Train on all layers and return the stored form."""
    operators = tuple(ways)
    roofline, columns, log_ratio = fitted
    trees = []
    for operator in operators:
        own = index_of(training.arrays, operator)
        trees.append(WAYS[ways[operator]](columns[own], log_ratio[own], training.seed))
    bounds = bounds_of(training.arrays, training.latency_s, training.noise)
    parameters = Parameters(roofline, hull_of(training.arrays, operators), bounds, calibration)
    predictor = Predictor(write_predictor(parameters, trees))
    for operator, grown in zip(operators, trees, strict=True):
        _compare(predictor, training, operator, grown, columns)
    return predictor


def _compare(predictor: Predictor, training: Training, operator: str, grown: Corrector, columns: FeatureMatrix) -> None:
    """Check that the stored trees predict what the grown ones do, in any version of scikit-learn."""
    own = index_of(training.arrays, operator)
    stored = predictor.corrections(training.arrays.take(own), columns[own])
    difference = float(np.max(np.abs(grown.correct(columns[own]).log_ratio - stored.log_ratio)))
    if difference > _STORED_DIFFERENCE:
        raise HarnessError(
            "The stored predictor differs from the trained one",
            why=f"Their logarithms of latency differ by up to {difference:.2g} for {operator}",
            next_step="Use the version of scikit-learn in constraints.txt, and report this error",
        )
