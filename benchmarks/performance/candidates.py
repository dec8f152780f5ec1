"""Candidates per second of a search space, without and with intervals, for numbers of them over three decades.

    python -m benchmarks.performance.candidates

A space of 20 positions with invented latencies and correlated errors. Processor time on one thread, medians of several
repetitions; speeds of several sizes are taken in turns.
"""

from __future__ import annotations

import argparse
import functools
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from harness.search.candidates import random_spans
from harness.search.layer_terms import Terms
from harness.search.position_tables import PositionTable
from harness.search.ranking import Wanted, best_of, rank_span
from harness.search.space_estimator import SpaceEstimator, SpaceTables

POSITIONS = 20
LAYERS = 3
COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
REPEATS = 5


def invented(choices: int) -> SpaceEstimator:
    """Return the tables of a space in which each choice has layers of its own, and all errors are correlated."""
    random = np.random.default_rng(0)
    sources = POSITIONS * choices * LAYERS
    tables = []
    for at in range(POSITIONS):
        terms = [
            Terms(
                float(random.uniform(1e-4, 1e-3)),
                0.0,
                (LAYERS, 0, 0, 0),
                tuple(((at * choices + choice) * LAYERS + layer, 1.0) for layer in range(LAYERS)),
            )
            for choice in range(choices)
        ]
        tables.append(PositionTable((at, at + 1), np.arange(choices), tuple(terms)))
    common = random.normal(size=(sources, 4)) * 1e-6
    covariance = common @ common.T + np.diag(random.uniform(1e-6, 1e-5, sources) ** 2)
    sizes = (choices,) * POSITIONS
    return SpaceEstimator(sizes, 1e-4, 1e-12, 1e-4, (SpaceTables.of(tuple(tables), sizes, covariance),))


def _rank(estimator: SpaceEstimator, count: int) -> None:
    wanted = Wanted(100, 1e-2)
    best_of((rank_span(estimator, span, wanted) for span in random_spans(count, estimator.sizes, 0)), wanted)


def speed(work: Callable[[], object], count: int) -> float:
    """Return candidates per second of processor time."""
    started_s = time.process_time()
    work()
    return count / (time.process_time() - started_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choices", type=int, nargs="+", default=[5, 9])
    for choices in parser.parse_args().choices:
        estimator = invented(choices)
        rows = {count: np.random.default_rng(1).integers(0, choices, (count, POSITIONS), np.uint8) for count in COUNTS}
        estimator.intervals_s(rows[COUNTS[0]])
        found: dict[tuple[str, int], list[float]] = {}
        with threadpool_limits(1):
            for _ in range(REPEATS):
                for count, held in rows.items():
                    for name, work in (("latency", estimator.latency_s), ("interval", estimator.intervals_s)):
                        found.setdefault((name, count), []).append(speed(functools.partial(work, held), count))
                ranked = speed(functools.partial(_rank, estimator, COUNTS[-2]), COUNTS[-2])
                found.setdefault(("draw and rank", COUNTS[-2]), []).append(ranked)
        for (name, count), speeds in found.items():
            median, low, high = statistics.median(speeds), min(speeds), max(speeds)
            print(
                f"{choices} choices, {count:>10,} candidates, {name}: {median / 1e6:.1f} million/s"
                f" [{low / 1e6:.1f}, {high / 1e6:.1f}]"
            )
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
