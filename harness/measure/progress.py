"""What a campaign reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a campaign stands; `remaining_s` is None until the first round of the first batch is done."""

    stage: str
    batch: int
    batches: int
    round: int
    samples: int
    device_s: float
    remaining_s: float | None


Observer = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """An observer that shows nothing."""
