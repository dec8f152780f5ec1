"""The table of a device after a night: a new one if the night was complete, else the previous one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.errors import ConfigurationError, HarnessError, LutError, bug
from harness.fleet.profile_outcome import Failure
from harness.lut.table_choice import latest_lut
from harness.lut.table_files import read_lut
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.nightly.due_jobs import campaigns_of_nights
from harness.nightly.night_report import PublishedTable, SetRow
from harness.workspace import Workspace


def publish_table(workspace: Workspace, journal: Journal, device: str, rows: Sequence[SetRow]) -> PublishedTable:
    """Build a device's table if all of its jobs tonight are done, else keep the previous table.

    Deferred jobs are ignored: the table keeps their samples of earlier nights. A failed or skipped job keeps the
    previous table: a new one would lack its set without showing that.

    After a change of the device's fingerprint the previous table stays until all sets of the plan are measured again:
    a table holds samples of one fingerprint only. A table that an earlier run of the night published is not rebuilt.
    """
    done = [row for row in rows if row.status == "done"]
    missing = sorted((row for row in rows if row.status in ("failed", "skipped")), key=lambda row: row.status)
    if missing and (done or missing[0].status == "failed"):
        return _kept(workspace, device, f"{missing[0].set} was not measured: {missing[0].reason}")
    if not done:
        return _kept(workspace, device, rows[0].reason if rows else "nothing was measured tonight")
    current = _newest(workspace, device)
    newest = max(number for row in done for number in row.campaigns)
    if current is not None and newest in current[1]:
        return current[0]
    outdated = _outdated_sets(journal, device, rows)
    if outdated:
        return _kept(workspace, device, f"the device changed since {', '.join(outdated)} was measured")
    from harness.lut.build import build_lut  # loads an optimiser

    try:
        table = build_lut(device, workspace=workspace)
    except HarnessError as error:
        return _kept(workspace, device, f"no table could be built: {error.what}", Failure.of(error))
    except Exception as error:  # a bug that one device triggers must not end the night
        step = f"Run `harness --debug lut build --device {device}` and report its output"
        found = bug(error, "Building the table failed because of a bug in harness", step)
        return _kept(workspace, device, found.what, Failure.of(found))
    if (used := latest_lut(workspace.lut, device)) != table.path:
        what = f"{device}/{used.name} has a later date than {table.path.name}, and stays the newest table"
        later = ConfigurationError(what, next_step="If the clock was wrong, remove the table with the later date")
        return _kept(workspace, device, what, Failure.of(later))
    return PublishedTable(f"{device}/{table.path.name}", table.created, len(table.entries))


def _outdated_sets(journal: Journal, device: str, rows: Sequence[SetRow]) -> list[str]:
    """Return the sets whose newest samples have another fingerprint than the newest ones of all sets."""
    newest: dict[str, Campaign] = {}
    for one in campaigns_of_nights(journal, device, "profile"):
        if one.campaign.is_usable:
            newest[one.job.label] = one.campaign
    held = {row.set: newest[row.label] for row in rows if row.label in newest}
    if not held:
        return []
    now = max(held.values(), key=lambda campaign: (campaign.created, campaign.id)).fingerprint
    return [name for name, campaign in held.items() if campaign.fingerprint != now]


def _kept(workspace: Workspace, device: str, because: str, failure: Failure | None = None) -> PublishedTable:
    current = _newest(workspace, device)
    table = current[0] if current else PublishedTable(None)
    return replace(table, kept_because=because or "nothing was measured", failure=failure)


def _newest(workspace: Workspace, device: str) -> tuple[PublishedTable, frozenset[int]] | None:
    """Return the newest table and the campaigns of its entries, or None if no table can be read."""
    try:
        table = read_lut(latest_lut(workspace.lut, device), device)
    except LutError:  # a damaged table is replaced by a new one
        return None
    found = PublishedTable(f"{device}/{table.path.name}", table.created, len(table.entries))
    return found, frozenset(entry.campaign for entry in table.entries)
