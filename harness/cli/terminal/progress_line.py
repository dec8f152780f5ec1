"""The one line of progress: the time left first, then where the command is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from harness.measure.progress import DONE, Progress
from harness.measure.time_left import Clock, TimeLeft, earlier_runs, keep_run

_MOST_DONE = 0.99
"""The largest share that the line of a command shows: all of it is done when the line is gone."""


@dataclass
class ProgressLine:
    """The state of a command as one line of text.

    Runs of the `command`, by default of the label, predict the next ones. It began `before_s` before its line.
    """

    label: str
    command: str = ""
    clock: Clock = time.monotonic
    before_s: float = 0.0
    _progress: Progress | None = None
    _time: TimeLeft = field(init=False)
    _started_s: float = field(init=False)
    _is_done: bool = False

    def __post_init__(self) -> None:
        self.command = self.command or self.label
        self._begin()

    def see(self, progress: Progress) -> None:
        """Take over the newest progress; the times of a run that is done are kept."""
        if progress == DONE:
            keep_run(self.command, self._time.run)
            self._is_done = True
            return
        if self._is_done:
            self._is_done, self.before_s = False, 0.0
            self._begin()
        self._progress = progress
        self._time.see(progress)

    @property
    def text(self) -> str:
        """The line."""
        progress = self._progress
        return ": ".join(filter(None, (self._forecast(), self.label, "" if progress is None else _place(progress))))

    def _begin(self) -> None:
        self._started_s = self.clock() - self.before_s
        self._time = TimeLeft(earlier_runs(self.command), self.clock, self.before_s)

    def _forecast(self) -> str:
        left_s = None if self._is_done else self._time.remaining_s
        if left_s is None:
            return ""
        left_s, gone_s = max(1.0, left_s), self.clock() - self._started_s
        return f"{about(left_s)} left, {min(_MOST_DONE, gone_s / (gone_s + left_s)):.0%}"


def about(seconds: float) -> str:
    """Return a duration as a forecast deserves it: in whole seconds, minutes, or hours."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


def _place(progress: Progress) -> str:
    process = f"process {progress.process + 1} of {progress.processes}" if progress.processes > 1 else ""
    step = f"{progress.unit} {progress.batch + 1} of {progress.batches}".strip() if progress.batches else ""
    rounds = f"round {progress.round}" if progress.round else ""
    return ", ".join(filter(None, (progress.stage, process, step, rounds)))
