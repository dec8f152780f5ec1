"""The best of any number of candidates: spans are ranked one by one, here or on a cluster; the best of all are kept."""

import collections
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.architecture_search.candidates import Rows, Span
from harness.architecture_search.space_estimator import SpaceEstimator
from harness.array_types import Floats, Ints
from harness.errors import EngineError
from harness.fleet.cluster.access import check_extra, security_of
from harness.text import printable

_CONNECT_S = 15.0
_AHEAD = 4
"""Tasks in progress for each thread of the workers: this limits the number of spans in memory."""


@dataclass(frozen=True)
class Selection:
    """How many of the best candidates to keep, and the largest latency that they may have, in seconds."""

    count: int
    under_s: float = float("inf")


@dataclass(frozen=True)
class Ranking:
    """The best candidates, each once and the best first: the highest scores, or without scores the lowest latencies.

    `numbers` are those of the candidates among all, `costs` what they are ordered by. Of all `seen` candidates, `under`
    are below the bound, and `unknown` have a layer that is neither measured nor predicted. `unscored` are below the
    bound and have no number as a score; they are left out. `fastest_s` is the lowest latency, whatever the bound.
    """

    rows: Rows
    numbers: Ints
    latency_s: Floats
    costs: Floats
    seen: int
    under: int
    unknown: int
    unscored: int
    fastest_s: float


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
    order = _lowest(costs, rows[kept], selection.count)
    best = kept[order]
    unknown = int(np.isnan(latency_s).sum())
    under, fastest_s = int(np.count_nonzero(good)), float(np.nanmin(latency_s, initial=np.inf))
    kept_s, costs = latency_s[best], costs[order]
    return Ranking(rows[best], best + span.first, kept_s, costs, len(rows), under, unknown, unscored, fastest_s)


def _lowest(costs: Floats, rows: Rows, count: int) -> Ints:
    """Return the places of the lowest costs, the lowest first; of equal rows only the first one."""
    taken = count
    while True:
        limit = np.partition(costs, taken - 1)[taken - 1] if taken < len(costs) else np.inf
        near = np.flatnonzero(costs <= limit)
        near = near[np.argsort(costs[near], kind="stable")][:taken]
        _, first = np.unique(rows[near], axis=0, return_index=True)
        if len(first) >= count or taken >= len(costs):
            return near[np.sort(first)[:count]]
        taken *= 8


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
    rows = np.concatenate([first.rows, second.rows])
    by_number = np.argsort(numbers)
    order = by_number[_lowest(costs[by_number], rows[by_number], selection.count)]
    return Ranking(
        rows[order],
        numbers[order],
        np.concatenate([first.latency_s, second.latency_s])[order],
        costs[order],
        first.seen + second.seen,
        first.under + second.under,
        first.unknown + second.unknown,
        first.unscored + second.unscored,
        min(first.fastest_s, second.fastest_s),
    )


def rank_on_cluster(
    scheduler: str, estimator: SpaceEstimator, spans: Iterable[Span], selection: Selection
) -> Iterator[Ranking]:
    """Yield the ranking of each span, in any order; each is one task of a Dask scheduler.

    Raises ConfigurationError without the extra `cluster`, and EngineError if the scheduler or a task is lost.
    """
    check_extra()
    import distributed

    library: Any = distributed
    security = security_of(scheduler, None, "client")
    try:
        with library.Client(scheduler, timeout=_CONNECT_S, security=security, set_as_default=False) as client:
            threads = sum(client.nthreads().values())
            if not threads:
                step = "Start a worker: harness worker, or dask worker in an environment with harness"
                raise EngineError(f"The scheduler at {scheduler} has no workers", next_step=step)
            shared = client.scatter(estimator, broadcast=True, hash=False)
            waiting: collections.deque[Any] = collections.deque()
            for span in spans:
                waiting.append(client.submit(rank_span, shared, span, selection, pure=False))
                if len(waiting) >= _AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        why = printable(f"{type(error).__name__}: {error}", 300)
        step = "Start it, or check the address and that all hosts have this version of harness"
        raise EngineError(
            f"The scheduler at {scheduler} did not rank the candidates", why=why, next_step=step
        ) from error
