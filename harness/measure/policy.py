"""The number of visits to each probe, and the rule that ends them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.arguments import check_fields
from harness.errors import UsageError
from harness.measure.summary import Measurement

REFERENCE_EVERY = 25
NEGLIGIBLE_SHARE = 0.01
PASSES, KEPT_PASSES = 3, 6
"""Passes over all batches of a device that loads its probes for each, and of one that holds all of them.

Slow phases of a machine last up to seconds, and one pass visits most batches for less than a tenth of a second. If all
passes meet a batch in slow phases, it has no latency of a quiet machine.
"""
FEWEST_MORE = 4
FEWEST_ROUNDS = 3
START_LIMIT_S = 600.0
LOAD_LIMIT_S = 5.0
RUN_LIMIT_S = 10.0
BUDGET_FACTOR = 10.0
"""Wall time that a campaign may take: in any case, for each load, for each run, and as a multiple of the budget."""


@dataclass(frozen=True)
class RepeatPolicy:
    """The number of rounds, each with one visit per probe (S1.6).

    With `runs`, every probe gets exactly that many samples. Otherwise every probe is visited in `min_rounds` rounds.
    Batches then continue, for at most `max_rounds`, until each probe that enters an estimate has a 95 % interval within
    `target` of its median, or negligible in the sum of its batch. `budget_s` bounds the device time, as the device
    reports it. `wall_s` bounds the time on the clock of the host, for all that a job does on the device; each campaign
    has the default of `limit_s`.
    """

    runs: int | None = None
    target: float = 0.01
    min_rounds: int = 12
    max_rounds: int = 40
    budget_s: float | None = None
    wall_s: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_rounds > self.max_rounds:
            what = f"min_rounds is {self.min_rounds} and max_rounds is {self.max_rounds}"
            raise UsageError(what, why="min_rounds must not exceed max_rounds")

    def limit_s(self, loads: int, runs: int) -> float:
        """Return the wall time after which a device is abandoned: `wall_s`, or what a slow device needs.

        `loads` are the probes to load in each pass, `runs` those of one round, with untimed ones.
        """
        if self.wall_s is not None:
            return self.wall_s
        measuring_s = RUN_LIMIT_S * runs * self.passes()[-1]
        if self.budget_s is not None:
            measuring_s = min(measuring_s, BUDGET_FACTOR * self.budget_s)
        return START_LIMIT_S + LOAD_LIMIT_S * loads * (PASSES + 1) + measuring_s

    @property
    def fewest_rounds(self) -> int:
        """The number of rounds below which a probe counts as incomplete."""
        return self.runs or min(FEWEST_ROUNDS, self.min_rounds)

    def passes(self, count: int = PASSES) -> tuple[int, ...]:
        """Return the number of rounds of every batch after each of at most `count` passes.

        Passes spread drift over all batches. With a budget, the only pass gives every probe its minimum; the rest of
        the budget goes where it helps most.
        """
        if self.budget_s is not None:
            return (self.fewest_rounds,)
        rounds = self.runs or self.min_rounds
        steps = {-(-rounds * number // count) for number in range(1, count + 1)}
        return tuple(sorted({max(step, min(FEWEST_ROUNDS, rounds)) for step in steps}))

    def settings(self, purpose: str, seed: int, job: str = "") -> dict[str, Any]:
        """Return the settings of a campaign in the journal; campaigns of one plan with other settings differ.

        The limits of time are not among them: larger ones continue the same campaign.
        """
        kept = {name: value for name, value in asdict(self).items() if name not in ("budget_s", "wall_s")}
        return {**kept, "purpose": purpose, "seed": seed, **({"job": job} if job else {})}

    def more_rounds(self, rounds: int, open_probes: Mapping[str, Measurement]) -> int:
        """Return how many further rounds should bring these probes to the target, 0 for none."""
        if self.runs is not None or not open_probes or rounds >= self.max_rounds:
            return 0
        needed = max(self.needed_rounds(rounds, one) for one in open_probes.values())
        return min(max(FEWEST_MORE, needed), self.max_rounds - rounds)

    def needed_rounds(self, rounds: int, probe: Measurement) -> int:
        """Return how many further rounds should bring a probe to the target, 0 if it is there."""
        width = probe.halfwidth_s / max(probe.latency_s, 1e-12)
        return max(0, math.ceil(rounds * ((width / self.target) ** 2 - 1))) if math.isfinite(width) else rounds


def unsettled(measurements: Mapping[str, Measurement], target: float) -> tuple[str, ...]:
    """Return the probes whose interval exceeds the target and matters in the sum of the batch."""
    negligible_s = NEGLIGIBLE_SHARE * sum(measurement.latency_s for measurement in measurements.values())
    return tuple(
        probe
        for probe, measurement in measurements.items()
        if measurement.halfwidth_s > target * max(measurement.latency_s, negligible_s)
    )


def visit_order(seed: int, batch: int, round: int, loads: Sequence[str], reference: str) -> list[str]:
    """Return a random order that depends only on the arguments, with the reference probe at regular distances.

    Random order keeps drift from turning into bias, and weights as cold as in a network.
    """
    order = sorted(loads, key=lambda load: hashlib.sha256(f"{seed} {batch} {round} {load}".encode()).digest())
    visits: list[str] = []
    for position, load in enumerate(order):
        if position % REFERENCE_EVERY == 0:
            visits.append(reference)
        visits.append(load)
    return visits
