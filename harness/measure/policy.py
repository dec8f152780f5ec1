"""How often probes are visited, and when that is enough."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.measure.summary import Measurement

REFERENCE_EVERY = 25
NEGLIGIBLE_SHARE = 0.01


@dataclass(frozen=True)
class RepeatPolicy:
    """Rounds of one cold run per probe (S1.6).

    With `runs`, exactly that many samples per probe. Otherwise rounds go on until every probe's 95 %
    interval is within `target` of its median, or so narrow that it is lost in the batch's sum, but for at
    least `min_rounds` and at most `max_rounds`. `budget_s` bounds the time on the device.
    """

    runs: int | None = None
    target: float = 0.01
    min_rounds: int = 8
    max_rounds: int = 40
    budget_s: float | None = None

    @property
    def fewest_rounds(self) -> int:
        """Rounds below which a probe counts as incomplete."""
        return self.runs or 3

    def settings(self, purpose: str, seed: int) -> dict[str, Any]:
        """What tells campaigns of one plan apart in the journal; a larger budget goes on with the same one."""
        kept = {name: value for name, value in asdict(self).items() if name != "budget_s"}
        return {**kept, "visit": "cold" if purpose == "profile" else "warm", "purpose": purpose, "seed": seed}

    def is_enough(self, rounds: int, measurements: Mapping[str, Measurement]) -> bool:
        """Whether a batch needs no more rounds."""
        if self.runs is not None:
            return rounds >= self.runs
        if rounds < self.min_rounds:
            return False
        return rounds >= self.max_rounds or not unsettled(measurements, self.target)


def unsettled(measurements: Mapping[str, Measurement], target: float) -> tuple[str, ...]:
    """Probes whose interval is wider than the target and wide enough to show in the batch's sum."""
    negligible_s = NEGLIGIBLE_SHARE * sum(measurement.latency_s for measurement in measurements.values())
    return tuple(
        probe
        for probe, measurement in measurements.items()
        if measurement.halfwidth_s > target * max(measurement.latency_s, negligible_s)
    )


def visit_order(seed: int, batch: int, round: int, probes: Sequence[str], reference: str) -> list[str]:
    """A random order that depends on nothing but its arguments, the reference probe at even distances.

    Random order keeps drift from turning into bias, and weights as cold as in a network.
    """
    order = sorted(probes, key=lambda probe: hashlib.sha256(f"{seed} {batch} {round} {probe}".encode()).digest())
    visits: list[str] = []
    for position, probe in enumerate(order):
        if position % REFERENCE_EVERY == 0:
            visits.append(reference)
        visits.append(probe)
    return visits
