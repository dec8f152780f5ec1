"""Tonight's watch of a set against those of earlier nights, and what of it was told before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.measure.journal import Journal
from harness.nightly.due_jobs import campaigns_of_nights
from harness.nightly.outcome import Change, Compared, SetRow
from harness.text import printable

if TYPE_CHECKING:
    from harness.slowdowns.findings import Finding
    from harness.slowdowns.series import WatchSeries
    from harness.slowdowns.subjects import Subject

LONGEST_ID = 160
_BOUND = 100.0
"""Of an interval without end: JSON knows no infinity."""

Report = tuple[str, str, Mapping[str, object]]
"""A night, when it was finished, and what it came to, as the store of fleets gives it."""


@dataclass(frozen=True)
class Rules:
    """How a night is compared: with `keep` earlier ones, from a change of `threshold` on.

    `level` is the probability that anything is told of a set on a device that did not change.
    """

    keep: int
    threshold: float
    level: float


def compare_set(journal: Journal, device: str, row: SetRow, rules: Rules, reports: Sequence[Report]) -> Compared | None:
    """Tonight's watch of a set against those of earlier nights; None where nothing was watched.

    `reports` say what was told before. Raises what reading the journal raises.
    """
    from harness.slowdowns.series import read_watch

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
        replace(read_watch(journal, earlier[night].campaign.id), date=night)
        for night in sorted(earlier)[-rules.keep - 1 :]
    ]
    return compare_watches(device, row.set, nights, rules, reports)


def compare_watches(
    device: str, name: str, nights: Sequence[WatchSeries], rules: Rules, reports: Sequence[Report]
) -> Compared:
    """The last one of a set's watches against the others, which are in the order of their nights.

    What is found is fresh unless a report of an earlier night has told it, and none since could have and did not.
    """
    from harness.slowdowns.compare import compare_nights

    tonight, earlier = nights[-1], nights[:-1]
    found = compare_nights(tonight, earlier, threshold=rules.threshold, level=rules.level)
    changes = []
    for one in found.findings:
        change = _change(device, name, one)
        known = one.state == "passed" or was_told(change, tonight.date, reports)
        changes.append(replace(change, fresh=not known))
    return Compared(
        device=device,
        set=name,
        nights=found.nights,
        host_change=found.host_change,
        is_regressed=any(one.fresh and one.is_slower for one in changes),
        detectable={subject_id(one.subject): one.change for one in found.detectable if math.isfinite(one.change)},
        hidden=tuple(subject_id(one.subject) for one in found.hidden),
        changes=tuple(changes),
        not_compared="" if found.findings or found.detectable else _why_not(tonight, earlier, found.nights),
    )


def was_told(change: Change, night: str, reports: Sequence[Report]) -> bool:
    """Whether a night before that one has told this change, in the same direction, and it was there ever since.

    The newest report that says anything of the subject decides. A night that did not watch it, or was too uncertain to
    tell it, says nothing; neither does one that was stopped, of which nobody may have read more than that.
    """
    for reported, _, report in sorted(reports, key=lambda one: one[0], reverse=True):
        if reported >= night or report.get("stopped"):
            continue
        for compared in _of_set(report, change):
            told = [one for one in compared["changes"] if one.get("subject") == change.subject]
            if told or change.subject in compared["detectable"]:
                return any(one["state"] != "passed" and (one["change"] or 0.0) * change.change > 0 for one in told)
    return False


def _of_set(report: Mapping[str, object], change: Change) -> list[Mapping[str, Any]]:
    found = report.get("compared")
    listed: list[Mapping[str, Any]] = found if isinstance(found, list) else []
    return [one for one in listed if (one["device"], one["set"]) == (change.device, change.set)]


def subject_id(subject: Subject) -> str:
    """One name for a subject, the same every night, that no other subject of its set has, however long names are."""
    networks = f" in {', '.join(subject.networks)}" if subject.networks else ""
    text = f"{subject}{networks}"
    shown = printable(text, LONGEST_ID)
    if shown == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{printable(text, LONGEST_ID - len(digest) - 1)} {digest}"


def _why_not(tonight: WatchSeries, earlier: Sequence[WatchSeries], comparable: int) -> str:
    if not earlier:
        return "no earlier night has watched it"
    if comparable:
        return "nothing of it can be compared: too little was watched, or none of it on earlier nights"
    last = earlier[-1]
    if last.clock != tonight.clock:
        return printable(f"another clock since {tonight.date[:10]}: {tonight.clock}, before {last.clock}", 200)
    return "no earlier night is of this device"


def _change(device: str, name: str, one: Finding) -> Change:
    low, high = one.interval
    return Change(
        device=device,
        set=name,
        subject=subject_id(one.subject),
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
        fresh=False,
        causes=tuple(map(str, one.causes)),
        told=one.told,
    )
