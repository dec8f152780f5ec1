"""The progress that a campaign reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
