"""The jobs that are due tonight, with their staleness and cost from earlier nights. No device is contacted."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypeVar

from harness.device.inventory import Device
from harness.errors import LutError
from harness.fleet.device_selection import select
from harness.fleet.store import FleetStore
from harness.lut.table import Entry
from harness.lut.table_choice import latest_lut
from harness.lut.table_files import read_lut
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest, SpaceRequest
from harness.measure.summary import Z_95
from harness.nightly.night_plan import LayerSet, NightPlan
from harness.nightly.night_report import SetRow
from harness.slowdowns.detection_power import level_of_each

_JOB = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})/([^/]+)/([^/]+)-([0-9a-f]{8})\Z")
Item = TypeVar("Item")


@dataclass(frozen=True)
class JobName:
    """The name of a night's job, `NIGHT/DEVICE/SET-DIGEST`, in its parts."""

    night: str
    device: str
    set: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> JobName | None:
        """Return the parts of a name, or None if it is not the job of a night."""
        found = _JOB.match(text)
        return cls(*found.groups()) if found else None

    def __str__(self) -> str:
        return f"{self.night}/{self.device}/{self.label}"

    @property
    def label(self) -> str:
        """Set and digest, as `LayerSet.label`."""
        return f"{self.set}-{self.digest}"


@dataclass(frozen=True)
class DueJob:
    """A job that the plan asks for tonight; `cost_s` is the device time that it last took, None if it is unknown."""

    device: Device
    set: LayerSet
    job: ProfileRequest
    staleness: Staleness
    cost_s: float | None


@dataclass(frozen=True)
class NightlyCampaign:
    """A campaign that a night's job began."""

    job: JobName
    campaign: Campaign


def campaigns_of_nights(journal: Journal, device: str, *purposes: str) -> list[NightlyCampaign]:
    """Return a device's nightly campaigns for these purposes, `profile` or `watch`, oldest first."""
    found = [one for one in journal.campaigns(device) if one.purpose in purposes]
    return [NightlyCampaign(job, one) for one in found if (job := JobName.parse(one.job))]


def due_jobs(
    plan: NightPlan, inventory: Mapping[str, Device], night: date, store: FleetStore, journal: Journal, tables: Path
) -> list[DueJob]:
    """Return the plan's jobs in the plan's order.

    Raises UnknownDevice for a device or a group that the inventory does not have.
    """
    sets_of: dict[str, list[LayerSet]] = {}
    devices: dict[str, Device] = {}
    for one in plan.sets:
        chosen = one.settings
        for device in select(inventory, names=chosen.devices, groups=chosen.groups, everything=chosen.all):
            devices[device.name] = device
            sets_of.setdefault(device.name, []).append(one)
    costs = _costs(store, night, plan.settings.keep)
    level = level_of_each(sum(one.settings.space is None for sets in sets_of.values() for one in sets))
    jobs = [
        DueJob(
            device=devices[name],
            set=one,
            job=_job(plan, name, one, night, level),
            staleness=staleness,
            cost_s=costs.get((name, one.label), one.settings.budget_s),
        )
        for name, sets in sets_of.items()
        for one, staleness in _staleness(name, sets, night, journal, tables)
    ]
    jobs.sort(key=lambda one: plan.sets.index(one.set))
    return by_staleness(jobs, lambda one: one.staleness) if plan.settings.order == "stale" else jobs


def is_done(row: SetRow | None, campaigns: Mapping[int, Campaign]) -> bool:
    """Return whether a job's campaigns still exist, complete and not excluded."""
    if row is None or row.status != "done":
        return False
    held = [campaigns.get(number) for number in row.campaigns]
    return bool(held) and all(one is not None and one.is_usable for one in held)


def _job(plan: NightPlan, device: str, layer_set: LayerSet, night: date, level: float) -> ProfileRequest:
    settings = layer_set.settings
    budgets = [budget for budget in (settings.budget_s, plan.settings.budget_s) if budget is not None]
    runs = None if settings.runs == "auto" else settings.runs
    wall_s = settings.time_limit_s or plan.settings.time_limit_s
    return ProfileRequest(
        device=device,
        models=settings.networks,
        space=None if settings.space is None else SpaceRequest(settings.space),
        name=str(JobName(night.isoformat(), device, layer_set.name, layer_set.digest)),
        policy=RepeatPolicy(runs=runs, budget_s=min(budgets, default=None), wall_s=wall_s),
        dims=dict(settings.dims),
        watch_level=level if settings.space is None else None,  # a space has no networks that could become slower
    )


