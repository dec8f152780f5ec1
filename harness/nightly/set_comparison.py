"""Tonight's watch of a set compared with earlier nights, and which of its changes earlier reports already listed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.fleet.store import Acceptance
from harness.measure.journal.journal import Journal
from harness.nightly.due_jobs import NightlyCampaign, campaigns_of_nights
from harness.nightly.night_report import Change, SetComparison, SetRow
from harness.slowdowns.findings import Finding, Subject
from harness.slowdowns.watch_series import WatchSeries, read_watch
from harness.text import printable

LONGEST_ID = 160
_BOUND = 100.0
"""Replaces the bounds of an interval without end: JSON has no infinity."""
StoredReport = tuple[str, str, Mapping[str, Any]]
"""A night, when it finished, and its report as JSON data, as the fleet's store returns them."""


@dataclass(frozen=True)
class ComparisonRules:
    """How a night is compared: with at most `keep` earlier nights; changes below `threshold` are ignored.

    `level` is the probability of a false alarm for a set on a device that did not change. Changes that are `accepted`
    are not regressions.
    """

    keep: int
    threshold: float
    level: float
    accepted: tuple[Acceptance, ...] = ()

    def acceptance(self, change: Change) -> Acceptance | None:
        """Return the acceptance that covers a change: of its subject, begun by then, and no larger beyond its error."""
        halfwidth = (change.interval[1] - change.interval[0]) / 2
        place = change.device, change.set, change.subject
        return next(
            (
                one
                for one in self.accepted
                if (one.device, one.set, one.subject) == place and one.covers(change.since, change.change, halfwidth)
            ),
            None,
        )


def compare_set(
    journal: Journal, device: str, row: SetRow, rules: ComparisonRules, reports: Sequence[StoredReport]
) -> SetComparison | None:
    """Compare tonight's watch of a set with earlier nights; return None if the set was not watched tonight.

    `reports` are those of earlier nights. Raises the errors of reading the journal.
    """

    if row.status != "done" or row.watch is None:
        return None
    held = campaigns_of_nights(journal, device, "watch")
    tonight = next((one for one in held if one.campaign.id == row.watch), None)
    if tonight is None or not tonight.campaign.is_usable:
        return None
    nights = read_watches(journal, watches_of_set(held, row.set, tonight), rules.keep + 1)
    return compare_watches(device, row.set, nights, rules, reports)


def compare_watches(
    device: str, name: str, nights: Sequence[WatchSeries], rules: ComparisonRules, reports: Sequence[StoredReport]
) -> SetComparison:
    """Compare the last of a set's watches with the others, which are in order of their nights.

    A change is fresh unless the report of an earlier night listed it and every report since agrees.
    """
    from harness.slowdowns.night_comparison import compare_nights  # loads scipy

    tonight, earlier = nights[-1], nights[:-1]
    found = compare_nights(tonight, earlier, threshold=rules.threshold, level=rules.level)
    changes = []
    for one in found.findings:
        change = _change(device, name, one)
        acceptance = rules.acceptance(change)
        is_known = one.state == "passed" or acceptance is not None or was_reported(change, tonight.date, reports)
        reason = "" if acceptance is None else acceptance.reason
        changes.append(replace(change, fresh=not is_known, accepted=reason))
    return SetComparison(
        device=device,
        set=name,
        nights=found.nights,
        host_change=found.host_change,
        is_regressed=any(one.fresh and one.is_slower for one in changes),
        detectable={subject_id(one.subject): one.change for one in found.detectable if math.isfinite(one.change)},
        hidden=tuple(subject_id(one.subject) for one in found.detectable if not math.isfinite(one.change)),
        changes=tuple(changes),
        not_compared="" if found.findings or found.detectable else _why_not(tonight, earlier, found.nights),
    )


def was_reported(change: Change, night: str, reports: Sequence[StoredReport]) -> bool:
    """Return whether an earlier night reported this change, in the same direction, and it has lasted since then.

    The newest report that covers the subject decides. Reports of nights that did not watch the subject, or could not
    detect any change of it, do not cover it. Reports of stopped nights are ignored: nobody may have read them.
    """
    for reported, _, report in sorted(reports, key=lambda one: one[0], reverse=True):
        if reported >= night or report.get("stopped"):
            continue
        for compared in report["compared"]:
            if (compared["device"], compared["set"]) != (change.device, change.set):
                continue
            listed = [one for one in compared["changes"] if one.get("subject") == change.subject]
            if listed or change.subject in compared["detectable"]:
                return any(one["state"] != "passed" and (one["change"] or 0.0) * change.change > 0 for one in listed)
    return False


def subject_id(subject: Subject) -> str:
    """Return a name that is unique in the subject's set and the same every night; long ones end in a hash."""
    networks = f" in {', '.join(subject.networks)}" if subject.networks else ""
    text = f"{subject}{networks}"
    shown = printable(text, LONGEST_ID)
    if shown == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{printable(text, LONGEST_ID - len(digest) - 1)} {digest}"


def _why_not(tonight: WatchSeries, earlier: Sequence[WatchSeries], comparable: int) -> str:
    if not earlier:
        return "no earlier night watched this set"
    if comparable:
        return "tonight's watch and those of earlier nights have too few probes in common"
    last = earlier[-1]
    if last.clock != tonight.clock:
        return printable(f"the clock changed on {tonight.date[:10]} from {last.clock} to {tonight.clock}", 200)
    return "no earlier night was measured on this device"


def _change(device: str, set_name: str, finding: Finding) -> Change:
    low, high = finding.interval
    return Change(
        device=device,
        set=set_name,
        subject=subject_id(finding.subject),
        kind=finding.subject.kind,
        name=printable(finding.subject.name, 200),
        op=printable(finding.subject.op, 200),
        networks=tuple(printable(network, 200) for network in finding.subject.networks),
        state=finding.state,
        change=finding.change,
        interval=(max(low, -_BOUND), min(high, _BOUND)),
        p_value=finding.p_value,
        before_s=finding.latency_s,
        since=finding.since,
        fresh=False,
        causes=finding.causes,
        summary=finding.summary,
    )


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
