"""The history of every watched set: the latency of its subjects over the nights, with steps; and accepted changes.

Later reports list changes that a person accepts as accepted, not as regressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import UsageError
from harness.fleet.store import Acceptance, FleetStore
from harness.measure.journal.journal import Journal
from harness.nightly.due_jobs import campaigns_of_nights
from harness.nightly.set_comparison import read_watches, subject_id, watched_sets, watches_of_set
from harness.slowdowns.subject_history import SubjectHistory, histories
from harness.text import did_you_mean
from harness.workspace import Workspace


@dataclass(frozen=True)
class SetHistory:
    """One set on one device: its nights, its subjects over these nights, and the accepted changes by subject.

    Without two comparable nights there are no subjects. `machine` is the verdict on the machine in the last night,
    empty where there is none.
    """

    device: str
    set: str
    clock: str
    nights: tuple[str, ...]
    subjects: tuple[SubjectHistory, ...]
    accepted: tuple[Acceptance, ...]
    machine: str = ""

    def acceptance(self, history: SubjectHistory) -> Acceptance | None:
        """Return the acceptance of a subject's last step, None if nobody accepted it."""
        if not history.steps:
            return None
        step, last, name = history.steps[-1], history.nights[-1], subject_id(history.subject)
        halfwidth = last.halfwidth_s / last.level_s * (1 + step.change)  # of the level before, as the change is
        return next(
            (one for one in self.accepted if one.subject == name and one.covers(step.night, step.change, halfwidth)),
            None,
        )


def set_histories(
    workspace: Workspace, devices: Sequence[str], nights: int, threshold: float
) -> tuple[SetHistory, ...]:
    """Return the last `nights` nights of each set on these devices, by default on all devices of reported nights.

    Raises UsageError without a night, and for a device that no report has; JournalError.
    """
    if not workspace.fleet.exists() or not workspace.journal.exists():
        raise _no_night()
    with FleetStore(workspace.fleet, to_read=True) as store, Journal(workspace.journal, to_read=True) as journal:
        rows = [row for _, _, report in store.reports(nights) for row in report["devices"]]
        machines = {
            (row["device"], one["set"]): one.get("machine", "") for row in reversed(rows) for one in row["sets"]
        }
        known = sorted({row["device"] for row in rows})
        if not known:
            raise _no_night()
        for device in devices:
            if device not in known:
                step = did_you_mean(device, known, "Measured are")
                raise UsageError(f"No night has measured {device[:80]}", next_step=step)
        accepted = store.acceptances()
        return tuple(
            replace(
                _set_history(journal, device, name, nights, threshold, accepted),
                machine=machines.get((device, name), ""),
            )
            for device in devices or known
            for name in watched_sets(journal, device)
        )


def _set_history(
    journal: Journal, device: str, name: str, nights: int, threshold: float, accepted: Sequence[Acceptance]
) -> SetHistory:
    held = watches_of_set(campaigns_of_nights(journal, device, "watch"), name)
    series = read_watches(journal, held, nights)
    return SetHistory(
        device=device,
        set=name,
        clock=series[-1].clock,
        nights=tuple(one.date for one in series),
        subjects=histories(series, threshold),
        accepted=tuple(one for one in accepted if (one.device, one.set) == (device, name)),
    )


def _no_night() -> UsageError:
    return UsageError("No night has been reported yet", next_step="Run one with `harness nightly run`")


def accept_changes(workspace: Workspace, device: str, names: Sequence[str], reason: str) -> tuple[Acceptance, ...]:
    """Accept the named changes that the newest report lists for a device, in all its sets; ignore stopped nights.

    A name is that of a layer, a network or the device, or the full name of a subject. Raises UsageError for a name
    without a change in the report, and records nothing then.
    """
    with FleetStore(workspace.fleet) as store:
        found_night = next((one for one in store.reports() if not one[2].get("stopped")), None)
        if found_night is None:
            raise _no_night()
        night, _, report = found_night
        changes = list(_changes(report, device))
        changed = [
            name for name in dict.fromkeys(one["device"] for one in report["compared"]) if any(_changes(report, name))
        ]
        found = [
            Acceptance(device, name_of_set, one["subject"], night, float(one["change"]), reason)
            for name in names
            for name_of_set, one in _named(changes, name, f"on {device} in the report of {night}", changed)
        ]
        for one in found:
            store.accept(one)
    return tuple(found)


def _changes(report: Mapping[str, Any], device: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the changes of a report that hold on a device, each with the name of its set."""
    for compared in report["compared"]:
        for one in compared["changes"]:
            if compared["device"] == device and one["state"] != "passed" and one["change"]:
                yield compared["set"], one


def _named(
    changes: Sequence[tuple[str, Mapping[str, Any]]], name: str, where: str, changed: Sequence[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    found = [(held, one) for held, one in changes if name in (one["name"], one["subject"])]
    if not found:
        known = dict.fromkeys(str(one["name"]) for _, one in changes)
        others = (
            f"It lists changes of {', '.join(changed)}: name one with --device"
            if changed
            else "Nothing needs to be accepted: it lists no change"
        )
        step = did_you_mean(name, known, "Changed are") if known else others
        raise UsageError(f"{name[:80]} has no change {where}", next_step=step[:400])
    return found
