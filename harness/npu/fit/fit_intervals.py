"""Intervals of fitted constants: a bootstrap over layers, and which constants the samples identify.

Layers are drawn within each class, all contexts of a layer together, and the model is fitted again. The scatter of the
layers about the model holds the errors of their measurements. What every sample shares, the spread from process to
process, does not show in it and is added.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints
from harness.measure.summary import Z_95
from harness.npu.fit.layer_model import Amounts, LayerModel, refit

REPLICATES = 200
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True)
class ModelIntervals:
    """95 % intervals, (2,) each: of the constants of `LayerModel`; `operation_s` is (classes, 2)."""

    operation_s: Floats
    weight_byte_s: Floats
    feature_byte_s: Floats
    start_s: Floats
    overlap: Floats


def bootstrap(
    work: Amounts, keys: tuple[str, ...], model: LayerModel, repeatability: float, seed: int = 0
) -> ModelIntervals:
    """Return percentile intervals over refits to drawn layers, widened by the relative error that all samples share."""
    random = np.random.default_rng(seed)
    groups = _groups(work, keys)
    fits = [refit(work.take(_draw(groups, random)), model) for _ in range(REPLICATES)]
    shared = 1 + Z_95 * repeatability * np.array([-1.0, 1.0])

    def of(values: list[float]) -> Floats:
        return np.asarray(np.percentile(values, [_LOW, _HIGH]))

    return ModelIntervals(
        np.stack([of([fit.operation_s[at] for fit in fits]) * shared for at in range(len(model.classes))]),
        of([fit.weight_byte_s for fit in fits]) * shared,
        of([fit.feature_byte_s for fit in fits]) * shared,
        of([fit.start_s for fit in fits]) * shared,
        of([fit.overlap for fit in fits]),
    )


def _groups(work: Amounts, keys: tuple[str, ...]) -> list[list[Ints]]:
    """Return, for each class, the positions of each key."""
    found: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, key in enumerate(keys):
        found[int(work.class_of[at])][key].append(at)
    return [[np.array(places) for places in by_key.values()] for _, by_key in sorted(found.items())]


def _draw(groups: list[list[Ints]], random: np.random.Generator) -> Ints:
    """Return positions with as many keys of each class as there are, drawn with replacement."""
    drawn = [keys[at] for keys in groups for at in random.integers(len(keys), size=len(keys))]
    return np.concatenate(drawn)
