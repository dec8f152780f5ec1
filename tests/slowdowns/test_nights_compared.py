"""Findings of night comparisons: slower layers and devices, steps, slow nights, and no false alarms."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from made_nights import MadeDevice, layer_name

from harness.slowdowns.findings import Comparison
from harness.slowdowns.night_comparison import compare_nights
from harness.slowdowns.watch_series import WatchSeries

USUAL = MadeDevice()
SLOW = MadeDevice(slow={5: 1.05})


def series(devices: Sequence[MadeDevice], seed: int = 0) -> list[WatchSeries]:
    """Return consecutive nights, one of each device."""
    return [device.night(number, seed) for number, device in enumerate(devices)]


def compared(devices: Sequence[MadeDevice], seed: int = 0) -> Comparison:
    """Compare the last of these nights with the others."""
    *earlier, tonight = series(devices, seed)
    return compare_nights(tonight, earlier)


def test_nights_without_change_raise_no_alarm() -> None:
    """Over 30 nights whose host drifts by percents, no night reports a regression."""
    drift = np.random.default_rng(4)
    nights = series([replace(USUAL, host=1 + 0.01 * drift.uniform(-1, 1)) for _ in range(35)], seed=4)
    regressions = [compare_nights(nights[at], nights[at - 5 : at]).regressions for at in range(5, 35)]
    assert not any(regressions)


@pytest.mark.parametrize("earlier", [1, 2, 6])
def test_a_slower_layer_is_the_only_finding(earlier: int) -> None:
    """A layer that is 5 % slower is one new finding whose interval contains the true change."""
    comparison = compared([*[USUAL] * earlier, SLOW])
    (finding,) = comparison.findings
    assert (finding.subject.kind, finding.subject.name, finding.state) == ("layer", layer_name(5), "new")
    assert finding.interval[0] < 0.05 < finding.interval[1] and finding.interval[1] - finding.interval[0] < 0.05
    assert comparison.regressions == (finding,)
    assert (finding.nights, finding.until) == (1, None)
    assert "layer5" in finding.summary and "new tonight" in finding.summary


def test_a_layer_that_is_fast_again_is_compared_with_its_slow_nights() -> None:
    """The change is a fraction of the latency of the nights before, not of the usual latency."""
    slow = MadeDevice(slow={5: 1.2})
    slower, faster = (
        next(one for one in compared(nights).findings if (one.subject.name, one.state) == (layer_name(5), "new"))
        for nights in ([*[USUAL] * 4, slow], [*[USUAL] * 4, slow, slow, slow, USUAL])
    )
    assert faster.change == pytest.approx(1 / 1.2 - 1, abs=0.01)
    assert faster.latency_s == pytest.approx(1.2 * slower.latency_s, rel=0.01)


def test_a_faster_layer_is_an_improvement() -> None:
    """A speed-up is a finding and no regression."""
    comparison = compared([*[USUAL] * 4, MadeDevice(slow={7: 0.95})])
    (finding,) = comparison.findings
    assert (finding.subject.name, finding.state) == (layer_name(7), "new") and finding.change < 0
    assert not comparison.regressions


def test_a_step_is_new_once_and_keeps_its_date() -> None:
    """The night of a step reports it as new; later nights report the step of that night."""
    nights = series([*[USUAL] * 5, *[SLOW] * 5])
    for after in range(5):
        comparison = compare_nights(nights[5 + after], nights[: 5 + after])
        (finding,) = comparison.regressions
        assert finding.state == ("step" if after else "new")
        assert (finding.since, finding.nights) == (nights[5].date, after + 1)
        assert finding.change == pytest.approx(0.05, abs=0.025)


def test_another_slow_down_after_a_step_is_new_again() -> None:
    """After a step, nights are compared with each other: a second step is a finding of its own."""
    slower = MadeDevice(slow={5: 1.12})
    comparison = compared([*[USUAL] * 4, *[SLOW] * 4, slower])
    (finding,) = comparison.regressions
    assert finding.state == "new" and finding.change == pytest.approx(0.07, abs=0.03)


def test_a_single_slow_night_stays_listed_as_passed() -> None:
    """A single slow night is no regression of later nights, and stays listed as passed."""
    nights = series([*[USUAL] * 5, SLOW, *[USUAL] * 3])
    for back in range(3):
        comparison = compare_nights(nights[6 + back], nights[: 6 + back])
        (finding,) = comparison.findings
        assert finding.state == "passed" and not comparison.regressions
        assert (finding.since, finding.until, finding.nights) == (nights[5].date, nights[6].date, 1)
        assert "one night from 2026-01-06, back since 2026-01-07" in finding.summary


def test_a_larger_slow_down_is_never_less_significant() -> None:
    """With the same noise, a larger slow-down gives a larger change and no larger p-value."""
    found = []
    for factor in (1.03, 1.04, 1.06, 1.1, 1.3, 2.0):
        comparison = compared([*[USUAL] * 3, MadeDevice(slow={6: factor})])
        (finding,) = [one for one in comparison.regressions if one.subject.name == layer_name(6)]
        found.append((finding.change, finding.p_value))
    assert [change for change, _ in found] == sorted(change for change, _ in found)
    for (_, weaker), (_, stronger) in itertools.pairwise(found):  # ranks are all apart at last
        assert stronger <= 1.001 * weaker


@pytest.mark.parametrize("host", [1.0, 1.05])
def test_a_slower_device_is_one_finding(host: float) -> None:
    """If everything is 5 % slower, with or without the host, that is one finding and not one per layer."""
    comparison = compared([*[USUAL] * 4, MadeDevice(device=1.05, host=host)])
    assert [one.subject.kind for one in comparison.regressions] == ["device"]
    assert comparison.regressions[0].change == pytest.approx(0.05, abs=0.005)


def test_a_slower_layer_shows_on_a_slower_device() -> None:
    """A change of the device does not hide a layer that changed more."""
    comparison = compared([*[USUAL] * 4, MadeDevice(device=1.04, slow={5: 1.08})])
    found = {(one.subject.kind, one.subject.name) for one in comparison.regressions}
    assert found == {("device", "made"), ("layer", layer_name(5))}


def test_a_slower_host_is_no_regression() -> None:
    """The host's overhead is subtracted, whatever its effect on the probes."""
    comparison = compared([*[USUAL] * 3, MadeDevice(host=1.03)])
    assert not comparison.findings
    assert comparison.host_change == pytest.approx(0.03, abs=0.003)


