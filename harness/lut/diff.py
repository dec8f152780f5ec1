"""Compare two tables: the layers whose latency changed, by size and significance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.lut.table import Entry, Lut

SIGNIFICANT_Z = 3.0
RELEVANT_CHANGE = 0.02


@dataclass(frozen=True)
class EntryChange:
    """A layer whose latency changed; `z` is the change in standard errors."""

    key: str
    context: str
    op: str
    before_s: float
    after_s: float
    ratio: float
    z: float


@dataclass(frozen=True)
class LutChanges:
    """All changes, largest first; `total_ratio` is that of the sums over the `common` layers, after to before."""

    changed: tuple[EntryChange, ...]
    common: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    total_ratio: float
    fingerprint: Mapping[str, tuple[str, str]]


def compare(before: Lut, after: Lut) -> LutChanges:
    """Return the layers that changed by more than 2 % and three standard errors, and those in only one table."""
    common = sorted(before.by_place.keys() & after.by_place.keys())
    changes = [_change(before.by_place[place], after.by_place[place]) for place in common]
    changed = [one for one in changes if abs(one.z) > SIGNIFICANT_Z and abs(one.ratio - 1) > RELEVANT_CHANGE]
    before_s, after_s = (sum(table.by_place[place].remainder_s for place in common) for table in (before, after))
    names = sorted({*before.fingerprint, *after.fingerprint})
    return LutChanges(
        changed=tuple(sorted(changed, key=lambda one: -abs(one.after_s - one.before_s))),
        common=len(common),
        added=tuple(sorted(key for key, _ in after.by_place.keys() - before.by_place.keys())),
        removed=tuple(sorted(key for key, _ in before.by_place.keys() - after.by_place.keys())),
        total_ratio=after_s / before_s if min(before_s, after_s) > 0 else 1.0,
        fingerprint={
            name: (before.fingerprint.get(name, ""), after.fingerprint.get(name, ""))
            for name in names
            if before.fingerprint.get(name) != after.fingerprint.get(name)
        },
    )


def _change(before: Entry, after: Entry) -> EntryChange:
    # Remainders: a latency below resolution was moved upwards, by as much as its error.
    error_s = max(math.hypot(before.remainder_stderr_s, after.remainder_stderr_s), 1e-12)
    change_s = after.remainder_s - before.remainder_s
    return EntryChange(
        key=before.key,
        context=before.context,
        op=before.op,
        before_s=before.latency_s,
        after_s=after.latency_s,
        ratio=after.latency_s / before.latency_s,
        z=change_s / error_s,
    )