def _costs(store: FleetStore, night: date, nights: int) -> dict[tuple[str, str], float]:
    """Return the device time of each set's last measurement, by device and label of the set."""
    costs: dict[tuple[str, str], float] = {}
    for reported, _, report in store.reports(nights):
        for one in report["devices"] if reported < night.isoformat() else ():
            for row in one["sets"]:
                if row["status"] == "done":
                    costs.setdefault((one["device"], row["label"]), row["device_s"])
    return costs


def _staleness(
    device: str, sets: Sequence[LayerSet], night: date, journal: Journal, tables: Path
) -> Iterator[tuple[LayerSet, Staleness]]:
    """Yield each set with its staleness on a device."""
    entries = functools.cache(lambda: _entries(tables, device))  # reading a table takes time that new sets do not need
    usable = [
        one
        for one in campaigns_of_nights(journal, device, "profile")
        if one.campaign.is_usable and one.job.night < night.isoformat()
    ]
    for one in sets:
        weight = one.settings.weight
        own = [held for held in usable if held.job.label == one.label]
        newest = max(own, key=lambda held: (held.job.night, held.campaign.id), default=None)
        if newest is None:
            yield one, Staleness(None, weight=weight)
            continue
        nights = (night - date.fromisoformat(newest.job.night)).days
        yield one, Staleness(nights, _uncertainty(journal, newest.campaign, entries()), weight)


def _uncertainty(journal: Journal, campaign: Campaign, entries: Mapping[tuple[str, str], Sequence[Entry]]) -> float:
    """Return the half-widths of the intervals of a campaign's layers as a share of their latencies, at most 1."""
    places = {(layer.key.digest, layer.context) for layer in journal.layers(campaign.id)}
    held = [entry for place in places for entry in entries.get(place, ())]
    whole_s = sum(entry.remainder_s for entry in held)
    return min(1.0, sum(Z_95 * entry.remainder_stderr_s for entry in held) / whole_s) if whole_s > 0 else 1.0


def _entries(tables: Path, device: str) -> dict[tuple[str, str], list[Entry]]:
    """Return the entries of the newest table by layer and context; empty if no table can be read."""
    found: dict[tuple[str, str], list[Entry]] = {}
    try:
        table = read_lut(latest_lut(tables, device), device)
    except LutError:  # reported where the table is used
        return found
    for entry in table.entries:
        found.setdefault((entry.key, entry.context.partition("@")[0]), []).append(entry)
    return found


@dataclass(frozen=True)
class Staleness:
    """How urgently a set needs a measurement on a device.

    `nights` counts the nights since its newest complete campaign that is not excluded; None if there is none.
    `uncertainty` is the width of the newest table's intervals for the set's layers as a share of their latencies, 1 if
    no table has them. `weight` multiplies the age.
    """

    nights: int | None
    uncertainty: float = 1.0
    weight: float = 1.0

    @property
    def urgency(self) -> tuple[float, float]:
        """The weighted age, infinite for a set that was never measured, then the uncertainty.

        Age grows every night and nothing else does, so every set gets its turn.
        """
        age = math.inf if self.nights is None else self.weight * self.nights
        return age, self.uncertainty


def by_staleness(items: Sequence[Item], staleness: Callable[[Item], Staleness]) -> list[Item]:
    """Return the items by descending urgency; equally urgent ones keep their order."""
    return sorted(items, key=lambda item: tuple(-part for part in staleness(item).urgency))


def within_budget(
    items: Sequence[Item], cost_s: Callable[[Item], float | None], budget_s: float | None, spent_s: float
) -> list[Item]:
    """Return the jobs of one device that may start now, in their order.

    A job of known cost may start if it still fits, even past a job that does not. After a job of unknown cost no other
    one starts until that job's cost is known. The first job of a night always starts: a set that exceeds the budget
    would never be measured otherwise.
    """
    if budget_s is None:
        return list(items)
    now: list[Item] = []
    expected_s, unknown = spent_s, False
    for item in items:
        cost = cost_s(item)
        is_first = expected_s == 0 and not now
        fits = expected_s < budget_s if cost is None else expected_s + cost <= budget_s
        if is_first or (fits and not unknown):
            now.append(item)
            expected_s += cost or 0.0
            unknown |= cost is None
    return now