def test_many_slower_layers_show_in_the_network() -> None:
    """If a third of the layers is slower, each layer and the network is a finding, and the device is not."""
    slow = MadeDevice(slow={8: 1.1, 9: 1.1, 10: 1.1, 11: 1.1})
    comparison = compared([*[USUAL] * 4, slow])
    kinds = [one.subject.kind for one in comparison.regressions]
    assert sorted(kinds) == ["layer"] * 4 + ["network"] and kinds[0] == "network"


def test_changes_below_the_threshold_are_left_out() -> None:
    """A significant change below the threshold is left out; a lower threshold reports it."""
    *earlier, tonight = series([*[USUAL] * 6, MadeDevice(slow={11: 1.006})])
    assert not compare_nights(tonight, earlier).findings
    assert [one.subject.name for one in compare_nights(tonight, earlier, threshold=0.003).findings] == [layer_name(11)]


def test_nights_that_scatter_hide_what_they_must() -> None:
    """If probes scatter by 2 % between nights, there are no findings, and detectable changes are large."""
    noisy = MadeDevice(nightly=0.02, clock="cpu")
    for count in (1, 2, 6):
        for seed in range(6):
            comparison = compared([noisy] * (count + 1), seed)
            assert not comparison.regressions
            assert min(one.change for one in comparison.detectable) > 0.02
    assert comparison.scatter == pytest.approx(0.02, rel=0.4)


def test_what_scatters_still_shows_large_changes() -> None:
    """A layer that is 50 % slower is found among nights that scatter by 1 %."""
    noisy = MadeDevice(nightly=0.01, clock="cpu")
    comparison = compared([*[noisy] * 6, replace(noisy, slow={9: 1.5})])
    assert [one.subject.name for one in comparison.regressions if one.subject.kind == "layer"] == [layer_name(9)]


