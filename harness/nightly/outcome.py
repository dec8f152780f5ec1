"""What a night came to, as plain data: what was measured, what became slower, what needs a hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.errors import HarnessError, Interrupted, RegressionFound, gravest
from harness.fleet.profile_outcome import Failure
from harness.fleet.store import HealthName

RowStatus = Literal["done", "failed", "deferred", "skipped"]


@dataclass(frozen=True)
class SetRow:
    """A set on a device: what became of tonight's job.

    `reason` says why it is not done. `device_s` is time on the device, the watch included. `now` tells jobs of this
    run from those that an earlier run of the same night had done.
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

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SetRow:
        """The row that `dataclasses.asdict` made this of."""
        failure = record.get("failure")
        values = {**record, "campaigns": tuple(record["campaigns"]), "failure": failure and Failure(**failure)}
        return replace(cls(**values), now=False)


@dataclass(frozen=True)
class Published:
    """What became of a device's table: the `table` that counts from now on, and why it is the one of before.

    `table` is None where the device has none; `kept_because` is empty where tonight's was published.
    """

    table: str | None
    created: str = ""
    entries: int = 0
    kept_because: str = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class DeviceRow:
    """A device's night. `golden_s` is what its golden probe took last, `band_s` what it may take."""

    device: str
    health: HealthName
    health_reason: str
    sets: tuple[SetRow, ...]
    published: Published
    golden_s: float | None = None
    band_s: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def device_s(self) -> float:
        """Time on the device tonight."""
        return sum(row.device_s for row in self.sets)

    def count(self, status: RowStatus) -> int:
        """How many sets ended like this."""
        return sum(row.status == status for row in self.sets)


@dataclass(frozen=True)
class Chore:
    """Something that needs a hand: what, why, and the next step; `exit_code` as of the error behind it, or 0.

    `trace` is where a bug of harness came from.
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

    `change` and `interval` (95 %) are fractions, above zero where it is slower; `p_value` counts all that was looked
    at. `state` is new, a step (more nights than one) or passed (one night, and back since). `since` is the first night
    of it, `fresh` whether nobody was told before. `causes` are changes of the device's fingerprint. `subject` is the
    name under which `Compared` has it.
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
    told: str

    @property
    def after_s(self) -> float:
        """What it takes tonight."""
        return self.before_s * (1 + self.change)

    @property
    def is_slower(self) -> bool:
        """Whether it is slower, and still so."""
        return self.change > 0 and self.state != "passed"


@dataclass(frozen=True)
class Compared:
    """One set's night against earlier ones.

    `detectable` are the relative changes that would have been told with 95 % probability, by subject; `hidden` are
    subjects of which none would have. `not_compared` says why there was nothing to compare with. `host_change` is by
    how much an empty run took longer, as a fraction: that is taken off before anything is compared.
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
    """A night as it stands; `measured` jobs are the work of this run, the others were done before.

    `stopped` nights were left before all was measured; the next run of the same night goes on.
    """

    night: str
    plan: str
    started: str
    finished: str
    measured: int
    devices: tuple[DeviceRow, ...]
    chores: tuple[Chore, ...] = ()
    compared: tuple[Compared, ...] = ()
    stopped: bool = False

    @property
    def changes(self) -> tuple[Change, ...]:
        """All that is slower or faster than before, fresh ones first, then by size."""
        found = (change for one in self.compared for change in one.changes)
        return tuple(sorted(found, key=lambda one: (not one.fresh, -abs(one.change), one.device, one.name)))

    @property
    def regressions(self) -> tuple[Change, ...]:
        """What is slower, and still so."""
        return tuple(one for one in self.changes if one.is_slower)

    @property
    def improvements(self) -> tuple[Change, ...]:
        """What is faster, and still so."""
        return tuple(one for one in self.changes if one.change < 0 and one.state != "passed")

    @property
    def exit_code(self) -> int:
        """The gravest of all that happened; a regression counts in the night in which it is first told."""
        failures = [row.failure.exit_code for device in self.devices for row in device.sets if row.failure]
        regressed = [RegressionFound.exit_code] if any(one.is_regressed for one in self.compared) else []
        stopped = [Interrupted.exit_code] if self.stopped else []
        return gravest([*failures, *(chore.exit_code for chore in self.chores), *regressed, *stopped])

    @property
    def not_compared(self) -> tuple[Compared, ...]:
        """Sets that were watched, and could not be compared."""
        return tuple(one for one in self.compared if one.not_compared)

    def count(self, status: RowStatus) -> int:
        """How many jobs ended like this."""
        return sum(device.count(status) for device in self.devices)


def bug(what: str, error: Exception, next_step: str) -> Failure:
    """An error that nobody expected, told in full: it is one device's finding, and ends no night."""
    found = HarnessError(what, why=f"{type(error).__name__}: {error}", next_step=next_step)
    found.__cause__ = error
    return Failure.of(found)


def finite(data: Any) -> Any:
    """Plain data for JSON, in which a number that is none, or without end, becomes null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data
