"""Measure what loading the next probes beside timed runs would do to the samples.

    python -m benchmarks.performance.loading_beside_runs

One worker's backend holds a pool of a network's probes and visits it in rounds, in turn without and with a thread that
loads probes meanwhile. Prints how much longer probes take beside loading: the median and the 90th percentile of probes.
"""

import itertools
import random
import statistics
import threading

from device_agents.backends import create
from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from harness.measure.device_requests import load_request
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import probe_of
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes

NETWORK, ROUNDS, REPEATS = "builtin:resnet50", 12, 3
CACHE_BYTES = 1 << 20


class Loader(threading.Thread):
    """Loads probes under other names and drops them, again and again, until it is stopped."""

    def __init__(self, backend: OnnxRuntimeBackend, plan: ProbePlan) -> None:
        super().__init__(daemon=True)
        self._backend, self._probes, self._ending = backend, list(plan.probes.values()), threading.Event()
        self.loads = 0

    def run(self) -> None:
        """Load until stopped."""
        for probe in itertools.cycle(self._probes):
            if self._ending.is_set():
                return
            self._backend.load(load_request(probe, "beside"))
            self._backend.unload("beside")
            self.loads += 1

    def end(self) -> int:
        """Stop, and return the number of loads."""
        self._ending.set()
        self.join()
        return self.loads


def visit(backend: OnnxRuntimeBackend, loads: list[str], chance: random.Random) -> dict[str, list[int]]:
    """Visit a pool and return the times of its loads; the first round is not kept."""
    times: dict[str, list[int]] = {load: [] for load in loads}
    for number in range(ROUNDS + 1):
        for load in chance.sample(loads, len(loads)):
            sample = backend.run(load)
            if number:
                times[load].append(sample.cpu_ns or sample.wall_ns)
    return times


def main() -> None:
    """Measure and print."""
    network, chance = load_network(NETWORK), random.Random(0)
    backend = create("onnxruntime", {"threads": 1})
    assert isinstance(backend, OnnxRuntimeBackend)
    one = CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())
    plan = plan_probes([one], DEFAULT_RULES, AuxiliaryKind.AVGPOOL, cache_bytes=CACHE_BYTES)
    pool = next(batch for batch in plan.batches if batch.visits == "pool")
    for load in pool.loads:
        backend.load(load_request(plan.probes[probe_of(load)], load))
    loads = list(pool.loads)
    for _ in range(REPEATS):
        alone = visit(backend, loads, chance)
        loader = Loader(backend, plan)
        loader.start()
        beside = visit(backend, loads, chance)
        count = loader.end()
        again = visit(backend, loads, chance)
        for label, found in ((f"beside {count} loads", beside), ("alone again", again)):
            ratios = sorted(statistics.median(found[load]) / statistics.median(alone[load]) for load in loads)
            high = ratios[int(0.9 * len(ratios))]
            print(f"{label}: {len(loads)} loads take {statistics.median(ratios):.3f} times as long, 90 %: {high:.3f}")


if __name__ == "__main__":
    main()
