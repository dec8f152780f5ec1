"""What a plan wants of a night, job by job, and what earlier nights say of each; no device is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from harness.device.inventory import Device
from harness.errors import LutError
from harness.fleet.selection import select
from harness.fleet.store import FleetStore
from harness.lut.table import Entry
from harness.lut.table_files import latest_lut, read_lut
from harness.measure.journal import Campaign, Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest, SpaceRequest
from harness.measure.summary import Z_95
from harness.nightly.outcome import SetRow
from harness.nightly.plan import LayerSet, NightPlan
from harness.nightly.staleness import Staleness, by_staleness
from harness.slowdowns.power import level_of_each

_JOB = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})/([^/]+)/([^/]+)-([0-9a-f]{8})\Z")


@dataclass(frozen=True)
class JobName:
    """What the name of a night's job says: `NIGHT/DEVICE/SET-DIGEST`."""

    night: str
    device: str
    set: str
    digest: str

    @classmethod
    def parse(cls, text: object) -> JobName | None:
        """None where it is the name of another kind of job."""
        found = _JOB.match(text) if isinstance(text, str) else None
        return cls(*found.groups()) if found else None

    def __str__(self) -> str:
        return f"{self.night}/{self.device}/{self.label}"

    @property
    def label(self) -> str:
        """Set and digest, as `LayerSet.label`."""
        return f"{self.set}-{self.digest}"


@dataclass(frozen=True)
class Candidate:
    """A job that the plan wants tonight; `cost_s` is the time on the device it took last, None where nobody knows."""

    device: Device
    set: LayerSet
    job: ProfileRequest
    staleness: Staleness
    cost_s: float | None


@dataclass(frozen=True)
class NightlyCampaign:
    """A campaign that a night's job has begun."""

    job: JobName
    campaign: Campaign


def campaigns_of_nights(journal: Journal, device: str, purpose: str) -> tuple[NightlyCampaign, ...]:
    """Those of a device for one purpose, `profile` or `watch`, oldest first."""
    named = ((JobName.parse(one.settings.get("job")), one) for one in journal.campaigns(device))
    return tuple(
        NightlyCampaign(job, one) for job, one in named if job is not None and one.settings["purpose"] == purpose
    )


def candidates(
    plan: NightPlan, inventory: Mapping[str, Device], night: date, store: FleetStore, journal: Journal, tables: Path
) -> list[Candidate]:
    """The plan's jobs in the order in which they are wanted.

    Raises UnknownDevice for a device or a group that the inventory does not have.
    """
    wanted: dict[str, list[LayerSet]] = {}
    devices: dict[str, Device] = {}
    for one in plan.sets:
        for device in select(inventory, names=one.devices, groups=one.groups, everything=one.everything):
            devices[device.name] = device
            wanted.setdefault(device.name, []).append(one)
    costs = _costs(store, night, plan.keep)
    level = level_of_each(sum(one.space is None for sets in wanted.values() for one in sets))
    found = {
        (name, one.name): _candidate(plan, devices[name], one, night, staleness, costs, level)
        for name, sets in wanted.items()
        for one, staleness in _look(devices[name], sets, night, journal, tables)
    }
    listed = [found[name, one.name] for one in plan.sets for name in wanted if (name, one.name) in found]
    return by_staleness(listed, lambda one: one.staleness) if plan.order == "stale" else listed


def is_done(row: SetRow | None, campaigns: Mapping[int, Campaign]) -> bool:
    """Whether a job's result is still there: its campaigns complete, and none of them excluded."""
    if row is None or row.status != "done":
        return False
    held = [campaigns.get(number) for number in row.campaigns]
    return bool(held) and all(one is not None and one.complete and one.excluded is None for one in held)


def _candidate(
    plan: NightPlan,
    device: Device,
    one: LayerSet,
    night: date,
    staleness: Staleness,
    costs: Mapping[tuple[str, str], float],
    level: float,
) -> Candidate:
    budgets = [budget for budget in (one.budget_s, plan.budget_s) if budget is not None]
    budget_s = min(budgets, default=None)
    name = str(JobName(night.isoformat(), device.name, one.name, one.digest))
    policy = RepeatPolicy(runs=one.runs, budget_s=budget_s)
    job = ProfileRequest(
        device=device.name,
        models=one.networks,
        space=None if one.space is None else SpaceRequest(one.space),
        name=name,
        policy=policy,
        dims=dict(one.dims),
        watch_level=level if one.space is None else None,  # a space has no networks that could become slower
    )
    known = costs.get((device.name, one.label), one.budget_s)
    return Candidate(device, one, job, staleness, known)


def _costs(store: FleetStore, night: date, nights: int) -> dict[tuple[str, str], float]:
    """Time on the device that a set took the last time it was measured, by device and label of the set."""
    costs: dict[tuple[str, str], float] = {}
    for named, _, report in store.reports(nights):
        devices = report.get("devices")
        if named >= night.isoformat() or not isinstance(devices, list):
            continue
        for device, row in ((one["device"], row) for one in devices for row in one["sets"]):
            if row["status"] == "done":
                costs.setdefault((device, row["label"]), row["device_s"])
    return costs


def _look(
    device: Device, sets: Sequence[LayerSet], night: date, journal: Journal, tables: Path
) -> Iterator[tuple[LayerSet, Staleness]]:
    """How stale each set is on a device."""
    entries: dict[tuple[str, str], list[Entry]] | None = None
    known = campaigns_of_nights(journal, device.name, "profile")
    for one in sets:
        mine = [
            held
            for held in known
            if held.job.label == one.label
            and held.campaign.complete
            and held.campaign.excluded is None
            and held.job.night < night.isoformat()
        ]
        if not mine:
            yield one, Staleness(None, weight=one.weight)
            continue
        newest = max(mine, key=lambda held: (held.job.night, held.campaign.id))
        entries = _entries(tables, device.name) if entries is None else entries
        nights = (night - date.fromisoformat(newest.job.night)).days
        yield one, Staleness(nights, _uncertainty(journal, newest.campaign, entries), one.weight)


def _uncertainty(journal: Journal, campaign: Campaign, entries: Mapping[tuple[str, str], Sequence[Entry]]) -> float:
    """Widths of the intervals of a campaign's layers as a share of their latencies; 1 where no table has them."""
    places = {(layer.key.digest, layer.context) for layer in journal.layers(campaign.id)}
    held = [entry for place in places for entry in entries.get(place, ())]
    whole_s = sum(entry.latency_s for entry in held)
    return min(1.0, sum(Z_95 * entry.stderr_s for entry in held) / whole_s) if whole_s > 0 else 1.0


def _entries(tables: Path, device: str) -> dict[tuple[str, str], list[Entry]]:
    """Entries of the newest table by layer and context; none where there is no table that can be read."""
    found: dict[tuple[str, str], list[Entry]] = {}
    try:
        table = read_lut(latest_lut(tables, device), device)
    except LutError:  # told where the table is used; what it says is unknown here
        return found
    for entry in table.entries:
        found.setdefault((entry.key, entry.context.partition("@")[0]), []).append(entry)
    return found
