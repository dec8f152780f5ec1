"""The order of a night's jobs, and which of them fit into a device's budget.

The jobs measured longest ago come first; of equally old ones the most uncertain. Everything here is a pure function of
earlier nights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Staleness:
    """How urgently a set needs a measurement on a device.

    `nights` counts the nights since its newest complete campaign that is not excluded; None if there is none.
    `uncertainty` is the width of the newest table's intervals for the set's layers as a share of their latencies, 1 if
    no table has them. `weight` multiplies the age.
    """

    nights: int | None
    uncertainty: float = 1.0
    weight: float = 1.0

    @property
    def urgency(self) -> tuple[float, float]:
        """The weighted age, infinite for a set that was never measured, then the uncertainty.

        Age grows every night and nothing else does, so every set gets its turn.
        """
        age = math.inf if self.nights is None else self.weight * self.nights
        return age, self.uncertainty


def by_staleness(items: Sequence[Item], staleness: Callable[[Item], Staleness]) -> list[Item]:
    """Return the items by descending urgency; equally urgent ones keep their order."""
    return sorted(items, key=lambda item: tuple(-part for part in staleness(item).urgency))


def within_budget(
    items: Sequence[Item], cost_s: Callable[[Item], float | None], budget_s: float | None, spent_s: float
) -> list[Item]:
    """Return the jobs of one device that may start now, in their order.

    A job of known cost may start if it still fits, even past a job that does not. After a job of unknown cost no other
    one starts until that job's cost is known. The first job of a night always starts: a set that exceeds the budget
    would never be measured otherwise.
    """
    if budget_s is None:
        return list(items)
    now: list[Item] = []
    expected_s, unknown = spent_s, False
    for item in items:
        cost = cost_s(item)
        is_first = expected_s == 0 and not now
        fits = expected_s < budget_s if cost is None else expected_s + cost <= budget_s
        if is_first or (fits and not unknown):
            now.append(item)
            expected_s += cost or 0.0
            unknown |= cost is None
    return now
