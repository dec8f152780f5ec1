"""The best of any number of candidates: spans are ranked one by one, and the best of all are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints
from harness.search.candidates import Rows, Span
from harness.search.space_estimator import SpaceEstimator


@dataclass(frozen=True)
class Wanted:
    """How many candidates to keep, and the latency that they may have at most, in seconds."""

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


def rank_span(estimator: SpaceEstimator, span: Span, wanted: Wanted) -> Ranking:
    """Return the best candidates of a span."""
    rows, scores = span.rows(), span.scores()
    latency_s = estimator.latency_s(rows)
    good = latency_s <= wanted.under_s
    kept = np.flatnonzero(good)
    costs = latency_s[kept] if scores is None else -np.asarray(scores[kept], np.float64)
    scored = ~np.isnan(costs)
    unscored = len(kept) - int(np.count_nonzero(scored))
    kept, costs = kept[scored], costs[scored]
    if len(kept) > wanted.count:
        limit = np.partition(costs, wanted.count - 1)[wanted.count - 1]
        kept, costs = kept[costs <= limit], costs[costs <= limit]
    order = np.lexsort((kept, costs))[: wanted.count]
    best = kept[order]
    unknown = int(np.isnan(latency_s).sum())
    under = int(np.count_nonzero(good))
    return Ranking(rows[best], best + span.first, latency_s[best], costs[order], len(rows), under, unknown, unscored)


def best_of(rankings: Iterable[Ranking], wanted: Wanted) -> Ranking:
    """Return the best of several rankings, whose order does not matter; at least one is needed."""
    found: Ranking | None = None
    for one in rankings:
        found = one if found is None else _joined(found, one, wanted)
    if found is None:
        raise ValueError("no candidates")
    return found


def _joined(one: Ranking, other: Ranking, wanted: Wanted) -> Ranking:
    costs = np.concatenate([one.costs, other.costs])
    numbers = np.concatenate([one.numbers, other.numbers])
    order = np.lexsort((numbers, costs))[: wanted.count]
    return Ranking(
        np.concatenate([one.rows, other.rows])[order],
        numbers[order],
        np.concatenate([one.latency_s, other.latency_s])[order],
        costs[order],
        one.seen + other.seen,
        one.under + other.under,
        one.unknown + other.unknown,
        one.unscored + other.unscored,
    )
