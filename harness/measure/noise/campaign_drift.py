"""Whether a device kept its speed during a campaign, by the reference probe that is visited throughout.

A campaign of an unsteady device is complete, but its layers were measured at different speeds: it enters no table.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import DeviceUnsteady
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.summary import seconds_of, undisturbed
from harness.samples import Sample
from harness.settings import MOST_DRIFT

_FEWEST_SHOWN, _FEWEST_JUDGED = 3, 8
"""Samples of each third: a median of fewer than eight may be off by half on a noisy device that keeps its speed."""


@dataclass(frozen=True)
class Drift:
    """The largest change of the reference probe between thirds of a campaign, as a fraction of the fastest third.

    `samples` is the number of each third; `fastest_s` and `slowest_s` are the lower quartiles of two of them, so that
    short slow phases do not count.
    """

    change: float = 0.0
    samples: int = 0
    fastest_s: float = 0.0
    slowest_s: float = 0.0

    @property
    def judged(self) -> float | None:
        """The change, None if the samples are too few to tell it from noise."""
        return self.change if self.samples >= _FEWEST_JUDGED else None

    @property
    def is_too_large(self) -> bool:
        """Whether the campaign may not enter a table."""
        return self.samples >= _FEWEST_JUDGED and self.change > MOST_DRIFT


def drift_of(taken: Sequence[Sample], clock: str) -> Drift:
    """Return the drift that samples of the reference probe show, none if there are fewer than nine."""
    third = len(taken) // 3
    if third < _FEWEST_SHOWN:
        return Drift()
    parts = (taken[:third], taken[third : 2 * third], taken[2 * third :])
    latencies_s = [undisturbed(part, clock).latency_s for part in parts]
    fastest_s, slowest_s = min(latencies_s), max(latencies_s)
    return Drift(slowest_s / fastest_s - 1, third, fastest_s, slowest_s)


def scatter_of(processes: Sequence[Sequence[Sample]], clock: str) -> float | None:
    """Return the median over processes of half the distance between quartiles over the median; None for few samples."""
    found = []
    for taken in processes:
        if len(taken) >= 3 * _FEWEST_JUDGED:
            low_s, median_s, high_s = statistics.quantiles([seconds_of(one, clock) for one in taken], n=4)
            found += [(high_s - low_s) / 2 / median_s] if median_s > 0 else []
    return statistics.median(found) if found else None


def check_steady(journal: Journal, campaign: Campaign) -> None:
    """Raise DeviceUnsteady if the device's speed changed by more than MOST_DRIFT during the campaign."""
    drift = drift_of(journal.samples_of(campaign.id, campaign.reference), campaign.clock)
    if not drift.is_too_large:
        return
    what = f"The speed of {campaign.device} changed during the campaign: its reference probe drifted by"
    times = f"{drift.fastest_s * 1e3:.4g} to {drift.slowest_s * 1e3:.4g} ms"
    ranged = f"Its latency ranged from {times} over the thirds of campaign {campaign.id} (limit {MOST_DRIFT:.0%})"
    why = f"{ranged}. The campaign is excluded from tables"
    step = "Stop other work on the device, check its clock and temperature, then run the same command again"
    raise DeviceUnsteady(f"{what} {drift.change:.0%}", why=why, next_step=f"{step}; it measures again")
