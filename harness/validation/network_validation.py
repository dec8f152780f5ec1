"""`harness.validate`: measure whole networks on the device and compare them with their estimates."""

from __future__ import annotations

import math
import statistics
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from harness.arguments import check_fields, instance, spread
from harness.device.session import Truth
from harness.errors import CoverageError, UsageError
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.lut.table import Lut
from harness.lut.table_choice import TableReference, is_published, open_lut
from harness.measure.calls import DeviceCall, Reading
from harness.measure.fusion.cutting import refused_by_device
from harness.measure.noise.campaign_noise import judge_processes
from harness.measure.noise.machine_noise import EMULATED
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import DONE, Observer, begin, effort_of, notes_of, steps_of
from harness.measure.summary import summarise
from harness.network.effort import compile_effort, products_of_network, run_effort
from harness.network.fusion.fusion_rules import FusionRule, as_executed
from harness.network.layers import cut
from harness.network.model_references import ModelReference, Models, model_references, shown
from harness.network.network import Network
from harness.network.network_list import RefusedNetwork, check_refused, note_refused
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import Probe, network_probe, reference_probe, single_probe
from harness.probe.probe_plan import ProbePlan
from harness.settings import VALIDATION_PROCESSES
from harness.validation.file_comparison import compare_with_file, openings, runs_s
from harness.validation.oracle_comparison import OracleReport, compare_network, report_truth
from harness.validation.results import NetworkValidation, Validation, keep_validation, validation_of
from harness.validation.stopping_rule import StoppingRule
from harness.validation.whole_networks import (
    MeasuredProcesses,
    ProcessPlan,
    ProcessSamples,
    measure_processes,
    undisturbed,
    whole_latency,
)
from harness.workspace import as_workspace

VALIDATION_POLICY = RepeatPolicy(min_rounds=3, max_rounds=6)
"""The rounds of one process: processes differ by more than further samples of one of them would show."""
RUNS_PER_VISIT = 3
SETTLING_S, MOST_UNTIMED = 1e-3, 20
"""Time of the untimed runs of a visit to a whole network, and their largest number. Of networks of 10 to 100 µs, the
second run still took 5 to 30 % longer than the fourth."""


@dataclass(frozen=True)
class ValidationCall(Reading, DeviceCall):
    """The arguments of `validate`."""

    models: Models
    _: KW_ONLY
    device: str | None = None
    lut: TableReference = None
    policy: RepeatPolicy = VALIDATION_POLICY
    processes: int = VALIDATION_PROCESSES
    naive: bool = False
    layers: bool = False

    def __post_init__(self) -> None:
        check_fields(self, policy=instance(RepeatPolicy))


@spread(ValidationCall)
def validate(call: ValidationCall) -> Validation:
    """Measure whole networks on the device, on the table's clock, and compare them with their estimates.

    Each network is measured in separate processes of the worker, until the comparison is decided or its latency is
    within the target of the `policy`, in at most that many `processes`. `naive` also times layers one by one, and
    `layers` also compares with the runtime's own profile; an emulated device is always asked for the true latencies. A
    device in use is waited for up to `wait_s` seconds. Networks that harness or the device refuses, or that have layers
    the table lacks, are skipped and listed in the result. With `strict`, or if all are refused, the refusal is raised
    and nothing is measured. The workspace keeps the last validation on each device for `harness report`.
    """
    references, observe, strict = model_references(call.models), call.observe, call.strict
    if not references:
        raise UsageError("There is no network to validate", next_step="Name one or more models")
    workspace = as_workspace(call.workspace)
    table = open_lut(call.device, lut=call.lut, workspace=workspace, batch=call.batch, threads=call.threads)
    note = notes_of(observe)
    begin(observe, "reading networks", effort_of(len(references)))
    read = call.read(references, note)
    work = compile_effort if table.clock == "device" else run_effort
    efforts = [work(products_of_network(network)) for network in read.networks]
    begin(observe, "estimating", effort_of(sum(efforts)))
    cases, uncovered = _cases(read.networks, table, call.naive)
    check_refused((*read.refused, *uncovered), len(cases), strict=strict)
    note_refused(uncovered, note)
    if _are_compiled(cases, table):
        begin(observe, "estimating", effort_of(sum(efforts)), ahead={"measuring 1": 0.0})
    rules = {case.whole.id: StoppingRule(*case.covered, call.policy.target, call.processes) for case in cases}
    plan = ProcessPlan(validation_plan(cases), rules, call.policy, call.layers, strict, call.wait_s, call.variant)
    measured = measure_processes(table, workspace, plan, observe, call.stop or threading.Event())
    by_device = _refused_by_device(cases, measured.refused)
    refused = (*read.refused, *uncovered, *by_device)
    left = [case for case in cases if case.whole.id not in measured.refused]
    check_refused(refused, len(left), strict=strict)
    note_refused(by_device, note)
    results = _compared(left, references, measured, table, observe)
    oracle = _report_oracle(table, left, [process.truths for process in measured.processes if process.truths])
    fingerprint = measured.processes[0].fingerprint
    facts = sorted({*fingerprint, *table.fingerprint})
    changes = tuple(name for name in facts if fingerprint.get(name) != table.fingerprint.get(name))
    found = validation_of(table, results, fingerprint_changes=changes, oracle=oracle, method=table.method)
    noises = [process.noise for process in _kept(measured.processes, left, table.clock)]
    machine = judge_processes(noises, table.clock, found.floor, table.reference_s)
    found = replace(found, refused_networks=refused, machine=machine)
    keep_validation(workspace, references, call.dims or {}, found)
    observe(DONE)
    return found


