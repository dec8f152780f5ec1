"""Which jobs go first, and which have to wait for another night: the oldest and the most uncertain first.

Everything here is a pure function of what earlier nights have left behind; no device is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Staleness:
    """How much a set wants to be measured on a device.

    `nights` have passed since its newest complete campaign that was not excluded, None where there is none.
    `uncertainty` is the width of the newest table's intervals for its layers, as a share of their latencies; 1 where no
    table has them. `weight` multiplies the age.
    """

    nights: int | None
    uncertainty: float = 1.0
    weight: float = 1.0

    @property
    def urgency(self) -> tuple[float, float]:
        """Grows with age and, of the same age, with uncertainty; infinite age where nothing was measured.

        An age grows every night and nothing else does, so that no set waits for ever.
        """
        age = math.inf if self.nights is None else self.weight * self.nights
        return age, self.uncertainty


def by_staleness(items: Sequence[Item], staleness: Callable[[Item], Staleness]) -> list[Item]:
    """The most urgent first; those of the same urgency stay in the order given."""
    return sorted(items, key=lambda item: tuple(-part for part in staleness(item).urgency))


def admit(
    items: Sequence[Item], cost_s: Callable[[Item], float | None], budget_s: float | None, spent_s: float
) -> tuple[list[Item], list[Item]]:
    """Of one device's jobs in their order those that may start now, and those that have to wait.

    A job whose cost is known may start where it still fits, even past one that does not. One whose cost nobody knows
    is the last to start for now: when it has ended, what it took is known. The first job of a night always may,
    whatever it takes: else a set that is larger than the budget would never be measured.
    """
    if budget_s is None:
        return list(items), []
    now: list[Item] = []
    later: list[Item] = []
    expected_s, blind = spent_s, False
    for item in items:
        cost = cost_s(item)
        first = expected_s == 0 and not now
        fits = expected_s < budget_s if cost is None else expected_s + cost <= budget_s
        if first or (fits and not blind):
            now.append(item)
            expected_s += cost or 0.0
            blind |= cost is None
        else:
            later.append(item)
    return now, later
