"""The one line of progress: the time left first, then where the command is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.measure.progress import Progress

Clock = Callable[[], float]
_MOST_DONE = 0.99
"""The largest share that the line of a command shows: all of it is done when the line is gone."""


@dataclass
class ProgressLine:
    """The state of a command as one line of text; the time left counts down between two reports of progress."""

    label: str
    clock: Clock = time.monotonic
    _progress: Progress | None = None
    _ends_s: float | None = None
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self.clock()

    def see(self, progress: Progress) -> None:
        """Take over the newest progress; one that knows no time left keeps the last forecast."""
        self._progress = progress
        if progress.remaining_s is not None:
            self._ends_s = self.clock() + progress.remaining_s

    def count(self, done: int, whole: int, unit: str = "") -> None:
        """Take over how many of how many steps are done; steps take equally long."""
        now_s = self.clock()
        left_s = (now_s - self._started_s) * (whole - done) / done if done else None
        self.see(Progress("", min(done, whole - 1), whole, remaining_s=left_s, unit=unit))

    @property
    def text(self) -> str:
        """The line."""
        progress = self._progress
        return ": ".join(filter(None, (self._forecast(), self.label, "" if progress is None else _place(progress))))

    def _forecast(self) -> str:
        if self._ends_s is None:
            return ""
        now_s = self.clock()
        left_s = max(1.0, self._ends_s - now_s)
        gone_s = now_s - self._started_s
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
