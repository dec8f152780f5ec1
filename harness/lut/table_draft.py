"""The table of campaigns: the newest entry of each layer, their covariance, and the predictor that learns from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from harness.array_types import Floats
from harness.latency.joint import Place
from harness.latency.method_names import LatencyMethod
from harness.lut.campaign_source import CampaignSource, check_count
from harness.lut.chain_rows import rows_of
from harness.lut.error_correlations import pack
from harness.lut.learning import LEARNING, learn_predictor
from harness.lut.table import Entry, Lut
from harness.measure.progress import Observer, effort_of, steps_of
from harness.network.fusion.fusion_rules import FusionRule
from harness.probe.probe_plan import LayerProbes


def draft_table(
    sources: Sequence[CampaignSource], rules: tuple[FusionRule, ...], method: LatencyMethod, observe: Observer
) -> Lut:
    """Return the table of these campaigns, the newest one last, without what is known of their machine."""
    newest = sources[-1]
    entries, covariance = _entries(sources, method)
    chains = rows_of([source.measured.chains for source in sources], [entry.place for entry in entries])
    effort = effort_of(len({entry.key for entry in entries}))
    return Lut(
        path=Path(),
        device=newest.campaign.device,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        clock=newest.campaign.clock,
        method=method,
        fingerprint=newest.campaign.fingerprint,
        overhead=newest.overhead,
        rules=rules,
        entries=entries,
        additivity=newest.latencies.additivity,
        interruptions=statistics.fmean(source.measured.interruptions for source in sources),
        sum_error=max(source.latencies.sum_error for source in sources),
        network_errors={name: error for source in sources for name, error in source.latencies.network_errors.items()},
        correlations=pack(covariance),
        predictor=learn_predictor(entries, chains, progress=steps_of(observe, LEARNING, effort=effort)),
        chains=chains,
        other_overhead=newest.other_overhead,
    )


def _entries(sources: Sequence[CampaignSource], method: LatencyMethod) -> tuple[tuple[Entry, ...], Floats]:
    """Return the newest campaign's entry for each place, sorted, and their covariance: campaigns err independently."""
    newest = {place: number for number, source in enumerate(sources) for place in source.latencies.latencies}
    places = sorted(newest)
    check_count(len(places))
    covariance = np.zeros((len(places), len(places)))
    for number, source in enumerate(sources):
        rows = {place: row for row, place in enumerate(source.latencies.latencies)}
        own_places = [at for at, place in enumerate(places) if newest[place] == number]
        own_rows = [rows[places[at]] for at in own_places]
        covariance[np.ix_(own_places, own_places)] = source.latencies.covariance[np.ix_(own_rows, own_rows)]
    return tuple(_entry(sources, sources[newest[place]], place, method) for place in places), covariance


def _entry(sources: Sequence[CampaignSource], source: CampaignSource, place: Place, method: LatencyMethod) -> Entry:
    key, context = place
    plain = (key, context.partition("@")[0])
    layer, latency = source.layers[plain], source.latencies.latencies[place]
    networks = dict.fromkeys(name for one in sources if plain in one.layers for name in one.layers[plain].networks)
    probe, baseline = source.windows.get(place) or _probes_of(layer, method)
    return Entry(
        key=layer.key.digest,
        context=context,
        op=layer.op,
        visit=source.measured.visits[probe],
        flags=source.latencies.flags.get(place, ""),
        networks=" ".join(networks),
        campaign=source.campaign.id,
        probe=probe,
        baseline=baseline,
        signature=layer.key.text,
        **asdict(latency),
    )


def _probes_of(layer: LayerProbes, method: LatencyMethod) -> tuple[str, str]:
    """Return the probe that holds the layer, and the probe it is compared with."""
    if method == "joint":
        return layer.in_context, layer.null
    if method == "chain":
        return layer.stacks[-1], layer.stacks[0]
    return layer.layer, layer.auxiliary if method == "difference" else ""
