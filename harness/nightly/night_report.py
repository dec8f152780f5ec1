"""The report of a night as plain data: what was measured, what became slower, and what needs attention.

The store keeps reports and the rows of jobs as JSON (`json_data`), and later nights read them: the names of the fields
are the keys of that JSON and of `harness nightly --json`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from harness.errors import Interrupted, RegressionFound, gravest
from harness.fleet.profile_outcome import Failure
from harness.fleet.store import HealthName
from harness.network.network_list import RefusedNetwork

RowStatus = Literal["done", "failed", "deferred", "skipped"]


@dataclass(frozen=True)
class SetRow:
    """The result of one set on one device tonight.

    `reason` says why the set is not done. `device_s` is time on the device, including the watch campaign. `now` is true
    for jobs of this run, and false for jobs that an earlier run of the same night finished. `refused_networks` are
    networks of a set that was measured without them. `machine` is the verdict on the machine during the
    measurement, empty if there is none.
    """

    set: str
    label: str
    job: str
    status: RowStatus
    reason: str = ""
    device_s: float = 0.0
    attempts: int = 0
    probes: int = 0
    refused: int = 0
    unsettled: int = 0
    campaigns: tuple[int, ...] = ()
    watch: int | None = None
    golden_s: float | None = None
    started: str = ""
    ended: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    failure: Failure | None = None
    now: bool = False
    refused_networks: tuple[RefusedNetwork, ...] = ()
    machine: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SetRow:
        """Return the row that `json_data` made this record of."""
        failure = record["failure"]
        refused = tuple(RefusedNetwork(**one) for one in record["refused_networks"])
        values = {**record, "campaigns": tuple(record["campaigns"]), "failure": failure and Failure(**failure)}
        return replace(cls(**values), now=False, refused_networks=refused)


@dataclass(frozen=True)
class PublishedTable:
    """A device's current table after the night.

    `table` is None if the device has none. `kept_because` says why the previous table stays; it is empty if tonight's
    table was published. Why a set was not measured is in its row.
    """

    table: str | None
    created: str = ""
    entries: int = 0
    kept_because: str = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class DeviceRow:
    """A device's night. `golden_s` is the last latency of its golden probe, `band_s` the range that it must be in."""

    device: str
    health: HealthName
    health_reason: str
    sets: tuple[SetRow, ...]
    published: PublishedTable
    golden_s: float | None = None
    band_s: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def device_s(self) -> float:
        """Time on the device tonight."""
        return sum(row.device_s for row in self.sets)


@dataclass(frozen=True)
class AttentionItem:
    """Something that needs a person's attention: what, why, and the next step.

    `exit_code` is that of its error, or 0. `trace` is the stack trace of a bug in harness.
    """

    device: str
    kind: str
    what: str
    why: str
    next_step: str
    exit_code: int = 0
    trace: str = ""


@dataclass(frozen=True)
class Change:
    """A layer, a network or a whole device that is slower or faster than on earlier nights.

    `change` and `interval` (95 %) are fractions, positive if it is slower; `p_value` is corrected for all subjects of
    the night. `state` is `new`, `step` (for several nights) or `passed` (back to normal). `since` is the first night of
    the change; `fresh` is true if no earlier report listed it. `causes` are changes of the device's fingerprint.
    `subject` is the subject's name in `SetComparison`, `summary` the change in one line. `accepted` is the reason for
    which a person accepted the change, empty if nobody did.
    """

    device: str
    set: str
    subject: str
    kind: str
    name: str
    op: str
    networks: tuple[str, ...]
    state: str
    change: float
    interval: tuple[float, float]
    p_value: float
    before_s: float
    since: str
    fresh: bool
    causes: tuple[str, ...]
    summary: str
    accepted: str = ""

    @property
    def after_s(self) -> float:
        """The latency tonight."""
        return self.before_s * (1 + self.change)

    @property
    def is_slower(self) -> bool:
        """Whether the subject is slower now, and nobody accepted that."""
        return self.is_current and self.change > 0

    @property
    def is_current(self) -> bool:
        """Whether the change holds, and nobody accepted it."""
        return self.state != "passed" and not self.accepted


@dataclass(frozen=True)
class SetComparison:
    """One set's night compared with earlier nights.

    `detectable` maps each subject to the smallest relative change that tonight detects with 95 % probability; `hidden`
    lists subjects for which no change is detectable. `not_compared` says why there was nothing to compare with.
    `host_change` is the relative change of an empty run, which is subtracted before anything is compared.
    """

    device: str
    set: str
    nights: int
    is_regressed: bool
    detectable: Mapping[str, float] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    not_compared: str = ""
    host_change: float = 0.0


@dataclass(frozen=True)
class NightReport:
    """A night's report. `measured` counts the jobs of this run; earlier runs of the same night did the others.

    `stopped` is true if the night ended before all sets were measured; the next run of the same night continues it.
    """

    night: str
    plan: str
    started: str
    finished: str
    measured: int
    devices: tuple[DeviceRow, ...]
    attention: tuple[AttentionItem, ...] = ()
    compared: tuple[SetComparison, ...] = ()
    stopped: bool = False

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes: those that no earlier report listed first, then by size."""
        found = (change for one in self.compared for change in one.changes)
        return tuple(sorted(found, key=lambda one: (not one.fresh, -abs(one.change), one.device, one.name)))

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Changes to slower that still hold."""
        return tuple(one for one in self.changes if one.is_slower)

    @property
    def improvements(self) -> tuple[Change, ...]:
        """Changes to faster that still hold."""
        return tuple(one for one in self.changes if one.change < 0 and one.is_current)

    @property
    def accepted(self) -> tuple[Change, ...]:
        """Changes that hold and that a person accepted."""
        return tuple(one for one in self.changes if one.state != "passed" and one.accepted)

    @property
    def exit_code(self) -> int:
        """The gravest code of all that happened; a slow-down counts in the first night that reports it."""
        failures = [row.failure.exit_code for device in self.devices for row in device.sets if row.failure]
        regressed = [RegressionFound.exit_code] if any(one.is_regressed for one in self.compared) else []
        stopped = [Interrupted.exit_code] if self.stopped else []
        return gravest([*failures, *(item.exit_code for item in self.attention), *regressed, *stopped])

    @property
    def not_compared(self) -> tuple[SetComparison, ...]:
        """Sets that were watched but could not be compared."""
        return tuple(one for one in self.compared if one.not_compared)

    @property
    def not_compared_by_reason(self) -> dict[str, list[str]]:
        """The names of sets and devices that could not be compared, by the reason."""
        return by_reason((one.not_compared, f"{one.set} on {one.device}") for one in self.not_compared)

    def count(self, status: RowStatus) -> int:
        """Return how many jobs have this status."""
        return sum(row.status == status for device in self.devices for row in device.sets)

    @property
    def data(self) -> dict[str, Any]:
        """The report as JSON data, as the store keeps it and `harness nightly run --json` prints it."""
        lists = {"regressions": self.regressions, "improvements": self.improvements}
        return {**json_data(self), "exit_code": self.exit_code, **json_data(lists)}


def by_reason(items: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that share a reason, from pairs of a reason and a name; an empty reason is left out."""
    found: dict[str, list[str]] = {}
    for reason, name in items:
        if reason:
            found.setdefault(reason, []).append(name)
    return found


def json_data(value: Any) -> Any:
    """Return a value as JSON data: dataclasses as objects; numbers that are infinite or undefined as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: json_data(one) for key, one in value.items()}
    return [json_data(one) for one in value] if isinstance(value, list | tuple) else value
