"""Progress of a campaign as a bar on a terminal or as plain lines, and Ctrl-C, which requests a stop."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from harness.cli.output import note, note_from_signal
from harness.errors import Interrupted
from harness.measure.progress import Observer, Progress

_LINE_EVERY_S = 5.0
_LOOK_EVERY_S = 0.1


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
    """Yield an event that the first Ctrl-C sets; the second Ctrl-C raises Interrupted at once."""
    stop = StopRequest()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise Interrupted("Interrupted twice", next_step="Run the same command again to resume")
        stop.set()
        note_from_signal("Stopping after the current probe; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def show_progress(label: str) -> Iterator[Observer]:
    """Yield an observer that draws on stderr."""
    if not sys.stderr.isatty():
        yield show_lines(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    from harness.measure.policy import RepeatPolicy

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, detail="")

        def observe(progress: Progress) -> None:
            if progress.note:
                note(progress.note)
                return
            bar.update(
                task,
                description=f"{label}: {progress.stage}",
                total=progress.batches,
                completed=progress.batch + min(0.99, progress.round / RepeatPolicy.max_rounds),
                detail=_detail(progress),
            )

        yield observe


@contextlib.contextmanager
def show_count(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that receives how many of how many are done; it draws a bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    task = bar.add_task(label, total=None)

    def show(done: int, count: int) -> None:
        if count > 1:
            bar.start()
            bar.update(task, total=count, completed=done, refresh=True)

    try:
        yield show
    finally:
        bar.stop()


def show_lines(label: str) -> Observer:
    """Return an observer that writes a line to stderr every few seconds."""
    return _PlainLines(label)


class _PlainLines:
    """Writes the first line at once, then one every few seconds."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown_s = -math.inf

    def __call__(self, progress: Progress) -> None:
        if progress.note:
            note(f"{self._label}: {progress.note}")
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now_s
            note(f"{self._label}: {progress.stage}, {_detail(progress)}")


def _detail(progress: Progress) -> str:
    left = "" if progress.remaining_s is None else f", about {progress.remaining_s:.0f} s left"
    return (
        f"batch {progress.batch + 1} of {progress.batches}, round {progress.round},"
        f" {progress.samples:,} samples, {progress.device_s:.1f} s on the device{left}"
    )
