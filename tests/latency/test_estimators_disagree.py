"""The slope over copies of a layer, and the flags of layers whose estimators disagree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.latency.estimators import LayerLatencies, estimate_layers
from harness.latency.layer_latency import CampaignData, Latency, slope
from harness.latency.overhead import Coefficient, Overhead, row_of
from harness.latency.overhead_fit import fit_overhead
from harness.measure.summary import Measurement
from harness.network.key import LayerKey
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

STACKS = ("x1", "x2", "x4")
LAYER = LayerProbes(LayerKey("k"), "chip", "Conv", "conv", "whole", "alone", "within", "without", STACKS)
PLACE = (LAYER.key.digest, LAYER.context)
TERMS = {
    "whole": OverheadTerms(4096, 64, 1, 8192, 64),
    "alone": OverheadTerms(8192, 64, 1, 8192, 64),
    **dict.fromkeys(("within", "without", *STACKS), OverheadTerms(512, 64, 1, 8192, 64)),
}
_ROLES = {"whole": "layer", "alone": "auxiliary", "within": "context", "without": "null"}
ROLES = {**_ROLES, **dict.fromkeys(STACKS, "stack")}
PRODUCER_S = 2e-5
LAYER_S = 1e-3


def measured(latency_s: float, stderr_s: float = 1e-8) -> Measurement:
    """Return a measurement with ten samples."""
    return Measurement(latency_s, stderr_s, 2 * stderr_s, 10, 0, "device")


def overhead_s(terms: OverheadTerms) -> float:
    """Return 100 µs a run, 0.1 ns per input byte and 0.2 ns per output byte."""
    return 1e-4 + 1e-10 * terms.input_bytes + 2e-10 * terms.output_bytes


@cache
def calibration() -> tuple[dict[str, Probe], dict[str, Measurement], Overhead]:
    """Return null probes of a device without noise, their totals, and their fit."""
    probes = {probe.id: probe for probe in calibration_probes(AuxiliaryKind.AVGPOOL, 200_000)}
    totals = {name: measured(overhead_s(probe.terms), 1e-7) for name, probe in probes.items()}
    return probes, totals, fit_overhead([(probes[name].terms, one) for name, one in totals.items()])


def contents_s(by_itself_s: float = LAYER_S, behind_a_copy_s: float = LAYER_S) -> dict[str, float]:
    """Return the contents of each probe without the overhead, for a layer that takes LAYER_S in its context."""
    copies = {name: LAYER_S + (number - 1) * behind_a_copy_s for name, number in zip(STACKS, STACK_COPIES, strict=True)}
    held = {"within": PRODUCER_S + LAYER_S, "without": PRODUCER_S, "whole": by_itself_s, "alone": 0.0}
    return {**held, **{name: PRODUCER_S + one for name, one in copies.items()}}


def estimated(contents: Mapping[str, float], stderr_s: float = 1e-8) -> LayerLatencies:
    """Return the layer by the default method, from probes with these contents."""
    probes, totals, overhead = calibration()
    roles = {**dict.fromkeys(probes, "calibration"), **ROLES}
    terms = {**{name: probe.terms for name, probe in probes.items()}, **TERMS}
    own = {name: measured(overhead_s(TERMS[name]) + one, stderr_s) for name, one in contents.items()}
    return estimate_layers(CampaignData([LAYER], [], roles, terms, {}, {**totals, **own}), "joint", overhead)


def test_estimators_that_agree_flag_nothing() -> None:
    """A layer with the same time in all probes has that latency and no flag."""
    found = estimated(contents_s())
    assert found.latencies[PLACE].latency_s == pytest.approx(LAYER_S, rel=1e-3)
    assert found.flags == {}


def test_a_copy_that_is_faster_behind_itself_is_flagged() -> None:
    """A copy faster by a fifth behind itself is flagged with the estimator and the difference."""
    found = estimated(contents_s(behind_a_copy_s=0.8 * LAYER_S))
    assert found.flags == {PLACE: "chain -20%"}
    assert found.latencies[PLACE].latency_s == pytest.approx(LAYER_S, rel=1e-3)


def test_a_layer_that_is_slower_by_itself_is_flagged() -> None:
    """A layer slower by itself is flagged by both subtractions, and the entry keeps its time in context."""
    found = estimated(contents_s(by_itself_s=1.3 * LAYER_S))
    assert found.flags == {PLACE: "difference +30%, regression-terms +30%"}
    assert found.latencies[PLACE].latency_s == pytest.approx(LAYER_S, rel=1e-3)


@pytest.mark.parametrize(("loads", "flag"), [(-1.2, "difference -10%"), (-0.9, ""), (0.9, ""), (1.3, "+15%")])
def test_loads_from_the_devices_own_memory_are_no_differences(loads: float, flag: str) -> None:
    """A layer may differ by itself by the loads of its own probe and of its baseline, and by nothing beyond."""
    probes, totals, overhead = calibration()
    load_s = 0.5 * LAYER_S
    given = overhead.coefficients | {"loaded_bytes": Coefficient(load_s / 4096, 0.0, 0.0, 0.0)}
    terms = {name: probe.terms for name, probe in probes.items()} | TERMS | {"alone": TERMS["whole"]}
    contents = contents_s(by_itself_s=LAYER_S + loads * load_s)
    own = {name: measured(overhead_s(terms[name]) + one) for name, one in contents.items()}
    roles = {**dict.fromkeys(probes, "calibration"), **ROLES}
    data = CampaignData([LAYER], [], roles, terms, {}, {**totals, **own})
    found = estimate_layers(data, "joint", replace(overhead, coefficients=given)).flags.get(PLACE, "")
    assert flag in found
    assert bool(flag) == ("difference" in found)


def test_small_differences_are_no_flags_however_certain() -> None:
    """A certain difference of 4 % is not flagged."""
    assert estimated(contents_s(1.04 * LAYER_S, 0.96 * LAYER_S)).flags == {}


def test_differences_that_change_no_network_are_no_flags() -> None:
    """A layer of half a per cent of its network has no flag, whatever other estimators say; a network's half has."""
    probes, totals, overhead = calibration()
    found = {}
    for share in (0.005, 0.5):
        rest = LayerProbes(LayerKey("r"), "chip", "Conv", "rest", "", "", "rest", "front", (), ("n",))
        own = {
            **contents_s(by_itself_s=1.5 * LAYER_S),
            "rest": PRODUCER_S + LAYER_S / share - LAYER_S,
            "front": PRODUCER_S,
        }
        terms = {name: probe.terms for name, probe in probes.items()} | TERMS
        terms |= dict.fromkeys(("rest", "front"), TERMS["within"])
        roles = {**dict.fromkeys(probes, "calibration"), **ROLES, "rest": "context", "front": "null"}
        sums = {name: measured(overhead_s(terms[name]) + one) for name, one in own.items()}
        layers = [replace(LAYER, networks=("n",)), rest]
        data = CampaignData(layers, [], roles, terms, {}, {**totals, **sums})
        found[share] = estimate_layers(data, "joint", overhead).flags
    assert found[0.005] == {}
    assert found[0.5] == {PLACE: "difference +50%, regression-terms +50%"}


