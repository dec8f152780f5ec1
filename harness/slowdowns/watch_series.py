"""A watch campaign read from the journal: raw samples by probe, and the purpose of each probe."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.array_types import Floats
from harness.errors import JournalError
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import ProbeRecord
from harness.measure.summary import seconds_of
from harness.probe.probe_plan import STACK_COPIES, LayerProbes
from harness.samples import Sample
from harness.slowdowns.findings import Subject

WATCH = "watch"
"""The purpose of a watch campaign, in the settings that the journal keeps."""
TRIMMED = 0.2
_GRAIN_S = 0.3e-9
"""Samples are whole nanoseconds; a spread below their rounding error is not believed."""


class WatchingProbe(NamedTuple):
    """A probe that holds `copies` of a layer, and its null probe."""

    probe: str
    baseline: str
    copies: int


@dataclass(frozen=True)
class WatchedLayer:
    """A layer as one probe watches it; the probe holds `copies` of it, its `baseline` none.

    A layer that is watched both with and without its context has two of these, with two subjects.
    """

    subject: Subject
    probe: str
    baseline: str
    copies: int
    is_second: bool = False


@dataclass(frozen=True, eq=False)
class WatchSeries:
    """A night's watch of one device: undisturbed samples in seconds on the campaign's clock, by batch and probe.

    `date` is the start of the campaign (UTC, ISO 8601); nights are sorted by it.
    """

    campaign: int
    device: str
    date: str
    clock: str
    fingerprint: Mapping[str, str]
    layers: tuple[WatchedLayer, ...]
    probes: Mapping[str, ProbeRecord]
    samples: tuple[Mapping[str, Floats], ...]

    @functools.cached_property
    def one_a_layer(self) -> frozenset[str]:
        """One probe of each watched layer."""
        return frozenset(layer.probe for layer in self.layers if not layer.is_second)

    @functools.cached_property
    def centres(self) -> tuple[Mapping[str, tuple[float, float]], ...]:
        """Trimmed means with their standard errors, by batch and probe."""
        return tuple({probe: centre_of(samples) for probe, samples in batch.items()} for batch in self.samples)


def centre_of(samples: Floats) -> tuple[float, float]:
    """Return the 20 % trimmed mean with its standard error from the winsorised variance (Wilcox 2012)."""
    ordered = np.sort(samples)
    cut = int(TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    winsorised = np.clip(ordered, kept[0], kept[-1])
    spread = max(float(np.std(winsorised, ddof=1)) if len(ordered) > 1 else float(ordered[0]), _GRAIN_S)
    return float(np.mean(kept)), spread / ((1 - 2 * TRIMMED) * len(ordered) ** 0.5)


def read_watch(journal: Journal, campaign: int) -> WatchSeries:
    """Read a watch campaign; raise JournalError if there is none of that number, or it has another purpose."""
    stored = journal.campaign(campaign)
    if stored.purpose != WATCH:
        what = f"Campaign {campaign} of {stored.device} is not a watch campaign"
        raise JournalError(what, why=f"Its purpose is {stored.purpose!r}")
    probes = {probe: record for probe, record in journal.probes(campaign).items() if not record.refused}
    batches: dict[int, dict[str, list[Sample]]] = {}
    for taken in journal.probe_samples(campaign):
        if taken.probe in probes:
            batches.setdefault(taken.batch, {}).setdefault(taken.probe, []).append(taken.sample)
    samples = (
        {probe: _seconds(ones, stored.clock) for probe, ones in batches[batch].items()} for batch in sorted(batches)
    )
    layers = tuple(one for layer in journal.layers(campaign) for one in _watched(layer, probes))
    return WatchSeries(
        campaign=campaign,
        device=stored.device,
        date=stored.created,
        clock=stored.clock,
        fingerprint=dict(stored.fingerprint),
        layers=layers,
        probes=probes,
        samples=tuple(samples),
    )


def _seconds(samples: Sequence[Sample], clock: str) -> Floats:
    """Return the samples without preemptions, or all samples if fewer than half are without."""
    clean = [one for one in samples if not one.preemptions]
    used = clean if 2 * len(clean) >= len(samples) else samples
    return np.array([seconds_of(one, clock) for one in used])


def watching_probes(layer: LayerProbes) -> tuple[list[WatchingProbe], list[WatchingProbe]]:
    """Return the probes that can watch a layer: those within its context, and the one without."""
    stacks = zip(layer.stacks, STACK_COPIES, strict=False)
    within = [WatchingProbe(layer.in_context, layer.null, 1)]
    within += [WatchingProbe(stack, layer.null, copies) for stack, copies in stacks]
    return within, [WatchingProbe(layer.layer, layer.auxiliary, 1)]


def layer_subject(layer: LayerProbes, probe: str) -> Subject:
    """Return the subject that a probe watches: the layer within its context, or without."""
    return Subject("layer", layer.name, f"{layer.op}, alone" if probe == layer.layer else layer.op, layer.networks)


def _watched(layer: LayerProbes, probes: Mapping[str, ProbeRecord]) -> Iterator[WatchedLayer]:
    """Yield the layer for each of its probes that the device accepted together with its baseline."""
    is_second = False
    for options in watching_probes(layer):
        one = next((one for one in options if one.probe in probes and one.baseline in probes), None)
        if one is not None:
            yield WatchedLayer(layer_subject(layer, one.probe), *one, is_second)
            is_second = True
