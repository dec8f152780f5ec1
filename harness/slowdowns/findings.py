"""The findings of a comparison of nights: which subjects are slower or faster, by how much, and since when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.slowdowns.subjects import Detectable, Kind, Subject
from harness.text import last_part

State = Literal["new", "step", "passed"]


@dataclass(frozen=True)
class FingerprintChange:
    """A fact of the device's fingerprint that changed; empty if the device did not report it."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return last_part(f"{self.key} {self.before or 'unknown'} -> {self.after or 'unknown'}", 200)


@dataclass(frozen=True)
class Finding:
    """A layer, a network or the device as a whole that is slower or faster than before.

    `state` is `new` (since tonight), `step` (since the night of `since`, on `nights` nights including tonight) or
    `passed` (on `nights` nights from `since` on, and back to normal from `until` on). `change` is a fraction of
    `latency_s`, the latency before; `interval` is its 95 % interval; `p_value` is corrected for all subjects of the
    night. `is_fresh` is true if the night before could not find it. `causes` are changes of the fingerprint on the
    first night.
    """

    subject: Subject
    state: State
    change: float
    interval: tuple[float, float]
    p_value: float
    latency_s: float
    since: str
    nights: int
    until: str | None
    is_fresh: bool
    causes: tuple[FingerprintChange, ...]

    @property
    def kind(self) -> Kind:
        """Layer, network or device."""
        return self.subject.kind

    @property
    def is_slower(self) -> bool:
        """Whether the subject became slower, not faster."""
        return self.change > 0

    @property
    def summary(self) -> str:
        """The finding in one line."""
        low, high = (100 * bound for bound in self.interval)
        size = f"{abs(100 * self.change):.1f} % [{min(abs(low), abs(high)):.1f}, {max(abs(low), abs(high)):.1f}]"
        what = f"{last_part(str(self.subject), 120)} {'is' if self.state != 'passed' else 'was'} {size}"
        line = f"{what} {'slower' if self.is_slower else 'faster'}, {self._when}"
        return f"{line}; likely cause: {', '.join(map(str, self.causes))}" if self.causes else line

    @property
    def _when(self) -> str:
        if self.state == "new":
            return "new tonight"
        if self.state == "step":
            return f"since {self.since[:10]} ({self.nights} nights)"
        nights = "one night" if self.nights == 1 else f"{self.nights} nights"
        return f"{nights} from {self.since[:10]}, back since {(self.until or '')[:10]}"


@dataclass(frozen=True)
class Comparison:
    """A night compared with `nights` earlier ones of the same device.

    `changed` lists what the fingerprint changed since the night before. `device_change` and `host_change` are the
    relative changes of the device as a whole and of an empty run; `scatter` is the assumed scatter of probes' totals
    between nights. `detectable` lists every subject that was compared, with its smallest detectable change.
    """

    device: str
    date: str
    nights: int
    findings: tuple[Finding, ...]
    detectable: tuple[Detectable, ...]
    changed: tuple[FingerprintChange, ...]
    device_change: float
    host_change: float
    scatter: float

    @property
    def regressions(self) -> tuple[Finding, ...]:
        """Subjects that are slower tonight."""
        return tuple(one for one in self.findings if one.state != "passed" and one.is_slower)

    @property
    def improvements(self) -> tuple[Finding, ...]:
        """Subjects that are faster tonight."""
        return tuple(one for one in self.findings if one.state != "passed" and not one.is_slower)

    @property
    def passed(self) -> tuple[Finding, ...]:
        """Subjects that changed on earlier nights and are back to normal."""
        return tuple(one for one in self.findings if one.state == "passed")

    @property
    def is_regressed(self) -> bool:
        """Whether a regression is found for the first time."""
        return any(one.is_fresh for one in self.regressions)

    @property
    def hidden(self) -> tuple[Detectable, ...]:
        """Subjects of which tonight detects no change of any size."""
        return tuple(one for one in self.detectable if not math.isfinite(one.change))


def fingerprint_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FingerprintChange, ...]:
    """Return the facts that differ, by name."""
    changes = (FingerprintChange(key, before.get(key, ""), after.get(key, "")) for key in sorted({*before, *after}))
    return tuple(one for one in changes if before.get(one.key) != after.get(one.key))
