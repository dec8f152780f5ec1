"""A rehearsal: the last night compared again, as if chosen layers or networks had been slower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import UsageError
from harness.fleet.store import FleetStore
from harness.measure.journal.journal import Journal
from harness.nightly.due_jobs import campaigns_of_nights
from harness.nightly.night_report import SetComparison
from harness.nightly.set_comparison import (
    ComparisonRules,
    compare_watches,
    read_watches,
    subject_id,
    watched_sets,
    watches_of_set,
)
from harness.slowdowns.adjustment import reference_of
from harness.slowdowns.findings import Subject
from harness.slowdowns.watch_series import WatchSeries
from harness.text import did_you_mean
from harness.workspace import Workspace


@dataclass(frozen=True)
class Rehearsal:
    """A set's last night compared again; `least` is the smallest change of each named subject that the night detects.

    A name may be that of several subjects, such as a layer with and without its context.
    """

    compared: SetComparison
    least: Mapping[str, float]


def _watched(night: WatchSeries) -> tuple[Subject, ...]:
    """Return the networks and layers that a night watches."""
    networks = (Subject("network", one.label) for one in night.probes.values() if one.role == "network")
    return (*networks, *(layer.subject for layer in night.layers))


def watched_names(night: WatchSeries) -> tuple[str, ...]:
    """Return the names of the layers and networks that a night watches, each once."""
    return tuple(dict.fromkeys(subject.name for subject in _watched(night)))


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for a name that is not among the watched ones."""
    for name in names:
        if name not in known:
            step = did_you_mean(name, known, "Watched are")
            raise UsageError(f"No layer or network {name[:80]} is watched", next_step=step[:400])


def slowed(night: WatchSeries, factors: Mapping[str, float]) -> WatchSeries:
    """Return the night with the named layers and networks slower by their factors.

    Factors refer to the latency that reports give: of a layer its own, of a network the whole run with the host. A
    slower layer does not make the whole networks of the watch slower; name them as well. Raises UsageError for a name
    that the night does not watch.
    """
    check_names(factors, watched_names(night))
    added_s = _added_s(night, factors)
    samples = tuple(
        {probe: taken + added_s.get(probe, 0.0) for probe, taken in batch.items()} for batch in night.samples
    )
    return replace(night, samples=samples)


def _added_s(night: WatchSeries, factors: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds that each probe with a named subject takes longer."""
    own = reference_of([night])
    found: dict[str, float] = {}
    for layer in night.layers:
        if layer.subject.name in factors and {layer.probe, layer.baseline} <= own.total_s.keys():
            both_s = own.own_s[layer.probe] - own.own_s[layer.baseline]
            found[layer.probe] = (factors[layer.subject.name] - 1) * max(0.0, both_s)
    for probe, record in night.probes.items():
        if record.role == "network" and record.label in factors and probe in own.total_s:
            found[probe] = (factors[record.label] - 1) * own.total_s[probe]
    return found


def rehearse(
    workspace: Workspace, device: str, factors: Mapping[str, float], rules: ComparisonRules
) -> tuple[Rehearsal, ...]:
    """Compare each set's last night on a device with the nights before, with the named subjects slower by factors.

    Sets that watch none of the names are left out. No device is contacted and nothing is recorded. Raises UsageError
    for a name that no set watches, and for a device without two nights.
    """
    if not workspace.journal.exists():
        raise _nothing(workspace, device)
    with Journal(workspace.journal, to_read=True) as journal:
        watches = campaigns_of_nights(journal, device, "watch")
        sets = {
            name: read_watches(journal, watches_of_set(watches, name), rules.keep + 1)
            for name in watched_sets(journal, device)
        }
    known = tuple(dict.fromkeys(name for nights in sets.values() for name in watched_names(nights[-1])))
    check_names(factors if known else (), known)
    compared = []
    for name, nights in sets.items():
        named = [one for one in _watched(nights[-1]) if one.name in factors]
        if named and len(nights) > 1:
            altered = slowed(nights[-1], {one.name: factors[one.name] for one in named})
            found = compare_watches(device, name, [*nights[:-1], altered], rules, ())
            sizes = [(one.name, found.detectable[at]) for one in named if (at := subject_id(one)) in found.detectable]
            compared.append(Rehearsal(found, dict(sorted(sizes, key=lambda one: -one[1]))))
    if not compared:
        raise _nothing(workspace, device)
    return tuple(compared)


def _nothing(workspace: Workspace, device: str) -> UsageError:
    measured: list[str] = []
    if workspace.fleet.exists():
        with FleetStore(workspace.fleet, to_read=True) as store:
            measured = [row["device"] for _, _, report in store.reports(1) for row in report["devices"]]
    is_other = measured and device not in measured
    step = (
        f"Name a device of the last night with --device: {', '.join(measured)}" if is_other else "Run two nights first"
    )
    why = "A rehearsal compares the last night with earlier ones"
    return UsageError(f"{device} has fewer than two nights to compare", why=why, next_step=step[:400])
