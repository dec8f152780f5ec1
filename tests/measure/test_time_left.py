"""The time left of a command, on made runs, and on runs that were recorded from real commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from recorded_runs import read_runs

from harness import cache
from harness.measure.progress import Progress
from harness.measure.time_left import PhaseTime, TimeLeft, earlier_runs, keep_run

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


@dataclass
class Command:
    """A command whose phases take so many seconds for each unit of work."""

    speeds: dict[str, float]
    left: TimeLeft = field(init=False)
    now_s: float = 0.0

    def start(self, earlier: list[tuple[PhaseTime, ...]]) -> None:
        """Start a run after others."""
        self.left = TimeLeft(earlier, lambda: self.now_s)

    def go(self, phase: str, work: float | None, share: float | None = None) -> None:
        """Do a phase, or a share of it."""
        self.left.see(Progress(phase, 0, 0, work=work))
        self.now_s += self.speeds[phase] * (work or 1.0) * (share or 1.0)
        if share is not None:
            self.left.see(Progress(phase, 0, 0, work=work, share=share))


@pytest.fixture
def command() -> Command:
    """Return a command with a phase that always takes as long."""
    return Command({"cutting": 0.1, "measuring": 2.0, "closing": 5.0})


def test_an_earlier_run_foretells_one_with_more_work(command: Command) -> None:
    """Phases take longer with the root of their work, those without work as long as before."""
    command.start([])
    for phase, work in (("cutting", 10.0), ("measuring", 100.0), ("closing", None)):
        command.go(phase, work)
    command.start([command.left.run])
    command.left.see(Progress("cutting", 0, 0, work=40.0))
    assert command.left.remaining_s == pytest.approx(2 * 1.0 + 2 * 200.0 + 5.0)
    command.go("cutting", 40.0)
    command.left.see(Progress("measuring", 0, 0, work=900.0))  # the work that it knows itself counts more
    assert command.left.remaining_s == pytest.approx(3 * 200.0 + 5.0)
    command.go("measuring", 900.0, share=1.0)
    assert command.left.remaining_s == pytest.approx(5.0)


def test_own_steps_count_the_more_the_more_are_done(command: Command) -> None:
    """A run that is twice as slow as the last one shows it with its steps."""
    command.start([])
    command.go("measuring", 100.0)
    earlier = command.left.run
    command.speeds["measuring"] *= 2
    errors = []
    for share in (0.01, 0.25, 0.81):
        command.start([earlier])
        command.go("measuring", 100.0, share=share)
        errors.append((command.left.remaining_s or 0.0) / (400.0 * (1 - share)))
    assert errors == pytest.approx([0.55, 0.75, 0.95])


def test_without_an_earlier_run_only_steps_foretell(command: Command) -> None:
    """The first run has a time left in phases that report shares, and in no others."""
    command.start([])
    command.go("cutting", 10.0)
    assert command.left.remaining_s is None
    command.go("measuring", 100.0, share=0.25)
    assert command.left.remaining_s == pytest.approx(150.0)


def test_without_an_earlier_run_processes_take_equally_long(command: Command) -> None:
    """The processes that follow are expected to take as long as the present one."""
    command.start([])
    for share in (None, 0.25):
        command.left.see(Progress("measuring", 0, 0, phase="process 1", share=share, process=0, processes=3))
        command.now_s += 5.0 if share is None else 0.0
    assert command.left.remaining_s == pytest.approx(15.0 + 2 * 20.0)


def test_a_phase_that_comes_again_is_another_one(command: Command) -> None:
    """Two phases of one name, such as golden probes, are kept apart."""
    command.start([])
    for phase in ("closing", "measuring", "closing"):
        command.go(phase, None)
    assert [one.name for one in command.left.run] == ["start", "closing", "measuring", "closing 2"]


def test_an_overdue_phase_is_never_over(command: Command) -> None:
    """A phase that takes longer than before has a tenth of its time left, and what follows it."""
    command.start([])
    command.go("cutting", 10.0)
    command.go("closing", None)
    command.start([command.left.run])
    command.left.see(Progress("cutting", 0, 0, work=10.0))
    command.now_s += 20.0
    assert command.left.remaining_s == pytest.approx(2.0 + 5.0)


def test_the_newest_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps five runs of a command; damaged ones are none, and so are runs that did no work."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    assert earlier_runs("profile x") == ()
    for number in range(7):
        keep_run("profile x", (PhaseTime("start", 0.5, None), PhaseTime("measuring", float(number), 3.0)))
    keep_run("profile x", (PhaseTime("start", 0.5, None),))
    assert [run[1].seconds for run in earlier_runs("profile x")] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert earlier_runs("profile y") == ()
    (kept,) = (tmp_path / "cache" / "results").iterdir()
    for content in (b"[", b"[[1]]", b'[[["a", "b", null]]]', b'[[["a", 1, "b"]]]', b'[[["a", Infinity, 1]]]', b"3"):
        cache.put(kept.name, content)
        assert earlier_runs("profile x") == ()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_commands_are_foretold(path: Path) -> None:
    """After the first tenth of the last run, its time left is within a factor of two for 80 % of the rest."""
    *before, last = read_runs(path)
    assert last.within_a_factor_of_two([one.run for one in before]) >= 0.8
