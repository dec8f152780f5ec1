"""Layer latencies compared with the truth of a null device, and properties that hold for any data."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from nullbench import Bench

from harness.errors import MeasurementError
from harness.latency.estimators import estimate_layers
from harness.latency.layer_latency import CampaignData, Latency
from harness.latency.method_names import METHODS, LatencyMethod
from harness.latency.overhead import Overhead, row_of
from harness.latency.overhead_fit import fit_overhead
from harness.measure.policy import RepeatPolicy
from harness.measure.summary import Measurement
from harness.network.key import LayerKey
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import LayerProbes

LAYER = LayerProbes(LayerKey("k"), "chip", "Conv", "conv", "whole", "alone", "within", "without", ("x1", "x2", "x4"))
PLACE = (LAYER.key.digest, LAYER.context)
STACKS = ("x1", "x2", "x4")
PROBES: dict[LatencyMethod, tuple[str, ...]] = {
    "joint": ("within", "without"),
    "difference": ("whole", "alone"),
    "regression": ("whole",),
    "regression-terms": ("whole",),
    "chain": ("x4", "x1", "x2"),
}
"""For each method the probe that holds the layer, and the probes it is compared with."""
TERMS = {
    "whole": OverheadTerms(4096, 64, 1, 8192, 64),
    "alone": OverheadTerms(8192, 64, 1, 8192, 64),
    "within": OverheadTerms(512, 64, 1, 8192, 64),
    "without": OverheadTerms(512, 32, 1, 4096, 32),
    **dict.fromkeys(STACKS, OverheadTerms(512, 64, 1, 8192, 64)),
}
_ROLES = {"whole": "layer", "alone": "auxiliary", "within": "context", "without": "null"}
ROLES = {**_ROLES, **dict.fromkeys(STACKS, "stack")}
SECONDS = st.floats(1e-9, 1e3)


@cache
def nulls() -> dict[str, tuple[OverheadTerms, Measurement]]:
    """Return calibration probes of a device with c = 100 µs, a = 0.1 ns/B, b = 0.2 ns/B and 1 % of noise."""
    draw = np.random.default_rng(1)
    found = {}
    for probe in calibration_probes(AuxiliaryKind.AVGPOOL, 200_000):
        clean = 1e-4 + 1e-10 * probe.terms.input_bytes + 2e-10 * probe.terms.output_bytes
        total = float(clean * np.exp(0.01 * draw.standard_normal()))
        found[probe.id] = (probe.terms, Measurement(total, total / 100, total / 50, 9, 0, "device"))
    return found


@cache
def overhead() -> Overhead:
    """Return the fit to these."""
    return fit_overhead(list(nulls().values()))


def estimated(method: LatencyMethod, taken: Mapping[str, Measurement]) -> Latency | None:
    """Return the layer by one method from these measurements and the calibration probes."""
    calibration = nulls()
    summaries = {**{name: one for name, (_, one) in calibration.items()}, **taken}
    terms = {**{name: one for name, (one, _) in calibration.items()}, **TERMS}
    roles = {**dict.fromkeys(calibration, "calibration"), **ROLES}
    found = estimate_layers(CampaignData([LAYER], [], roles, terms, {}, summaries), method, overhead())
    return found.latencies.get(PLACE)


def measured(latency_s: float, stderr_s: float) -> Measurement:
    """Return a measurement with ten samples."""
    return Measurement(latency_s, stderr_s, 2 * stderr_s, 10, 0, "device")


@pytest.mark.parametrize("method", METHODS)
def test_what_the_device_reports_as_a_view_takes_no_time(method: LatencyMethod) -> None:
    """A layer that has the probes without a layer in place of its own takes no time by any estimator."""
    view = dataclasses.replace(LAYER, layer="alone", in_context="without", stacks=())
    calibration = nulls()
    taken = {"alone": measured(3e-4, 1e-6), "without": measured(2e-4, 1e-6)}
    summaries = {**{name: one for name, (_, one) in calibration.items()}, **taken}
    terms = {**{name: one for name, (one, _) in calibration.items()}, **TERMS}
    roles = {**dict.fromkeys(calibration, "calibration"), **ROLES}
    found = estimate_layers(CampaignData([view], [], roles, terms, {}, summaries), method, overhead())
    assert found.latencies[PLACE].remainder_s == found.latencies[PLACE].stderr_s == 0.0
    assert found.covariance.shape == (len(found.latencies),) * 2


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bench]:
    """Profile each device once for all tests and methods, by runs and changes to the default device."""

    @cache
    def profile(runs: int, **changes: float) -> Bench:
        bench = Bench(tmp_path_factory.mktemp("bench"))
        bench.set_device(dataclasses.replace(bench.truth, **changes))
        bench.profile(policy=RepeatPolicy(runs=runs))
        return bench

    return profile


@pytest.mark.parametrize("method", METHODS)
def test_every_estimator_finds_the_true_latency_of_each_layer(
    profiled: Callable[..., Bench], method: LatencyMethod
) -> None:
    """Measured end to end, each entry is within four standard errors of weights times their cost (S1.5, S1.7)."""
    bench = profiled(20)
    table = bench.build(method=method)
    truth = bench.layers(table)
    found = {entry.key for entry in table.entries}
    assert found == set(truth) if method != "chain" else found < set(truth)
    assert sum(seconds > 0 for seconds in truth.values()) == 3
    for entry in table.entries:
        assert abs(entry.latency_s - truth[entry.key]) < 4 * entry.stderr_s + 1e-8, entry
        assert entry.stderr_s < 5e-6
    assert sum(entry.latency_s for entry in table.entries) == pytest.approx(sum(truth[key] for key in found), rel=0.2)


def test_layers_below_resolution_are_positive_and_flagged(profiled: Callable[..., Bench]) -> None:
    """Layers that take no time have a small positive latency, not resolved; layers of over 30 µs are resolved."""
    bench = profiled(20)
    table = bench.build()
    truth = bench.layers(table)
    for entry in table.entries:
        assert entry.latency_s > 0
        if truth[entry.key] == 0:
            assert not entry.resolved or entry.latency_s < 4 * entry.stderr_s
        if truth[entry.key] > 30e-6:
            assert entry.resolved
    assert any(not entry.resolved for entry in table.entries)


@pytest.mark.parametrize("method", METHODS)
def test_without_noise_the_estimate_is_the_truth(profiled: Callable[..., Bench], method: LatencyMethod) -> None:
    """On a device without noise, each layer is exact to a tenth of a microsecond."""
    bench = profiled(3, noise=0.0)
    table = bench.build(method=method)
    for entry in table.entries:
        assert entry.latency_s == pytest.approx(bench.layers(table)[entry.key], abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_a_device_without_transfers_is_measured_too(profiled: Callable[..., Bench], method: LatencyMethod) -> None:
    """If the overhead does not depend on sizes, each layer is exact to a tenth of a microsecond."""
    bench = profiled(3, noise=0.0, a_s_per_byte=0.0, b_s_per_byte=0.0)
    table = bench.build(method=method)
    for entry in table.entries:
        assert entry.latency_s == pytest.approx(bench.layers(table)[entry.key], abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_run_gives_finite_latencies(profiled: Callable[..., Bench], method: LatencyMethod) -> None:
    """One run per probe gives a table of finite numbers, or a MeasurementError and no table."""
    bench = profiled(1)
    before = set(bench.workspace.lut.glob("*/*"))
    try:
        table = bench.build(method=method)
    except MeasurementError:
        assert set(bench.workspace.lut.glob("*/*")) == before
        return
    assert all(math.isfinite(entry.latency_s) and math.isfinite(entry.stderr_s) for entry in table.entries)


@settings(max_examples=40)
@given(st.sampled_from(METHODS), SECONDS, SECONDS, st.one_of(SECONDS, st.just(0.0)), st.one_of(SECONDS, st.just(0.0)))
def test_no_estimator_ever_returns_zero_or_less(
    method: LatencyMethod, with_s: float, without_s: float, error_s: float, other_error_s: float
) -> None:
    """For any totals and errors a latency is positive and finite, and resolved only above three standard errors."""
    probe, *others = PROBES[method]
    taken = {probe: measured(with_s, error_s), **{other: measured(without_s, other_error_s) for other in others}}
    found = estimated(method, taken)
    assert found is not None
    assert 0 < found.latency_s < math.inf
    assert 0 <= found.stderr_s < math.inf
    assert not found.resolved or found.latency_s >= 3 * found.stderr_s


@settings(max_examples=40)
@given(st.sampled_from(METHODS), st.floats(1e-6, 1e-2))
def test_a_clear_layer_is_the_difference_and_no_more(method: LatencyMethod, layer_s: float) -> None:
    """Totals of the overhead model plus a layer give that layer, resolved."""
    model = overhead()
    copies = {"x1": 1, "x2": 2, "x4": 4, "whole": 1, "within": 1}
    taken = {
        name: measured(model.of(row_of(TERMS[name]))[0] + copies.get(name, 0) * (layer_s + 1e-3), 1e-8)
        for name in PROBES[method]
    }
    found = estimated(method, taken)
    assert found is not None
    assert found.resolved
    assert found.latency_s == pytest.approx(layer_s + 1e-3, rel=2e-3 if method == "joint" else 1e-6)


@settings(max_examples=4)
@given(st.floats(1e-8, 1e-5))
def test_what_cannot_be_resolved_is_no_larger_than_its_error(error_s: float) -> None:
    """A difference of zero or less gives a latency of about its error or below, not resolved."""
    for shortfall_s in (0.0, error_s, 5 * error_s, 50 * error_s, 1e-3):
        taken = {"within": measured(1e-2 - shortfall_s, error_s), "without": measured(1e-2, error_s)}
        found = estimated("joint", taken)
        assert found is not None
        assert not found.resolved
        assert 0 < found.latency_s < 3 * (2 * error_s + 1e-6)


@settings(max_examples=8)
@given(st.floats(1e-7, 1e-6), st.floats(10, 1e2))
def test_a_negative_difference_shows_in_the_error(error_s: float, factor: float) -> None:
    """A clearly negative difference gives a standard error of at least its size."""
    clean = {name: overhead().of((1.0, *map(float, dataclasses.astuple(terms))))[0] for name, terms in TERMS.items()}
    short_s = factor * error_s
    taken = {
        "within": measured(clean["within"], error_s),
        "without": measured(clean["without"] + short_s, error_s),
    }
    found = estimated("joint", taken)
    assert found is not None
    assert not found.resolved
    assert found.stderr_s >= 0.999 * short_s > found.latency_s
    assert found.remainder_s < 0 and found.remainder_stderr_s >= 0.999 * -found.remainder_s


def test_a_layer_whose_probe_was_refused_has_no_latency() -> None:
    """A layer without its probe or baseline has no latency."""
    taken = {name: measured(1e-3, 1e-6) for name in TERMS}
    for method in METHODS:
        for name in PROBES[method]:
            assert estimated(method, {other: one for other, one in taken.items() if other != name}) is None
        assert estimated(method, taken) is not None


@settings(max_examples=5)
@given(st.floats(1e-9, 1e-4), st.floats(1.01, 10))
def test_more_uncertain_totals_make_a_more_uncertain_layer(error_s: float, factor: float) -> None:
    """A larger error of the probe or of its baseline gives a larger error of the layer."""

    def stderr(one: float, other: float) -> float:
        taken = {"within": measured(2.0, one), "without": measured(1.0, other)}
        found = estimated("joint", taken)
        assert found is not None
        return found.stderr_s

    assert stderr(error_s * factor, error_s) > stderr(error_s, error_s)
    assert stderr(error_s, error_s * factor) > stderr(error_s, error_s)


def test_auxiliary_layers_alone_do_not_decide_the_overhead() -> None:
    """Auxiliary layers alone that return little of what they read, as those of integers do, change no layer."""
    shapes = [(25_600, 6_400, 0), (64, 4, 1), (51_200, 32, 0), (204_800, 5_120, 0), (51_200, 1_280, 0), (36_864, 4, 1)]
    shapes += [(25_600, 640, 0), (6_400, 4, 0), (110_592, 4, 1), (200, 4, 0), (36_864, 4, 1), (18_432, 4, 1)]
    terms = {probe.id: probe.terms for probe in calibration_probes(AuxiliaryKind.ROWPOOL, 200_000)}
    roles = dict.fromkeys(terms, "calibration")
    for at, (input_bytes, output_bytes, slices) in enumerate(shapes):
        terms[f"auxiliary {at}"] = OverheadTerms(input_bytes, output_bytes, 1, output_bytes, 0, slices, slices)
        roles[f"auxiliary {at}"] = "auxiliary"
    terms |= {"within": OverheadTerms(138_240, 4, 1, 4), "without": OverheadTerms(512, 4, 1, 4)}
    roles |= {"within": "context", "without": "null"}
    summaries = {}
    for name, one in terms.items():
        clean = 7e-5 + 1e-9 * one.input_bytes + 7.5e-10 * one.output_bytes + (2e-5 if name == "within" else 0.0)
        summaries[name] = measured(clean, clean / 1000)
    layer = dataclasses.replace(LAYER, stacks=())
    calibration = [(terms[name], summaries[name]) for name, role in roles.items() if role == "calibration"]
    data = CampaignData([layer], [], roles, terms, {}, summaries)
    found = estimate_layers(data, "joint", fit_overhead(calibration)).latencies[PLACE]
    assert found.latency_s == pytest.approx(2e-5, abs=1e-6)
