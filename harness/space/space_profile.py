"""The rounds in which layers of a space were measured, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundResult:
    """The result of a round; `error` is the median |error| of layers predicted before they were measured, or None."""

    number: int
    measured: int
    refused: int
    error: float | None


@dataclass(frozen=True)
class SpaceResult:
    """All rounds, and why they ended: `target`, `count`, `budget` or `exhausted`."""

    rounds: tuple[RoundResult, ...]
    measured: int
    stopped: str


@dataclass(frozen=True)
class SpaceProfile:
    """The rounds of one run; `resumed` of them were already in the journal, at least in part."""

    device: str
    result: SpaceResult
    campaigns: tuple[int, ...]
    resumed: int
    device_seconds: float
    wall_seconds: float
