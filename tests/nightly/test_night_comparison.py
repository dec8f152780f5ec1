"""What a night's comparison makes of a watch: what is news, what cannot be compared, and under which name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_nights import MadeDevice
from night_lab import Lab, PretendEngine

from harness.nightly.night_report import NightReport, SetComparison
from harness.nightly.set_comparison import LONGEST_ID, ComparisonRules, StoredReport, compare_watches, subject_id
from harness.nightly.status import night_status
from harness.slowdowns.power import LEVEL
from harness.slowdowns.subjects import Subject
from harness.slowdowns.watch_series import WatchSeries

RULES = ComparisonRules(keep=14, threshold=0.01, level=LEVEL)
SLOW = MadeDevice(slow={5: 1.2})


def nights(devices: Sequence[MadeDevice]) -> list[WatchSeries]:
    """A watch of each device, on the first days of a November."""
    return [replace(device.night(at), date=f"2026-11-{at + 1:02d}") for at, device in enumerate(devices)]


def compared(watches: Sequence[WatchSeries], reports: Sequence[StoredReport] = ()) -> SetComparison:
    """The last night against the others."""
    return compare_watches("made", "vision", watches, RULES, reports)


def report(night: WatchSeries, found: SetComparison, stopped: bool = False) -> StoredReport:
    """What the store has of a night's report."""
    told = NightReport(night.date, "p", "s", "f", 1, (), (), (found,), stopped)
    return night.date, "f", told.data


def test_regression_is_news_until_a_report_has_told_it() -> None:
    """A step that no report told is fresh on whatever night it is told first, and known from then on."""
    watches = nights([MadeDevice()] * 4 + [SLOW] * 3)
    first = compared(watches[:5])
    assert first.is_regressed and all(one.fresh for one in first.changes) and first.changes

    unseen = compared(watches[:6])
    assert {one.state for one in unseen.changes} == {"step"}
    assert unseen.is_regressed and all(one.fresh for one in unseen.changes), "nobody was told on the night before"

    reports = [report(watches[4], first)]
    known = compared(watches[:6], reports)
    assert known.changes and not known.is_regressed and not any(one.fresh for one in known.changes)
    assert compared(watches[:5], reports).is_regressed, "a second run of the same night says the same"
    stopped = [report(watches[4], first, stopped=True)]
    assert compared(watches[:6], stopped).is_regressed, "a night that was stopped has told it to nobody"
    between = [*reports, report(watches[5], replace(first, set="other", changes=()))]
    assert not compared(watches, between).is_regressed, "a night without this set says nothing of it"


def test_regression_that_comes_back_is_news_again() -> None:
    """What was told, was gone on a later night, and is there again is told again."""
    watches = nights([MadeDevice()] * 4 + [SLOW, MadeDevice(), MadeDevice(), SLOW])
    reports: list[StoredReport] = []
    for at in range(4, 7):
        reports.append(report(watches[at], compared(watches[: at + 1], reports)))
    assert [bool(one[2]["regressions"]) for one in reports] == [True, False, False]
    assert compared(watches, reports).is_regressed


def test_sets_that_cannot_be_compared_say_why() -> None:
    """A first night, and one after a change of the clock, are no nights on which nothing became slower."""
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
    """Whatever layers are called and whichever networks hold them, no two of them share a name, and none is long."""
    names = [subject_id(one) for one in subjects]
    assert len({*names}) == len(subjects)
    assert all(len(name) <= LONGEST_ID and name.isprintable() for name in names)


def test_same_layer_of_two_networks_is_told_twice() -> None:
    """Two networks with layers of one name keep both findings, and both are under the names of what was watched."""

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


def test_bug_in_one_comparison_is_told_and_shares_the_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error nobody expected is that set's item with its trace; all comparisons share one probability."""
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
    told = [item for item in found.attention if item.what.startswith("comparing a")]
    assert [item.device for item in told] == ["one", "two"] and found.exit_code == 1
    assert all("no samples" in item.why and "broken" in item.trace for item in told)
    assert [one.night for one in night_status(lab.workspace).nights] == ["2026-11-21", "2026-11-20"]
