"""The predictor on convolutions measured on a V100: accuracy, coverage of intervals, and the value of each part.

    python -m benchmarks.accuracy.predictor_v100

Prints tables in Markdown; takes about half an hour on one core. The convolutions are data of the tests. A part of
docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import betabinom, binomtest
from sklearn.ensemble import HistGradientBoostingRegressor
from v100_convolutions import split

from benchmarks.accuracy.devices import REJECTED_P, Run, p_of_90
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, table
from benchmarks.parts import say
from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays, index_of, layer_arrays
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.feature_matrix import feature_matrix
from harness.predictor.roofline.tiling_search import find_tiling
from harness.predictor.training_data import WAYS, Training
from harness.predictor.trees import VotingTrees
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.intervals import LEVEL
from harness.predictor.uncertainty.network_errors import LayerPrediction

TEST_ROWS = 15_000
POOLED_DRAWS = 1_000
SEEDS = {3_000: 5, 10_000: 3}
NO_STEPS = DeviceTiling(1, 1, 1, ((1, 1, 1),))
WANTED = {3_000: 0.65, 10_000: 0.75}
QUICK_ROWS, QUICK_TESTED = 150, 2_000


def v100_section(run: Run) -> Section:
    """Measure the predictor with one seed for each number of known rows."""
    counts = (QUICK_ROWS,) if run.quick else tuple(WANTED)
    tested = QUICK_TESTED if run.quick else TEST_ROWS
    rows, targets, coverage = [], [], []
    for count in counts:
        say(f"v100: {count} rows known")
        train, test = split(0, count, tested)
        started_s = time.perf_counter()
        predictor = fit_predictor(train, seed=0)
        trained_s = time.perf_counter() - started_s
        found = predictor.predict_all([sample.layer for sample in test])
        share = within_10_percent(np.log([one.latency_s for one in found]), test)
        errors = np.abs([one.latency_s / sample.latency_s - 1 for one, sample in zip(found, test, strict=True)])
        held = [one.low_s <= sample.latency_s <= one.high_s for one, sample in zip(found, test, strict=True)]
        drawn = held[:POOLED_DRAWS]
        coverage.append((statistics.fmean(held), p_of_90(sum(drawn), len(drawn))))
        accuracies = (f"**{percent(share)}**", percent(_boosted(train, test)), percent(float(np.median(errors))))
        intervals = (percent(coverage[-1][0]), f"{coverage[-1][1]:.2g}")
        rows.append((f"{count:,}", *accuracies, *intervals, f"{trained_s:.0f}"))
        if count in WANTED:
            name = f"V100, {count:,} rows known: within 10 %"
            targets.append(reached(name, percent(share), share >= WANTED[count]))
    header = (
        *("rows known", "within 10 %", "plain gradient boosting", "median error"),
        *("inside the 90 % interval", f"p of {POOLED_DRAWS:,} draws", "training s"),
    )
    figure = "; ".join(f"{percent(share)}, p = {p:.2g}" for share, p in coverage)
    targets.append(reached("V100: inside the 90 % interval", figure, all(p >= REJECTED_P for _, p in coverage)))
    return Section(f"Tested on {tested:,} other rows.\n\n{table(header, rows)}", tuple(targets))


def _boosted(train: Sequence[TrainingExample], test: Sequence[TrainingExample]) -> float:
    """Return the share within 10 % for gradient boosting of the log latency from sizes, work and bytes."""
    known, asked = (layer_arrays([sample.layer for sample in part]) for part in (train, test))
    boosting = HistGradientBoostingRegressor(max_iter=600, learning_rate=0.06, random_state=0)
    boosting.fit(plain_columns(known), np.log([sample.latency_s for sample in train]))
    return within_10_percent(boosting.predict(plain_columns(asked)), test)


def within_10_percent(log_latency: Floats, test: Sequence[TrainingExample]) -> float:
    """Return the share of predictions within 10 % of the measured latency."""
    measured = np.array([sample.latency_s for sample in test])
    return float(np.mean(np.abs(np.exp(log_latency) / measured - 1.0) <= 0.1))


def accuracy(rows: int) -> None:
    """Measure the predictor with default settings over several seeds."""
    print(f"\n{rows} rows known, {TEST_ROWS} others predicted\n")
    print(
        f"| seed | within 10 % | median error | inside interval | p of {LEVEL:.0%}, {POOLED_DRAWS} draws | p, all |",
        end="",
    )
    print(" width inside, edge | units | MB | training s |\n|---|---|---|---|---|---|---|---|---|---|")
    shares, held_shares = [], []
    for seed in range(SEEDS[rows]):
        train, test = split(seed, rows, TEST_ROWS)
        started_s = time.perf_counter()
        predictor = fit_predictor(train, seed=seed)
        elapsed_s = time.perf_counter() - started_s
        found = predictor.predict_all([sample.layer for sample in test])
        log_latency = np.log([each.latency_s for each in found])
        error = np.abs(np.expm1(log_latency - np.log([sample.latency_s for sample in test])))
        held = [each.low_s <= sample.latency_s <= each.high_s for each, sample in zip(found, test, strict=True)]
        shares.append(within_10_percent(log_latency, test))
        held_shares.append(statistics.mean(held))
        draws_p = binomtest(sum(held[:POOLED_DRAWS]), POOLED_DRAWS, LEVEL).pvalue
        print(
            f"| {seed} | {shares[-1]:.1%} | {np.median(error):.2%} | {held_shares[-1]:.1%} "
            f"| {draws_p:.2g} | {calibration_p(sum(held), rows):.2g} "
            f"| ±{width(found, Coverage.INSIDE):.1%}, ±{width(found, Coverage.EDGE):.1%} "
            f"| {predictor.tiling.units} | {len(predictor.content) / 1e6:.1f} | {elapsed_s:.0f} |",
            flush=True,
        )
    spread = statistics.stdev(shares)
    print(f"\nwithin 10 %: mean {statistics.mean(shares):.1%}, standard deviation {spread:.1%}; ", end="")
    print(f"inside the interval: {statistics.mean(held_shares):.1%} over all seeds")


def calibration_p(held: int, rows: int) -> float:
    """Return the two-sided p of `held` intervals. Calibrated on `rows` layers, their true share is itself uncertain."""
    law = betabinom(TEST_ROWS, LEVEL * (rows + 1), (1.0 - LEVEL) * (rows + 1))
    return float(min(1.0, 2.0 * min(law.cdf(held), law.sf(held - 1))))


def width(found: Sequence[LayerPrediction], coverage: Coverage) -> float:
    """Return the median relative half-width of the intervals of a class."""
    return statistics.median([math.sqrt(each.high_s / each.low_s) - 1.0 for each in found if each.coverage is coverage])


def plain_columns(work: LayerArrays) -> Floats:
    """Return sizes, work and bytes: no fitted columns."""
    derived = (work.macs, work.in_bytes, work.out_bytes, work.weight_bytes, work.moved_bytes, work.rows)
    return np.stack([*work.sizes.values(), *map(np.log, derived), np.log(work.macs / work.moved_bytes)], axis=1)


def ablation(rows: int) -> None:
    """Measure the value of each part, with seed 0."""
    train, test = split(0, rows, TEST_ROWS)
    work, asked = (layer_arrays([sample.layer for sample in part]) for part in (train, test))
    latency_s = np.array([sample.latency_s for sample in train])
    print(f"\nthe value of each part ({rows} rows known)\n\n| model | within 10 % |\n|---|---|")
    print(f"| plain gradient boosting of log latency on sizes, work, bytes | {_boosted(train, test):.1%} |")
    for label, steps in (
        ("roofline without steps", NO_STEPS),
        ("roofline with steps", find_tiling(work, latency_s, 0)),
    ):
        training = Training(
            work, latency_s, np.zeros(len(work)), (frozenset(),) * len(work), np.ones(len(work)), steps, seed=0
        )
        roofline, columns, log_ratio = training.roofline()
        asked_columns, base = feature_matrix(asked, roofline)
        for way, grow in WAYS.items():
            log_latency, mean = base.copy(), base.copy()
            for operator in sorted(set(work.operators)):
                own, there = index_of(work, operator), index_of(asked, operator)
                trees = grow(columns[own], log_ratio[own], 0)
                log_latency[there] += trees.correct(asked_columns[there]).log_ratio
                if isinstance(trees, VotingTrees):
                    mean[there] += trees.votes(asked_columns[there]).mean(axis=1)
            print(f"| {label}, correction: {way} | {within_10_percent(log_latency, test):.1%} |", flush=True)
            if way == "voting":
                print(f"| {label}, mean of the same trees | {within_10_percent(mean, test):.1%} |", flush=True)


def order(rows: int) -> None:
    """Double the batch with all else equal: how often latency falls, measured and predicted."""
    train, test = split(0, rows, 80_000)
    predictor = fit_predictor(train)
    known = {sample.layer: sample.latency_s for sample in test}
    pairs = [(layer, twice_batch(layer, known)) for layer in known]
    both = [(layer, twice) for layer, twice in pairs if twice is not None]
    small, large = (predictor.predict_all(part) for part in zip(*both, strict=True))
    measured = [known[twice] < 0.95 * known[layer] for layer, twice in both]
    predicted = [after.latency_s < 0.95 * before.latency_s for before, after in zip(small, large, strict=True)]
    print(
        f"\n{len(both)} pairs of one layer with a batch and twice the batch; more than 5 % faster with twice the batch:"
    )
    print(f"measured {np.mean(measured):.2%}, predicted {np.mean(predicted):.2%}")


def twice_batch(layer: LayerFeatures, known: Mapping[LayerFeatures, float]) -> LayerFeatures | None:
    """Return the same layer with twice the batch, or None if it was not measured."""
    twice = replace(layer, batch=2 * layer.batch)
    return twice if twice in known else None


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    ablation(3_000)
    ablation(10_000)
    order(3_000)
    for count in SEEDS:
        accuracy(count)
