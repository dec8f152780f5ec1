"""The findings of a comparison of nights: which subjects are slower or faster, by how much, and since when."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.text import last_part

Kind = Literal["layer", "network", "device"]
State = Literal["new", "step", "passed"]
UNCHANGED = "fingerprint unchanged"
"""The cause of a change if none of the facts that latencies depend on has changed."""


@dataclass(frozen=True)
class Subject:
    """A layer, a network or a device that may become slower; `networks` are those that hold a layer."""

    kind: Kind
    name: str
    op: str = ""
    networks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}{f' ({self.op})' if self.op else ''}"


@dataclass(frozen=True)
class Detectable:
    """The smallest relative change of a subject that is found with 95 % probability; infinite if none is."""

    subject: Subject
    change: float


@dataclass(frozen=True)
class Finding:
    """A layer, a network or the device as a whole that is slower or faster than before.

    `state` is `new` (since tonight), `step` (since the night of `since`, on `nights` nights including tonight) or
    `passed` (on `nights` nights from `since` on, and back to normal from `until` on). `change` is a fraction of
    `latency_s`, the latency before; `interval` is its 95 % interval; `p_value` is corrected for all subjects of the
    night. `causes` are changes of the fingerprint on the first night.
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
    causes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The finding in one line."""
        low, high = sorted(abs(100 * bound) for bound in self.interval)
        verb = "was" if self.state == "passed" else "is"
        what = f"{last_part(str(self.subject), 120)} {verb} {abs(100 * self.change):.1f} % [{low:.1f}, {high:.1f}]"
        line = f"{what} {'slower' if self.change > 0 else 'faster'}, {self._when}"
        return f"{line}; likely cause: {', '.join(self.causes)}" if self.causes else line

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

    `host_change` is the relative change of an empty run; `scatter` is the assumed scatter of probes' totals between
    nights. `detectable` lists every subject that was compared.
    """

    nights: int = 0
    findings: tuple[Finding, ...] = ()
    detectable: tuple[Detectable, ...] = ()
    host_change: float = 0.0
    scatter: float = 0.0

    @property
    def regressions(self) -> tuple[Finding, ...]:
        """Subjects that are slower tonight."""
        return tuple(one for one in self.findings if one.state != "passed" and one.change > 0)


def fingerprint_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the facts that differ, by name, each as `KEY BEFORE -> AFTER`."""
    return tuple(
        last_part(f"{key} {before.get(key) or 'unknown'} -> {after.get(key) or 'unknown'}", 200)
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
