"""The line of progress that commands show while they work."""

from __future__ import annotations

from harness.cli.terminal.progress_line import ProgressLine, about
from harness.measure.progress import Progress


class _Clock:
    """A clock that stands until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_time_left_comes_first_and_the_place_follows() -> None:
    """The line begins with the time left and the share done, then names process and network."""
    clock = _Clock()
    line = ProgressLine("validate cpu01", clock)
    clock.now_s = 41.0
    line.see(Progress("measuring", 4, 28, 3, remaining_s=59.0, unit="network", process=1, processes=3))
    assert line.text == "about 59 s left, 41%: validate cpu01: measuring, process 2 of 3, network 5 of 28, round 3"


def test_time_left_counts_down_between_reports() -> None:
    """Progress that knows no time left keeps the forecast, which goes on by the clock and never below a second."""
    clock = _Clock()
    line = ProgressLine("profile", clock)
    line.see(Progress("measuring", 0, 2, remaining_s=30.0))
    clock.now_s = 10.0
    line.see(Progress("compiling", 1, 2))
    assert line.text.startswith("about 20 s left, 33%: profile: compiling")
    clock.now_s = 100.0
    assert line.text.startswith("about 1 s left, 99%")


def test_no_command_in_progress_is_done() -> None:
    """While time is left, the share is below the whole, however little of the time that is."""
    clock = _Clock()
    line = ProgressLine("profile", clock)
    clock.now_s = 10_000.0
    line.see(Progress("measuring", 1, 2, remaining_s=1.0))
    assert line.text.startswith("about 1 s left, 99%")


def test_a_line_without_a_forecast_names_the_stage() -> None:
    """Before anything was measured there is no number to show."""
    line = ProgressLine("profile cpu01", _Clock())
    assert line.text == "profile cpu01"
    line.see(Progress("compiling", 2, 18))
    assert line.text == "profile cpu01: compiling, batch 3 of 18"


def test_counted_steps_take_equally_long() -> None:
    """After a quarter of the steps, three times the time gone is left."""
    clock = _Clock()
    line = ProgressLine("sweep", clock)
    clock.now_s = 20.0
    line.count(2, 8, "machine")
    assert line.text == "about 60 s left, 25%: sweep: machine 3 of 8"


def test_durations_have_a_unit_that_fits() -> None:
    """Seconds up to a minute and a half, then minutes, then hours."""
    assert [about(one) for one in (2.0, 89.0, 120.0, 7200.0)] == [
        "about 2 s",
        "about 89 s",
        "about 2 min",
        "about 2.0 h",
    ]
