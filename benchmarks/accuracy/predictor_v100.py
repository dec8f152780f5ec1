"""The predictor on convolutions measured on a V100, data of the tests: a part of docs/accuracy.md.

`python -m benchmarks.accuracy.predictor_v100` prints what each part of the predictor contributes.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from v100_convolutions import split

from benchmarks.accuracy.devices import REJECTED_P, Run, p_of_90
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, table
from benchmarks.parts import say
from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays, index_of, layer_arrays
from harness.predictor.features.layer_features import TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.feature_matrix import feature_matrix
from harness.predictor.roofline.tiling_search import find_tiling
from harness.predictor.training_data import WAYS, Training
from harness.predictor.trees import VotingTrees

TEST_ROWS = 15_000
POOLED_DRAWS = 1_000
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
        training = Training(work, latency_s, np.zeros(len(work)), (frozenset(),) * len(work), steps, seed=0)
        roofline, columns, log_ratio = training.roofline()
        asked_columns, terms = feature_matrix(asked, roofline)
        for way, grow in WAYS.items():
            log_latency, mean = terms.latency.copy(), terms.latency.copy()
            for operator in sorted(set(work.operators)):
                own, there = index_of(work, operator), index_of(asked, operator)
                trees = grow(columns[own], log_ratio[own], 0)
                log_latency[there] += trees.correct(asked_columns[there]).log_ratio
                if isinstance(trees, VotingTrees):
                    mean[there] += trees.votes(asked_columns[there]).mean(axis=1)
            print(f"| {label}, correction: {way} | {within_10_percent(log_latency, test):.1%} |", flush=True)
            if way == "voting":
                print(f"| {label}, mean of the same trees | {within_10_percent(mean, test):.1%} |", flush=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for count in WANTED:
        ablation(count)
