"""The state of a workspace's nights: recent reports, the night that runs, and every device's table and health."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.errors import LutError
from harness.files import read_file
from harness.fleet.store import DeviceHealth, FleetStore
from harness.lut.table_files import MANIFEST, latest_lut
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
    """A device's newest table and its age, its health, and the sets that the last night deferred."""

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
    """Return the state of nights and of these devices and those of the last night; raise JournalError."""
    if not workspace.fleet.exists():
        return NightStatus(running(workspace), (), ())
    with FleetStore(workspace.fleet) as store:
        reports = store.reports(limit)
        rows: list[Mapping[str, Any]] = _list(reports[0][2], "devices") if reports else []
        deferred = {row["device"]: _deferred(row) for row in rows}
        names = sorted({*devices, *deferred})
        found = tuple(_device(workspace, store.health(name), deferred.get(name, ())) for name in names)
    return NightStatus(running(workspace), tuple(_night(*report) for report in reports), found)


def _night(night: str, finished: str, report: Mapping[str, object]) -> PastNight:
    jobs: dict[str, int] = {}
    for row in (row for device in _list(report, "devices") for row in device["sets"]):
        jobs[row["status"]] = jobs.get(row["status"], 0) + 1
    code = report.get("exit_code")
    regressions, attention = len(_list(report, "regressions")), len(_list(report, "chores"))
    return PastNight(night, finished, code if isinstance(code, int) else 1, jobs, regressions, attention)


def _deferred(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(one["set"] for one in row["sets"] if one["status"] == "deferred")


def _list(report: Mapping[str, object], key: str) -> list[Any]:
    found = report.get(key)
    return found if isinstance(found, list) else []


def _device(workspace: Workspace, health: DeviceHealth, deferred: tuple[str, ...]) -> DeviceStatus:
    try:
        folder = latest_lut(workspace.lut, health.device)
        created = datetime.fromisoformat(json.loads(read_file(folder / MANIFEST, _MAX_BYTES))["created"])
        age_s = (datetime.now(UTC) - created).total_seconds()
    except LutError:
        return DeviceStatus(health.device, health, None, None, deferred)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # `harness lut check` reports what is wrong
        return DeviceStatus(health.device, health, f"{health.device}/{folder.name}", None, deferred)
    return DeviceStatus(health.device, health, f"{health.device}/{folder.name}", age_s, deferred)
