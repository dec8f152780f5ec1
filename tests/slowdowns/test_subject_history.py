"""Histories of subjects over nights, and nights with invented slow-downs."""

from dataclasses import replace

import pytest
from made_nights import MadeDevice, layer_name

from harness.errors import UsageError
from harness.nightly.night_rehearsal import slowed, watched_names
from harness.slowdowns.night_comparison import compare_nights
from harness.slowdowns.subject_history import histories
from harness.slowdowns.watch_series import WatchSeries


def nights(*devices: MadeDevice) -> list[WatchSeries]:
    """Return a watch of each device, on consecutive days."""
    return [replace(device.night(at), date=f"2026-11-{at + 1:02d}") for at, device in enumerate(devices)]


def test_a_planted_step_is_marked_on_its_first_night() -> None:
    """Only the slowed layer has a step, on the night that it began, with its size and the changed fingerprint."""
    slow = MadeDevice(slow={7: 1.06}, fingerprint={"runtime_version": "2", "cpu": "made"})
    found = histories(nights(*[MadeDevice()] * 5, *[slow] * 4), 0.01)
    (stepped,) = [one for one in found if one.steps and one.subject.kind == "layer"]
    (step,) = stepped.steps
    assert (stepped.subject.name, step.night) == (layer_name(7), "2026-11-06")
    assert step.change == pytest.approx(0.06, abs=0.01)
    assert step.causes == ("runtime_version 1 -> 2",)
    assert [night.night for night in stepped.nights] == [f"2026-11-{at:02d}" for at in range(1, 10)]
    before, after = stepped.nights[0], stepped.nights[-1]
    assert after.latency_s / before.latency_s == pytest.approx(1.06, abs=0.02)
    assert before.halfwidth_s > 0


def test_a_steady_device_has_no_steps() -> None:
    """On a device that stays the same, no subject has a step, and every night is on one level."""
    found = histories(nights(*[MadeDevice(nightly=0.001)] * 10), 0.01)
    assert [one.subject.kind for one in found[:2]] == ["device", "network"]
    assert len(found) == 14
    assert not any(one.steps for one in found)


def test_one_night_has_no_history() -> None:
    """A single night, or one on another clock than all before, has no history."""
    assert histories(nights(MadeDevice()), 0.01) == ()
    assert histories(nights(MadeDevice(clock="cpu"), MadeDevice(clock="wall")), 0.01) == ()


def test_an_invented_slow_down_is_found_with_its_size() -> None:
    """A layer that is made 8 % slower is found as 8 % slower, and no other layer is."""
    *earlier, last = nights(*[MadeDevice()] * 5)
    assert compare_nights(last, earlier).regressions == ()
    found = compare_nights(slowed(last, {layer_name(9): 1.08}), earlier).regressions
    assert [one.subject.name for one in found] == [layer_name(9)]
    assert found[0].change == pytest.approx(0.08, abs=0.01)


def test_a_network_can_be_slowed_beside_its_layers() -> None:
    """A network that is made slower is found as a network."""
    *earlier, last = nights(*[MadeDevice()] * 5)
    found = compare_nights(slowed(last, {"net": 1.05}), earlier).regressions
    assert [(one.subject.kind, one.subject.name) for one in found] == [("network", "net")]
    assert found[0].change == pytest.approx(0.05, abs=0.005)


def test_unknown_names_are_refused_with_similar_ones() -> None:
    """A name that the night does not watch is an error that names similar ones."""
    (night,) = nights(MadeDevice())
    assert {"net", layer_name(0)} <= set(watched_names(night))
    with pytest.raises(UsageError) as caught:
        slowed(night, {"layr3": 1.1})
    assert "layer3" in caught.value.next_step


def test_a_latency_is_that_of_one_copy() -> None:
    """If the probes hold four copies of each layer, latencies and intervals are a quarter, and steps are the same."""
    made = nights(*[MadeDevice()] * 4, *[MadeDevice(slow={4: 1.1})] * 3)
    stacked = [replace(one, layers=tuple(replace(layer, copies=4) for layer in one.layers)) for one in made]
    found, quarters = ({one.subject: one for one in histories(series, 0.01)} for series in (made, stacked))
    assert found.keys() == quarters.keys()
    for subject, own in found.items():
        factor = 4 if subject.kind == "layer" else 1
        for night, other in zip(own.nights, quarters[subject].nights, strict=True):
            shown = (other.latency_s, other.halfwidth_s, other.level_s)
            assert shown == pytest.approx([one / factor for one in (night.latency_s, night.halfwidth_s, night.level_s)])
        assert [step.night for step in own.steps] == [step.night for step in quarters[subject].steps]
        assert [step.change for step in own.steps] == pytest.approx([step.change for step in quarters[subject].steps])
