"""Changes that a person accepts: later reports list them as accepted, not as regressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.errors import UsageError
from harness.fleet.store import Acceptance, FleetStore
from harness.text import did_you_mean
from harness.workspace import Workspace


def accept_changes(workspace: Workspace, device: str, names: Sequence[str], reason: str) -> tuple[Acceptance, ...]:
    """Accept the named changes of the newest report on a device, in every set that lists them.

    A name is that of a layer, a network or the device, or the full name of a subject. Raises UsageError for a name
    without a change in the report, and records nothing then.
    """
    with FleetStore(workspace.fleet) as store:
        reports = store.reports(1)
        if not reports:
            raise UsageError("No night has been reported yet", next_step="Run one with `harness nightly run`")
        night, _, report = reports[0]
        changes = list(_changes(report, device))
        found = [
            Acceptance(device, name_of_set, one["subject"], night, float(one["change"]), reason)
            for name in names
            for name_of_set, one in _named(changes, name, f"on {device} in the report of {night}")
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
    changes: Sequence[tuple[str, Mapping[str, Any]]], name: str, where: str
) -> list[tuple[str, Mapping[str, Any]]]:
    found = [(held, one) for held, one in changes if name in (one["name"], one["subject"])]
    if not found:
        known = dict.fromkeys(str(one["name"]) for _, one in changes)
        step = did_you_mean(name, known, "Changed are") if known else "The report lists no change of this device"
        raise UsageError(f"{name[:80]} has no change {where}", next_step=step[:400])
    return found