def test_a_changed_fingerprint_is_named_where_it_changed() -> None:
    """A change of the fingerprint on the night of a step is its likely cause, on that night and later."""
    updated = replace(SLOW, fingerprint={"runtime_version": "2", "cpu": "made", "firmware": "7"})
    for after in range(1, 4):
        comparison = compared([*[USUAL] * 4, *[updated] * after])
        (finding,) = comparison.regressions
        assert [str(one) for one in finding.causes] == ["firmware unknown -> 7", "runtime_version 1 -> 2"]
        assert finding.summary.endswith("likely cause: firmware unknown -> 7, runtime_version 1 -> 2")


def test_order_of_nights_and_probes_does_not_matter() -> None:
    """The order of nights, probes and layers does not affect the findings."""
    *earlier, tonight = series([*[USUAL] * 4, SLOW])
    shuffled = []
    draw = random.Random(3)
    for night in (*earlier, tonight):
        names = sorted(night.probes, key=lambda _: draw.random())
        samples = {name: night.samples[0][name] for name in names}
        layers = tuple(sorted(night.layers, key=lambda _: draw.random()))
        probes = {name: night.probes[name] for name in names}
        shuffled.append(replace(night, probes=probes, samples=(samples,), layers=layers))
    *mixed, last = shuffled
    draw.shuffle(mixed)
    expected, found = compare_nights(tonight, earlier), compare_nights(last, mixed)
    assert [one.summary for one in found.findings] == [one.summary for one in expected.findings] != []


def test_first_night_compares_with_nothing() -> None:
    """Without an earlier night of the same device and clock there are no findings."""
    tonight, other = USUAL.night(3), replace(SLOW.night(1), device="other")
    for earlier in ([], [other], [replace(USUAL.night(1), clock="wall")]):
        comparison = compare_nights(tonight, earlier)
        assert (comparison.nights, comparison.findings, comparison.detectable) == (0, (), ())


def test_each_of_few_layers_has_a_finding() -> None:
    """With too few layers to separate the device as a whole, each layer has its own finding."""
    few = MadeDevice(layers=3)
    comparison = compared([*[few] * 4, replace(few, slow={0: 1.2, 1: 1.2, 2: 1.2})])
    assert {one.subject.kind for one in comparison.regressions} <= {"layer", "network"}
    assert len([one for one in comparison.regressions if one.subject.kind == "layer"]) == 3


def test_what_is_new_has_nothing_to_compare_with() -> None:
    """A layer that no earlier night watched is neither a finding nor detectable."""
    *earlier, tonight = series([MadeDevice(layers=8)] * 4 + [MadeDevice(layers=10)])
    comparison = compare_nights(tonight, [replace(night, probes=dict(night.probes)) for night in earlier])
    names = {one.subject.name for one in comparison.detectable if one.subject.kind == "layer"}
    assert names == {layer_name(at) for at in range(8)}


def test_detectable_changes_are_found() -> None:
    """A change of the reported detectable size is found on most nights, and a third of it hardly ever."""
    nights = series([USUAL] * 6)
    (smallest,) = [one for one in compare_nights(nights[5], nights[:5]).detectable if one.subject.name == layer_name(4)]
    found = {
        part: sum(
            bool(
                compare_nights(MadeDevice(slow={4: 1 + part * smallest.change}).night(9, seed), nights[:5]).regressions
            )
            for seed in range(1, 13)
        )
        for part in (1.1, 0.3)
    }
    assert found[1.1] >= 9 and found[0.3] <= 1


@pytest.mark.parametrize("quiet", [2, 4, 13])
def test_a_device_that_stays_slower_is_a_finding_every_night(quiet: int) -> None:
    """A device that is 2 % slower is new on its first night, and known, with its size, on later ones."""
    devices = [MadeDevice()] * quiet + [MadeDevice(device=1.02)] * 4
    series = [device.night(number) for number, device in enumerate(devices)]
    for slow in range(1, 5):
        found = compare_nights(series[quiet + slow - 1], series[: quiet + slow - 1])
        (finding,) = [one for one in found.regressions if one.subject.kind == "device"]
        assert finding.state == ("new" if slow == 1 else "step")
        assert finding.change == pytest.approx(0.02, abs=0.004)
