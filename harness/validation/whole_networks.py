"""Whole networks measured on a device, each in several separate processes of its worker.

The processes take turns: each measures every network that is still open, for a short time, and ends. A process has
its own addresses, pages and cache conflicts: one may repeat to a tenth of a percent while the next is a few percent
off. The difference between processes is the floor below which an error of an estimate has no meaning.
"""

import statistics
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.device.inventory import find_device, load_inventory
from harness.device.session import AgentSession, LoadReport, Truth
from harness.device.variant import NO_VARIANT, Variant
from harness.errors import BackendError, LutMismatch
from harness.lut.table import Lut
from harness.measure.busy_device import BusyWait, lease_when_free
from harness.measure.campaign import CampaignRun
from harness.measure.device_requests import load_request
from harness.measure.device_run import DeviceRun, leased_run
from harness.measure.journal.journal import Journal
from harness.measure.noise.campaign_noise import ProcessNoise
from harness.measure.noise.machine_noise import between_processes
from harness.measure.noise.quiet_phases import by_probe, phases_of
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Observer, Progress, effort_of, steps_of
from harness.measure.reference import measure_reference
from harness.measure.summary import STUDENT_95, is_mostly_preempted, summarise
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample
from harness.validation.stopping_rule import FEWEST_PROCESSES, Stop, StoppingRule
from harness.workspace import Workspace

VALIDATE = "validate"
"""The purpose of campaigns of whole networks, and of the reference probe before them."""


@dataclass(frozen=True)
class ProcessSamples:
    """All samples of one process by probe, the device's fingerprint, and the truth by probe if it reports one.

    `load_reports` has how each probe was loaded, `noise` what the machine reported with the samples, including the
    reference probe, which runs by itself before the networks.
    """

    samples: Mapping[str, Sequence[Sample]]
    fingerprint: Mapping[str, str]
    truths: Mapping[str, Truth] = field(default_factory=dict)
    load_reports: Mapping[str, LoadReport] = field(default_factory=dict)
    noise: ProcessNoise = field(default_factory=ProcessNoise)


@dataclass(frozen=True)
class MeasuredProcesses:
    """All processes, and the whole networks that the device refuses: its reasons by probe.

    `stops` has for each network that was measured why no further process measured it.
    """

    processes: tuple[ProcessSamples, ...]
    refused: Mapping[str, str]
    stops: Mapping[str, Stop]


@dataclass(frozen=True)
class WholeLatency:
    """A whole network's latency: the median over processes, whose own medians are `processes_s`.

    `halfwidth_s` of its 95 % interval covers samples and processes. `repeatability` is the standard deviation between
    processes as a fraction, None for one process. `preempted_processes` more were left out.
    """

    latency_s: float
    halfwidth_s: float
    wall_s: float
    processes_s: tuple[float, ...]
    repeatability: float | None
    preempted_processes: int


@dataclass(frozen=True)
class ProcessPlan:
    """What to measure in separate processes of the worker.

    The first process runs all of `plan`, each later one the whole networks that their `rules`, by probe, do not stop.
    With `layers` each also asks for the runtime's profile. A device with its own clock is always asked, once, because
    it runs nothing for that and repeats exactly. With `strict`, the device must accept all whole networks. Each process
    waits up to `wait_s` for a device that is in use.
    """

    plan: ProbePlan
    rules: Mapping[str, StoppingRule]
    policy: RepeatPolicy
    layers: bool = False
    strict: bool = False
    wait_s: float = 0.0
    variant: Variant = NO_VARIANT


def _in_process(observe: Observer, number: int, count: int) -> Observer:
    """Return the observer of a process, one of about `count`; a part of its time does not depend on the networks."""

    def show(progress: Progress) -> None:
        phase = f"{progress.phase or progress.stage} {number + 1}"
        effort = None if progress.effort is None else effort_of(progress.effort)
        observe(replace(progress, unit="network", process=number, processes=count, phase=phase, effort=effort))

    return show


def measure_processes(
    table: Lut, workspace: Workspace, wanted: ProcessPlan, observe: Observer, stop: threading.Event
) -> MeasuredProcesses:
    """Measure on the table's device and clock the whole networks that the device accepts.

    With `strict`, nothing is measured if it refuses one. Raises LutMismatch if the device has another clock.
    """
    device = wanted.variant.device(find_device(load_inventory(workspace.devices), table.device))
    found: list[ProcessSamples] = []
    refused: dict[str, str] = {}
    stops: dict[str, Stop] = {}
    patience = BusyWait(wait_s=wanted.wait_s, observe=observe, stop=stop)
    most = max(rule.most_processes for rule in wanted.rules.values())
    fewest = min(most, FEWEST_PROCESSES)
    with Journal(workspace.journal) as journal:
        for number in range(2 * most):  # as many again in place of those that other programs disturbed
            chosen = set(wanted.plan.probes) if number == 0 else _wholes(wanted.plan)
            plan = _only(wanted.plan, chosen - {*refused, *stops})
            if not _wholes(plan):
                break
            watched = _in_process(observe, number, max(fewest, number + 1))
            watched(Progress("starting", 0, 0))
            with (
                lease_when_free(device, patience, "validation") as session,
                leased_run(session, device, journal, watched, stop, wanted.variant) as run,
            ):
                _check_clock(session, table)
                if wanted.strict and number == 0:
                    refused |= _refusals(session, plan)
                if refused.keys() >= _wholes(wanted.plan) or (refused and wanted.strict):
                    break
                asks = number == 0 if table.clock == "device" else wanted.layers
                process, refusals = _measure_process(run, plan, wanted.policy, number)
                truths = _ask_oracle(session, _only(plan, set(plan.probes) - refusals.keys()), observe) if asks else {}
                found.append(replace(process, truths=truths))
                refused |= refusals
                stops |= _stops(wanted.rules, _wholes(plan) - refused.keys(), found, table.clock)
    ended: dict[str, Stop] = dict.fromkeys(_wholes(wanted.plan) - refused.keys(), "most processes")
    return MeasuredProcesses(tuple(found), refused, ended | stops)


