"""Parts of docs/accuracy.md that need no network: intervals of the overhead, convolutions of a V100, fusion."""

from __future__ import annotations

import contextlib
import functools
import io
import statistics
import time
from collections.abc import Sequence

import fusion_rules
import numpy as np
import predictor_v100
from accuracy_devices import REJECTED_P, Run, p_of_90, patiently, references, say
from accuracy_page import Reached, Section, percent, signed, table
from overhead_intervals import NAMES, Draw, calibrate, timed_probes
from sklearn.ensemble import HistGradientBoostingRegressor
from v100_convolutions import split

from device_agents.emulated_npu.host import HostModel
from device_agents.emulated_npu.machine import load_preset
from harness.network.models import load_networks
from harness.network.network import Network
from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import TrainingExample
from harness.predictor.fit import fit_predictor

PRESET = "edge"
DRAWS, QUICK_DRAWS = 1_000, 30
CAMPAIGN, SPREAD_S = 0.0, 1_800.0
"""Rounds one after the other, as `harness profile` takes them, and at random moments of half an hour."""
V100_WANTED = {3_000: 0.65, 10_000: 0.75}
QUICK_ROWS, QUICK_TESTED = 150, 2_000


def overhead_section(run: Run) -> Section:
    """Coverage of the 95 % intervals of a, b and c over seeded draws."""
    draws = QUICK_DRAWS if run.quick else DRAWS
    host, probes = load_preset(PRESET).host, timed_probes(PRESET)
    truth = HostModel(host, 0).true_overhead()
    texts, shares = [], []
    for span_s in (CAMPAIGN, SPREAD_S):
        say(f"overhead: {draws} draws over {span_s:.0f} s")
        taken = [calibrate(probes, host, seed, span_s) for seed in range(draws)]
        text, share = _coverage(taken, truth)
        when = "one after the other, as in a campaign" if span_s == CAMPAIGN else f"spread over {span_s:.0f} s"
        rounds = statistics.fmean(draw.rounds for draw in taken)
        device_s = statistics.fmean(draw.device_s for draw in taken)
        texts.append(f"{draws:,} draws, rounds {when}: {rounds:.1f} rounds, {device_s:.2f} s on the device each.")
        texts.append(text)
        shares.append(share)
    figure = f"{percent(shares[0])} of {3 * draws:,}"
    return Section(
        "\n\n".join(texts), (Reached("npu01: 95 % intervals of a, b, c hold", figure, 0.93 <= shares[0] <= 0.97),)
    )


def _coverage(taken: Sequence[Draw], truth: Sequence[float]) -> tuple[str, float]:
    rows: list[tuple[object, ...]] = []
    held_in_all = 0
    for name, true in zip(NAMES, truth, strict=True):
        found = [getattr(draw.overhead, name) for draw in taken]
        errors = [one.value / true - 1 for one in found]
        held = sum(one.low <= true <= one.high for one in found)
        width = statistics.median(one.high - one.low for one in found) / 2 / true
        held_in_all += held
        rows.append(
            (name, signed(statistics.fmean(errors), 2), percent(statistics.pstdev(errors), 2),
             percent(max(map(abs, errors)), 2), f"±{percent(width, 2)}", percent(held / len(taken)))
        )  # fmt: skip
    share = held_in_all / len(NAMES) / len(taken)
    rows.append(("**pooled**", "", "", "", "", f"**{percent(share)}**"))
    return table(("", "mean error", "spread", "worst", "half-width", "95 % intervals hold"), rows), share


def v100_section(run: Run) -> Section:
    """The predictor on convolutions that were measured on a V100, one seed for each number of known rows."""
    counts = (QUICK_ROWS,) if run.quick else tuple(V100_WANTED)
    tested = QUICK_TESTED if run.quick else predictor_v100.TEST_ROWS
    rows, reached, coverage = [], [], []
    for count in counts:
        say(f"v100: {count} rows known")
        train, test = split(0, count, tested)
        started_s = time.perf_counter()
        predictor = fit_predictor(train, seed=0)
        trained_s = time.perf_counter() - started_s
        found = predictor.predict_all([sample.layer for sample in test])
        log_latency = np.log([one.latency_s for one in found])
        share = predictor_v100.within_10_percent(log_latency, test)
        errors = np.abs([one.latency_s / sample.latency_s - 1 for one, sample in zip(found, test, strict=True)])
        held = [one.low_s <= sample.latency_s <= one.high_s for one, sample in zip(found, test, strict=True)]
        drawn = held[: predictor_v100.POOLED_DRAWS]
        coverage.append((statistics.fmean(held), p_of_90(sum(drawn), len(drawn))))
        plain, median = _boosted(train, test), float(np.median(errors))
        rows.append(
            (f"{count:,}", f"**{percent(share)}**", percent(plain), percent(median), percent(coverage[-1][0]),
             f"{coverage[-1][1]:.2g}", f"{trained_s:.0f}")
        )  # fmt: skip
        if count in V100_WANTED:
            name = f"V100, {count:,} rows known: within 10 %"
            reached.append(Reached(name, percent(share), share >= V100_WANTED[count]))
    drawn_words = f"p of {predictor_v100.POOLED_DRAWS:,} draws"
    header = (
        "rows known",
        "within 10 %",
        "plain gradient boosting",
        "median error",
        "90 % intervals hold",
        drawn_words,
        "training s",
    )
    figure = "; ".join(f"{percent(share)}, p = {p:.2g}" for share, p in coverage)
    reached.append(Reached("V100: 90 % intervals hold", figure, all(p >= REJECTED_P for _, p in coverage)))
    return Section(f"Tested on {tested:,} other rows.\n\n{table(header, rows)}", tuple(reached))


def _boosted(train: Sequence[TrainingExample], test: Sequence[TrainingExample]) -> float:
    """The share within 10 % that gradient boosting of the log latency reaches with sizes, work and bytes."""
    known, asked = (layer_arrays([sample.layer for sample in part]) for part in (train, test))
    boosting = HistGradientBoostingRegressor(max_iter=600, learning_rate=0.06, random_state=0)
    boosting.fit(predictor_v100.plain_columns(known), np.log([sample.latency_s for sample in train]))
    return predictor_v100.within_10_percent(boosting.predict(predictor_v100.plain_columns(asked)), test)


def fusion_section(run: Run) -> Section:
    """Fusion found by pair probes against what the devices tell."""
    names = run.networks[-1:] if run.quick else run.networks
    networks = load_networks(references(names))
    texts = []
    for device, teller in fusion_rules.TELLS.items():
        say(f"fusion: {device}")
        texts.append(patiently(functools.partial(_found_and_told, device, teller, networks)))
    return Section("\n\n".join(texts), ())


def _found_and_told(device: str, teller: str, networks: Sequence[Network]) -> str:
    told = fusion_rules.told_by(teller, networks)
    search, rules, cost = fusion_rules.searched(device, networks)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        fusion_rules.print_patterns(search, rules, networks, told)
    return f"**{device}** against what {teller} tells: {cost}.\n\n{printed.getvalue().strip()}"
