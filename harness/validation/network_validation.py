"""`harness.validate`: whole networks measured on the device beside their estimates."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device.session import Truth
from harness.errors import CoverageError, UsageError
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.lut.table import Lut
from harness.lut.table_files import open_table
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Observer, ignore
from harness.measure.summary import summarise
from harness.network.layers import Layer, cut
from harness.network.models import Models, load_networks, model_references
from harness.network.network import Network
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import Probe, network_probe, reference_probe, single_probe
from harness.probe.probe_plan import ProbePlan
from harness.settings import DEFAULT_DEVICE
from harness.validation.oracle_comparison import OracleReport, compare_network, report_truth
from harness.validation.whole_networks import Taken, measure_processes, whole_latency
from harness.workspace import AnyWorkspace, as_workspace

VALIDATION_POLICY = RepeatPolicy(min_rounds=6, max_rounds=20)
DEFAULT_PROCESSES = 3
RUNS_PER_VISIT = 3


@dataclass(frozen=True)
class NetworkValidation:
    """One network measured and estimated; `error` is (estimated - measured) / measured.

    `naive_s` is the sum of its layers timed alone in a warm loop, without auxiliary layer and without
    overhead taken off, where that was asked for. `wall_s` is the measured wall time beside the clock.
    `processes_s` are the medians of separate processes and `repeatability` their standard deviation as a fraction,
    None for one process; `error_beyond_floor` is what the absolute error exceeds it by.
    """

    name: str
    estimated_s: float
    interval_s: tuple[float, float]
    measured_s: float
    measured_halfwidth_s: float
    wall_s: float
    error: float
    within_interval: bool
    processes_s: tuple[float, ...]
    repeatability: float | None
    error_beyond_floor: float
    naive_s: float | None
    naive_error: float | None


@dataclass(frozen=True)
class Validation:
    """All networks; errors and shares are fractions.

    `floor` is the median of the networks' repeatability, None after one process, and `mape_beyond_floor` the mean of
    what errors exceed their network's by. `fingerprint_changes` names what differs between the device now and the
    device of the table. `oracle` is there where the device tells the truth.
    """

    device: str
    lut: str
    clock: str
    networks: tuple[NetworkValidation, ...]
    mape: float
    within_5: float
    within_10: float
    interval_coverage: float
    floor: float | None
    mape_beyond_floor: float
    fingerprint_changes: tuple[str, ...]
    oracle: OracleReport | None = None


def validate(
    models: Models,
    *,
    device: str = DEFAULT_DEVICE,
    lut: str | Path | None = None,
    workspace: AnyWorkspace = None,
    policy: RepeatPolicy = VALIDATION_POLICY,
    processes: int = DEFAULT_PROCESSES,
    naive: bool = False,
    layers: bool = False,
    dims: Mapping[str, int] | None = None,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
) -> Validation:
    """Measures whole networks on the device, on the table's clock, and compares with their estimates.

    Each network is measured in as many separate `processes` of the worker. With `naive` each layer is timed alone as
    well, with `layers` the runtime's own profile is taken; a device that knows the truth is asked for it anyway.
    Raises CoverageError where the table does not hold a layer; nothing is measured then.
    """
    references = model_references(models)
    if not references:
        raise UsageError("There is no network to validate", next_step="Name one or more models")
    if processes < 1:
        raise UsageError(f"{processes} processes cannot measure anything", next_step="Give 1 or more")
    place = as_workspace(workspace)
    table = open_table(device, None if lut is None else Path(lut), place)
    networks = load_networks(references, dims)
    estimates = [estimate_network(network, table) for network in networks]
    _check_covered(estimates, table.name)
    cases = [_case(network, cut(network, table.rules) if naive else ()) for network in networks]
    asked = stop or threading.Event()
    taken = measure_processes(device, table.clock, place, _plan(cases), processes, policy, observe, asked, layers)
    results = [_compare(estimated, case, taken, table.clock) for estimated, case in zip(estimates, cases, strict=True)]
    oracle = _report_oracle(table, networks, estimates, cases, taken[0].truths)
    return _summary(device, table, results, taken[0].fingerprint, oracle)


@dataclass(frozen=True)
class _Case:
    """A network as a probe, and its layers alone with how often they occur."""

    whole: Probe
    singles: Mapping[str, Probe]
    counts: Mapping[str, int]


def _case(network: Network, layers: Sequence[Layer]) -> _Case:
    singles = {layer.key.digest: single_probe(network, layer) for layer in layers}
    return _Case(network_probe(network), singles, Counter(layer.key.digest for layer in layers))


def _report_oracle(
    table: Lut,
    networks: Sequence[Network],
    estimates: Sequence[NetworkEstimate],
    cases: Sequence[_Case],
    truths: Mapping[str, Truth],
) -> OracleReport | None:
    if not truths:
        return None
    compared = [
        compare_network(
            network.name,
            list(zip(cut(network, table.rules), estimated.layers, strict=True)),
            case.whole.model.names,
            truths[case.whole.id],
        )
        for network, estimated, case in zip(networks, estimates, cases, strict=True)
    ]
    return report_truth(table.overhead, next(iter(truths.values())), compared)


def _summary(
    device: str,
    table: Lut,
    results: Sequence[NetworkValidation],
    fingerprint: Mapping[str, str],
    oracle: OracleReport | None,
) -> Validation:
    errors = [abs(result.error) for result in results]
    floors = [result.repeatability for result in results if result.repeatability is not None]
    return Validation(
        device=device,
        lut=table.name,
        clock=table.clock,
        networks=tuple(results),
        mape=sum(errors) / len(errors),
        within_5=sum(error <= 0.05 for error in errors) / len(errors),
        within_10=sum(error <= 0.10 for error in errors) / len(errors),
        interval_coverage=sum(result.within_interval for result in results) / len(results),
        floor=statistics.median(floors) if floors else None,
        mape_beyond_floor=sum(result.error_beyond_floor for result in results) / len(results),
        fingerprint_changes=tuple(
            name
            for name in sorted({*fingerprint, *table.fingerprint})
            if fingerprint.get(name) != table.fingerprint.get(name)
        ),
        oracle=oracle,
    )


def _check_covered(estimates: Sequence[NetworkEstimate], table: str) -> None:
    for estimated in estimates:
        if estimated.unknown:
            first = estimated.unknown[0]
            why = f"{len(estimated.unknown)} of {len(estimated.layers)} layers, for example {first.name} ({first.op})"
            step = "Profile this network on the device, then build the table again"
            raise CoverageError(f"{estimated.name} has layers that {table} does not hold", why=why, next_step=step)


def _plan(cases: Sequence[_Case]) -> ProbePlan:
    """Every network in a batch of its own, its layers alone in the next; equal probes once."""
    reference = reference_probe()
    probes = {reference.id: reference}
    batches: list[Batch] = []
    for case in cases:
        for group in ((case.whole,), tuple(case.singles.values())):
            fresh = {probe.id: probe for probe in group if probe.id not in probes}
            probes.update(fresh)
            if fresh:
                batches.append(Batch(tuple(fresh), "warm", RUNS_PER_VISIT))
    return ProbePlan(probes, (), tuple(batches), reference.id, (), DEFAULT_AUXILIARY)


def _naive_s(case: _Case, taken: Taken, clock: str) -> float | None:
    """The plain sum over layers timed alone; None where that was not asked for or one could not be timed."""
    if not case.singles or any(probe.id not in taken.samples for probe in case.singles.values()):
        return None
    return sum(
        count * summarise(taken.samples[case.singles[key].id], clock).latency_s for key, count in case.counts.items()
    )


def _compare(estimated: NetworkEstimate, case: _Case, taken: Sequence[Taken], clock: str) -> NetworkValidation:
    if estimated.latency_s is None or estimated.interval_s is None:
        raise ValueError(f"{estimated.name} is not covered")
    low, high = estimated.interval_s
    measured = whole_latency(taken, case.whole.id, clock)
    error = estimated.latency_s / measured.latency_s - 1
    naive_s = _naive_s(case, taken[0], clock)
    return NetworkValidation(
        name=estimated.name,
        estimated_s=estimated.latency_s,
        interval_s=estimated.interval_s,
        measured_s=measured.latency_s,
        measured_halfwidth_s=measured.halfwidth_s,
        wall_s=measured.wall_s,
        error=error,
        within_interval=low <= measured.latency_s <= high,
        processes_s=measured.processes_s,
        repeatability=measured.repeatability,
        error_beyond_floor=max(0.0, abs(error) - (measured.repeatability or 0.0)),
        naive_s=naive_s,
        naive_error=None if naive_s is None else naive_s / measured.latency_s - 1,
    )
