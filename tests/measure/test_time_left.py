"""The time left of a command, on made runs, and on runs that were recorded from real commands."""

import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import RECORDED, read_runs

from harness import cache
from harness.measure.progress import Progress, steps_of
from harness.measure.time_left import PhaseTime, TimeLeft, earlier_runs, keep_run


@dataclass
class Command:
    """A command whose phases take so many seconds for each unit of effort."""

    speeds: dict[str, float]
    left: TimeLeft = field(init=False)
    now_s: float = 0.0

    def start(self, earlier: list[tuple[PhaseTime, ...]]) -> None:
        """Start a run after others."""
        self.left = TimeLeft(earlier, lambda: self.now_s, before_s=1.0)

    def go(self, phase: str, effort: float | None, share: float | None = None) -> None:
        """Do a phase, or a share of it."""
        self.left.see(Progress(phase, 0, 0, effort=effort))
        self.now_s += self.speeds[phase] * (effort or 1.0) * (share or 1.0)
        if share is not None:
            self.left.see(Progress(phase, 0, 0, effort=effort, share=share))


@pytest.fixture
def command() -> Command:
    """Return a command with a phase that always takes as long."""
    return Command({"cutting": 0.1, "measuring": 2.0, "closing": 5.0})


def test_an_earlier_run_predicts_one_of_more_effort(command: Command) -> None:
    """Phases take time in proportion to their effort, those without one as long as before."""
    command.start([])
    for phase, effort in (("cutting", 10.0), ("measuring", 100.0), ("closing", None)):
        command.go(phase, effort)
    command.start([command.left.run])
    command.left.see(Progress("cutting", 0, 0, effort=20.0))
    assert command.left.remaining_s == pytest.approx(2 * 1.0 + 2 * 200.0 + 5.0)
    command.now_s += 2.0
    command.left.see(Progress("measuring", 0, 0, effort=300.0))  # its own report counts more
    assert command.left.remaining_s == pytest.approx(3 * 200.0 + 5.0)
    command.now_s += 600.0
    command.left.see(Progress("closing", 0, 0))
    assert command.left.remaining_s == pytest.approx(5.0)


def test_a_phase_to_come_counts_by_its_effort(command: Command) -> None:
    """What a command reports of a later phase counts from then on: one without effort takes no time."""
    command.start([])
    for phase, effort in (("cutting", 10.0), ("measuring", 100.0), ("closing", None)):
        command.go(phase, effort)
    command.start([command.left.run])
    for effort, expected_s in ((200.0, 400.0), (0.0, 0.0)):
        command.left.see(Progress("cutting", 0, 0, effort=10.0, ahead={"measuring": effort}))
        assert command.left.remaining_s == pytest.approx(1.0 + expected_s + 5.0)


def test_a_run_that_did_nothing_in_a_phase_does_not_predict_it(command: Command) -> None:
    """Of two earlier runs, the one with the phase to come counts; if none has it, both do."""
    runs = []
    for phases in (("cutting", "measuring", "closing"), ("cutting", "closing")):
        command.start([])
        for phase in phases:
            command.go(phase, 10.0)
        runs.append(command.left.run)
    left_s = []
    for earlier in (runs, runs[:1], runs[1:]):
        command.start(earlier)
        command.left.see(Progress("cutting", 0, 0, effort=10.0, ahead={"measuring": 10.0}))
        left_s.append(command.left.remaining_s)
    assert left_s == pytest.approx([71.0, 71.0, 51.0])


def test_runs_of_the_nearest_effort_predict_the_others_do_not(command: Command) -> None:
    """Of earlier runs whose steps did not take in proportion to their effort, those of a like size count."""
    runs = []
    for effort, speed in ((1.0, 0.1), (1.1, 0.1), (100.0, 4.0), (110.0, 4.0)):
        command.speeds["measuring"] = speed
        command.start([])
        command.go("measuring", effort)
        runs.append(command.left.run)
    runs += 3 * [tuple(replace(one, seconds=50.0, effort=None) for one in runs[-1])]  # predict only without the others
    for effort, expected_s in ((1.2, 0.12), (90.0, 360.0)):
        command.start(runs)
        command.left.see(Progress("measuring", 0, 0, effort=effort))
        assert command.left.remaining_s == pytest.approx(expected_s)


