"""Which part of their errors the layers of one network share.

What a predictor gets wrong about one layer of a network it gets wrong about the next of the same operator: a
size that was never seen, a fused activation, a layout. Adding such errors as if they were independent makes the
interval of a network far too narrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.predictor.features.layer_arrays import Floats
from harness.predictor.uncertainty.intervals import ANY

_LEAST_PAIRS = 100
UNKNOWN_SHARE = 1.0
"""Where no two layers were held out together, errors of one operator count as one error."""


@dataclass(frozen=True)
class HeldOutTogether:
    """Normalised residuals of layers that were held out with all others of their network, (layers,)."""

    operators: tuple[str, ...]
    sources: tuple[str, ...]
    scores: Floats


def shares_of(held_out: HeldOutTogether) -> dict[str, float]:
    """By operator the correlation of errors within a network, between 0 and 1; `ANY` pools all operators."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for operator, source, score in zip(held_out.operators, held_out.sources, held_out.scores.tolist(), strict=True):
        groups[operator, source].append(score)
    by_operator: dict[str, list[list[float]]] = defaultdict(list)
    for (operator, _), scores in groups.items():
        by_operator[operator].append(scores)
        by_operator[ANY].append(scores)
    return {operator: _correlation(parts) for operator, parts in by_operator.items() if _pairs(parts) >= _LEAST_PAIRS}


def _pairs(groups: Sequence[Sequence[float]]) -> int:
    return sum(len(scores) * (len(scores) - 1) // 2 for scores in groups)


def _correlation(groups: Sequence[Sequence[float]]) -> float:
    """Mean product of two scores of a group over the mean square; a group counts by its number of layers."""
    several = [np.array(scores) for scores in groups if len(scores) > 1]
    products = sum((part.sum() ** 2 - part @ part) / (part.size - 1) for part in several)
    squares = sum(float(part @ part) for part in several)
    return float(np.clip(products / squares, 0.0, 1.0)) if squares else UNKNOWN_SHARE


def share_of(shares: Mapping[str, float], operator: str) -> float:
    """What is known of an operator, or else of all."""
    return shares.get(operator, shares.get(ANY, UNKNOWN_SHARE))
