"""A night with invented slow-downs: the samples of the chosen layers and networks are made longer by a factor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.errors import UsageError
from harness.slowdowns.adjustment import reference_of
from harness.slowdowns.watch_series import WatchSeries
from harness.text import did_you_mean


def watched_names(night: WatchSeries) -> tuple[str, ...]:
    """Return the names of the layers and networks that a night watches, each once."""
    networks = (one.label for one in night.probes.values() if one.role == "network")
    return tuple(dict.fromkeys([*networks, *(layer.subject.name for layer in night.layers)]))


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for a name that is not among the watched ones."""
    for name in names:
        if name not in known:
            step = did_you_mean(name, known, "Watched are")
            raise UsageError(f"No layer or network {name[:80]} is watched", next_step=step[:400])


def slowed(night: WatchSeries, factors: Mapping[str, float]) -> WatchSeries:
    """Return the night with the named layers and networks slower by their factors.

    Factors refer to the latency that reports give: of a layer its own, of a network the whole run with the host. A
    slower layer does not make the whole networks of the watch slower; name them, too. Raises UsageError for a name
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
