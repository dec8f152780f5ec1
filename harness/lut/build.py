"""`harness.build_lut`: from the journal to a published table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.device.inventory import find_device, load_inventory
from harness.errors import CampaignIncomplete, LutNotFound
from harness.latency.layers import Method, layer_latency, probes_of
from harness.latency.overhead import Overhead, fit_overhead
from harness.lut.store import publish
from harness.lut.table import Entry, Lut
from harness.measure.journal import Campaign, Journal
from harness.measure.summary import Measurement, summarise
from harness.network.fusion import FusionRule
from harness.workspace import Workspace, find_workspace

DEFAULT_METHOD: Method = "context"


def build_lut(
    device: str,
    *,
    workspace: Workspace | None = None,
    method: Method = DEFAULT_METHOD,
    note: Callable[[str], None] = lambda _: None,
) -> Lut:
    """Builds and publishes a table from all complete campaigns with the newest one's fingerprint.

    Of a layer measured several times the newest campaign counts; each campaign's layers are freed of the
    overhead fitted on that campaign, and the table carries the newest one's overhead. `note` is told of
    campaigns that are left out. Raises LutNotFound without any campaign, CampaignIncomplete without a
    complete one, and IllConditionedDesign.
    """
    place = workspace or find_workspace()
    if not place.journal.exists():
        raise _nothing_measured(place, device)
    with Journal(place.journal) as journal:
        measured_here = [one for one in journal.campaigns(device) if one.settings["purpose"] == "profile"]
        if not measured_here:
            raise _nothing_measured(place, device)
        campaigns = _comparable(measured_here, device, note)
        newest = campaigns[-1]
        entries: dict[tuple[str, str], Entry] = {}
        for campaign in campaigns:
            measured = measurements_of(journal, campaign)
            overhead = overhead_of(journal, campaign, measured)
            entries.update(_entries(journal, campaign, measured, overhead, method))
    draft = Lut(
        path=Path(),
        device=device,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        clock=newest.clock,
        method=method,
        visit=str(newest.settings["visit"]),
        fingerprint=newest.fingerprint,
        overhead=overhead,
        rules=_merged(campaigns),
        entries=tuple(entries[place] for place in sorted(entries)),
    )
    return publish(draft, place.lut)


def measurements_of(journal: Journal, campaign: Campaign) -> dict[str, Measurement]:
    """Summaries of all probes of a campaign that have samples, on the campaign's clock."""
    samples = journal.samples(campaign.id)
    return {probe: summarise(taken, campaign.clock) for probe, taken in samples.items()}


def overhead_of(journal: Journal, campaign: Campaign, measured: dict[str, Measurement]) -> Overhead:
    """The overhead fitted on a campaign's calibration probes."""
    probes = journal.probes(campaign.id).values()
    nulls = [
        (probe.terms, measured[probe.id]) for probe in probes if probe.role == "calibration" and probe.id in measured
    ]
    return fit_overhead(nulls)


def _comparable(campaigns: Sequence[Campaign], device: str, note: Callable[[str], None]) -> list[Campaign]:
    complete = [campaign for campaign in campaigns if campaign.complete]
    if not complete:
        step = f"Run the same `harness profile --device {device}` again; it resumes"
        raise CampaignIncomplete(f"No campaign on {device} is complete", next_step=step)
    newest = complete[-1].fingerprint
    for campaign in campaigns:
        changed = [name for name in newest if campaign.fingerprint.get(name) != newest[name]]
        if not campaign.complete:
            note(f"Campaign {campaign.id} is left out: it is not complete; run its command again to resume")
        elif changed:
            note(f"Campaign {campaign.id} is left out: the device had another {', '.join(changed)} then")
    return [campaign for campaign in complete if campaign.fingerprint == newest]


def _nothing_measured(place: Workspace, device: str) -> LutNotFound:
    """The error to raise; raises UnknownDevice itself where the name is in no inventory either."""
    find_device(load_inventory(place.devices), device)
    step = f"Measure first: harness profile --device {device}"
    return LutNotFound(f"Nothing was measured on {device} in this workspace", next_step=step)


def _entries(
    journal: Journal, campaign: Campaign, measured: dict[str, Measurement], overhead: Overhead, method: Method
) -> dict[tuple[str, str], Entry]:
    terms = {probe: record.terms for probe, record in journal.probes(campaign.id).items()}
    entries = {}
    for layer in journal.layers(campaign.id):
        latency = layer_latency(layer, method, terms, measured, overhead)
        if latency is not None:
            probe, baseline = probes_of(layer, method)
            entries[layer.key.digest, layer.context] = Entry(
                key=layer.key.digest,
                context=layer.context,
                op=layer.op,
                latency_s=latency.latency_s,
                stderr_s=latency.stderr_s,
                samples=latency.samples,
                resolved=latency.resolved,
                campaign=campaign.id,
                probe=probe,
                baseline=baseline or "",
                signature=layer.key.text,
            )
    return entries


def _merged(campaigns: Sequence[Campaign]) -> tuple[FusionRule, ...]:
    """The rules of all campaigns, evidence for and against summed."""
    merged: dict[str, FusionRule] = {}
    for rule in (rule for campaign in campaigns for rule in campaign.rules):
        known = merged.get(rule.pattern, FusionRule(rule.pattern, 0, 0, rule.source))
        merged[rule.pattern] = FusionRule(
            rule.pattern, known.matched + rule.matched, known.fused + rule.fused, rule.source
        )
    return tuple(merged.values())
