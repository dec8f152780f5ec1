"""How often probes are visited, and when that is enough."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.measure.summary import Measurement

REFERENCE_EVERY = 25
NEGLIGIBLE_SHARE = 0.01
PASSES = 3
FEWEST_MORE = 4
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class RepeatPolicy:
    """Rounds of one visit per probe (S1.6).

    With `runs`, exactly that many samples per probe. Otherwise every probe is visited in `min_rounds` rounds, and then
    batches go on until every probe that enters an estimate has its 95 % interval within `target` of its median, or so
    narrow that it is lost in the batch's sum, for at most `max_rounds`. `budget_s` bounds the time on the device.
    """

    runs: int | None = None
    target: float = 0.01
    min_rounds: int = 12
    max_rounds: int = 40
    budget_s: float | None = None

    @property
    def fewest_rounds(self) -> int:
        """Rounds below which a probe counts as incomplete."""
        return self.runs or min(FEWEST_ROUNDS, self.min_rounds)

    @property
    def passes(self) -> tuple[int, ...]:
        """Rounds that every batch has after each pass over all of them: spread, so that drift meets all alike.

        With a budget the first pass gives every probe its least, and what is left goes where it is worth most.
        """
        if self.budget_s is not None:
            return (self.fewest_rounds,)
        rounds = self.runs or self.min_rounds
        steps = {-(-rounds * number // PASSES) for number in range(1, PASSES + 1)}
        return tuple(sorted({max(step, min(FEWEST_ROUNDS, rounds)) for step in steps}))

    def settings(self, purpose: str, seed: int, job: str = "") -> dict[str, Any]:
        """What tells campaigns of one plan apart in the journal; a larger budget goes on with the same one.

        A campaign that is the work of a named job is told apart by that name, too.
        """
        kept = {name: value for name, value in asdict(self).items() if name != "budget_s"}
        return {**kept, "purpose": purpose, "seed": seed, **({"job": job} if job else {})}

    def more_rounds(self, rounds: int, open_probes: Mapping[str, Measurement]) -> int:
        """How many further rounds should bring these probes to the target; 0 where nothing more is wanted."""
        if self.runs is not None or not open_probes or rounds >= self.max_rounds:
            return 0
        widest = max(one.halfwidth_s / max(one.latency_s, 1e-12) for one in open_probes.values())
        wanted = math.ceil(rounds * ((widest / self.target) ** 2 - 1)) if math.isfinite(widest) else rounds
        return min(max(FEWEST_MORE, wanted), self.max_rounds - rounds)


def unsettled(measurements: Mapping[str, Measurement], target: float) -> tuple[str, ...]:
    """Probes whose interval is wider than the target and wide enough to show in the batch's sum."""
    negligible_s = NEGLIGIBLE_SHARE * sum(measurement.latency_s for measurement in measurements.values())
    return tuple(
        probe
        for probe, measurement in measurements.items()
        if measurement.halfwidth_s > target * max(measurement.latency_s, negligible_s)
    )


def visit_order(seed: int, batch: int, round: int, loads: Sequence[str], reference: str) -> list[str]:
    """A random order that depends on nothing but its arguments, the reference probe at even distances.

    Random order keeps drift from turning into bias, and weights as cold as in a network.
    """
    order = sorted(loads, key=lambda load: hashlib.sha256(f"{seed} {batch} {round} {load}".encode()).digest())
    visits: list[str] = []
    for position, load in enumerate(order):
        if position % REFERENCE_EVERY == 0:
            visits.append(reference)
        visits.append(load)
    return visits
