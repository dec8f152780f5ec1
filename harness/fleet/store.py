"""The health of devices, their golden bands, and nights: SQLite, as durable as the journal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from harness.measure.journal.database import DurableFile, Schema

HealthName = Literal["good", "unknown", "bad", "maintenance", "retired"]
"""The health of a device; its state (idle, leased, running) is independent of it."""
OUT_OF_SERVICE: tuple[HealthName, ...] = ("maintenance", "retired")
"""Only a person sets and ends these."""

_SCHEMA = Schema(
    2,
    """
CREATE TABLE health (
    id INTEGER PRIMARY KEY, device TEXT NOT NULL, health TEXT NOT NULL, reason TEXT NOT NULL, since TEXT NOT NULL,
    told TEXT NOT NULL);
CREATE INDEX health_by_device ON health (device, id);
CREATE TABLE bands (
    device TEXT PRIMARY KEY, low_s REAL NOT NULL, high_s REAL NOT NULL, learnt TEXT NOT NULL,
    latencies_s TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, night TEXT NOT NULL, device TEXT NOT NULL, status TEXT NOT NULL, outcome TEXT NOT NULL,
    changed TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX jobs_by_night ON jobs (night);
CREATE TABLE reports (night TEXT PRIMARY KEY, finished TEXT NOT NULL, report TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE acceptances (
    device TEXT NOT NULL, "set" TEXT NOT NULL, subject TEXT NOT NULL, night TEXT NOT NULL, change REAL NOT NULL,
    reason TEXT NOT NULL, accepted TEXT NOT NULL, PRIMARY KEY (device, "set", subject)) WITHOUT ROWID;
""",
)

JobStatus = Literal["running", "done", "failed"]


@dataclass(frozen=True)
class DeviceHealth:
    """The health of a device, the reason, and since when (UTC, ISO 8601)."""

    device: str
    health: HealthName
    reason: str
    since: str


@dataclass(frozen=True)
class Band:
    """The accepted latencies of the golden probe on a device, in seconds.

    `learnt` is the time (UTC) at which it was computed from the medians of the first sessions, `latencies_s`, or
    `configured`.
    """

    low_s: float
    high_s: float
    learnt: str
    latencies_s: tuple[float, ...] = ()

    def holds(self, latency_s: float) -> bool:
        """Return whether a latency is inside."""
        return self.low_s <= latency_s <= self.high_s


@dataclass(frozen=True)
class NightJob:
    """The state of a job of a night; `outcome` is its result as plain JSON data."""

    name: str
    night: str
    device: str
    status: JobStatus
    outcome: Mapping[str, object]
    changed: str


@dataclass(frozen=True)
class Acceptance:
    """A change that a person intends: nights until `night` showed it, `change` is its relative size.

    `subject` is the name of the subject in the comparisons of its set.
    """

    device: str
    set: str
    subject: str
    night: str
    change: float
    reason: str

    def covers(self, since: str, change: float, halfwidth: float) -> bool:
        """Return whether a change of the subject is accepted: begun by the night, and no larger beyond its error."""
        return since[:10] <= self.night and 0 < change / self.change <= 1 + halfwidth / abs(self.change)


class FleetStore(DurableFile):
    """Health, golden bands and nights of one workspace; one per thread, use as a context manager."""

    SCHEMA = _SCHEMA
    TITLE = "The fleet store"
    SPARE = ", or move it away; device health is then unknown, and tonight's jobs are read from the journal"

    def health(self, device: str) -> DeviceHealth:
        """Return the health of a device; unknown if none was ever recorded."""
        history = self.history(device, 1)
        return history[0] if history else never_measured(device)

    def history(self, device: str, limit: int = 20) -> tuple[DeviceHealth, ...]:
        """Return the recorded healths of a device, newest first."""
        with self._reading():
            query = "SELECT device, health, reason, since FROM health WHERE device=? ORDER BY id DESC LIMIT ?"
            return tuple(DeviceHealth(*row) for row in self._db.execute(query, (device, limit)))

    def measured(self, device: str, health: HealthName, reason: str) -> DeviceHealth:
        """Record the health that a measurement shows, unless a person took the device out of service."""
        return self.mark(device, health, reason, standing=OUT_OF_SERVICE)

    def mark(
        self, device: str, health: HealthName, reason: str, *, standing: Sequence[HealthName] = ()
    ) -> DeviceHealth:
        """Record a health unless the present one is `standing`; `since` stays the same if the health does."""
        changed = now()
        with self.transaction():
            before = self.health(device)
            if before.health in standing or (before.health, before.reason) == (health, reason[:500]):
                return before
            since = before.since if before.health == health and before.since else changed
            values = (device, health, reason[:500], since, changed)
            self._db.execute("INSERT INTO health (device, health, reason, since, told) VALUES (?,?,?,?,?)", values)
        return DeviceHealth(device, health, reason[:500], since)

    def band(self, device: str) -> Band | None:
        """Return the golden band of a device; None before its first session."""
        with self._reading():
            query = "SELECT low_s, high_s, learnt, latencies_s FROM bands WHERE device=?"
            row = self._db.execute(query, (device,)).fetchone()
            return row and Band(row[0], row[1], row[2], tuple(json.loads(row[3])))

    def set_band(self, device: str, band: Band) -> None:
        """Record a band in place of the previous one."""
        values = (device, band.low_s, band.high_s, band.learnt, json.dumps(band.latencies_s))
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO bands VALUES (?,?,?,?,?)", values)

    def forget_band(self, device: str) -> bool:
        """Delete the golden bands of a device, for any number of threads, and return whether there was one."""
        own = "device=?1 OR substr(device, 1, length(?1) + 1) = ?1 || '/'"
        with self.transaction():
            return self._db.execute(f"DELETE FROM bands WHERE {own}", (device,)).rowcount > 0  # noqa: S608 - our own text

    def record_job(self, name: str, night: str, device: str, status: JobStatus, outcome: Mapping[str, object]) -> None:
        """Record the state of a job of a night."""
        values = (name, night, device, status, json.dumps(outcome, sort_keys=True, allow_nan=False), now())
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?,?,?,?,?,?)", values)

    def jobs(self, night: str) -> tuple[NightJob, ...]:
        """Return the jobs of a night, by name."""
        with self._reading():
            query = "SELECT name, device, status, outcome, changed FROM jobs WHERE night=? ORDER BY name"
            return tuple(
                NightJob(name, night, device, status, json.loads(outcome), changed)
                for name, device, status, outcome, changed in self._db.execute(query, (night,))
            )

    def accept(self, acceptance: Acceptance) -> None:
        """Record that a change is intended, in place of an earlier acceptance of its subject."""
        values = (*astuple(acceptance), now())
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO acceptances VALUES (?,?,?,?,?,?,?)", values)

    def acceptances(self) -> tuple[Acceptance, ...]:
        """Return all acceptances, by device, set and subject."""
        with self._reading():
            query = 'SELECT device, "set", subject, night, change, reason FROM acceptances ORDER BY 1, 2, 3'
            return tuple(Acceptance(*row) for row in self._db.execute(query))

    def record_report(self, night: str, report: Mapping[str, object]) -> None:
        """Record the report of a night."""
        values = (night, now(), json.dumps(report, sort_keys=True, allow_nan=False))
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO reports VALUES (?,?,?)", values)

    def reports(self, limit: int = 30) -> tuple[tuple[str, str, Mapping[str, Any]], ...]:
        """Return nights with the time of their end and their report, newest first."""
        with self._reading():
            rows = self._db.execute("SELECT night, finished, report FROM reports ORDER BY night DESC LIMIT ?", (limit,))
            return tuple((night, finished, json.loads(report)) for night, finished, report in rows)


def never_measured(device: str) -> DeviceHealth:
    """Return the health of a device without a record."""
    return DeviceHealth(device, "unknown", "never measured", "")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
