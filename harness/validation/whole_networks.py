"""Whole networks measured on a device, each in several separate processes of its worker.

A process has its own addresses, its own pages and its own luck with caches: what one of them repeats to a tenth of a
percent, the next may measure a few percent off. How far processes differ is the floor below which no error of an
estimate means anything.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.device.holder import holder
from harness.device.inventory import find_device, load_inventory
from harness.device.session import AgentSession, Truth, open_session
from harness.errors import BackendError, LutMismatch
from harness.measure.campaign import CampaignRun, payload_of
from harness.measure.device_run import DeviceRun
from harness.measure.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Observer
from harness.measure.summary import STUDENT_95, summarise
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample
from harness.workspace import Workspace

# The mean of a standard deviation from 2, 3, … normal values, as a part of the true one.
_SMALL_SAMPLE = (0.7979, 0.8862, 0.9213, 0.9400, 0.9515, 0.9594, 0.9650, 0.9693, 0.9727)


@dataclass(frozen=True)
class Taken:
    """All samples of one process by probe, the device they were taken on, and where it tells it the truth by probe."""

    samples: Mapping[str, Sequence[Sample]]
    fingerprint: Mapping[str, str]
    truths: Mapping[str, Truth]


@dataclass(frozen=True)
class WholeLatency:
    """A whole network's latency: the median over processes, whose own medians are `processes_s`.

    `halfwidth_s` of its 95 % interval covers samples and processes. `repeatability` is the standard deviation from
    process to process as a fraction; None where there was one.
    """

    latency_s: float
    halfwidth_s: float
    wall_s: float
    processes_s: tuple[float, ...]
    repeatability: float | None


def measure_processes(
    device: str,
    clock: str,
    place: Workspace,
    plan: ProbePlan,
    processes: int,
    policy: RepeatPolicy,
    observe: Observer,
    stop: threading.Event,
    layers: bool = False,
) -> tuple[Taken, ...]:
    """Runs the plan in one process, and its whole networks in as many more as wanted.

    With `layers` the first asks for the time of each layer, too, which a device with a clock of its own is always
    asked for, as it need not run anything for that.
    Raises LutMismatch for a device of another clock and BackendError where the device refuses a whole network.
    """
    known = find_device(load_inventory(place.devices), device)
    taken = []
    with Journal(place.journal) as journal:
        for number in range(processes):
            chosen = plan if number == 0 else _networks_only(plan)
            with open_session(known, "validation") as session:
                session.acquire(holder())
                _check_clock(session, device, clock)
                run = DeviceRun(session, journal, device, observe, stop)
                campaign = run.begin(chosen, policy.settings("validate", number))
                CampaignRun(run, campaign, chosen, policy).run()
                for record in journal.probes(campaign.id).values():
                    if record.refused and record.role == "network":
                        raise BackendError(f"{device} refuses to run {record.label}", why=record.refused)
                asked = number == 0 and (layers or clock == "device")
                truths = _ask_oracle(session, chosen) if asked else {}
                taken.append(Taken(journal.samples(campaign.id), session.hello.fingerprint, truths))
    return tuple(taken)


def whole_latency(taken: Sequence[Taken], probe: str, clock: str) -> WholeLatency:
    """What the processes say of one network."""
    measured = [summarise(process.samples[probe], clock) for process in taken]
    processes_s = tuple(one.latency_s for one in measured)
    centre_s = statistics.median(processes_s)
    sampling_s = statistics.median(one.halfwidth_s for one in measured)
    between_s, repeatability = 0.0, None
    if len(processes_s) > 1:
        spread_s = statistics.stdev(processes_s)
        between_s = STUDENT_95[min(len(processes_s) - 2, len(STUDENT_95) - 1)] * spread_s / len(processes_s) ** 0.5
        repeatability = spread_s / _SMALL_SAMPLE[min(len(processes_s) - 2, len(_SMALL_SAMPLE) - 1)] / centre_s
    wall_s = statistics.median(summarise(process.samples[probe], "wall").latency_s for process in taken)
    return WholeLatency(centre_s, (sampling_s**2 + between_s**2) ** 0.5, wall_s, processes_s, repeatability)


def _networks_only(plan: ProbePlan) -> ProbePlan:
    wholes = {probe.id for probe in plan.probes.values() if probe.role == "network"}
    batches = [replace(batch, loads=tuple(load for load in batch.loads if load in wholes)) for batch in plan.batches]
    kept = {name: probe for name, probe in plan.probes.items() if name in wholes or name == plan.reference}
    return replace(plan, probes=kept, batches=tuple(batch for batch in batches if batch.loads))


def _check_clock(session: AgentSession, device: str, clock: str) -> None:
    if session.hello.clock != clock:
        why = f"The table's clock is {clock}, the device's is {session.hello.clock}"
        step = "Profile the device as it is now and build a table, or restore its options"
        raise LutMismatch(f"The table and {device} have different clocks", why=why, next_step=step)


def _ask_oracle(session: AgentSession, plan: ProbePlan) -> dict[str, Truth]:
    """The truth about each whole network; nothing where the device has none to tell."""
    truths: dict[str, Truth] = {}
    wholes = [probe for probe in plan.probes.values() if probe.role == "network"]
    for probe in wholes if "oracle" in session.hello.reveals else ():
        session.put(payload_of(probe))
        truths[probe.id] = session.oracle(probe.id)
        session.drop([probe.id])
    return truths