def test_the_effort_of_steps_is_known_before_the_first_one_is_done() -> None:
    """A stage reports the root of its number of steps, or the effort that it is given, when it begins."""
    seen: list[Progress] = []
    for effort in (None, 9.0):
        steps_of(seen.append, "trying", [2.0, 2.0], effort=effort)(1, 2)
    assert [(one.effort, one.share) for one in seen] == [(2.0, None), (2.0, 0.5), (9.0, None), (9.0, 0.5)]


@pytest.mark.parametrize("slowness", [0.2, 1.0, 4.0])
def test_the_pace_so_far_counts_for_what_follows(command: Command, slowness: float) -> None:
    """On a machine that takes several times as long, the time left is right before the phase that takes longest."""
    command.start([])
    for phase in ("cutting", "measuring", "closing"):
        command.go(phase, 100.0)
    earlier = command.left.run
    command.speeds = {phase: seconds * slowness for phase, seconds in command.speeds.items()}
    command.start([earlier])
    command.go("cutting", 100.0)
    command.left.see(Progress("measuring", 0, 0, effort=100.0))
    assert command.left.remaining_s == pytest.approx(700.0 * slowness, rel=0.7)
    command.go("measuring", 100.0)
    command.left.see(Progress("closing", 0, 0, effort=100.0))
    assert command.left.remaining_s == pytest.approx(500.0 * slowness, rel=0.15)


def test_own_steps_count_the_more_the_more_are_done(command: Command) -> None:
    """A phase that is twice as slow as in the last run shows it with its steps."""
    command.start([])
    command.go("measuring", 100.0)
    earlier = command.left.run
    command.speeds["measuring"] *= 2
    errors = []
    for share in (0.01, 0.25, 0.81):
        command.start([earlier])
        command.go("measuring", 100.0, share=share)
        errors.append(abs((command.left.remaining_s or 0.0) / (400.0 * (1 - share)) - 1))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05


def test_the_steps_after_an_overdue_one_take_longer_too(command: Command) -> None:
    """A step that has taken four times as long as expected says as much of those that follow, a small one less."""
    command.start([])
    command.go("measuring", 100.0)
    earlier = command.left.run
    left_s = []
    for step in (0.5, 0.01):
        command.start([earlier])
        command.left.see(Progress("measuring", 0, 2, effort=100.0, next_share=step))
        assert command.left.remaining_s == pytest.approx(200.0)
        command.now_s += 4 * 200.0 * step
        left_s.append((command.left.remaining_s or 0.0) / (4 * 200.0 * (1 - step)))
    assert 1.0 < left_s[0] < 2.0
    assert 0.5 < left_s[1] < 0.75


@pytest.mark.parametrize("gone_s", [0.0, 60.0, 120.0, 180.0])
def test_half_of_the_steps_end_within_the_time_left(gone_s: float, command: Command) -> None:
    """Of steps whose times scatter by a factor of 1.4, and that have not ended, half end within the time left."""
    command.start([])
    command.go("measuring", 100.0)
    command.start([command.left.run])
    command.left.see(Progress("measuring", 0, 0, effort=100.0))
    command.now_s += gone_s
    seconds = 200.0 * np.exp(0.35 * np.random.default_rng(1).standard_normal(20_000))
    still = seconds[seconds > gone_s]
    assert np.mean(still < gone_s + (command.left.remaining_s or 0.0)) == pytest.approx(0.5, abs=0.02)


def test_a_report_without_the_next_share_ends_the_step(command: Command) -> None:
    """What is left of a phase is one step again after a share that names no next one."""
    command.start([])
    command.go("measuring", 100.0)
    command.start([command.left.run])
    command.left.see(Progress("measuring", 0, 0, effort=100.0, next_share=0.25))
    command.now_s += 50.0
    command.left.see(Progress("measuring", 0, 0, effort=100.0, share=0.25))
    command.now_s += 100.0
    assert command.left.remaining_s == pytest.approx(50.0)


