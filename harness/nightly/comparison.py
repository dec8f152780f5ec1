"""Tonight's watch of a set against those of earlier nights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.measure.journal import Journal
from harness.nightly.outcome import Change, Compared, SetRow
from harness.nightly.tonight import campaigns_of_nights
from harness.text import printable

if TYPE_CHECKING:
    from harness.regression.findings import Finding

_BOUND = 100.0
"""Of an interval without end: JSON knows no infinity."""


def compare_set(journal: Journal, device: str, row: SetRow, keep: int, threshold: float) -> Compared | None:
    """Tonight's watch of a set against those of at most `keep` earlier nights; None where nothing was watched.

    Raises what reading the journal raises.
    """
    from harness.regression.compare import compare_nights
    from harness.regression.series import read_watch

    if row.status != "done" or row.watch is None:
        return None
    watched = campaigns_of_nights(journal, device, "watch")
    tonight = next((one for one in watched if one.campaign.id == row.watch), None)
    if tonight is None or not tonight.campaign.complete or tonight.campaign.excluded is not None:
        return None
    earlier = {tonight.job.night: tonight}
    for one in watched:  # by the set's name: with more networks it is another set, but layers go on being compared
        usable = one.campaign.complete and one.campaign.excluded is None
        if usable and one.job.set == row.set and one.job.night < tonight.job.night:
            earlier[one.job.night] = one
    nights = [  # named by the evening on which they began, as everywhere else
        replace(read_watch(journal, earlier[night].campaign.id), date=night) for night in sorted(earlier)[-keep - 1 :]
    ]
    found = compare_nights(nights[-1], nights[:-1], threshold=threshold)
    finite = {str(one.subject): one.change for one in found.detectable if math.isfinite(one.change)}
    return Compared(
        device=device,
        set=row.set,
        nights=found.nights,
        is_regressed=found.is_regressed,
        detectable={printable(name, 200): change for name, change in finite.items()},
        hidden=tuple(printable(str(one.subject), 200) for one in found.hidden),
        changes=tuple(_change(device, row.set, one) for one in found.findings),
    )


def _change(device: str, name: str, one: Finding) -> Change:
    low, high = one.interval
    return Change(
        device=device,
        set=name,
        kind=one.kind,
        name=printable(one.subject.name, 200),
        op=printable(one.subject.op, 200),
        networks=tuple(printable(network, 200) for network in one.subject.networks),
        state=one.state,
        change=one.change,
        interval=(max(low, -_BOUND), min(high, _BOUND)),
        p_value=one.p_value,
        before_s=one.latency_s,
        since=one.since,
        fresh=one.is_fresh,
        causes=tuple(map(str, one.causes)),
        told=one.told,
    )
