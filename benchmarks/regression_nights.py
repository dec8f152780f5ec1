"""Simulated nights: how often a device that did not change raises an alarm, how often a slow layer is found.

The networks' watch campaigns are planned once, by a profile campaign, and then run night after night on the emulated
NPU in this process, with its default noise, another course of it every night: the real backend, campaigns, journal
(in memory) and comparison; compiled models are kept. Two series of nights:

- A/A: nothing changes. Every night is compared with the ones before it; any regression that is told, of a layer, a
  network or the device, is a false alarm, whether as new or as a step.
- planted: one layer takes 2 % longer that night, drawn anew each night among all that take 1 % of their network
  (all of its places together, of the network's whole latency, by what the emulated device knows of itself). It is found
  where that layer itself is told as slower.

Prints rows of Markdown and writes JSON. `--seed` sets all noise.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scipy.stats import beta

from device_agents.backends.emulated_npu import EmulatedNpuBackend
from harness.measure.campaign import CampaignRun, payload_of
from harness.measure.cutting import cut_as_told
from harness.measure.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import ignore
from harness.network.context import context_of
from harness.network.layers import cut
from harness.network.models import load_network
from harness.probe.auxiliary import auxiliary_for
from harness.probe.plan import LayerProbes, plan_probes
from harness.probe.probe import network_probe
from harness.regression.compare import compare_nights
from harness.regression.findings import Comparison
from harness.regression.series import WatchSeries, layer_subject, read_watch
from harness.regression.watch import SHARE, WatchPlan, plan_watch
from harness.testing.in_process import InProcessSession

DEVICE = "npu01"
SLOWER = 1.02
NETWORKS = ("squeezenet", "mobilenetv2", "dscnn")
FIRST_NIGHT = datetime(2026, 1, 1, 1, tzinfo=UTC)
_FOLDER = Path("/dev/shm")


@dataclass(frozen=True)
class Planted:
    """A layer that can be slowed down: its key and context, its hardware layers, and its part of the network."""

    place: tuple[str, str]
    signatures: tuple[str, ...]
    share: float

    @property
    def slow(self) -> str:
        """The option of the backend."""
        return ";".join(f"{signature}:{SLOWER}" for signature in self.signatures)


@dataclass(frozen=True)
class Bench:
    """A device with a planned watch, and what can be planted."""

    name: str
    backend: EmulatedNpuBackend
    watch: WatchPlan
    eligible: tuple[Planted, ...]


@dataclass(frozen=True)
class Outcome:
    """Nights of one kind: how many, how many told what they should or should not, with the exact 95 % interval."""

    network: str
    kind: str
    earlier: int
    nights: int
    told: int
    rate: float
    low: float
    high: float


def bench(name: str, seed: int, folder: Path) -> Bench:
    """Profiles the network once and plans its watch."""
    backend = EmulatedNpuBackend({"preset": "edge", "seed": seed})
    session = InProcessSession(backend)
    network = load_network(name if "/" in name else f"builtin:{name}")
    cuts, rules = cut_as_told(session, [network], ignore, threading.Event())
    plan = plan_probes(cuts, rules, auxiliary_for(backend.clock), None)
    policy = RepeatPolicy(runs=12)
    with Journal(folder / "profile.sqlite") as journal:
        settings = policy.settings("profile", seed)
        campaign = journal.begin(DEVICE, plan, seed, settings, session.hello.fingerprint, backend.clock)
        CampaignRun(session, journal, campaign, plan, policy, ignore, threading.Event()).run()
        watch = plan_watch(plan, [network], journal.samples(campaign.id), backend.clock)
    if watch is None:
        raise SystemExit(f"{name} has no layer that could be watched")
    whole = network_probe(network)
    session.put(payload_of(whole))
    truth = backend.oracle(whole.id)
    overhead = truth.overhead
    total_s = truth.makespan_s + (
        overhead.a_s_per_byte * whole.model.input_bytes + overhead.b_s_per_byte * whole.model.output_bytes
        + overhead.c_s if overhead else 0.0
    )  # fmt: skip
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
    return Bench(name, backend, watch, tuple(eligible))


def nights(bench: Bench, folder: Path, seed: int) -> Iterator[WatchSeries]:
    """Nights of a device that does not change, one after the other."""
    for number in range(1 << 30):
        yield night(bench, folder, seed + number, number, "")


def night(bench: Bench, folder: Path, seed: int, number: int, slow: str) -> WatchSeries:
    """One night: a campaign into a journal, and read from it again."""
    session = InProcessSession(bench.backend.restarted(seed, slow), fingerprint={"machine": "emulated"})
    plan, policy = bench.watch.plan, bench.watch.policy
    path = folder / f"{bench.name.rpartition('/')[2]}-{number}-{bool(slow)}.sqlite"
    with Journal(path) as journal:
        settings = policy.settings("watch", seed)
        campaign = journal.begin(DEVICE, plan, seed, settings, session.hello.fingerprint, session.hello.clock)
        CampaignRun(session, journal, campaign, plan, policy, ignore, threading.Event()).run()
        series = read_watch(journal, campaign.id)
    for file in folder.glob(f"{path.name}*"):
        file.unlink()
    return replace(series, date=(FIRST_NIGHT + timedelta(days=number)).isoformat(timespec="seconds"))


def is_found(planted: Planted, comparison: Comparison, layers: Sequence[LayerProbes]) -> bool:
    """Whether the layer itself is told as slower."""
    mine = [one for one in layers if (one.key.text, one.context) == planted.place]
    wanted = {layer_subject(one, is_second=alone) for one in mine for alone in (False, True)}
    return any(one.subject in wanted for one in comparison.regressions)


def simulate(bench: Bench, count: int, earlier: int, seed: int, folder: Path) -> Iterator[tuple[str, bool, str]]:
    """Tells of every night its kind, whether it told something, and what is worth a line of the log."""
    held: deque[WatchSeries] = deque(maxlen=earlier)
    draw = random.Random(seed)
    course = nights(bench, folder, seed)
    for _ in range(earlier):
        held.append(next(course))
    for number in range(count):
        planted = draw.choice(bench.eligible)
        slow = night(bench, folder, seed + (1 << 40) + number, earlier + number, planted.slow)
        comparison = compare_nights(slow, held)
        found = is_found(planted, comparison, bench.watch.plan.layers)
        line = "" if found else f"missed {planted.share:.3f} {planted.signatures}"
        yield "planted", found, line
        plain = next(course)
        comparison = compare_nights(plain, held)
        told = [one.told for one in comparison.regressions]
        yield "A/A", bool(told), "; ".join(told)
        held.append(plain)


def interval(told: int, nights: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a rate."""
    low = float(beta.ppf(0.025, told, nights - told + 1)) if told else 0.0
    high = float(beta.ppf(0.975, told + 1, nights - told)) if told < nights else 1.0
    return low, high


