"""Errors that the layers of a network share, and the standard error of a sum of predictions.

A predictor that is wrong about one layer of a network is wrong about the next of the same operator, for the same
reason: a size it never saw, a fused activation, a layout. Adding such errors as if they were independent makes the
interval of a network far too narrow. What a device does between layers, such as moving maps that its buffers do not
hold, is wrong in all layers of a network alike, whatever their operators.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.intervals import ANY, NORMAL_90

_FEWEST_PAIRS = 100
_WIDEST = 1.0
_PRODUCTS = "mac/"
PRODUCT_SHARE, UNKNOWN_SHARE = 0.2, 0.33
"""Shares for products and for all operators where no network was held out: those of networks on a processor."""
ALL_ALIKE = "all alike"
"""Stands for what layers of different operators share."""
_IMAGINARY_NETWORKS, _IMAGINARY_SHARE = 2, 0.5
"""A few networks show little of how much their layers share: imaginary ones are added, whose layers share this much."""


@dataclass(frozen=True)
class LayerPrediction:
    """A latency, the interval that holds it with probability `intervals.LEVEL`, and its coverage.

    `operator` is the class that was learnt together; `shared` is the share of the error's variance that all layers of
    that class in one network have in common. `common` is the part of it that layers of all classes have in common.
    `loads_s` is the part of the latency during which the layer loads weights.
    """

    latency_s: float
    low_s: float
    high_s: float
    coverage: Coverage
    operator: str
    shared: float
    common: float = 0.0
    loads_s: float = 0.0

    @property
    def shared_parts(self) -> tuple[tuple[str, float], ...]:
        """What shares an error with this layer, and the roots of the shares of the variance."""
        return (self.operator, math.sqrt(self.shared - self.common)), (ALL_ALIKE, math.sqrt(self.common))


@dataclass(frozen=True)
class NetworkResiduals:
    """Normalised residuals of layers held out with all others of their network, (layers,)."""

    operators: tuple[str, ...]
    sources: tuple[str, ...]
    scores: Floats


def shares_of(held_out: NetworkResiduals) -> dict[str, float]:
    """Return the correlation of errors within a network by operator, from 0 to 1; `ANY` pools all operators.

    `ALL_ALIKE` is that of different operators.
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for operator, source, score in zip(held_out.operators, held_out.sources, held_out.scores.tolist(), strict=True):
        groups[operator, source].append(score)
    by_operator: dict[str, list[list[float]]] = defaultdict(list)
    for (operator, _), scores in groups.items():
        by_operator[operator].append(scores)
        by_operator[ANY].append(scores)
    found = {operator: _correlation(parts) for operator, parts in by_operator.items() if _pairs(parts) >= _FEWEST_PAIRS}
    return found | {ALL_ALIKE: _common(groups)} if groups else found


def _common(groups: Mapping[tuple[str, str], Sequence[float]]) -> float:
    """Return the mean product of two scores of a network's different operators over the mean square."""
    by_network: dict[str, list[Sequence[float]]] = defaultdict(list)
    for (_, network), scores in groups.items():
        by_network[network].append(scores)
    products, pairs, squares, count = 0.0, 0, 0.0, 0
    several = [parts for parts in by_network.values() if len(parts) > 1]
    for parts in several:
        sums, sizes = np.array([sum(part) for part in parts]), np.array([len(part) for part in parts])
        products += float(sums.sum() ** 2 - sums @ sums)
        pairs += int(sizes.sum() ** 2 - sizes @ sizes)
        squares += sum(float(np.square(part).sum()) for part in parts)
        count += int(sizes.sum())
    measured = float(np.clip(products / pairs / (squares / count), 0.0, 1.0)) if squares else 0.0
    networks = len(several) + _IMAGINARY_NETWORKS
    return (len(several) * measured + _IMAGINARY_NETWORKS * _IMAGINARY_SHARE) / networks


def _pairs(groups: Sequence[Sequence[float]]) -> int:
    return sum(len(scores) * (len(scores) - 1) // 2 for scores in groups)


def _correlation(groups: Sequence[Sequence[float]]) -> float:
    """Return the mean product of two scores of a group over the mean square; groups weigh by their layers."""
    several = [np.array(scores) for scores in groups if len(scores) > 1]
    products = sum((part.sum() ** 2 - part @ part) / (part.size - 1) for part in several)
    squares = sum(float(part @ part) for part in several)
    return float(np.clip(products / squares, 0.0, 1.0)) if squares else UNKNOWN_SHARE


def share_of(shares: Mapping[str, float], operator: str) -> float:
    """Return the share of an operator, or else that of all operators."""
    unknown = PRODUCT_SHARE if operator.startswith(_PRODUCTS) else UNKNOWN_SHARE
    return shares.get(operator, shares.get(ANY, unknown))


def stderr_of_sum(layers: Sequence[LayerFeatures], predictions: Sequence[LayerPrediction]) -> float:
    """Return the standard error in seconds of the sum of predictions for the layers of one network.

    A repeated layer has the same error each time; different layers of an operator share `LayerPrediction.shared` of
    their variance, and all layers `LayerPrediction.common` of it. An interval wider than a factor of e on either side
    counts as that.
    """
    counts = Counter(layers)
    shared_s: dict[str, float] = defaultdict(float)
    own = 0.0
    for layer, found in dict(zip(layers, predictions, strict=True)).items():
        total_s = counts[layer] * _stderr_s(found)
        for name, root in found.shared_parts:
            shared_s[name] += root * total_s
        own += (1.0 - found.shared) * total_s**2
    return math.sqrt(own + sum(value**2 for value in shared_s.values()))


def _stderr_s(found: LayerPrediction) -> float:
    half_width = math.log(found.high_s / found.low_s) / 2.0 if found.low_s > 0.0 else math.inf
    return found.latency_s * min(half_width, _WIDEST) / NORMAL_90
