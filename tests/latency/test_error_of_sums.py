"""The variance of sums of layers: layers of one campaign share the fitted overhead and some of their probes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from harness.latency.estimators import LayerLatencies, estimate_layers
from harness.latency.layer_latency import CampaignData
from harness.latency.method_names import LatencyMethod
from harness.latency.overhead import COLUMNS, Overhead, row_of
from harness.latency.overhead_fit import fit_overhead
from harness.latency.plain_overhead import fit_plain_overhead
from harness.measure.summary import Measurement
from harness.network.key import LayerKey
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

LAYERS, DRAWS = 12, 150
LAYER_S, ERROR_S = 5e-4, 2e-7
SUBTRACTIONS: tuple[LatencyMethod, ...] = ("regression", "regression-terms", "difference")


def layers() -> list[LayerProbes]:
    """Return layers of which four share an auxiliary probe, and two the stacks of copies."""
    return [
        LayerProbes(
            LayerKey(f"k{number}"),
            "chip",
            "Conv",
            "conv",
            f"layer {number}",
            f"auxiliary {number // 4}",
            f"within {number}",
            f"without {number}",
            tuple(f"stack {number // 2} x{copies}" for copies in STACK_COPIES),
        )
        for number in range(LAYERS)
    ]


def contents() -> dict[str, tuple[str, OverheadTerms, float]]:
    """Return role, terms and seconds without the overhead of each probe."""
    found: dict[str, tuple[str, OverheadTerms, float]] = {}
    for number, layer in enumerate(layers()):
        read = 4096 * (number + 1)
        found[layer.layer] = ("layer", OverheadTerms(read, 64, 1, 8192, 64), LAYER_S)
        found[layer.auxiliary] = ("auxiliary", OverheadTerms(8192, 64, 1, 8192, 64), 0.0)
        for stack, copies in zip(layer.stacks, STACK_COPIES, strict=True):
            found[stack] = ("stack", OverheadTerms(512, 64, 1, 8192, 64), copies * LAYER_S)
    return found


@cache
def fits() -> dict[str, Overhead]:
    """Return both fits to noisy null probes of a device with c = 100 µs, a = 0.1 and b = 0.2 ns per byte."""
    draw, nulls = np.random.default_rng(3), []
    for probe in calibration_probes(AuxiliaryKind.AVGPOOL, 200_000):
        clean = 1e-4 + 1e-10 * probe.terms.input_bytes + 2e-10 * probe.terms.output_bytes
        total = float(clean * draw.lognormal(0, 0.01))
        nulls.append((probe.terms, Measurement(total, total / 100, total / 50, 9, 0, "device")))
    return {"plain": fit_plain_overhead(nulls), "extended": fit_overhead(nulls)}


def drawn(method: LatencyMethod, draw: np.random.Generator) -> LayerLatencies:
    """Return layers of a device whose true overhead differs from the fit as its covariance says."""
    fit = fits()["plain" if method == "regression" else "extended"]
    values = np.array([fit.coefficients[name].value for name in COLUMNS])
    off = draw.multivariate_normal(np.zeros(len(COLUMNS)), np.array(fit.covariance), method="eigh")
    true = values + off
    summaries, roles, terms = {}, {}, {}
    for name, (role, own, held_s) in contents().items():
        total = float(true @ np.array(row_of(own))) + held_s + float(draw.normal(0, ERROR_S))
        summaries[name], roles[name], terms[name] = Measurement(total, ERROR_S, 2 * ERROR_S, 9, 0, "device"), role, own
    return estimate_layers(CampaignData(layers(), [], roles, terms, {}, summaries), method, fit)


@pytest.mark.parametrize("method", [*SUBTRACTIONS, "chain"])
def test_sums_are_as_far_off_as_their_variance_says(method: LatencyMethod) -> None:
    """Over 150 devices, the error of the sum of twelve layers has the variance that the covariance gives it."""
    draw, scores, apart = np.random.default_rng(11), [], []
    for _ in range(DRAWS):
        found = drawn(method, draw)
        error = sum(one.remainder_s for one in found.latencies.values()) - LAYERS * LAYER_S
        scores.append(error / np.sqrt(found.covariance.sum()))
        apart.append(error / np.sqrt(np.trace(found.covariance)))
        stderrs = [one.remainder_stderr_s for one in found.latencies.values()]
        assert np.sqrt(np.diag(found.covariance)) == pytest.approx(stderrs, rel=1e-6)
    assert 0.7 < np.var(scores) < 1.4
    assert abs(np.mean(scores)) < 0.3
    assert np.var(apart) > 1.5  # independent layers would have too small an error


def test_an_overhead_that_misses_auxiliary_layers_shows_in_the_error_of_sums() -> None:
    """If auxiliary layers take 3 µs that the model lacks, each layer of the regression is uncertain by as much."""
    draw = np.random.default_rng(13)
    plain = fits()["plain"]
    summaries, roles, terms = {}, {}, {}
    for name, (role, own, held_s) in contents().items():
        total = plain.of(row_of(own))[0] + held_s + 3e-6 + float(draw.normal(0, 1e-8))
        summaries[name], roles[name], terms[name] = Measurement(total, 1e-8, 2e-8, 9, 0, "device"), role, own
    exact = replace(plain, covariance=((0.0,) * len(COLUMNS),) * len(COLUMNS))
    found = estimate_layers(CampaignData(layers(), [], roles, terms, {}, summaries), "regression", exact)
    error_s = sum(one.remainder_s for one in found.latencies.values()) - LAYERS * LAYER_S
    assert error_s == pytest.approx(LAYERS * 3e-6, rel=0.05)
    assert float(np.sqrt(found.covariance.sum())) == pytest.approx(LAYERS * 3e-6, rel=0.05)
