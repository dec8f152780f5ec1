"""Compare two tables: the layers whose latency changed, by size and significance."""

import math
from collections.abc import Mapping, Sequence
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
    signature: str
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
    changes = _changes(before, after, [(before.by_place[place], after.by_place[place]) for place in common])
    changed = [one for one in changes if is_relevant(one)]
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


def common_layers(before: Lut, after: Lut) -> tuple[EntryChange, ...]:
    """Return the layers of both tables: at their place, or in any place where the tables share none of a layer.

    Devices differ in which layers have on-chip neighbours, so that the places of one layer may differ as well.
    """
    places = before.by_place.keys() & after.by_place.keys()
    met = {key for key, _ in places}
    elsewhere = ({key for key, _ in table.by_place} - met for table in (before, after))
    keys = set.intersection(*elsewhere)
    pairs = [(before.by_place[place], after.by_place[place]) for place in sorted(places)]
    for key in sorted(keys):
        found = before.find(key, ()), after.find(key, ())
        pairs += [(found[0], found[1])] if found[0] is not None and found[1] is not None else []
    return tuple(_changes(before, after, pairs))


def is_relevant(change: EntryChange) -> bool:
    """Return whether a layer differs by more than 2 % and three standard errors."""
    return abs(change.z) > SIGNIFICANT_Z and abs(change.ratio - 1) > RELEVANT_CHANGE


def _changes(before: Lut, after: Lut, pairs: Sequence[tuple[Entry, Entry]]) -> list[EntryChange]:
    """Compare entries of two tables, whose machines were faster or slower by chance."""
    between = math.hypot(before.repeatability, after.repeatability)
    return [_change(*pair, between) for pair in pairs]


def _change(before: Entry, after: Entry, between: float) -> EntryChange:
    # Remainders: a latency below resolution was moved upwards, by as much as its error.
    error_s = math.hypot(before.remainder_stderr_s, after.remainder_stderr_s, between * before.remainder_s)
    error_s = max(error_s, 1e-12)
    change_s = after.remainder_s - before.remainder_s
    return EntryChange(
        key=before.key,
        context=before.context,
        op=before.op,
        signature=before.signature,
        before_s=before.latency_s,
        after_s=after.latency_s,
        ratio=after.latency_s / before.latency_s,
        z=change_s / error_s,
    )
