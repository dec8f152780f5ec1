"""Measure the cost of harness: a campaign on the `null` device, whose runs take no time.

    python -m benchmarks.performance.controller_cost

Prints the wall and CPU time that controller, agent and journal add per probe and per sample, as medians over repeated
campaigns, and the share of a campaign on `cpu01` that the device measures.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.device.inventory import BUILT_IN
from harness.measure.device_run import open_run
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import profile_networks
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

MODEL = "builtin:resnet50"
FEW, MANY = 5, 45
REPEATS = 5


@dataclass(frozen=True)
class Cost:
    """Size and time of one campaign; `cpu_s` is that of controller and agent together."""

    probes: int
    samples: int
    device_s: float
    wall_s: float
    cpu_s: float


def campaign(device: str, runs: int) -> Cost:
    """Run a campaign in a new workspace."""
    with tempfile.TemporaryDirectory() as folder:
        started_s, cpu_s = time.perf_counter(), _cpu_s()
        request = ProfileRequest(device, (MODEL,), policy=RepeatPolicy(runs=runs))
        networks = request.networks()
        with open_run(BUILT_IN[device], Workspace(Path(folder))) as run:
            result = profile_networks(run, networks, request).result
        return Cost(
            result.probes,
            result.samples,
            result.device_seconds,
            time.perf_counter() - started_s,
            _cpu_s() - cpu_s,
        )


def _cpu_s() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    pairs = [(campaign("null01", FEW), campaign("null01", MANY)) for _ in range(REPEATS)]
    for label, field in (("wall", "wall_s"), ("cpu", "cpu_s")):
        per_sample = [
            (getattr(many, field) - getattr(few, field)) / (many.samples - few.samples) for few, many in pairs
        ]
        per_probe = [
            (getattr(few, field) - slope * few.samples) / few.probes
            for (few, _), slope in zip(pairs, per_sample, strict=True)
        ]
        print(
            f"null device, {label}: {statistics.median(per_sample) * 1e6:.0f} us per sample"
            f" [{min(per_sample) * 1e6:.0f}, {max(per_sample) * 1e6:.0f}],"
            f" {statistics.median(per_probe) * 1e3:.1f} ms per probe"
            f" [{min(per_probe) * 1e3:.1f}, {max(per_probe) * 1e3:.1f}] (start, planning and loading included)"
        )
    real = [campaign("cpu01", 10) for _ in range(3)]
    device_s, wall_s = (statistics.median(getattr(one, name) for one in real) for name in ("device_s", "wall_s"))
    share = statistics.median(one.device_s / one.wall_s for one in real)
    print(
        f"cpu01, {real[0].probes} probes x 10 rounds: {device_s:.2f} s on the device in {wall_s:.2f} s wall:"
        f" {share:.0%} of the time the device measures"
    )


if __name__ == "__main__":
    main()
