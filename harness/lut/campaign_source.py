"""The campaigns that a table is built from: what the journal holds of each, and the latencies fitted to it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import IllConditionedDesign, LutError
from harness.latency.estimators import LayerLatencies, estimate_layers
from harness.latency.joint import Place
from harness.latency.layer_latency import CampaignData
from harness.latency.method_names import LatencyMethod
from harness.latency.overhead import Overhead
from harness.latency.overhead_fit import fit_overhead, levelled_nulls
from harness.latency.plain_overhead import fit_plain_overhead
from harness.lut.error_correlations import MAX_CORRELATED
from harness.measure.journal.reader import JournalReader
from harness.measure.journal.records import Campaign
from harness.measure.noise.campaign_noise import phases_of_campaign
from harness.measure.noise.quiet_phases import Phases
from harness.measure.summary import Measurement, summarise
from harness.probe.batches import Visits
from harness.probe.probe_plan import LayerProbes
from harness.samples import Sample


@dataclass(frozen=True)
class CampaignSource:
    """A campaign, its measurements, its layers by place, and their latencies and overhead by one estimator."""

    campaign: Campaign
    measured: CampaignData
    layers: Mapping[Place, LayerProbes]
    windows: Mapping[Place, tuple[str, str]]
    overhead: Overhead
    latencies: LayerLatencies
    other_overhead: Overhead | None

    @classmethod
    def read(cls, journal: JournalReader, campaign: Campaign, phases: Phases, method: LatencyMethod) -> CampaignSource:
        """Read a campaign with these quiet runs, and fit its layers.

        Raises LutError for too many layers, and IllConditionedDesign.
        """
        measured, overhead, plain = _read(journal, campaign, phases)
        check_count(len(measured.layers))
        other = None if isinstance(plain, IllConditionedDesign) else plain
        if method == "regression":
            if isinstance(plain, IllConditionedDesign):
                raise plain
            overhead, other = plain, overhead
        latencies = estimate_layers(measured, method, overhead)
        windows = {place: (chain.alone, chain.alone_null) for chain in measured.chains for place in chain.places}
        known = {(one.key.digest, one.context): one for one in measured.layers}
        return cls(campaign, measured, known, windows, overhead, latencies, other)


def read_campaign(journal: JournalReader, campaign: Campaign) -> tuple[CampaignData, Overhead]:
    """Return a campaign's measurements on its own clock, and the overhead fitted to its calibration probes.

    Raises IllConditionedDesign.
    """
    measured, overhead, _ = _read(journal, campaign, phases_of_campaign(journal, campaign))
    return measured, overhead


def _read(
    journal: JournalReader, campaign: Campaign, phases: Phases
) -> tuple[CampaignData, Overhead, Overhead | IllConditionedDesign]:
    """Return a campaign's measurements, and its overhead with all terms and by the plain fit of S1.4."""
    probes = journal.probes(campaign.id)
    batched: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for one in phases.quiet:
        batched[one.probe][one.batch].append(one.sample)
    samples = {name: list(itertools.chain(*batches.values())) for name, batches in batched.items()}
    roles = {name: probe.role for name, probe in probes.items()}
    terms = {name: probe.terms for name, probe in probes.items()}
    nulls = {name: taken for name, taken in samples.items() if roles[name] == "calibration"}
    levelled, drift = levelled_nulls(nulls, terms, campaign.clock)
    overhead = fit_overhead(levelled, drift=drift)
    plain: Overhead | IllConditionedDesign
    try:
        plain = fit_plain_overhead(levelled, drift=drift)
    except IllConditionedDesign as error:
        plain = error
    summaries = {name: summarise(taken, campaign.clock) for name, taken in samples.items()}
    visits = {name: probe.visits for name, probe in probes.items()}
    return (
        CampaignData(
            journal.layers(campaign.id),
            journal.chains(campaign.id),
            roles,
            terms,
            visits,
            summaries,
            _by_batch(batched, summaries, visits, campaign.clock),
            phases.slowdown,
            phases.slow_share,
            phases.interruptions,
        ),
        overhead,
        plain,
    )


def _by_batch(
    batched: Mapping[str, Mapping[int, Sequence[Sample]]],
    summaries: Mapping[str, Measurement],
    visits: Mapping[str, Visits],
    clock: str,
) -> dict[str, dict[int, Measurement]]:
    """Summarise each batch of the probes whose latency depends on the caches."""
    return {
        probe: {
            batch: summarise(own, clock) if len(batches) > 1 else summaries[probe] for batch, own in batches.items()
        }
        for probe, batches in batched.items()
        if visits[probe] != "cold"
    }


def check_count(layers: int) -> None:
    """Raise LutError for more layers than a table holds correlations of."""
    if layers > MAX_CORRELATED:
        what = f"{layers:,} layers were measured; a table can hold at most {MAX_CORRELATED:,}"
        why = "The errors of layers correlate, and a table has a number for each pair of them"
        raise LutError(what, why=why, next_step="Split the networks over several workspaces; each gets its own table")
