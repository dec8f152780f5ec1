"""`harness.validate`: whole networks measured on the device beside their estimates."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device.inventory import find_device, load_inventory
from harness.device.session import open_session
from harness.errors import BackendError, CoverageError, UsageError
from harness.estimation.networks import NetworkEstimate, estimate_network, open_table
from harness.measure.campaign import CampaignRun
from harness.measure.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import holder
from harness.measure.progress import Observer, ignore
from harness.measure.summary import Measurement, summarise
from harness.network.graph import Network
from harness.network.layers import Layer, cut
from harness.network.models import load_network
from harness.probe.plan import ProbePlan
from harness.probe.probe import Probe, network_probe, reference_probe, single_probe
from harness.workspace import Workspace, find_workspace

VALIDATION_POLICY = RepeatPolicy(min_rounds=6, max_rounds=20)


@dataclass(frozen=True)
class NetworkValidation:
    """One network measured and estimated; `error` is (estimated - measured) / measured.

    `naive_s` is the sum of its layers timed alone in a warm loop, without auxiliary layer and without
    overhead taken off, where that was asked for. `wall_s` is the measured wall time beside the clock.
    """

    name: str
    estimated_s: float
    interval_s: tuple[float, float]
    measured_s: float
    measured_halfwidth_s: float
    wall_s: float
    error: float
    within_interval: bool
    naive_s: float | None
    naive_error: float | None


@dataclass(frozen=True)
class Validation:
    """All networks; errors and shares are fractions.

    `fingerprint_changes` names what differs between the device now and the device of the table.
    """

    device: str
    lut: str
    clock: str
    networks: tuple[NetworkValidation, ...]
    mape: float
    within_5: float
    within_10: float
    interval_coverage: float
    fingerprint_changes: tuple[str, ...]


def validate(
    models: Sequence[str],
    *,
    device: str = "cpu01",
    lut: Path | None = None,
    workspace: Workspace | None = None,
    policy: RepeatPolicy = VALIDATION_POLICY,
    naive: bool = False,
    dims: Mapping[str, int] | None = None,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
) -> Validation:
    """Measures whole networks on the device, on the table's clock, and compares with their estimates.

    Raises CoverageError where the table does not hold a layer; nothing is measured then.
    """
    if not models:
        raise UsageError("There is no network to validate", next_step="Name one or more models")
    place = workspace or find_workspace()
    table = open_table(device, lut, place)
    networks = [load_network(model, dims) for model in models]
    estimates = [estimate_network(network, table) for network in networks]
    _check_covered(estimates, table.name)
    layers = [cut(network, table.rules) if naive else () for network in networks]
    probes = [(network_probe(network), _singles(network, own)) for network, own in zip(networks, layers, strict=True)]
    plan = _plan(probes)
    known = find_device(load_inventory(place.devices), device)
    with open_session(known) as session, Journal(place.journal) as journal:
        session.acquire(holder())
        fingerprint = session.hello.fingerprint
        settings = policy.settings("validate", 0)
        campaign = journal.begin(device, plan, 0, settings, fingerprint, session.hello.clock)
        CampaignRun(session, journal, campaign, plan, policy, observe, stop or threading.Event()).run()
        samples = journal.samples(campaign.id)
        refused = [record for record in journal.probes(campaign.id).values() if record.refused]
    for record in refused:
        if record.role == "network":
            raise BackendError(f"{device} refuses to run {record.label}", why=record.refused or "")
    measured = {probe: summarise(taken, table.clock) for probe, taken in samples.items()}
    wall = {probe: summarise(taken, "wall").latency_s for probe, taken in samples.items()}
    results = tuple(
        _compare(estimated, measured[whole.id], wall[whole.id], _naive_s(singles, own, measured))
        for own, estimated, (whole, singles) in zip(layers, estimates, probes, strict=True)
    )
    errors = [abs(result.error) for result in results]
    return Validation(
        device=device,
        lut=table.name,
        clock=table.clock,
        networks=results,
        mape=sum(errors) / len(errors),
        within_5=sum(error <= 0.05 for error in errors) / len(errors),
        within_10=sum(error <= 0.10 for error in errors) / len(errors),
        interval_coverage=sum(result.within_interval for result in results) / len(results),
        fingerprint_changes=tuple(
            name
            for name in sorted({*fingerprint, *table.fingerprint})
            if fingerprint.get(name) != table.fingerprint.get(name)
        ),
    )


def _check_covered(estimates: Sequence[NetworkEstimate], table: str) -> None:
    for estimated in estimates:
        if estimated.unknown:
            first = estimated.unknown[0]
            why = f"{len(estimated.unknown)} of {len(estimated.layers)} layers, for example {first.name} ({first.op})"
            step = "Profile this network on the device, then build the table again"
            raise CoverageError(f"{estimated.name} has layers that {table} does not hold", why=why, next_step=step)


def _singles(network: Network, layers: Sequence[Layer]) -> dict[str, Probe]:
    return {layer.key.digest: single_probe(network, layer) for layer in layers}


def _plan(probes: Sequence[tuple[Probe, Mapping[str, Probe]]]) -> ProbePlan:
    reference = reference_probe()
    every = {probe.id: probe for whole, singles in probes for probe in (whole, *singles.values())}
    batches: list[tuple[str, ...]] = []
    for whole, singles in probes:
        batches.append((whole.id,))
        ahead = {probe for batch in batches for probe in batch}
        fresh = tuple(probe.id for probe in singles.values() if probe.id not in ahead)
        if fresh:
            batches.append(tuple(dict.fromkeys(fresh)))
    return ProbePlan({reference.id: reference, **every}, (), tuple(batches), reference.id, (), "avgpool")


def _naive_s(
    singles: Mapping[str, Probe], layers: Sequence[Layer], measured: Mapping[str, Measurement]
) -> float | None:
    if not singles or any(probe.id not in measured for probe in singles.values()):
        return None
    counts = Counter(layer.key.digest for layer in layers)
    return sum(count * measured[singles[key].id].latency_s for key, count in counts.items())


def _compare(
    estimated: NetworkEstimate, measured: Measurement, wall_s: float, naive_s: float | None
) -> NetworkValidation:
    if estimated.latency_s is None or estimated.interval_s is None:
        raise ValueError(f"{estimated.name} is not covered")
    low, high = estimated.interval_s
    return NetworkValidation(
        name=estimated.name,
        estimated_s=estimated.latency_s,
        interval_s=estimated.interval_s,
        measured_s=measured.latency_s,
        measured_halfwidth_s=measured.halfwidth_s,
        wall_s=wall_s,
        error=estimated.latency_s / measured.latency_s - 1,
        within_interval=low <= measured.latency_s <= high,
        naive_s=naive_s,
        naive_error=None if naive_s is None else naive_s / measured.latency_s - 1,
    )
