"""The progress that a campaign reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a campaign; `remaining_s` is None until the first round of the first batch is done.

    `note` is a line to show once beside the progress, such as the refusal of a network; it is mostly empty.
    """

    stage: str
    batch: int
    batches: int
    round: int = 0
    samples: int = 0
    device_s: float = 0.0
    remaining_s: float | None = None
    note: str = ""


Observer = Callable[[Progress], None]


def notes_of(observe: Observer) -> Callable[[str], None]:
    """Return a function that passes a line to an observer while networks are read."""
    return lambda text: observe(Progress("reading networks", 0, 0, note=text))


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
