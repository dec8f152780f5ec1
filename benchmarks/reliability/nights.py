"""Simulate nights: how often an unchanged device raises a false alarm, and how often a slower layer is found.

A profile campaign plans the watch of each network once. The watch then runs each night on the emulated NPU in this
process, with default noise that differs from night to night. Backend, campaigns, journal (in memory) and comparison are
those of `harness nightly`. There are two series of nights:

- A/A: nothing changes. Each night is compared with earlier ones, and each regression found, of a layer, a network or
  the device, is a false alarm.
- planted: one layer takes 2 % longer that night. It is drawn each night from all layers that take at least 1 % of their
  network's latency, over all places of the layer and by the device's own figures. It counts as found if a regression of
  this layer is reported.

Each night is compared with several numbers of earlier nights, and as one of several comparisons that share the
probability of a false alarm. Networks are simulated side by side.
"""

import multiprocessing
import os
import random
import tempfile
import threading
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from in_process import InProcessSession
from scipy.stats import beta

from benchmarks.parts import say
from device_agents.backends.emulated_npu import EmulatedNpuBackend
from harness.measure.campaign import CampaignRun
from harness.measure.device_requests import load_request
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.cutting import cut_as_reported
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import ignore
from harness.network.layers import context_of, cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import auxiliary_for
from harness.probe.probe import network_probe
from harness.probe.probe_plan import LayerProbes, plan_probes
from harness.slowdowns.detection_power import level_of_each
from harness.slowdowns.findings import Comparison
from harness.slowdowns.night_comparison import compare_nights
from harness.slowdowns.watch_choices import SHARE
from harness.slowdowns.watch_plan import WatchPlan, plan_watch
from harness.slowdowns.watch_series import WatchSeries, layer_subject, read_watch

DEVICE = "npu01"
SLOWER = 1.02
NETWORKS = ("efficientnet_b0", "mobilenetv2", "vit_tiny", "squeezenet", "resnet18", "shufflenet", "bert_mini", "dscnn")
EARLIER, COMPARISONS = (7, 1), (1, 10)
"""Numbers of earlier nights, and of comparisons that share the probability of a false alarm."""
FIRST_NIGHT = datetime(2026, 1, 1, 1, tzinfo=UTC)
_FOLDER = Path("/dev/shm")


@dataclass(frozen=True)
class Planted:
    """A layer that can be slowed down: key and context, signatures of its hardware layers, and share of the network."""

    place: tuple[str, str]
    signatures: tuple[str, ...]
    share: float

    @property
    def slow(self) -> str:
        """The option of the backend that slows it down."""
        return ";".join(f"{signature}:{SLOWER}" for signature in self.signatures)


@dataclass(frozen=True)
class Bench:
    """A device with a planned watch, the layers to slow down, and the probability of a false alarm per comparison."""

    name: str
    backend: EmulatedNpuBackend
    watch: WatchPlan
    eligible: tuple[Planted, ...]
    level: float


@dataclass(frozen=True)
class Outcome:
    """Nights of one kind: their number, the number with a detection, and its rate with the exact 95 % interval.

    Each night was compared with `earlier` nights, as one of `comparisons` comparisons.
    """

    network: str
    kind: str
    earlier: int
    comparisons: int
    nights: int
    detected: int
    rate: float
    low: float
    high: float


def bench(name: str, seed: int, folder: Path, comparisons: int = 1) -> Bench:
    """Profile the network once, and plan its watch as one of `comparisons` comparisons."""
    backend = EmulatedNpuBackend({"preset": "edge", "seed": seed})
    session = InProcessSession(backend)
    network = load_network(name if "/" in name else f"builtin:{name}")
    cuts, rules = cut_as_reported(session, [network], ignore, threading.Event())
    plan = plan_probes(cuts, rules, auxiliary_for(backend.clock), None)
    policy, level = RepeatPolicy(runs=12), level_of_each(comparisons)
    with Journal(folder / f"{name.rpartition('/')[2]}-{comparisons}.sqlite") as journal:
        run = DeviceRun(session, journal, DEVICE)
        campaign = run.begin(plan, policy.settings("profile", seed))
        CampaignRun(run, campaign, plan, policy).run()
        watch = plan_watch(plan, [network], journal.samples(campaign.id), backend.clock, level=level)
    if watch is None:
        raise SystemExit(f"{name} has no layer that can be watched")
    whole = network_probe(network)
    session.put(load_request(whole))
    truth = backend.oracle(whole.id)
    overhead = truth.overhead
    total_s = truth.makespan_s
    if overhead:
        copies_s = overhead.a_s_per_byte * whole.model.input_bytes + overhead.b_s_per_byte * whole.model.output_bytes
        total_s += copies_s + overhead.c_s
    by_node: dict[int, list[tuple[str, float, str]]] = {}
    for signature, layer in backend.signatures(whole.id):
        for node in layer.nodes:
            by_node.setdefault(whole.model.names.nodes[node], []).append((signature, layer.latency_s, layer.name))
    takes: defaultdict[tuple[str, str], float] = defaultdict(float)
    signatures: dict[tuple[str, str], set[str]] = {}
    for one in cut(network, rules):
        place = (one.key.text, context_of(network, one))
        mine = {found for node in one.graph.nodes for found in by_node.get(node.index, [])}
        takes[place] += sum(latency_s for _, latency_s, _ in mine)
        signatures.setdefault(place, set()).update(signature for signature, _, _ in mine)
    eligible = []
    for place, latency_s in takes.items():
        if latency_s >= SHARE * total_s:
            eligible.append(Planted(place, tuple(sorted(signatures[place])), latency_s / total_s))
    return Bench(name, backend, watch, tuple(eligible), level)


