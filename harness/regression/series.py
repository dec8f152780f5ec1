"""A watch campaign as the journal holds it: raw samples by probe, and what each probe is for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.errors import JournalError
from harness.measure.journal import Journal
from harness.measure.summary import seconds_of
from harness.probe.plan import STACK_COPIES, LayerProbes
from harness.probe.probe import Role
from harness.probe.terms import Terms
from harness.regression.subjects import WATCH

Array = np.ndarray[Any, np.dtype[np.float64]]

TRIMMED = 0.2
_GRAIN_S = 0.3e-9
"""Samples are whole nanoseconds."""


@dataclass(frozen=True)
class WatchedLayer:
    """A layer in its context, the probe that holds `copies` of it, and the same probe without them.

    `key` is the text of its key; `networks` are the beginnings of their files' hashes.
    """

    key: str
    context: str
    op: str
    name: str
    networks: tuple[str, ...]
    probe: str
    baseline: str
    copies: int


@dataclass(frozen=True)
class WatchedProbe:
    """What a probe is for, what it is called, and its amounts."""

    role: Role
    label: str
    terms: Terms


@dataclass(frozen=True, eq=False)
class WatchSeries:
    """A night's watch of one device: undisturbed samples in seconds on the campaign's clock, by batch and probe.

    `date` is when the campaign began (UTC, ISO 8601), by which nights are put in order.
    """

    campaign: int
    device: str
    date: str
    clock: str
    fingerprint: Mapping[str, str]
    layers: tuple[WatchedLayer, ...]
    probes: Mapping[str, WatchedProbe]
    samples: tuple[Mapping[str, Array], ...]

    @functools.cached_property
    def centres(self) -> tuple[Mapping[str, tuple[float, float]], ...]:
        """Trimmed means with their standard errors, by batch and probe."""
        return tuple({probe: centre_of(samples) for probe, samples in batch.items()} for batch in self.samples)


def centre_of(samples: Array) -> tuple[float, float]:
    """The 20 % trimmed mean with its standard error (by the winsorised variance, Wilcox 2012)."""
    ordered = np.sort(samples)
    cut = int(TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    winsorised = np.clip(ordered, kept[0], kept[-1])
    spread = max(float(np.std(winsorised, ddof=1)) if len(ordered) > 1 else float(ordered[0]), _GRAIN_S)
    return float(np.mean(kept)), spread / ((1 - 2 * TRIMMED) * len(ordered) ** 0.5)


def read_watch(journal: Journal, campaign: int) -> WatchSeries:
    """Reads the watch of that number; raises JournalError where there is none, or it is no watch."""
    known = journal.campaign(campaign)
    if known.settings.get("purpose") != WATCH:
        what = f"Campaign {campaign} of {known.device} is no watch"
        raise JournalError(what, why=f"Its purpose is {known.settings.get('purpose')!r}")
    probes = {
        probe: WatchedProbe(record.role, record.label, record.terms)
        for probe, record in journal.probes(campaign).items()
        if not record.refused
    }
    total = sum(map(len, journal.samples(campaign).values()))
    samples: list[Mapping[str, Array]] = []
    batch, found = 0, 0
    while found < total:
        taken = journal.samples(campaign, batch)
        found += sum(map(len, taken.values()))
        batch += 1
        if taken:
            samples.append({probe: _seconds(ones, known.clock) for probe, ones in taken.items() if probe in probes})
    layers = tuple(filter(None, (_watched(layer, probes) for layer in journal.layers(campaign))))
    return WatchSeries(
        campaign, known.device, known.created, known.clock, dict(known.fingerprint), layers, probes, tuple(samples)
    )


def _seconds(samples: Any, clock: str) -> Array:
    """Samples that nothing preempted, all of them where that leaves less than half."""
    clean = [one for one in samples if not one.preemptions]
    used = clean if 2 * len(clean) >= len(samples) else samples
    return np.array([seconds_of(one, clock) for one in used])


def _watched(layer: LayerProbes, probes: Mapping[str, WatchedProbe]) -> WatchedLayer | None:
    """The layer with the one probe that its record names; None where the device refused that or its baseline."""
    stacks = zip(layer.stacks, STACK_COPIES, strict=False)
    named = [(layer.in_context, layer.null, 1), (layer.layer, layer.auxiliary, 1)]
    named += [(stack, layer.null, copies) for stack, copies in stacks]
    for probe, baseline, copies in named:
        if probe in probes and baseline in probes:
            return WatchedLayer(
                layer.key.text, layer.context, layer.op, layer.name, layer.networks, probe, baseline, copies
            )
    return None
