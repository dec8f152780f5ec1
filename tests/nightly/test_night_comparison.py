"""Comparison of a night's watch: which changes are fresh, which sets cannot be compared, and the subjects' names."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_nights import MadeDevice
from night_lab import Lab, PretendEngine

from harness.nightly.night_report import NightReport, SetComparison
from harness.nightly.set_comparison import LONGEST_ID, ComparisonRules, StoredReport, compare_watches, subject_id
from harness.nightly.status import night_status
from harness.slowdowns.detection_power import LEVEL
from harness.slowdowns.findings import Subject
from harness.slowdowns.watch_series import WatchSeries

RULES = ComparisonRules(keep=14, threshold=0.01, level=LEVEL)
SLOW = MadeDevice(slow={5: 1.2})


def nights(devices: Sequence[MadeDevice]) -> list[WatchSeries]:
    """Return a watch of each device, on consecutive days."""
    return [replace(device.night(at), date=f"2026-11-{at + 1:02d}") for at, device in enumerate(devices)]


def compared(watches: Sequence[WatchSeries], reports: Sequence[StoredReport] = ()) -> SetComparison:
    """Compare the last night with the others."""
    return compare_watches("made", "vision", watches, RULES, reports)


def report(night: WatchSeries, found: SetComparison, stopped: bool = False) -> StoredReport:
    """Return a night's report as the store holds it."""
    finished = NightReport(night.date, "p", "s", "f", 1, (), (), (found,), stopped)
    return night.date, "f", finished.data


def test_regression_is_fresh_until_a_report_lists_it() -> None:
    """A step is fresh in the first report that lists it and known in later ones."""
    watches = nights([MadeDevice()] * 4 + [SLOW] * 3)
    first = compared(watches[:5])
    assert first.is_regressed and all(one.fresh for one in first.changes) and first.changes

    unseen = compared(watches[:6])
    assert {one.state for one in unseen.changes} == {"step"}
    assert unseen.is_regressed and all(one.fresh for one in unseen.changes), "no report listed it"

    reports = [report(watches[4], first)]
    known = compared(watches[:6], reports)
    assert known.changes and not known.is_regressed and not any(one.fresh for one in known.changes)
    assert compared(watches[:5], reports).is_regressed, "a second run of the same night repeats the report"
    stopped = [report(watches[4], first, stopped=True)]
    assert compared(watches[:6], stopped).is_regressed, "reports of stopped nights do not count"
    between = [*reports, report(watches[5], replace(first, set="other", changes=()))]
    assert not compared(watches, between).is_regressed, "a night without this set does not matter"


def test_regression_that_comes_back_is_fresh_again() -> None:
    """A regression that disappeared for a night and returns is fresh again."""
    watches = nights([MadeDevice()] * 4 + [SLOW, MadeDevice(), MadeDevice(), SLOW])
    reports: list[StoredReport] = []
    for at in range(4, 7):
        reports.append(report(watches[at], compared(watches[: at + 1], reports)))
    assert [bool(one[2]["regressions"]) for one in reports] == [True, False, False]
    assert compared(watches, reports).is_regressed


def test_sets_that_cannot_be_compared_say_why() -> None:
    """A first night, and one after a change of the clock, state why they are not compared."""
    watches = nights([MadeDevice(clock="cpu"), MadeDevice(clock="cpu"), MadeDevice(clock="wall")])
    assert compared(watches[:1]).not_compared == "no earlier night watched this set"
    assert compared(watches[:2]).not_compared == ""
    assert compared(watches).not_compared == "the clock changed on 2026-11-03 from cpu to wall"


@given(
    st.lists(
        st.builds(
            Subject,
            st.sampled_from(["layer", "network"]),
            st.text(max_size=8) | st.sampled_from(["x" * 400, "x" * 399 + "y", "\x00", "\x01", "a" * 150]),
            st.sampled_from(["", "Conv"]),
            st.sampled_from([(), ("aa",), ("bb",), ("aa", "bb")]),
        ),
        unique=True,
        max_size=8,
    )
)
def test_subjects_have_names_of_their_own(subjects: list[Subject]) -> None:
    """Names of different subjects differ, are printable and stay short, whatever layers are called."""
    names = [subject_id(one) for one in subjects]
    assert len({*names}) == len(subjects)
    assert all(len(name) <= LONGEST_ID and name.isprintable() for name in names)


def test_same_layer_of_two_networks_has_two_findings() -> None:
    """Layers of one name in two networks have one finding each, under the names of the watched subjects."""

    def renamed(watch: WatchSeries) -> WatchSeries:
        layers = (
            replace(one, subject=replace(one.subject, name="conv1", networks=(f"net{at}",)))
            for at, one in enumerate(watch.layers)
        )
        return replace(watch, layers=tuple(layers))

    devices = [MadeDevice()] * 4 + [MadeDevice(slow={5: 1.2, 7: 1.3})]
    found = compared([renamed(watch) for watch in nights(devices)])
    slower = {one.subject for one in found.changes if one.kind == "layer"}
    assert slower == {"layer conv1 (Conv) in net5", "layer conv1 (Conv) in net7"} <= {*found.detectable}


def test_bug_in_one_comparison_needs_attention_and_shares_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error becomes an attention item with its trace; all comparisons share one level."""
    lab = Lab(tmp_path / "lab")
    lab.set_devices("one", "two")
    levels: list[float] = []

    def broken(*_: object, level: float, **__: Any) -> None:
        levels.append(level)
        raise ValueError("no samples")

    monkeypatch.setattr("harness.slowdowns.night_comparison.compare_nights", broken)
    for day in (20, 21):
        found = lab.run(lab.plan("a"), date(2026, 11, day), PretendEngine(lab.workspace, watched=True))
    assert levels == [LEVEL / 2] * 4
    bugs = [item for item in found.attention if item.what.startswith("comparing a")]
    assert [item.device for item in bugs] == ["one", "two"] and found.exit_code == 1
    assert all("no samples" in item.why and "broken" in item.trace for item in bugs)
    assert [one.night for one in night_status(lab.workspace).nights] == ["2026-11-21", "2026-11-20"]