def test_uncertain_differences_are_no_flags_however_large() -> None:
    """A difference of half the latency within the errors is not flagged."""
    assert estimated(contents_s(1.5 * LAYER_S, 1.5 * LAYER_S), stderr_s=0.2 * LAYER_S).flags == {}


def test_layers_below_resolution_are_not_flagged() -> None:
    """A layer below resolution is not flagged."""
    nothing = dict.fromkeys(contents_s(), PRODUCER_S) | {"whole": LAYER_S, "alone": 0.0}
    found = estimated(nothing)
    assert not found.latencies[PLACE].resolved
    assert found.flags == {}


def test_what_an_estimator_says_of_most_layers_flags_none_of_them() -> None:
    """Of 30 layers that are slower by themselves by 28 to 32 %, none is flagged; one slower by 80 % is."""
    probes, totals, overhead = calibration()
    layers, own, terms, roles = [], {}, {name: probe.terms for name, probe in probes.items()}, {}
    for at in range(31):
        factor = 1.8 if at == 30 else 1.3 + 0.02 * (at % 3 - 1)
        names = {name: f"{name}{at}" for name in _ROLES}
        contents = contents_s(by_itself_s=factor * LAYER_S)
        own |= {names[name]: measured(overhead_s(TERMS[name]) + contents[name]) for name in _ROLES}
        terms |= {names[name]: TERMS[name] for name in _ROLES}
        roles |= {names[name]: role for name, role in _ROLES.items()}
        layers.append(LayerProbes(LayerKey(f"k{at}"), "chip", "Conv", f"l{at}", *names.values()))
    data = CampaignData(layers, [], dict.fromkeys(probes, "calibration") | roles, terms, {}, {**totals, **own})
    found = estimate_layers(data, "joint", overhead).flags
    assert found == {(layers[30].key.digest, "chip"): "difference +80%, regression-terms +80%"}