def _are_compiled(cases: Sequence[NetworkCase], table: Lut) -> bool:
    """Return whether the emulated device has probably compiled all networks before: when the table was measured."""
    is_own = table.fingerprint.get("runtime") == EMULATED and not is_published(table)
    return is_own and all(case.estimated.coverage["measured"] == len(case.estimated.layers) for case in cases)


def _cases(networks: Sequence[Network], table: Lut, naive: bool) -> tuple[list[NetworkCase], list[RefusedNetwork]]:
    """Return the networks that the table covers as cases, and a refusal for each of the others."""
    estimates = [(network, estimate_network(network, table)) for network in networks]
    cases = [
        network_case(network, estimated, layers_alone(network, table.rules) if naive else ())
        for network, estimated in estimates
        if not estimated.unknown
    ]
    return cases, [_uncovered(network, estimated, table.name) for network, estimated in estimates if estimated.unknown]


def _compared(
    cases: Sequence[NetworkCase],
    references: Sequence[ModelReference],
    measured: MeasuredProcesses,
    table: Lut,
    observe: Observer,
) -> list[NetworkValidation]:
    """Compare each network with its estimate and, unless the device has a clock of its own, with its file."""
    by_file = {shown(reference): reference for reference in references} if table.clock != "device" else {}
    sizes = [runs_s(case.covered[0]) + openings(case.network) for case in cases]
    step, results = steps_of(observe, "comparing with the files", sizes), []
    for number, case in enumerate(cases):
        step(number, len(cases))
        results.append(_with_file(_compare(case, measured, table.clock), by_file, case))
    return results


def _with_file(
    result: NetworkValidation, references: Mapping[str, ModelReference], case: NetworkCase
) -> NetworkValidation:
    """Add the comparison of what was measured with its file, if that is among the references."""
    reference = references.get(case.network.file)
    if reference is None:
        return result
    return replace(result, file_comparison=compare_with_file(reference, case.network, case.whole.model))


def _refused_by_device(cases: Sequence[NetworkCase], reasons: Mapping[str, str]) -> list[RefusedNetwork]:
    return [
        RefusedNetwork.of(
            case.network.file or case.network.name, refused_by_device(case.network, case.whole, reasons[case.whole.id])
        )
        for case in cases
        if case.whole.id in reasons
    ]


def _report_oracle(
    table: Lut, cases: Sequence[NetworkCase], processes: Sequence[Mapping[str, Truth]]
) -> OracleReport | None:
    if not processes:
        return None
    compared = [
        compare_network(
            case.estimated,
            cut(case.network, table.rules),
            case.whole.model.names,
            [truths[case.whole.id] for truths in processes if case.whole.id in truths],
        )
        for case in cases
    ]
    return report_truth(table.overhead, next(iter(processes[0].values())), compared)


def _uncovered(network: Network, estimated: NetworkEstimate, table: str) -> RefusedNetwork:
    first, file = estimated.unknown[0], network.file or network.name
    why = f"{len(estimated.unknown)} of {len(estimated.layers)} layers, for example {first.name} ({first.op})"
    step = "Run `harness profile` on it and build the table again"
    return RefusedNetwork.of(file, CoverageError(f"{table} lacks layers of {file}", why=why, next_step=step))


def _kept(processes: Sequence[ProcessSamples], cases: Sequence[NetworkCase], clock: str) -> Sequence[ProcessSamples]:
    """Return the processes in which some network was undisturbed; all processes if these are fewer than two."""
    kept = [one for one in processes if any(undisturbed([one], case.whole.id, clock) for case in cases)]
    return kept if len(kept) > 1 else processes