@pytest.mark.parametrize(("following", "gone_s"), [(0.25, 50.0), (0.25, 0.0), (0.75, -1.0), (None, -1.0)])
def test_a_step_neither_shrinks_nor_begins_later(following: float | None, gone_s: float, command: Command) -> None:
    """After a next share below the share, and by a clock before the last report, half of a phase is left."""
    command.start([])
    command.go("measuring", 100.0)
    for earlier in ([command.left.run], []):
        command.start(earlier)
        command.left.see(Progress("measuring", 0, 0, effort=100.0))
        command.now_s += 100.0
        command.left.see(Progress("measuring", 0, 0, effort=100.0, share=0.5, next_share=following))
        command.now_s += gone_s
        assert command.left.remaining_s == pytest.approx(100.0, rel=0.2)


def test_without_an_earlier_run_only_steps_predict(command: Command) -> None:
    """A command of which nothing is known has a time left in phases that report shares, and in no others."""
    command.start([])
    command.go("cutting", 10.0)
    assert command.left.remaining_s is None
    command.go("measuring", 100.0, share=0.25)
    assert command.left.remaining_s == pytest.approx(150.0)


def test_a_phase_that_comes_again_is_another_one(command: Command) -> None:
    """Two phases of one name, such as golden probes, are kept apart."""
    command.start([])
    for phase in ("closing", "measuring", "closing"):
        command.go(phase, None)
    assert [one.name for one in command.left.run] == ["start", "closing", "measuring", "closing 2"]


def test_an_overdue_phase_is_never_over(command: Command) -> None:
    """A phase that takes longer than before always has some time left, and what follows takes longer, too."""
    command.start([])
    command.go("cutting", 10.0)
    earlier = command.left.run
    command.start([earlier])
    command.left.see(Progress("cutting", 0, 0, effort=10.0))
    command.now_s += 50.0
    own_s = command.left.remaining_s or 0.0
    assert 0.02 * 50.0 < own_s < 0.2 * 50.0
    command.start([(*earlier, PhaseTime("closing", 5.0, None))])
    command.left.see(Progress("cutting", 0, 0, effort=10.0))
    command.now_s += 50.0
    assert own_s + 5.0 < (command.left.remaining_s or 0.0) < own_s + 5.0 * 50.0


def test_the_newest_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps five runs of a command; damaged ones are none, and so are runs that did no work."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    assert earlier_runs("some x") == ()
    for number in range(7):
        keep_run("some x", (PhaseTime("start", 0.5, None), PhaseTime("measuring", float(number), 3.0)))
    keep_run("some x", (PhaseTime("start", 0.5, None),))
    assert [run[1].seconds for run in earlier_runs("some x")] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert earlier_runs("some y") == ()
    (kept,) = (tmp_path / "cache" / "results").iterdir()
    for content in (b"[", b"[[1]]", b'[[["a", "b", null]]]', b'[[["a", 1, "b"]]]', b'[[["a", Infinity, 1]]]', b"3"):
        cache.put(kept.name, content)
        assert earlier_runs("some x") == ()


def test_one_run_of_the_package_predicts_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command on a built-in device has an earlier run, on another device those of all; three own ones suffice."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    (here,), everywhere = earlier_runs("profile npu01 a.onnx"), earlier_runs("profile board")
    assert "cutting chains" in {one.name for one in here}
    assert len(everywhere) > 1
    assert here in everywhere
    for number in range(1, 4):
        keep_run("profile npu01", (PhaseTime("measuring", 3.0, 3.0),))
        known = earlier_runs("profile npu01")
        assert [run[0].seconds for run in known[:number]] == [3.0] * number
        assert known[number:] == ((here,) if number < 3 else ())


@pytest.mark.parametrize("is_first", [True, False])
def test_the_time_left_of_recorded_commands(is_first: bool) -> None:
    """After the first tenth, the time left is within a factor of two for 90 % of a run, the median of recorded ones."""
    found = {}
    for path in sorted(RECORDED.rglob("*.json")):
        runs = read_runs(path)
        for number in range(1, len(runs)):
            earlier = [one.run for one in (runs[:1] if is_first else runs[max(0, number - 5) : number])]
            found[path.relative_to(RECORDED).as_posix(), number] = runs[number].within_a_factor_of_two(earlier)
    assert len(found) > 20
    assert min(found.values()) >= 0.7, found  # limits in docs/progress.md
    assert statistics.median(found.values()) >= 0.9, found
    assert statistics.mean(found.values()) >= 0.9, found