def _measure_process(
    run: DeviceRun, plan: ProbePlan, policy: RepeatPolicy, number: int
) -> tuple[ProcessSamples, dict[str, str]]:
    """Measure the reference probe and the plan in this process; also return the reasons for refused networks."""
    session, journal = run.session, run.journal
    reference = measure_reference(run, VALIDATE, number, "reference")
    campaign = run.begin(plan, policy.settings(VALIDATE, number))
    CampaignRun(run, campaign, plan, policy).run()
    records = journal.probes(campaign.id).values()
    refused = {one.id: one.refused for one in records if one.refused and one.role == "network"}
    reports = dict(session.load_reports)
    taken = journal.probe_samples(campaign.id)
    noise = ProcessNoise.of(journal, campaign, campaign.clock, phases_of(taken, campaign.clock).slow_share, reference)
    return ProcessSamples(by_probe(taken), run.fingerprint, load_reports=reports, noise=noise), refused


def _stops(
    rules: Mapping[str, StoppingRule], probes: Collection[str], processes: Sequence[ProcessSamples], clock: str
) -> dict[str, Stop]:
    """Return those of the networks that no further process needs to measure, with the reason."""
    found = {}
    for probe in probes:
        if kept := undisturbed(processes, probe, clock):
            one = whole_latency(kept, probe, clock)
            found[probe] = rules[probe].stop(one.processes_s, one.halfwidth_s)
    return {probe: reason for probe, reason in found.items() if reason is not None}


def _refusals(session: AgentSession, plan: ProbePlan) -> dict[str, str]:
    """Load each whole network once; return the reasons for those that the device refuses."""
    refused = {}
    for probe in _wholes(plan):
        try:
            session.put(load_request(plan.probes[probe]))
        except BackendError as error:
            refused[probe] = error.why
        finally:
            session.drop([probe])
    return refused


def undisturbed(processes: Sequence[ProcessSamples], probe: str, clock: str) -> list[ProcessSamples]:
    """Return the processes that measured a network, on the wall clock without those with mostly preempted runs.

    Programs that take a core from one of several threads double the latency.
    """
    measured = [process for process in processes if probe in process.samples]
    return [one for one in measured if clock != "wall" or not is_mostly_preempted(one.samples[probe])]


def whole_latency(processes: Sequence[ProcessSamples], probe: str, clock: str) -> WholeLatency:
    """Return the latency of one network over the processes that measured it.

    Processes that other programs disturbed are left out if at least two others show how far processes differ.
    """
    every = [process for process in processes if probe in process.samples]
    kept = undisturbed(every, probe, clock)
    processes = kept if len(kept) > 1 else every
    measured = [summarise(process.samples[probe], clock) for process in processes]
    processes_s = tuple(one.latency_s for one in measured)
    centre_s = statistics.median(processes_s)
    sampling_s = statistics.median(one.halfwidth_s for one in measured)
    between_s = 0.0
    if len(processes_s) > 1:
        spread_s = statistics.stdev(processes_s)
        between_s = STUDENT_95[min(len(processes_s) - 2, len(STUDENT_95) - 1)] * spread_s / len(processes_s) ** 0.5
    wall_s = statistics.median(summarise(process.samples[probe], "wall").latency_s for process in processes)
    halfwidth_s = (sampling_s**2 + between_s**2) ** 0.5
    left_out = len(every) - len(processes)
    return WholeLatency(centre_s, halfwidth_s, wall_s, processes_s, between_processes(processes_s), left_out)


def _only(plan: ProbePlan, chosen: Collection[str]) -> ProbePlan:
    """Return the plan with only these probes and the reference."""
    batches = [replace(one, loads=tuple(load for load in one.loads if load in chosen)) for one in plan.batches]
    kept = {name: probe for name, probe in plan.probes.items() if name in chosen or name == plan.reference}
    return replace(plan, probes=kept, batches=tuple(batch for batch in batches if batch.loads))


def _wholes(plan: ProbePlan) -> set[str]:
    return {probe.id for probe in plan.probes.values() if probe.role == "network"}


def _check_clock(session: AgentSession, table: Lut) -> None:
    if session.hello.clock != table.clock:
        why = f"The table's clock is {table.clock}, the device's is {session.hello.clock}"
        step = "Profile the device as it is now and build a table, or restore its options"
        raise LutMismatch(f"The table and {table.device} have different clocks", why=why, next_step=step)


def _ask_oracle(session: AgentSession, plan: ProbePlan, observe: Observer) -> dict[str, Truth]:
    """Return the truth about each whole network; empty if the device does not report it."""
    truths: dict[str, Truth] = {}
    wholes = [probe for probe in plan.probes.values() if probe.role == "network"]
    if not wholes or "oracle" not in session.hello.reveals:
        return truths
    step = steps_of(observe, "reading latencies of layers", [len(probe.model.names.nodes) for probe in wholes])
    for number, probe in enumerate(wholes):
        step(number, len(wholes))
        session.put(load_request(probe))
        truths[probe.id] = session.oracle(probe.id)
        session.drop([probe.id])
    return truths
