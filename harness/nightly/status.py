"""The state of a workspace's nights: recent reports, the night that runs, and every device's table and health."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.errors import LutError
from harness.files import read_file
from harness.fleet.store import DeviceHealth, FleetStore
from harness.lut.table_choice import latest_lut
from harness.lut.table_files import MANIFEST
from harness.nightly.night_lock import Holder, running
from harness.workspace import Workspace

_MAX_BYTES = 1 << 26


@dataclass(frozen=True)
class PastNight:
    """A finished night; `jobs` counts its jobs by status, `attention` what needs attention."""

    night: str
    finished: str
    exit_code: int
    jobs: Mapping[str, int]
    regressions: int
    attention: int


@dataclass(frozen=True)
class DeviceStatus:
    """A device's newest table and its age, its health, and the sets that the last night deferred.

    The age is negative if the clock was set back since the table was made.
    """

    device: str
    health: DeviceHealth
    table: str | None
    age_s: float | None
    deferred: tuple[str, ...]


@dataclass(frozen=True)
class NightStatus:
    """The holder of the lock if a nightly runs, past nights (newest first), and devices by name."""

    running: Holder | None
    nights: tuple[PastNight, ...]
    devices: tuple[DeviceStatus, ...]


def night_status(workspace: Workspace, devices: Iterable[str] = (), limit: int = 7) -> NightStatus:
    """Return the state of the nights, of these devices and of those in the last report; raise JournalError.

    Reports of versions that were never released are left out.
    """
    if not workspace.fleet.exists():
        return NightStatus(running(workspace), (), ())
    with FleetStore(workspace.fleet, to_read=True) as store:
        reports = store.reports(limit)
        deferred = {
            row["device"]: tuple(one["set"] for one in row["sets"] if one["status"] == "deferred")
            for row in (reports[0][2]["devices"] if reports else ())
        }
        names = sorted({*devices, *deferred})
        found = tuple(_device(workspace, store.health(name), deferred.get(name, ())) for name in names)
    nights = tuple(_night(*one) for one in reports if "attention" in one[2])
    return NightStatus(running(workspace), nights, found)


def _night(night: str, finished: str, report: Mapping[str, Any]) -> PastNight:
    jobs = Counter(row["status"] for device in report["devices"] for row in device["sets"])
    return PastNight(night, finished, report["exit_code"], jobs, len(report["regressions"]), len(report["attention"]))


def _device(workspace: Workspace, health: DeviceHealth, deferred: tuple[str, ...]) -> DeviceStatus:
    table, age_s = None, None
    with contextlib.suppress(LutError, OSError, ValueError, KeyError, TypeError, RecursionError):
        folder = latest_lut(workspace.lut, health.device)
        table = f"{health.device}/{folder.name}"  # also of a damaged table: `harness lut check` reports what is wrong
        created = datetime.fromisoformat(json.loads(read_file(folder / MANIFEST, _MAX_BYTES))["created"])
        age_s = (datetime.now(UTC) - created).total_seconds()
    return DeviceStatus(health.device, health, table, age_s, deferred)
