"""A device's table of a night: published when it is complete, or the one of before."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import HarnessError, LutError
from harness.fleet.profile_outcome import Failure
from harness.lut.build import build_lut
from harness.lut.table_files import latest_lut, read_lut
from harness.measure.journal import Campaign, Journal
from harness.nightly.due_jobs import campaigns_of_nights
from harness.nightly.outcome import Published, SetRow, bug
from harness.workspace import Workspace


def publish_table(workspace: Workspace, journal: Journal, device: str, rows: Sequence[SetRow]) -> Published:
    """Builds a table once all of the device's jobs of the night are done, and keeps the one of before otherwise.

    Deferred ones do not count: their samples of earlier nights stay in the table. Without one that was to be measured
    and was not, a table would look complete and lack it.

    A device that has become another one keeps its table, too, until all sets of the plan were measured on it as it is
    now: a table holds one device, and would lose the others. A table that an earlier run of the same night has
    published is found, and is not built again.
    """
    done = [row for row in rows if row.status == "done"]
    failed = [row for row in rows if row.status == "failed"]
    if failed:
        return _kept(workspace, device, f"{failed[0].set} was not measured: {failed[0].reason}")
    if not done:
        return _kept(workspace, device, rows[0].reason if rows else "nothing was measured tonight")
    if skipped := [row for row in rows if row.status == "skipped"]:
        return _kept(workspace, device, f"{skipped[0].set} was not measured: {skipped[0].reason}")
    known = _newest(workspace, device)
    newest = max(number for row in done for number in row.campaigns)
    if known is not None and newest in known[1]:
        return known[0]
    missing = _measured_as_another(journal, device, rows)
    if missing:
        return _kept(workspace, device, f"the device has changed since {', '.join(missing)} was measured on it")
    try:
        table = build_lut(device, workspace=workspace)
    except HarnessError as error:
        return _kept(workspace, device, f"no table could be built: {error.what}", Failure.of(error))
    except Exception as error:  # a bug met on one device is that device's finding, and told in full
        step = f"Run `harness --debug lut build --device {device}`, report it"
        found = bug("Building the table met a bug in harness", error, step)
        return _kept(workspace, device, found.what, found)
    return Published(f"{device}/{table.path.name}", table.created, len(table.entries))


def _measured_as_another(journal: Journal, device: str, rows: Sequence[SetRow]) -> list[str]:
    """Sets whose newest samples are of the device as it was before tonight's newest ones."""
    newest: dict[str, Campaign] = {}
    for one in campaigns_of_nights(journal, device, "profile"):
        if one.campaign.complete and one.campaign.excluded is None:
            newest[one.job.label] = one.campaign
    held = {row.set: newest[row.label] for row in rows if row.label in newest}
    if not held:
        return []
    now = max(held.values(), key=lambda campaign: (campaign.created, campaign.id)).fingerprint
    return [name for name, campaign in held.items() if campaign.fingerprint != now]


def _kept(workspace: Workspace, device: str, because: str, failure: Failure | None = None) -> Published:
    known = _newest(workspace, device)
    before = known[0] if known else Published(None)
    return Published(before.table, before.created, before.entries, because or "nothing was measured", failure)


def _newest(workspace: Workspace, device: str) -> tuple[Published, frozenset[int]] | None:
    """The newest table and the campaigns that its entries are of; None where there is none that can be read."""
    try:
        table = read_lut(latest_lut(workspace.lut, device), device)
    except LutError:  # none yet, or one that `harness lut check` tells more of; a new one takes its place
        return None
    found = Published(f"{device}/{table.path.name}", table.created, len(table.entries))
    return found, frozenset(entry.campaign for entry in table.entries)
