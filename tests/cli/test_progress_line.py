"""The line of progress that commands show while they work."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness import cache
from harness.cli.terminal.progress import LineOfJobs, ProgressLine, about
from harness.measure.progress import DONE, FAILED, Progress


class _Clock:
    """A clock that stands until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Return a clock; the times of earlier runs are in a cache of this test's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return _Clock()


def test_time_left_comes_first_and_the_place_follows(clock: _Clock) -> None:
    """The line begins with the time left and the share done, then names process and network."""
    line = ProgressLine("validate cpu01", clock=clock)
    place = "validate cpu01: measuring, process 3 of 3, network 5 of 28, round 3"
    here = Progress("measuring", 4, 28, 3, unit="network", process=2, processes=3)
    line.see(here)
    assert line.text == place
    clock.now_s = 41.0
    line.see(replace(here, share=0.41))
    assert line.text == f"about 59 s left, 41%: {place}"


def test_time_left_counts_down_between_reports(clock: _Clock) -> None:
    """Between two shares the time left goes on by the clock, never below a second, and no command is done."""
    line = ProgressLine("search", clock=clock)
    line.see(Progress("measuring", 0, 2))
    clock.now_s = 10.0
    line.see(Progress("measuring", 0, 2, share=0.25))
    clock.now_s = 20.0
    line.see(Progress("compiling", 1, 2, phase="measuring"))
    assert line.text.startswith("about 20 s left, 50%: search: compiling")
    clock.now_s = 10_000.0
    assert line.text.startswith("about 1 s left, 99%")


def test_the_first_run_predicts_the_second_from_its_start(clock: _Clock) -> None:
    """A run that ends is kept under its command, whatever the label of the line."""
    line = ProgressLine("tonight, board", "nightly board", clock)
    line.see(Progress("reading networks", 0, 0, effort=2))
    clock.now_s = 30.0
    line.see(DONE)
    assert line.text == "tonight, board: reading networks"
    assert ProgressLine("tomorrow", "nightly board", clock).text == "about 30 s left, 0%: tomorrow"
    assert ProgressLine("nightly", "", clock).text == "nightly"


def test_a_line_without_a_forecast_names_the_stage(clock: _Clock) -> None:
    """Before anything was measured there is no number to show."""
    line = ProgressLine("search", clock=clock)
    assert line.text == "search"
    line.see(Progress("compiling", 2, 18))
    assert line.text == "search: compiling, batch 3 of 18"


def test_durations_have_a_unit_that_fits() -> None:
    """Seconds up to a minute and a half, then minutes, then hours."""
    assert [about(one) for one in (2.0, 89.0, 120.0, 7200.0)] == [
        "about 2 s",
        "about 89 s",
        "about 2 min",
        "about 2.0 h",
    ]


def test_jobs_share_a_line_of_the_one_that_takes_longest(clock: _Clock) -> None:
    """The line of several jobs shows the one with most time left and counts the others; finished jobs disappear."""
    jobs = LineOfJobs(clock)
    short, long = jobs.begin("one, vision", "short"), jobs.begin("two, vision", "long")
    assert jobs.text == ""
    short(Progress("measuring", 0, 2))
    assert jobs.text == "one, vision: measuring, batch 1 of 2"
    long(Progress("measuring", 0, 4))
    clock.now_s = 10.0
    short(Progress("measuring", 1, 2, share=0.5))
    long(Progress("measuring", 1, 4, share=0.25))
    assert jobs.text == "about 30 s left, 25%: two, vision and 1 more: measuring, batch 2 of 4"
    long(DONE)
    assert jobs.text == "about 10 s left, 50%: one, vision: measuring, batch 2 of 2"
    short(FAILED)
    assert jobs.text == ""
