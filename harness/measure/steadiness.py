"""Whether a device kept its speed during a campaign, by the reference probe that is visited throughout.

A campaign of an unsteady device is complete, but its layers were measured at different speeds: it enters no table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import DeviceUnsteady
from harness.measure.journal import Campaign, Journal
from harness.measure.summary import summarise
from harness.samples import Sample
from harness.settings import MOST_DRIFT

_FEWEST = 3


@dataclass(frozen=True)
class Drift:
    """The largest change of the reference probe between thirds of a campaign, as a fraction of the fastest third.

    `certain` is the part of it that is left if both thirds are as far off as their 95 % intervals allow.
    """

    change: float = 0.0
    certain: float = 0.0
    fastest_s: float = 0.0
    slowest_s: float = 0.0


def drift_of(taken: Sequence[Sample], clock: str) -> Drift:
    """Return the drift that samples of the reference probe show, none if there are fewer than nine."""
    third = len(taken) // 3
    if third < _FEWEST:
        return Drift()
    thirds = [summarise(part, clock) for part in (taken[:third], taken[third : 2 * third], taken[2 * third :])]
    fastest, slowest = (choose(thirds, key=lambda one: one.latency_s) for choose in (min, max))
    certain = max(0.0, slowest.latency_s - slowest.halfwidth_s) / (fastest.latency_s + fastest.halfwidth_s) - 1
    change = slowest.latency_s / fastest.latency_s - 1
    return Drift(change, max(0.0, certain), fastest.latency_s, slowest.latency_s)


def check_steady(journal: Journal, campaign: Campaign) -> None:
    """Raise DeviceUnsteady if the device's speed certainly changed by more than MOST_DRIFT during the campaign."""
    drift = drift_of(journal.samples_of(campaign.id, campaign.reference), campaign.clock)
    if drift.certain <= MOST_DRIFT or not math.isfinite(drift.certain):
        return
    what = f"The speed of {campaign.device} changed during the campaign: its reference probe drifted by"
    times = f"{drift.fastest_s * 1e3:.4g} to {drift.slowest_s * 1e3:.4g} ms"
    why = f"It took {times} in thirds of campaign {campaign.id}, which enters no table (limit {MOST_DRIFT:.0%})"
    step = "Stop other work on the device, check its clock and temperature, then run the same command again"
    raise DeviceUnsteady(f"{what} {drift.change:.0%}", why=why, next_step=f"{step}; it measures anew")
