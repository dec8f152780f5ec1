"""`harness.build_lut`: build a table from the journal and publish it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from harness.arguments import checked
from harness.array_types import Floats
from harness.device.inventory import find_device, load_inventory
from harness.device.variant import Variant
from harness.errors import CampaignIncomplete, LutNotFound, UsageError
from harness.latency.joint import Place
from harness.latency.layer_latency import CampaignData
from harness.latency.method_names import COMPARISON_METHODS, DEFAULT_METHOD, METHODS, LatencyMethod
from harness.lut.campaign_source import CampaignSource, check_count
from harness.lut.chain_rows import rows_of
from harness.lut.error_correlations import pack
from harness.lut.learning import LEARNING, learn_predictor
from harness.lut.table import Entry, Lut
from harness.lut.table_choice import latest_lut
from harness.lut.table_files import check_place, publish
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import PENDING, Campaign
from harness.measure.noise.campaign_noise import judge_campaign, phases_of_campaign, reference_s, repeatability_of
from harness.measure.noise.quiet_phases import at_typical_speed
from harness.measure.progress import DONE, Observer, begin, effort_of, ignore, steps_of
from harness.network.fusion.fusion_rules import FusionRule
from harness.predictor.features.layer_features import LEAST_SAMPLES
from harness.probe.probe_plan import LayerProbes
from harness.workspace import AnyWorkspace, Workspace, as_workspace

_SEVERAL_THREADS = 0.05
"""Standard deviation of further errors of networks with several threads. Their cause is unknown; 19 networks with two
threads show their size (docs/accuracy_limits.md)."""
_SLOWDOWNS = 3.0
"""The mean slowdown by slow phases over the standard deviation of what they add to networks. Chosen on 137 networks of
seven campaigns (docs/method_measurement.md)."""


@checked()
def build_lut(
    device: str | None = None,
    *,
    workspace: AnyWorkspace = None,
    method: LatencyMethod = DEFAULT_METHOD,
    batch: int | None = None,
    threads: int | None = None,
    note: Callable[[str], None] = lambda _: None,
    observe: Observer = ignore,
) -> Lut:
    """Build and publish a table from all complete campaigns with the newest one's fingerprint.

    Only campaigns with this `batch` and these `threads` count, by default those that set neither. For a layer measured
    several times, the newest campaign counts. Each campaign's own overhead is subtracted from its layers; the table
    holds the newest one's overhead. `note` receives a line for each campaign left out, `observe` the progress. Raises
    UsageError for an unknown method, LutNotFound without any campaign, CampaignIncomplete without a complete one,
    JournalError for one that was altered on disk, LutError for too many layers or no place, and IllConditionedDesign.
    """
    if method not in METHODS:
        raise UsageError(f"There is no method {method!r}", next_step=f"Methods: {', '.join(METHODS)}")
    workspace, variant = as_workspace(workspace), Variant(batch, threads)
    device = device or workspace.default_device
    if not workspace.journal.exists():
        raise _nothing_measured(workspace, device, variant)
    check_place(workspace.lut)
    with Journal(workspace.journal, to_read=True) as journal:
        held = [one for one in journal.campaigns(device) if one.purpose == "profile" and variant.is_of(one.fingerprint)]
        if not held:
            raise _nothing_measured(workspace, device, variant)
        campaigns = _comparable(held, device, note)
        sources = _read(journal, _not_superseded(journal, campaigns), method, observe)
        newest = sources[-1]
        begin(observe, "joining layers")
        machine = judge_campaign(journal, newest.campaign, newest.measured.slow_share).text
        repeatability = _repeatability(journal, sources)
        reference = reference_s(journal, newest.campaign)

    draft = draft_table(sources, _merged(campaigns), method, observe)
    draft = replace(draft, repeatability=repeatability, machine=machine, reference_s=reference)
    published = publish(draft, workspace.lut)
    observe(DONE)
    if method not in COMPARISON_METHODS:
        _note_later_table(published, latest_lut(workspace.lut, device, variant), note)
    return published


def _note_later_table(published: Lut, used: Path, note: Callable[[str], None]) -> None:
    if used != published.path:
        step = f"Pass --lut {published.name} to use the new one; if the clock was wrong, remove the other table"
        note(f"{published.device}/{used.name} has a later date and stays the default. {step}")


def _read(
    journal: Journal, campaigns: Sequence[Campaign], method: LatencyMethod, observe: Observer
) -> list[CampaignSource]:
    journal.require_unaltered([*(one.id for one in campaigns), *journal.lost()])
    probes = [len(journal.probes(one.id)) for one in campaigns]
    layers = len({layer.key.digest for one in campaigns for layer in journal.layers(one.id)})
    ahead = {LEARNING: 0.0 if layers < LEAST_SAMPLES else effort_of(layers)}
    begin(observe, "reading samples", effort_of(sum(probes)), ahead=ahead)
    # Both load for long, whatever there is to fit, and therefore after the work is known and before the fits begin.
    import sklearn.linear_model  # noqa: F401

    from harness.lut.campaign_source import CampaignSource

    phases = at_typical_speed([phases_of_campaign(journal, one) for one in campaigns])
    sources, step = [], steps_of(observe, "fitting layers", probes)
    for number, (campaign, quiet) in enumerate(zip(campaigns, phases, strict=True)):
        step(number, len(campaigns))
        sources.append(CampaignSource.read(journal, campaign, quiet, method))
    return sources


def _comparable(campaigns: Sequence[Campaign], device: str, note: Callable[[str], None]) -> list[Campaign]:
    complete = [campaign for campaign in campaigns if campaign.is_usable]
    if not complete:
        what = "complete" if not any(campaign.complete for campaign in campaigns) else "usable for a table"
        why = next((one.excluded for one in reversed(campaigns) if one.excluded not in (None, PENDING)), None)
        step = f"Run the same `harness profile --device {device}` again{'' if why else '; it resumes'}"
        raise CampaignIncomplete(f"No campaign on {device} is {what}", why=why or "", next_step=step)
    newest = complete[-1].fingerprint
    for campaign in campaigns:
        changed = [name for name in newest if campaign.fingerprint.get(name) != newest[name]]
        if campaign.excluded is not None:
            note(f"Campaign {campaign.id} is skipped: {campaign.excluded}")
        elif not campaign.complete:
            note(f"Campaign {campaign.id} is skipped: it is incomplete; run its command again to resume it")
        elif changed:
            note(f"Campaign {campaign.id} is skipped: its fingerprint has a different {', '.join(changed)}")
    return [campaign for campaign in complete if campaign.fingerprint == newest]


def _not_superseded(journal: Journal, campaigns: Sequence[Campaign]) -> list[Campaign]:
    """Return the campaigns with a layer of a network that no newer one has measured; the newest is among them.

    A lab measures the same layers every night: reading every night again would take longer each time.
    """
    known: set[tuple[str, ...]] = set()
    kept: list[Campaign] = []
    if len(campaigns) == 1:
        return list(campaigns)
    for campaign in reversed(campaigns):
        refused = {name for name, probe in journal.probes(campaign.id).items() if probe.refused is not None}
        held: set[tuple[str, ...]] = {
            (layer.key.digest, layer.context, network)
            for layer in journal.layers(campaign.id)
            for network in layer.networks or ("",)
            if not refused & {layer.in_context, layer.null}
        }
        held.update(place for chain in journal.chains(campaign.id) for place in chain.places)
        if not kept or not held <= known:
            kept.append(campaign)
        known |= held
    return kept[::-1]


def _repeatability(journal: Journal, sources: Sequence[CampaignSource]) -> float:
    """Return the error that networks share: between processes, by slow phases, and with several threads."""
    newest = sources[-1].campaign
    threads_error = _SEVERAL_THREADS if newest.threads_meet else 0.0
    slowdown = _slowdown([source.measured for source in sources])
    return math.hypot(repeatability_of(journal, newest), slowdown / _SLOWDOWNS, threads_error)


def _slowdown(campaigns: Sequence[CampaignData]) -> float:
    """Return what slow phases added to the runs of all campaigns on average, as a fraction."""
    kept = [sum(one.samples + one.preempted for one in campaign.summaries.values()) for campaign in campaigns]
    runs = [quiet / max(1 - one.slow_share, 1e-3) for quiet, one in zip(kept, campaigns, strict=True)]
    return statistics.fmean((one.slowdown for one in campaigns), weights=runs) if any(runs) else 0.0


def _nothing_measured(workspace: Workspace, device: str, variant: Variant) -> LutNotFound:
    """Return the error to raise; raises UnknownDevice itself if no inventory lists the name."""
    find_device(load_inventory(workspace.devices), device)
    step = f"Measure first: harness profile --device {device}{variant.options()}"
    asked = f" with{variant.options()}" if variant.facts else ""
    return LutNotFound(f"Nothing was measured on {device}{asked} in this workspace", next_step=step)


def _merged(campaigns: Sequence[Campaign]) -> tuple[FusionRule, ...]:
    """Return the rules of all campaigns with their evidence for and against summed."""
    merged: dict[str, FusionRule] = {}
    for rule in (rule for campaign in campaigns for rule in campaign.rules):
        known = merged.get(rule.pattern, replace(rule, matched=0, fused=0))
        merged[rule.pattern] = replace(rule, matched=known.matched + rule.matched, fused=known.fused + rule.fused)
    return tuple(merged.values())


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
