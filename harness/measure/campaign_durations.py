"""How long earlier campaigns on a device took, golden probes and the search for fusion included."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.noise.campaign_noise import GOLDEN

_NEWEST = 5
"""Campaigns that count: a device and its host change."""
_PAUSE_S = 60.0
"""A longer time without a sample is an interruption."""


@dataclass(frozen=True)
class Pace:
    """Wall time of a campaign for each of its probes, the median of `campaigns` earlier ones.

    `around_s` is the wall time of what surrounds a campaign: golden probes, and the search for fusion.
    """

    per_probe_s: float
    around_s: float
    campaigns: int

    def wall_s(self, probes: int) -> float:
        """Return the wall time that a campaign of so many probes takes."""
        return self.around_s + self.per_probe_s * probes


def pace_of(journal: Journal, device: str, purpose: str) -> Pace | None:
    """Return the pace of the newest complete campaigns of a device with this purpose; None if there is none."""
    known = journal.campaigns(device)
    complete = [one for one in known if one.complete and one.purpose == purpose][-_NEWEST:]
    found = [(_span_s(journal, one), len(journal.probes(one.id)), _around_s(journal, known, one)) for one in complete]
    found = [one for one in found if one[0] > 0 and one[1] > 1]  # not those of the reference probe by itself
    per_probe = [span_s / probes for span_s, probes, _ in found]
    if not per_probe:
        return None
    return Pace(statistics.median(per_probe), statistics.median(one[2] for one in found), len(per_probe))


def _span_s(journal: Journal, campaign: Campaign) -> float:
    """Return the time from the start of a campaign to its last sample, without interruptions."""
    times = [datetime.fromisoformat(campaign.created), *journal.times(campaign.id)]
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(times)]
    return sum(gap for gap in gaps if 0 < gap < _PAUSE_S)


def _around_s(journal: Journal, known: Sequence[Campaign], campaign: Campaign) -> float:
    """Return the time from the golden probe before a campaign to it, and the time of the golden probe after it."""
    at = next(number for number, one in enumerate(known) if one.id == campaign.id)
    before = [one for one in known[:at] if one.purpose == GOLDEN][-1:]
    after = [one for one in known[at + 1 :] if one.purpose == GOLDEN][:1]
    start = datetime.fromisoformat(campaign.created)
    ahead_s = sum((start - datetime.fromisoformat(one.created)).total_seconds() for one in before)
    return min(ahead_s, len(known) * _PAUSE_S) + sum(_span_s(journal, one) for one in after)
