"""The progress that a command reports while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Progress:
    """The state of a command that measures.

    The command is in step `batch` of `batches`, counted from 0, each of which is a `unit`; a campaign has batches of
    probes. It runs in `processes` of the device's worker, and is in the one with number `process`. `note` is a line to
    show once beside the progress, such as the refusal of a network; it is mostly empty.

    The stage belongs to a `phase` of the command, by default the stage itself. `work` is how much there is to do in the
    phase, in a unit of its own, None if the phase takes equally long in all runs. `share` is the part of the phase's
    time that has passed, as far as its own steps show it. `ahead` is the work of phases to come, 0 for one that does
    not take place.
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
    work: float | None = None
    share: float | None = None
    ahead: Mapping[str, float] = field(default_factory=dict)


DONE = Progress("done", 0, 0)
"""The last report of a command that succeeds."""
Observer = Callable[[Progress], None]


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
    observe: Observer, stage: str, work: float | None = None, *, ahead: Mapping[str, float] | None = None
) -> None:
    """Report that a stage without steps begins."""
    observe(Progress(stage, 0, 0, work=work, ahead=ahead or {}))


def in_phase(observe: Observer, phase: str, work: float | None = None) -> Observer:
    """Return an observer for the stages of a phase, which report no shares of it."""
    return lambda progress: observe(replace(progress, phase=phase, work=work, share=None))


def named(observe: Observer, phase: str) -> Observer:
    """Return an observer for a campaign that is another phase."""
    return lambda progress: observe(replace(progress, phase=phase))


def part_of(observe: Observer, phase: str, number: int, count: int) -> Observer:
    """Return an observer for one of `count` equal parts of a phase; the stages report their share of the part."""
    return lambda progress: observe(
        replace(progress, phase=phase, work=count, share=(number + (progress.share or 0.0)) / count)
    )


def among_several(observe: Observer, phase: str) -> Observer:
    """Return an observer for one of several campaigns of unknown number, whose stages name the phase."""
    return lambda progress: in_phase(observe, phase)(replace(progress, stage=f"{phase}, {progress.stage}"))


def steps_of(
    observe: Observer,
    stage: str,
    sizes: Sequence[float] = (),
    *,
    work: float | None = None,
    ahead: Mapping[str, float] | None = None,
) -> Callable[[int, int], None]:
    """Return a function that receives how many of a stage's steps are done; they take as long as `sizes` or equally.

    The work of the stage is the sum of its steps, or what is given; `ahead` is that of phases to come.
    """

    def show(done: int, count: int) -> None:
        own = sizes or [1.0] * count
        whole = sum(own)
        share = sum(own[:done]) / whole if done and whole > 0 else None
        observe(Progress(stage, min(done, count - 1), count, unit="step", work=work or whole, share=share))

    begin(observe, stage, work or sum(sizes) or None, ahead=ahead)
    return show


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