def outcome(network: str, kind: str, earlier: int, told: Sequence[bool]) -> Outcome:
    """The rate over nights."""
    hits = sum(told)
    return Outcome(network, kind, earlier, len(told), hits, hits / len(told), *interval(hits, len(told)))


def main() -> None:
    """Simulates, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=1000, help="nights of each kind, over all networks together")
    parser.add_argument("--earlier", type=int, default=7, help="earlier nights that each night is compared with")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    started_s = time.monotonic()
    told: dict[tuple[str, str], list[bool]] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(dir=_FOLDER if _FOLDER.is_dir() else None) as name:
        for at, network in enumerate(arguments.networks):
            folder = Path(name)
            ready = bench(network, arguments.seed, folder)
            count = len(range(at, arguments.nights, len(arguments.networks)))
            seed = arguments.seed * 1_000_003 + at * 100_003
            runs = ready.watch.plan.batches
            samples = ready.watch.policy.fewest_rounds * sum(batch.runs * len(batch.loads) for batch in runs)
            print(f"{network}: {len(ready.watch.plan.layers)} layers watched, {len(ready.eligible)} of 1 %,"
                  f" {samples} samples and {ready.watch.device_s:.1f} s of the device a night", flush=True)  # fmt: skip
            for kind, hit, line in simulate(ready, count, arguments.earlier, seed, folder):
                told.setdefault((network, kind), []).append(hit)
                if line:
                    lines.append(f"{network} {kind}: {line}")
                    print(lines[-1], flush=True)
    rows = [outcome(network, kind, arguments.earlier, hits) for (network, kind), hits in sorted(told.items())]
    for kind in ("A/A", "planted"):
        hits = [hit for (_, one), found in told.items() if one == kind for hit in found]
        rows.append(outcome("all", kind, arguments.earlier, hits))
    print("| nights | networks | earlier nights | nights | told | rate | 95 % interval |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.kind} | {row.network} | {row.earlier} | {row.nights} | {row.told} | {row.rate:.2%} |"
              f" {row.low:.2%} to {row.high:.2%} |")  # fmt: skip
    seconds = time.monotonic() - started_s
    print(f"{seconds:.0f} s")
    if arguments.output:
        content = {"seed": arguments.seed, "seconds": round(seconds), "rows": [asdict(row) for row in rows],
                   "told": lines}  # fmt: skip
        arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
