"""Progress of a command as one line on a terminal or as plain lines, and Ctrl-C, which requests a stop."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from harness.cli.terminal.output import note, note_from_signal
from harness.errors import Interrupted
from harness.measure.progress import DONE, FAILED, Observer, Progress, effort_of
from harness.measure.time_left import Clock, TimeLeft, earlier_runs, keep_run
from harness.parallel import pausable
from harness.text import printable
from harness.version import LOADED_S

LINE_EVERY_S = 5.0
"""Seconds between two lines in a file or pipe."""
_LOOK_EVERY_S = 0.1
_DRAWN_EVERY_S = 0.25
_MOST_DONE = 0.99
"""The largest share that the line of a command shows: all of it is done when the line is gone."""


class StopRequest(threading.Event):
    """An event that a signal handler may set.

    The lock of an ordinary event may be held by the thread that the signal interrupts; setting it would then wait for
    ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_requested = False

    def set(self) -> None:
        """Request the stop."""
        self._is_requested = True

    def is_set(self) -> bool:
        """Return whether the stop was requested."""
        return self._is_requested

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the request, at most `timeout` seconds; return whether it was made."""
        ends_s = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_requested and (left_s := ends_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_EVERY_S))
        return self._is_requested


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; the second Ctrl-C raises Interrupted immediately."""
    stop = StopRequest()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise Interrupted("Interrupted twice", next_step="Run the same command again to resume")
        stop.set()
        note_from_signal("Stopping after the current probe; press Ctrl-C again to stop immediately")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def show_progress(label: str, *, quiet_s: float = 0.0, command: str = "", is_first: bool = True) -> Iterator[Observer]:
    """Yield an observer that shows one line on stderr, with the time left; in a file or pipe after `quiet_s`.

    `command` is that of `ProgressLine`; that of the first line began when the program was loaded.
    """
    line = ProgressLine(label, command, before_s=time.monotonic() - LOADED_S if is_first else 0.0)
    if not sys.stderr.isatty():
        yield _PlainLines(line, quiet_s)
        return
    with _drawn(line):

        def observe(progress: Progress) -> None:
            if progress.note:
                note(progress.note)
            else:
                line.see(progress)

        yield observe


@contextlib.contextmanager
def show_count(label: str, count: int) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that receives how many of `count` are done; they are shown as by `show_progress`."""
    with show_progress(label, quiet_s=LINE_EVERY_S) as observe:
        effort = effort_of(count)

        def show(done: int, _count: int) -> None:
            if count > 1:
                share = done / count if done else None
                observe(Progress("", min(done, count - 1), count, phase="steps", unit="", effort=effort, share=share))

        observe(Progress("", 0, 0, phase="steps", effort=effort))
        yield show
        observe(DONE)


@contextlib.contextmanager
def _drawn(line: ProgressLine | LineOfJobs) -> Iterator[None]:
    """Keep the line at the bottom of the terminal, never longer than it is wide."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def drawn() -> Text:
        return Text(printable(line.text), no_wrap=True, overflow="ellipsis")

    live = Live(get_renderable=drawn, console=Console(stderr=True), transient=True, auto_refresh=False)
    with live, Repeated(live.refresh):
        yield


class Repeated:
    """Does something every quarter of a second in a thread, which pauses while the process forks."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._pausable = pausable(self._paused)

    def __enter__(self) -> None:
        self._pausable.__enter__()
        self._start()

    def __exit__(self, *_: object) -> None:
        self._pausable.__exit__(None, None, None)
        self._stop()

    def _start(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, args=(self._is_over,), daemon=True)
        self._thread.start()

    def _repeat(self, is_over: threading.Event) -> None:
        while not is_over.wait(_DRAWN_EVERY_S):
            self._work()

    def _stop(self) -> None:
        self._is_over.set()
        while self._thread.is_alive():
            self._thread.join(_LOOK_EVERY_S)  # Ctrl-C may have no effect before a wait ends

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        self._stop()
        try:
            yield
        finally:
            self._start()


@contextlib.contextmanager
def show_jobs(quiet_s: float = 0.0) -> Iterator[Callable[[str, str], Observer]]:
    """Yield a function that returns the observer of a job, from its label and the command of its `ProgressLine`.

    On a terminal all jobs share one line. In a file or pipe each writes lines of its own, the first after `quiet_s`.
    """
    if not sys.stderr.isatty():
        yield lambda label, command: _PlainLines(ProgressLine(label, command), quiet_s)
        return
    jobs = LineOfJobs()
    with _drawn(jobs):
        yield jobs.begin


class _PlainLines:
    """Writes the first line after a while, then one every few seconds."""

    def __init__(self, line: ProgressLine, quiet_s: float) -> None:
        self._line = line
        self._due_s = time.monotonic() + quiet_s

    def __call__(self, progress: Progress) -> None:
        if progress.note:
            note(f"{self._line.label}: {progress.note}")
            return
        self._line.see(progress)
        now_s = time.monotonic()
        if now_s >= self._due_s and progress not in (DONE, FAILED):
            self._due_s = now_s + LINE_EVERY_S
            note(self._line.text)


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
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """One thread sees the progress, and another one may draw the line."""

    def __post_init__(self) -> None:
        self.command = self.command or self.label
        self._begin()

    def see(self, progress: Progress) -> None:
        """Take over the newest progress; the times of a run that is done are kept."""
        if progress in (DONE, FAILED):
            self._is_done = True
            if progress == DONE:
                keep_run(self.command, self._time.run)
            return
        if self._is_done:
            self._is_done, self.before_s = False, 0.0
            self._begin()
        self._progress = progress
        with self._lock:
            self._time.see(progress)

    @property
    def text(self) -> str:
        """The line."""
        return self.text_with("")

    def text_with(self, others: str) -> str:
        """Return the line with a remark on other jobs after the label."""
        place = "" if self._progress is None else _place(self._progress)
        return ": ".join(filter(None, (self._forecast(), f"{self.label}{others}", place)))

    @property
    def is_running(self) -> bool:
        """Whether the command has begun and is not done."""
        return self._progress is not None and not self._is_done

    @property
    def left_s(self) -> float:
        """The forecast of the time left, in seconds; infinite if there is none."""
        with self._lock:
            left_s = self._time.remaining_s
        return math.inf if left_s is None else left_s

    def _begin(self) -> None:
        self._started_s = self.clock() - self.before_s
        self._time = TimeLeft(earlier_runs(self.command), self.clock, self.before_s)

    def _forecast(self) -> str:
        left_s = math.inf if self._is_done else self.left_s
        if left_s == math.inf:
            return ""
        left_s, gone_s = max(1.0, left_s), self.clock() - self._started_s
        return f"{about(left_s)} left, {min(_MOST_DONE, gone_s / (gone_s + left_s)):.0%}"


class LineOfJobs:
    """Jobs side by side as one line: the one with the most time left, and how many others run."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._jobs: list[ProgressLine] = []

    def begin(self, label: str, command: str) -> Observer:
        """Return the observer of another job."""
        job = ProgressLine(label, command, self._clock)
        self._jobs.append(job)

        def observe(progress: Progress) -> None:
            if progress.note:
                note(f"{label}: {progress.note}")
            else:
                job.see(progress)

        return observe

    @property
    def text(self) -> str:
        """The line; empty if no job runs."""
        running = [job for job in self._jobs if job.is_running]
        if not running:
            return ""
        others = f" and {len(running) - 1} more" if len(running) > 1 else ""
        return max(running, key=lambda job: job.left_s).text_with(others)


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
