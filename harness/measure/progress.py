"""The progress that a command reports while it runs.

==============  =======================================================================================
Word            Meaning
==============  =======================================================================================
phase           a part of the command whose time earlier runs predict, such as reading networks, cutting
                them, measuring, golden probes; its time is in proportion to its effort
stage           what the command does now, as its line shows it; a phase has one or several
effort          how much a phase has to do, in a unit of its own; None: it takes equally long in all runs
share           the part of the phase's time that has passed, as far as its own steps show it
next_share      the share at the end of the present step
ahead           the effort of phases to come; 0 for one that does not take place
==============  =======================================================================================

`time_left.py` computes the time left from these and from earlier runs; docs/progress.md describes how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Progress:
    """The state of a command that measures.

    The command is in step `batch` of `batches`, counted from 0, each of which is a `unit`; a campaign has batches of
    probes. It runs in `processes` of the device's worker, and is in the one with number `process`. `note` is a line to
    show once next to the progress, such as the refusal of a network; it is mostly empty.

    `phase` is by default the stage itself; the head of this module explains the words.
    """

    stage: str
    batch: int
    batches: int
    round: int = 0
    samples: int = 0
    device_s: float = 0.0
    note: str = ""
    unit: str = "batch"
    process: int = 0
    processes: int = 1
    phase: str = ""
    effort: float | None = None
    share: float | None = None
    next_share: float | None = None
    ahead: Mapping[str, float] = field(default_factory=dict)


DONE = Progress("done", 0, 0)
"""The last report of a command that succeeds."""
FAILED = Progress("failed", 0, 0)
"""The last report of a job that fails, while others go on."""
Observer = Callable[[Progress], None]


def effort_of(count: float) -> float:
    """Return the effort of a phase with so much to do; it grows with the root, since a part of the time is constant."""
    return math.sqrt(count)


def notes_of(observe: Observer) -> Callable[[str], None]:
    """Return a function that passes a line to an observer while networks are read."""
    return lambda text: observe(Progress("reading networks", 0, 0, note=text))


def each_note_once(observe: Observer) -> Observer:
    """Return an observer that receives each note once, however many attempts repeat it."""
    noted: set[str] = set()

    def show(progress: Progress) -> None:
        if progress.note not in noted:
            noted.update(filter(None, [progress.note]))
            observe(progress)

    return show


def begin(
    observe: Observer, stage: str, effort: float | None = None, *, ahead: Mapping[str, float] | None = None
) -> None:
    """Report that a stage without steps begins."""
    observe(Progress(stage, 0, 0, effort=effort, ahead=ahead or {}))


def in_phase(observe: Observer, phase: str, effort: float | None = None) -> Observer:
    """Return an observer for the stages of a phase, which report no shares of it."""
    return lambda progress: observe(replace(progress, phase=phase, effort=effort, share=None, next_share=None))


def named(observe: Observer, phase: str) -> Observer:
    """Return an observer for a campaign that is another phase."""
    return lambda progress: observe(replace(progress, phase=phase))


def with_less_work(observe: Observer, share: float) -> Observer:
    """Return an observer for phases that have only this share of the effort they report, present and to come."""

    def show(progress: Progress) -> None:
        effort = progress.effort and share * progress.effort
        ahead = {phase: share * one for phase, one in progress.ahead.items()}
        observe(replace(progress, effort=effort, ahead=ahead))

    return show


def part_of(observe: Observer, phase: str, number: int, count: int) -> Observer:
    """Return an observer for one of `count` equal parts of a phase; the stages report their share of the part."""

    def show(progress: Progress) -> None:
        share = (number + (progress.share or 0.0)) / count
        observe(replace(progress, phase=phase, effort=effort_of(count), share=share, next_share=None))

    return show


def among_several(observe: Observer, phase: str) -> Observer:
    """Return an observer for one of several campaigns of unknown number, whose stages name the phase."""
    return lambda progress: in_phase(observe, phase)(replace(progress, stage=f"{phase}, {progress.stage}"))


def steps_of(
    observe: Observer,
    stage: str,
    sizes: Sequence[float] = (),
    *,
    effort: float | None = None,
    ahead: Mapping[str, float] | None = None,
) -> Callable[[int, int], None]:
    """Return a function that receives how many of a stage's steps are done; they take as long as `sizes` or equally.

    The sum of the steps is the count whose effort the stage takes, unless another `effort` is given; `ahead` is that of
    phases to come.
    """

    def show(done: int, count: int) -> None:
        own = sizes or [1.0] * count
        whole = sum(own)
        share = sum(own[:done]) / whole if done and whole > 0 else None
        following = sum(own[: done + 1]) / whole if whole > 0 else None
        at = min(done, count - 1)
        known = effort or effort_of(whole)
        observe(Progress(stage, at, count, unit="step", effort=known, share=share, next_share=following))

    first = sizes[0] / sum(sizes) if sum(sizes) else None
    observe(Progress(stage, 0, 0, effort=effort or effort_of(sum(sizes)) or None, next_share=first, ahead=ahead or {}))
    return show


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
