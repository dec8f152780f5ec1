"""Candidates ranked on the workers of a Dask scheduler: each span is one task, and its best candidates come back."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from harness.architecture_search.candidates import Span
from harness.architecture_search.ranking import Ranking, Selection, rank_span
from harness.architecture_search.space_estimator import SpaceEstimator
from harness.errors import EngineError
from harness.fleet.cluster.access import check_extra, security_of
from harness.text import printable

_CONNECT_S = 15.0
_AHEAD = 4
"""Tasks in progress for each thread of the workers: memory for few spans is needed at once."""


def rank_on_cluster(
    scheduler: str, estimator: SpaceEstimator, spans: Iterable[Span], selection: Selection
) -> Iterator[Ranking]:
    """Yield the ranking of each span, in any order.

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