def nights(bench: Bench, folder: Path, seed: int) -> Iterator[WatchSeries]:
    """Yield nights of an unchanged device."""
    for number in range(1 << 30):
        yield night(bench, folder, seed + number, number, "")


def night(bench: Bench, folder: Path, seed: int, number: int, slow: str) -> WatchSeries:
    """Run the campaign of a night into a journal, and read its series."""
    session = InProcessSession(bench.backend.restarted(seed, slow), fingerprint={"machine": "emulated"})
    plan, policy = bench.watch.plan, bench.watch.policy
    path = folder / f"{bench.name.rpartition('/')[2]}-{bench.level}-{number}-{bool(slow)}.sqlite"
    with Journal(path) as journal:
        run = DeviceRun(session, journal, DEVICE)
        campaign = run.begin(plan, policy.settings("watch", seed))
        CampaignRun(run, campaign, plan, policy).run()
        series = read_watch(journal, campaign.id)
    for file in folder.glob(f"{path.name}*"):
        file.unlink()
    return replace(series, date=(FIRST_NIGHT + timedelta(days=number)).isoformat(timespec="seconds"))


def is_found(planted: Planted, comparison: Comparison, layers: Sequence[LayerProbes]) -> bool:
    """Return whether a regression of the planted layer was found."""
    mine = [one for one in layers if (one.key.text, one.context) == planted.place]
    probes = ((one, probe) for one in mine for probe in (one.layer, one.in_context, *one.stacks))
    wanted = {layer_subject(one, probe) for one, probe in probes if probe}
    return any(one.subject in wanted for one in comparison.regressions)


def simulate(bench: Bench, count: int, seed: int, folder: Path) -> Iterator[tuple[str, int, bool, str]]:
    """Yield, for each night and number of earlier nights, its kind, whether it has a detection, and a remark."""
    most = max(EARLIER)
    held: deque[WatchSeries] = deque(maxlen=most)
    draw = random.Random(seed)
    unchanged = nights(bench, folder, seed)
    for _ in range(most):
        held.append(next(unchanged))
    for number in range(count):
        planted = draw.choice(bench.eligible)
        slow = night(bench, folder, seed + (1 << 40) + number, most + number, planted.slow)
        plain = next(unchanged)
        for few in EARLIER:
            before = list(held)[-few:]
            found = is_found(planted, compare_nights(slow, before, level=bench.level), bench.watch.plan.layers)
            yield "planted", few, found, "" if found else f"missed {planted.share:.3f} {planted.signatures}"
            alarms = [one.summary for one in compare_nights(plain, before, level=bench.level).regressions]
            yield "A/A", few, bool(alarms), "; ".join(alarms)
        held.append(plain)


def run(network: str, count: int, comparisons: int, seed: int) -> list[Outcome]:
    """Simulate `count` nights of a network in a folder of its own; print each missed layer and false alarm."""
    detected: dict[tuple[str, int], list[bool]] = {}
    with tempfile.TemporaryDirectory(dir=_FOLDER if _FOLDER.is_dir() else None) as name:
        ready = bench(network, seed, Path(name), comparisons)
        watch = ready.watch
        samples = watch.policy.fewest_rounds * sum(batch.runs * len(batch.loads) for batch in watch.plan.batches)
        layers = f"{len(watch.plan.layers)} layers watched, {len(ready.eligible)} of at least 1 %"
        cost = f"{samples} samples and {watch.device_s:.1f} s on the device per night"
        say(f"{network}: {layers}, {cost}, 1 of {comparisons} comparisons")
        own_seed = seed * 1_000_003 + 100_003 * (zlib.crc32(network.encode()) % 9973)
        for kind, few, hit, line in simulate(ready, count, own_seed, Path(name)):
            detected.setdefault((kind, few), []).append(hit)
            if line:
                say(f"{network} {kind}, {few} earlier, 1 of {comparisons}: {line}")
    return [outcome(network, kind, few, comparisons, hits) for (kind, few), hits in detected.items()]


def interval(detected: int, nights: int) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % interval of a rate."""
    low = float(beta.ppf(0.025, detected, nights - detected + 1)) if detected else 0.0
    high = float(beta.ppf(0.975, detected + 1, nights - detected)) if detected < nights else 1.0
    return low, high


def outcome(network: str, kind: str, earlier: int, comparisons: int, detections: Sequence[bool]) -> Outcome:
    """Return the rate of nights with a detection."""
    hits, count = sum(detections), len(detections)
    return Outcome(network, kind, earlier, comparisons, count, hits, hits / count, *interval(hits, count))


def of_all(rows: Sequence[Outcome]) -> list[Outcome]:
    """Return the rates over all networks together."""
    found: dict[tuple[str, int, int], list[bool]] = {}
    for row in rows:
        detections = found.setdefault((row.kind, row.earlier, row.comparisons), [])
        detections += [True] * row.detected + [False] * (row.nights - row.detected)
    return [outcome("all", *kind, detections) for kind, detections in sorted(found.items())]


def measure_nights(count: int, networks: Sequence[str], seed: int) -> list[Outcome]:
    """Simulate `count` nights of each kind over all networks together, and return the rates; `seed` sets all noise."""
    with (
        mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS="1"),
        ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool,
    ):
        studies = [
            pool.submit(run, network, len(range(at, count, len(networks))), shared, seed)
            for shared in COMPARISONS
            for at, network in enumerate(networks)
        ]
        done = [study.result() for study in studies]
    rows = [row for found in done for row in sorted(found, key=lambda one: (one.kind, -one.earlier))]
    return [*rows, *of_all(rows)]
