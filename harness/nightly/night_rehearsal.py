"""A rehearsal: the last night compared again, as if chosen layers or networks had been slower."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import UsageError
from harness.measure.journal.journal import Journal
from harness.nightly.due_jobs import campaigns_of_nights
from harness.nightly.night_report import SetComparison
from harness.nightly.set_comparison import ComparisonRules, compare_watches
from harness.nightly.watched_sets import read_watches, watched_sets, watches_of_set
from harness.slowdowns.rehearsal import check_names, slowed, watched_names
from harness.workspace import Workspace


def rehearse(
    workspace: Workspace, device: str, factors: Mapping[str, float], rules: ComparisonRules
) -> tuple[SetComparison, ...]:
    """Compare each set's last night on a device with the nights before, with the named subjects slower by factors.

    Sets that watch none of the names are left out. No device is contacted and nothing is recorded. Raises UsageError
    for a name that no set watches, and for a device without two nights.
    """
    if not workspace.journal.exists():
        raise _nothing(device)
    with Journal(workspace.journal) as journal:
        watches = campaigns_of_nights(journal, device, "watch")
        sets = {
            name: read_watches(journal, watches_of_set(watches, name), rules.keep + 1)
            for name in watched_sets(journal, device)
        }
    known = tuple(dict.fromkeys(name for nights in sets.values() for name in watched_names(nights[-1])))
    check_names(factors if known else (), known)
    compared = []
    for name, nights in sets.items():
        watched = watched_names(nights[-1])
        own = {one: factor for one, factor in factors.items() if one in watched}
        if own and len(nights) > 1:
            altered = [*nights[:-1], slowed(nights[-1], own)]
            compared.append(compare_watches(device, name, altered, rules, ()))
    if not compared:
        raise _nothing(device)
    return tuple(compared)


def _nothing(device: str) -> UsageError:
    why = "A rehearsal compares the last night with earlier ones"
    return UsageError(f"{device} has no two nights to compare", why=why, next_step="Run two nights first")