def test_a_refused_probe_takes_part_in_no_flag() -> None:
    """A refused probe removes only its own estimator from the flags."""
    contents = contents_s(1.3 * LAYER_S, 0.8 * LAYER_S)
    assert estimated({name: one for name, one in contents.items() if name != "x2"}).flags == {
        PLACE: "difference +30%, regression-terms +30%"
    }
    assert estimated({name: one for name, one in contents.items() if name != "alone"}).flags == {
        PLACE: "chain -20%, regression-terms +30%"
    }


def stacked(totals: Sequence[float], stderrs: Sequence[float]) -> dict[str, Measurement]:
    """Return measurements of the stacks."""
    return {name: measured(*one) for name, *one in zip(STACKS, totals, stderrs, strict=True)}


def of_slope(totals: Mapping[str, Measurement]) -> Latency:
    """Return the latency of the layer by the slope over its stacks."""
    found = slope(LAYER, totals)
    assert found is not None
    return found.latency(totals)


def test_copies_by_hand() -> None:
    """3, 5 and 9 seconds of one, two and four copies are 2 s each; errors of 1 s leave 1 / sqrt(14 / 3)."""
    found = of_slope(stacked((3.0, 5.0, 9.0), (1.0, 1.0, 1.0)))
    assert found.latency_s == pytest.approx(2.0)
    assert found.samples == 10
    assert found.stderr_s == pytest.approx(math.sqrt(3 / 14))  # (1 - 7/3)² + (2 - 7/3)² + (4 - 7/3)² = 14/3
    assert found.resolved


ERRORS = st.lists(st.floats(1e-3, 0.02), min_size=3, max_size=3)
"""Larger than the smallest relative error of a total."""


@given(st.floats(0.1, 1.0), st.floats(0.0, 1.0), ERRORS)
def test_a_line_gives_its_slope_whatever_the_errors(slope_s: float, front_s: float, errors: list[float]) -> None:
    """The slope over copies is the layer, whatever precedes the copies and whatever the errors."""
    found = of_slope(stacked([front_s + copies * slope_s for copies in STACK_COPIES], errors))
    assert found.latency_s == pytest.approx(slope_s, rel=1e-6)


@given(st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=3), ERRORS)
def test_the_slope_is_that_of_weighted_least_squares(off: list[float], errors: list[float]) -> None:
    """Slope and standard error are those of numpy's weighted fit."""
    totals = [1.0 + 0.5 * copies + one for copies, one in zip(STACK_COPIES, off, strict=True)]
    found = of_slope(stacked(totals, errors))
    (slope_s, _), covariance = np.polyfit(STACK_COPIES, totals, 1, w=1 / np.array(errors), cov="unscaled")
    assert found.latency_s == pytest.approx(slope_s, rel=1e-6)
    assert found.stderr_s == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-6)


def test_a_layer_that_cannot_follow_itself_has_no_slope() -> None:
    """A layer without all of its stacks measured has no slope."""
    everything = stacked((3.0, 5.0, 9.0), (1.0, 1.0, 1.0))
    for name in STACKS:
        assert slope(LAYER, {other: one for other, one in everything.items() if other != name}) is None
    alone = LayerProbes(LAYER.key, "chip", "Conv", "conv", "whole", "alone", "within", "without")
    assert slope(alone, everything) is None


def test_the_overhead_of_exact_null_probes_is_exact() -> None:
    """The overhead fitted to exact null probes is exact."""
    _, _, overhead = calibration()
    for terms in TERMS.values():
        assert overhead.of(row_of(terms))[0] == pytest.approx(overhead_s(terms), rel=1e-3)
