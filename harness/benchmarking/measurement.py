"""`harness.benchmark`: measure whole networks on a device, for each batch and number of threads, without a table."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from harness.arguments import COUNTS, check_fields, spread
from harness.benchmarking.benchmark_results import (
    Benchmark,
    BenchmarkedNetwork,
    LatencyFigures,
    latencies_s,
    mean_power_w,
    reported_clock,
)
from harness.device.inventory import Device, find_device, load_inventory
from harness.device.session import LoadReport
from harness.device.variant import Variant
from harness.errors import UsageError
from harness.measure.busy_device import BusyWait, lease_when_free
from harness.measure.calls import DeviceCall
from harness.measure.campaign import CampaignRun
from harness.measure.device_run import DeviceRun, leased_run
from harness.measure.fusion.cutting import refused_by_device
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.noise.campaign_noise import ProcessNoise, judge_processes
from harness.measure.noise.machine_noise import between_processes
from harness.measure.noise.quiet_phases import phases_of
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import DONE, begin, effort_of, notes_of, part_of
from harness.network.model_references import Models, model_references
from harness.network.network import Network
from harness.network.network_list import RefusedNetwork, check_refused, note_refused, read_networks
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import Probe, network_probe, reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample
from harness.workspace import Workspace, as_workspace

DEFAULT_RUNS = 200
_RUNS_PER_VISIT = 20
_PURPOSE = "validate"
"""Campaigns of whole networks are not used for tables, and each starts from the beginning."""


@dataclass(frozen=True)
class _Process:
    """What one process measured of a network."""

    samples: tuple[Sample, ...]
    clock: str
    report: LoadReport
    noise: ProcessNoise

    @property
    def power_w(self) -> float | None:
        """The mean power of the device during the runs."""
        cores = self.noise.fingerprint.get("cores", "")
        return mean_power_w(self.noise.states, int(cores) if cores.isdigit() else 0)


@dataclass(frozen=True)
class BenchmarkCall(DeviceCall):
    """The arguments of `benchmark`."""

    models: Models
    _: KW_ONLY
    device: str | None = None
    batches: Sequence[int | None] = (None,)
    threads: Sequence[int | None] = (None,)
    runs: int = DEFAULT_RUNS
    processes: int = 1
    dims: Mapping[str, int] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_fields(self, batches=COUNTS, threads=COUNTS)


@dataclass(frozen=True)
class _Bench:
    """The device with all that its processes share."""

    call: BenchmarkCall
    device: Device
    workspace: Workspace
    count: int
    stop: threading.Event

    def measure(self, network: Network, variant: Variant, done: int) -> list[_Process] | RefusedNetwork:
        """Measure a network in each process, after `done` others; the first refusal of the device ends it."""
        probe = network_probe(network)
        found: list[_Process] = []
        with Journal(self.workspace.journal) as journal:
            each = self.call.processes
            for number in range(each):
                place = min(self.count, done) * each + number
                observe = part_of(self.call.observe, "measuring", place, self.count * each)
                patience = BusyWait(wait_s=self.call.wait_s, observe=observe, stop=self.stop)
                with (
                    lease_when_free(variant.device(self.device), patience, "validation") as session,
                    leased_run(session, self.device, journal, observe, self.stop, variant) as run,
                ):
                    one = self._in_process(run, probe, number)
                if isinstance(one, str):
                    return RefusedNetwork.of(network.file or network.name, refused_by_device(network, probe, one))
                found.append(one)
        return found

    def _in_process(self, run: DeviceRun, probe: Probe, number: int) -> _Process | str:
        """Measure the network in this session; return the reason if the device refuses it."""
        plan, policy = _plan(probe, self.call.runs)
        campaign = run.begin(plan, policy.settings(_PURPOSE, number))
        CampaignRun(run, campaign, plan, policy).run()
        refused = run.journal.probes(campaign.id)[probe.id].refused
        if refused:
            return refused
        return _Process(
            tuple(run.journal.samples_of(campaign.id, probe.id)[: self.call.runs]),
            campaign.clock,
            run.session.load_reports.get(probe.id, LoadReport()),
            _noise(run, campaign),
        )


def _noise(run: DeviceRun, campaign: Campaign) -> ProcessNoise:
    """Return the noise of a process on the clock of its percentiles."""
    clock = reported_clock(campaign.clock)
    slow_share = phases_of(run.journal.probe_samples(campaign.id), clock).slow_share
    return ProcessNoise.of(run.journal, campaign, clock, slow_share)


@spread(BenchmarkCall)
def benchmark(call: BenchmarkCall) -> Benchmark:
    """Measure whole networks on a device without a table: percentiles, throughput, load time, memory and energy.

    Each network is measured with each of `batches` and each number of `threads`, `runs` times in each of `processes`
    new processes. None keeps the batch of the file and the threads of the inventory. One to four untimed runs precede
    every 20 timed ones. Networks that are refused are left out and listed in the result; with `strict`, or if none is
    left, the refusal is raised.
    """
    references, workspace, observe = model_references(call.models), as_workspace(call.workspace), call.observe
    if not references:
        raise UsageError("There is no network to benchmark", next_step="Name one or more models")
    chosen = find_device(load_inventory(workspace.devices), call.device or workspace.default_device)
    variants = [Variant(batch, count) for batch in call.batches for count in call.threads]
    for variant in variants:
        variant.device(chosen)  # raises before anything is measured
    count = len(references) * len(variants)
    bench = _Bench(call, chosen, workspace, count, call.stop or threading.Event())
    found: list[BenchmarkedNetwork] = []
    refused: list[RefusedNetwork] = []
    for batch in call.batches:
        begin(observe, "reading networks", effort_of(len(references)))
        read = read_networks(references, call.dims, batch=batch, strict=call.strict, note=notes_of(observe))
        refused += read.refused
        due = itertools.product(read.networks, [one for one in variants if one.batch == batch])
        _measure_all(bench, due, found, refused)
    check_refused(refused, len(found))
    observe(DONE)
    return Benchmark(chosen.name, tuple(found), tuple(dict.fromkeys(refused)))


def _measure_all(
    bench: _Bench,
    due: Iterable[tuple[Network, Variant]],
    found: list[BenchmarkedNetwork],
    refused: list[RefusedNetwork],
) -> None:
    """Measure networks with variants, and add each to those found or refused; `strict` raises the first refusal."""
    for network, variant in due:
        measured = bench.measure(network, variant, len(found) + len(refused))
        if isinstance(measured, RefusedNetwork):
            refused.append(measured)
            if bench.call.strict:
                raise measured.error()
            note_refused([measured], notes_of(bench.call.observe))
        else:
            found.append(_summary(network.name, variant, measured))


def _plan(probe: Probe, runs: int) -> tuple[ProbePlan, RepeatPolicy]:
    """Return a plan whose only probe is the network, and the policy with this number of runs."""
    reference = reference_probe()
    each = min(runs, _RUNS_PER_VISIT)
    plan = ProbePlan(
        {reference.id: reference, probe.id: probe},
        (),
        (Batch((probe.id,), "warm", each),),
        reference.id,
        (),
        DEFAULT_AUXILIARY,
    )
    return plan, RepeatPolicy(runs=-(-runs // each), budget_s=math.inf)  # with a budget, one pass loads it once


def _summary(name: str, variant: Variant, processes: Sequence[_Process]) -> BenchmarkedNetwork:
    clock, reports = processes[0].clock, [one.report for one in processes]
    latency = LatencyFigures.of([value for one in processes for value in latencies_s(one.samples, clock)])
    powers = [one.power_w for one in processes]
    medians_s = [LatencyFigures.of(latencies_s(one.samples, clock)).p50_s for one in processes]
    power_w = None if None in powers else statistics.fmean(one for one in powers if one is not None)
    return BenchmarkedNetwork(
        network=name,
        batch=variant.batch,
        threads=variant.threads,
        clock=reported_clock(clock),
        latency=latency,
        throughput_per_s=1 / latency.mean_s,
        rows_per_s=variant.batch / latency.mean_s if variant.batch else None,
        compile_s=_median([one.compile_s for one in reports]),
        first_run_s=_median([one.first_run_s for one in reports]),
        before_bytes=_largest([one.before_bytes for one in reports]),
        loaded_bytes=_largest([one.loaded_bytes for one in reports]),
        peak_bytes=_largest([one.peak_bytes for one in reports]),
        power_w=power_w,
        energy_j=None if power_w is None else power_w * latency.mean_s,
        machine=judge_processes([one.noise for one in processes], reported_clock(clock), between_processes(medians_s)),
        processes=tuple(one.samples for one in processes),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
