"""Candidates of a search space per second, without and with intervals: a part of docs/performance.md.

The space has 20 positions with invented latencies and correlated errors, and one thread computes.
"""

import functools
import statistics

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.generated_page import Section, table
from benchmarks.performance.measuring import Run, cpu, grow, growth_table, half_decades, in_turns
from benchmarks.performance.page import reached_linear
from harness.architecture_search.candidates import random_spans
from harness.architecture_search.layer_terms import Terms
from harness.architecture_search.position_tables import PositionTable
from harness.architecture_search.ranking import Selection, best_of, rank_span
from harness.architecture_search.space_estimator import SpaceEstimator, SpaceTables

POSITIONS, CHOICES, LAYERS = 20, 5, 3
COUNTS, QUICK_COUNTS = half_decades(10_000, 10_000_000), half_decades(1_000, 10_000)


def candidates_section(run: Run) -> Section:
    """Estimate numbers of candidates over three decades, and draw and rank some."""
    counts = QUICK_COUNTS if run.quick else COUNTS
    estimator, random = invented(CHOICES), np.random.default_rng(1)
    rows = random.integers(0, CHOICES, (counts[-1], POSITIONS), np.uint8)
    estimator.intervals_s(rows[: counts[0]])  # fills its tables
    tasks = {"latency": estimator.latency_s, "latency and interval": estimator.intervals_s}
    with threadpool_limits(1):
        growths = {
            name: grow(counts, lambda count, work=work: functools.partial(work, rows[:count]), run.repeats)  # type: ignore[misc]
            for name, work in tasks.items()
        }
        ranked = in_turns({"": functools.partial(_rank, estimator, counts[-2])}, run.repeats)[""]
    speeds = [(name, f"{counts[-1] / 1e6 / one.times_s[counts[-1]]:.1f}") for name, one in growths.items()]
    speeds.append(("draw, estimate and rank", f"{counts[-2] / 1e6 / statistics.median(cpu(ranked)):.1f}"))
    text = (
        f"{POSITIONS} positions with {CHOICES} choices of {LAYERS} layers. Medians of {run.repeats} in turns:\n\n"
        f"{growth_table('candidates', growths)}\n\n"
        f"{table(('at the largest size', 'million candidates per second'), speeds)}"
    )
    return Section(text, tuple(reached_linear(f"candidates: {name}", one) for name, one in growths.items()))


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
    return SpaceEstimator(sizes, 1e-4, 1e-12, 1e-4, 0.01, 0.0, 0.0, (SpaceTables.of(tuple(tables), sizes, covariance),))


def _rank(estimator: SpaceEstimator, count: int) -> None:
    selection = Selection(100, 1e-2)
    best_of((rank_span(estimator, span, selection) for span in random_spans(count, estimator.sizes, 0)), selection)