def _compare(case: NetworkCase, found: MeasuredProcesses, clock: str) -> NetworkValidation:
    estimated_s, (low, high) = case.covered
    measured = whole_latency(found.processes, case.whole.id, clock)
    error = estimated_s / measured.latency_s - 1
    naive = naive_s(case, found.processes[0], clock)
    return NetworkValidation(
        name=case.estimated.name,
        estimated_s=estimated_s,
        interval_s=(low, high),
        measured_s=measured.latency_s,
        measured_halfwidth_s=measured.halfwidth_s,
        wall_s=measured.wall_s,
        error=error,
        within_interval=low <= measured.latency_s <= high,
        processes_s=measured.processes_s,
        repeatability=measured.repeatability,
        error_beyond_floor=max(0.0, abs(error) - (measured.repeatability or 0.0)),
        naive_s=naive,
        naive_error=None if naive is None else naive / measured.latency_s - 1,
        compile_s=compile_s(case, found.processes),
        on_cpu=on_cpu(case, found.processes[0]),
        stopped=found.stops[case.whole.id],
        preempted_processes=measured.preempted_processes,
    )


@dataclass(frozen=True)
class NetworkCase:
    """A network, its estimate, the network as a probe, its layers as single probes, and how often each occurs."""

    network: Network
    estimated: NetworkEstimate
    whole: Probe
    singles: Mapping[str, Probe]
    counts: Mapping[str, int]

    @property
    def covered(self) -> tuple[float, tuple[float, float]]:
        """The estimate and its interval in seconds; raises ValueError if layers are unknown."""
        if self.estimated.latency_s is None or self.estimated.interval_s is None:
            raise ValueError(f"{self.estimated.name} is not covered")
        return self.estimated.latency_s, self.estimated.interval_s


def network_case(network: Network, estimated: NetworkEstimate, alone: Sequence[tuple[str, Probe]]) -> NetworkCase:
    """Return the case of a network; `alone` are probes of its single layers by the digests of their keys."""
    counts = Counter(key for key, _ in alone)
    return NetworkCase(network, estimated, network_probe(network), dict(alone), counts)


def layers_alone(network: Network, rules: Sequence[FusionRule]) -> list[tuple[str, Probe]]:
    """Return a probe of each single layer, with the layer's key."""
    executed = as_executed(network, rules)
    return [(layer.key.digest, single_probe(executed, layer)) for layer in cut(executed, rules)]


def validation_plan(cases: Sequence[NetworkCase]) -> ProbePlan:
    """Return a plan with each network in its own batch, its single layers in the next, and equal probes once."""
    reference = reference_probe()
    probes = {reference.id: reference}
    batches: list[Batch] = []
    for case in cases:
        for group, untimed in (((case.whole,), _untimed_runs(case.estimated)), (tuple(case.singles.values()), 1)):
            fresh = {probe.id: probe for probe in group if probe.id not in probes}
            probes.update(fresh)
            if fresh:
                batches.append(Batch(tuple(fresh), "warm", RUNS_PER_VISIT, untimed))
    return ProbePlan(probes, (), tuple(batches), reference.id, (), DEFAULT_AUXILIARY)


def _untimed_runs(estimated: NetworkEstimate) -> int:
    """Return the number of untimed runs before the timed ones of a whole network."""
    return max(1, math.ceil(SETTLING_S / max(estimated.covered_latency_s, SETTLING_S / MOST_UNTIMED)))


def naive_s(case: NetworkCase, process: ProcessSamples, clock: str) -> float | None:
    """Return the sum over layers timed one by one; None unless requested, or where one could not be timed."""
    if not case.singles or any(probe.id not in process.samples for probe in case.singles.values()):
        return None
    return sum(
        count * summarise(process.samples[case.singles[key].id], clock).latency_s for key, count in case.counts.items()
    )


def compile_s(case: NetworkCase, processes: Sequence[ProcessSamples]) -> float | None:
    """Return the median time in which processes compiled the network; None where the device does not report it."""
    reports = [one.load_reports[case.whole.id] for one in processes if case.whole.id in one.load_reports]
    return statistics.median(found) if (found := [one.compile_s for one in reports if one.compile_s]) else None


def on_cpu(case: NetworkCase, process: ProcessSamples) -> tuple[str, ...]:
    """Return the nodes that the device left to the CPU, by the names of the network."""
    report = process.load_reports.get(case.whole.id)
    names = {node.index: node.name for node in case.network.nodes}
    emitted = case.whole.model.names.nodes
    return tuple(names[emitted[node]] if node in emitted else node for node in report.on_cpu) if report else ()
