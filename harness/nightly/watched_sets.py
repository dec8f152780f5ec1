"""The watches of a set on a device, night by night, as the journal keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.measure.journal.journal import Journal
from harness.nightly.due_jobs import NightlyCampaign, campaigns_of_nights
from harness.slowdowns.watch_series import WatchSeries, read_watch


def watches_of_set(
    watches: Sequence[NightlyCampaign], name: str, tonight: NightlyCampaign | None = None
) -> list[NightlyCampaign]:
    """Return the newest usable watch of each night, oldest first; with `tonight`, that one and those before it.

    The networks of sets with the same name may differ: the layers in common are compared.
    """
    used = {
        one.job.night: one
        for one in watches
        if one.campaign.is_usable and one.job.set == name and (tonight is None or one.job.night < tonight.job.night)
    }
    if tonight is not None:
        used[tonight.job.night] = tonight
    return [used[night] for night in sorted(used)]


def read_watches(journal: Journal, watches: Sequence[NightlyCampaign], most: int) -> list[WatchSeries]:
    """Read the last `most` watches, each dated by the evening on which its night began; raises JournalError."""
    return [replace(read_watch(journal, one.campaign.id), date=one.job.night) for one in watches[-most:]]


def watched_sets(journal: Journal, device: str) -> tuple[str, ...]:
    """Return the names of the sets that were watched on a device, in order of their first night."""
    found = campaigns_of_nights(journal, device, "watch")
    return tuple(dict.fromkeys(one.job.set for one in found if one.campaign.is_usable))
