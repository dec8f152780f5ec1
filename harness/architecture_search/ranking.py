"""The best of any number of candidates: spans are ranked one by one, and the best of all are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.architecture_search.candidates import Rows, Span
from harness.architecture_search.space_estimator import SpaceEstimator
from harness.array_types import Floats, Ints


@dataclass(frozen=True)
class Selection:
    """How many of the best candidates to keep, and the largest latency that they may have, in seconds."""

    count: int
    under_s: float = float("inf")


@dataclass(frozen=True)
class Ranking:
    """The best candidates, best first: the highest scores, or without scores the lowest latencies.

    `numbers` are those of the candidates among all, `costs` what they are ordered by. Of all `seen` candidates, `under`
    are below the bound, and `unknown` have a layer that is neither measured nor predicted. `unscored` are below the
    bound and have no number as a score; they are left out.
    """

    rows: Rows
    numbers: Ints
    latency_s: Floats
    costs: Floats
    seen: int
    under: int
    unknown: int
    unscored: int


def rank_span(estimator: SpaceEstimator, span: Span, selection: Selection) -> Ranking:
    """Return the best candidates of a span."""
    rows, scores = span.rows(), span.scores()
    latency_s = estimator.latency_s(rows)
    good = latency_s <= selection.under_s
    kept = np.flatnonzero(good)
    costs = latency_s[kept] if scores is None else -np.asarray(scores[kept], np.float64)
    scored = ~np.isnan(costs)
    unscored = len(kept) - int(np.count_nonzero(scored))
    kept, costs = kept[scored], costs[scored]
    if len(kept) > selection.count:
        limit = np.partition(costs, selection.count - 1)[selection.count - 1]
        kept, costs = kept[costs <= limit], costs[costs <= limit]
    order = np.lexsort((kept, costs))[: selection.count]
    best = kept[order]
    unknown = int(np.isnan(latency_s).sum())
    under = int(np.count_nonzero(good))
    return Ranking(rows[best], best + span.first, latency_s[best], costs[order], len(rows), under, unknown, unscored)


def best_of(rankings: Iterable[Ranking], selection: Selection) -> Ranking:
    """Return the best of several rankings, whose order does not matter; at least one is needed."""
    found: Ranking | None = None
    for one in rankings:
        found = one if found is None else _joined(found, one, selection)
    if found is None:
        raise ValueError("no candidates")
    return found


def _joined(first: Ranking, second: Ranking, selection: Selection) -> Ranking:
    costs = np.concatenate([first.costs, second.costs])
    numbers = np.concatenate([first.numbers, second.numbers])
    order = np.lexsort((numbers, costs))[: selection.count]
    return Ranking(
        np.concatenate([first.rows, second.rows])[order],
        numbers[order],
        np.concatenate([first.latency_s, second.latency_s])[order],
        costs[order],
        first.seen + second.seen,
        first.under + second.under,
        first.unknown + second.unknown,
        first.unscored + second.unscored,
    )
