"""The progress that a campaign reports while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """The state of a command that measures; `remaining_s` is None while nothing is known of the time left.

    The command is in step `batch` of `batches`, counted from 0, each of which is a `unit`; a campaign has batches of
    probes. It runs in `processes` of the device's worker, and is in the one with number `process`. `note` is a line to
    show once beside the progress, such as the refusal of a network; it is mostly empty.
    """

    stage: str
    batch: int
    batches: int
    round: int = 0
    samples: int = 0
    device_s: float = 0.0
    remaining_s: float | None = None
    note: str = ""
    unit: str = "batch"
    process: int = 0
    processes: int = 1


Observer = Callable[[Progress], None]


def notes_of(observe: Observer) -> Callable[[str], None]:
    """Return a function that passes a line to an observer while networks are read."""
    return lambda text: observe(Progress("reading networks", 0, 0, note=text))


def followed_by(observe: Observer, later_s: Callable[[float], float]) -> Observer:
    """Return an observer whose progress has as time left also that of what follows.

    `later_s` receives how long all before will have taken, and returns the time of what follows.
    """
    started_s = time.monotonic()

    def show(progress: Progress) -> None:
        left_s = progress.remaining_s
        if left_s is not None:
            left_s += later_s(time.monotonic() - started_s + left_s)
        observe(replace(progress, remaining_s=left_s))

    return show


def without_forecast(observe: Observer, stage: str) -> Observer:
    """Return an observer of one of several campaigns of unknown number, which is in a stage and knows no time left."""
    return lambda progress: observe(replace(progress, stage=f"{stage}, {progress.stage}", remaining_s=None))


def steps_of(observe: Observer, stage: str, sizes: Sequence[float] = ()) -> Callable[[int, int], None]:
    """Return a function that receives how many of a stage's steps are done; they take as long as `sizes` or equally."""
    started_s = time.monotonic()

    def show(done: int, count: int) -> None:
        own = sizes or [1.0] * count
        left_s = (time.monotonic() - started_s) * sum(own[done:]) / sum(own[:done]) if done else None
        observe(Progress(stage, min(done, count - 1), count, remaining_s=left_s, unit="step"))

    return show


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
