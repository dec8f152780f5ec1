"""What a comparison of nights tells."""

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
    """A fact of the device that is another than it was; empty where it was not told."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return last_part(f"{self.key} {self.before or 'unknown'} -> {self.after or 'unknown'}", 200)


@dataclass(frozen=True)
class Finding:
    """A layer, a network or the device as a whole that is slower or faster than it was.

    `new`: since tonight. `step`: since the night of `since`, `nights` of them with tonight. `passed`: it was so for
    `nights` nights from `since` on, and no more from that of `until` on. `change` is a fraction of `latency_s`, what it
    took before; `interval` its 95 % interval; `p_value` holds over all subjects of the night. `is_fresh`: the night
    before could not tell it. `causes` is what changed of the device when it began.
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
        """Whether it is a layer, a network or the device."""
        return self.subject.kind

    @property
    def is_slower(self) -> bool:
        """Whether it became slower, not faster."""
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
    """A night beside earlier ones of the same device.

    `nights` is how many earlier ones there were. `changed` is what of the fingerprint is another than the night before.
    `device_change` and `host_change` are by how much the device as a whole and the overhead of an empty run were off
    the earlier nights, as fractions; `scatter` is that of probes' totals between nights which is reckoned with.
    `detectable` holds what could be compared, with the change that it would have taken.
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
        """What is slower tonight than it was."""
        return tuple(one for one in self.findings if one.state != "passed" and one.is_slower)

    @property
    def improvements(self) -> tuple[Finding, ...]:
        """What is faster tonight than it was."""
        return tuple(one for one in self.findings if one.state != "passed" and not one.is_slower)

    @property
    def passed(self) -> tuple[Finding, ...]:
        """What was off on earlier nights and is back."""
        return tuple(one for one in self.findings if one.state == "passed")

    @property
    def is_regressed(self) -> bool:
        """Whether a regression is told for the first time."""
        return any(one.is_fresh for one in self.regressions)

    @property
    def hidden(self) -> tuple[Detectable, ...]:
        """What of `detectable` tonight could not have shown at any size."""
        return tuple(one for one in self.detectable if not math.isfinite(one.change))


def fingerprint_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FingerprintChange, ...]:
    """Facts that differ, by name."""
    keys = sorted({*before, *after})
    return tuple(FingerprintChange(key, before.get(key, ""), after.get(key, "")) for key in keys
                 if before.get(key) != after.get(key))  # fmt: skip
