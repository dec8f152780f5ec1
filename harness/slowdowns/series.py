"""A watch campaign as the journal holds it: raw samples by probe, and what each probe is for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.errors import JournalError
from harness.measure.journal import Journal
from harness.measure.summary import seconds_of
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.probe.probe_plan import STACK_COPIES, LayerProbes
from harness.slowdowns.subjects import WATCH, Subject

Array = np.ndarray[Any, np.dtype[np.float64]]

TRIMMED = 0.2
_GRAIN_S = 0.3e-9
"""Samples are whole nanoseconds."""


class WatchingProbe(NamedTuple):
    """A probe that holds `copies` of a layer, and the null probe beside it."""

    probe: str
    baseline: str
    copies: int


@dataclass(frozen=True)
class WatchedLayer:
    """A layer as one probe watches it, which holds `copies` of it, beside the same probe without them.

    A layer that is watched within its context and alone is two of these, with two subjects; one is the second.
    """

    subject: Subject
    probe: str
    baseline: str
    copies: int
    is_second: bool = False


@dataclass(frozen=True)
class WatchedProbe:
    """What a probe is for, what it is called, and its amounts."""

    role: Role
    label: str
    terms: OverheadTerms


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
    def one_a_layer(self) -> frozenset[str]:
        """One probe of each watched layer."""
        return frozenset(layer.probe for layer in self.layers if not layer.is_second)

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
    layers = tuple(one for layer in journal.layers(campaign) for one in _watched(layer, probes))
    return WatchSeries(
        campaign, known.device, known.created, known.clock, dict(known.fingerprint), layers, probes, tuple(samples)
    )


def _seconds(samples: Any, clock: str) -> Array:
    """Samples that nothing preempted, all of them where that leaves less than half."""
    clean = [one for one in samples if not one.preemptions]
    used = clean if 2 * len(clean) >= len(samples) else samples
    return np.array([seconds_of(one, clock) for one in used])


def watching_probes(layer: LayerProbes) -> tuple[list[WatchingProbe], list[WatchingProbe]]:
    """Probes that can watch a layer: those that hold it within its context, and the one that holds it alone."""
    stacks = zip(layer.stacks, STACK_COPIES, strict=False)
    within = [WatchingProbe(layer.in_context, layer.null, 1)]
    within += [WatchingProbe(stack, layer.null, copies) for stack, copies in stacks]
    return within, [WatchingProbe(layer.layer, layer.auxiliary, 1)]


def layer_subject(layer: LayerProbes, probe: str) -> Subject:
    """What is said of a layer as this probe watches it: of the layer in the network, or of the layer alone."""
    return Subject("layer", layer.name, f"{layer.op}, alone" if probe == layer.layer else layer.op, layer.networks)


def _watched(layer: LayerProbes, probes: Mapping[str, WatchedProbe]) -> Iterator[WatchedLayer]:
    """The layer with the probes that its record names; without those that the device refused, or whose baseline."""
    is_second = False
    for options in watching_probes(layer):
        for one in options:
            if one.probe in probes and one.baseline in probes:
                yield WatchedLayer(layer_subject(layer, one.probe), *one, is_second)
                is_second = True
                break
