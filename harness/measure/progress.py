"""The progress that a campaign reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a campaign; `remaining_s` is None until the first round of the first batch is done."""

    stage: str
    batch: int
    batches: int
    round: int = 0
    samples: int = 0
    device_s: float = 0.0
    remaining_s: float | None = None


Observer = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
