"""How a workspace's nights stand: the last ones, the one that runs, and every device's table and health."""

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
from harness.nightly.lock import Holder, running
from harness.workspace import Workspace

_MAX_BYTES = 1 << 26


@dataclass(frozen=True)
class PastNight:
    """A night that was reported: jobs by what became of them."""

    night: str
    finished: str
    exit_code: int
    jobs: Mapping[str, int]
    regressions: int
    chores: int


@dataclass(frozen=True)
class DeviceStatus:
    """A device: its newest table and how old that is, its health, and sets that the last night had no room for."""

    device: str
    health: DeviceHealth
    table: str | None
    age_s: float | None
    deferred: tuple[str, ...]


@dataclass(frozen=True)
class NightStatus:
    """The holder of the lock where a nightly runs, nights newest first, devices by name."""

    running: Holder | None
    nights: tuple[PastNight, ...]
    devices: tuple[DeviceStatus, ...]


def night_status(workspace: Workspace, devices: Iterable[str] = (), limit: int = 7) -> NightStatus:
    """How nights stand, of these devices and those of the last night; writes nothing, raises JournalError."""
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
    regressions, chores = len(_list(report, "regressions")), len(_list(report, "chores"))
    return PastNight(night, finished, code if isinstance(code, int) else 1, jobs, regressions, chores)


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
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):  # `harness lut check` tells what is wrong with it
        return DeviceStatus(health.device, health, f"{health.device}/{folder.name}", None, deferred)
    return DeviceStatus(health.device, health, f"{health.device}/{folder.name}", age_s, deferred)
