"""How far a, b and c of the emulated NPU are off, and how often their 95 % intervals hold, over many seeded draws.

Every draw is a calibration as `harness profile` runs it and `harness lut build` fits it: the same null probes, visited
in the same order until the same rule stops it, on a host of another seed. Makespans are simulated once.

Run: python benchmarks/overhead_intervals.py [--draws 1000] [--spans 0 600 1800] [--drift 0.01]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from device_agents.backends import LoadRequest
from device_agents.backends.emulated_npu import EmulatedNpuBackend
from device_agents.emulated_npu.host import HostModel
from device_agents.emulated_npu.machine import Host, load_preset
from harness.latency.drift import SLOW_DRIFT
from harness.latency.overhead import Overhead, overhead_of_samples
from harness.measure.policy import RepeatPolicy, unsettled, visit_order
from harness.measure.summary import summarise
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe, reference_probe
from harness.samples import Sample

CLOCK = "device"
LARGEST_BYTES = 602_112
"""The input of most networks: 3x224x224 of float32."""
NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Timed:
    """A null probe and the time that it takes on the NPU."""

    id: str
    terms: OverheadTerms
    npu_s: float


def timed_probes(preset: str) -> tuple[Timed, ...]:
    """The reference probe, then the calibration probes."""
    device = EmulatedNpuBackend({"preset": preset, "noise": 0})
    return tuple(
        _timed(device, probe)
        for probe in (reference_probe(), *calibration_probes(AuxiliaryKind.ROWPOOL, LARGEST_BYTES))
    )


def _timed(device: EmulatedNpuBackend, probe: Probe) -> Timed:
    weights, inputs = [spec.wire() for spec in probe.model.weights], [spec.wire() for spec in probe.model.inputs]
    device.load(LoadRequest(probe.id, probe.model.content, weights, inputs, probe.model.output_bytes))
    return Timed(probe.id, probe.terms, device.oracle(probe.id).makespan_s)


@dataclass(frozen=True)
class Draw:
    """One calibration: what was fitted, in how many rounds and seconds on the device."""

    overhead: Overhead
    rounds: int
    device_s: float


def calibrate(probes: Sequence[Timed], host: Host, seed: int, span_s: float) -> Draw:
    """One calibration on a host of this seed, its rounds at random moments of `span_s` (0: one after the other)."""
    reference, *nulls = probes
    by_id = {probe.id: probe for probe in probes}
    model, policy, pauses = HostModel(host, seed), RepeatPolicy(), random.Random(seed)
    samples: dict[str, list[Sample]] = {}
    rounds, wanted, device_s = 0, policy.min_rounds, 0.0
    visited = frozenset(by_id)
    while rounds < wanted:
        # Exponential pauses put the rounds at moments that are independent of each other.
        model.now_s += pauses.expovariate(1.0) * span_s / policy.min_rounds
        for name in visit_order(0, 0, rounds, [probe.id for probe in nulls], reference.id):
            if name in visited:
                terms = by_id[name].terms
                total_s = model.run(terms.input_bytes, terms.output_bytes, by_id[name].npu_s)
                samples.setdefault(name, []).append(Sample(1, None, max(1, round(total_s * 1e9)), 0))
                device_s += total_s
        rounds += 1
        if rounds >= policy.min_rounds:  # beyond the fewest rounds only what is uncertain, as a campaign does
            measured = {probe.id: summarise(samples[probe.id], CLOCK) for probe in nulls}
            uncertain = {name: measured[name] for name in unsettled(measured, policy.target)}
            visited = frozenset((*uncertain, reference.id))
            if rounds == wanted:
                wanted += policy.more_rounds(rounds, uncertain)
    del samples[reference.id]
    terms_of = {probe.id: probe.terms for probe in nulls}
    return Draw(overhead_of_samples(samples, terms_of, CLOCK, 0.0 if span_s > 0 else SLOW_DRIFT), rounds, device_s)


def table(probes: Sequence[Timed], host: Host, draws: int, span_s: float) -> str:
    """Rows of bias, spread, coverage and half-width for each coefficient and pooled."""
    truth = HostModel(host, 0).true_overhead()
    taken = [calibrate(probes, host, seed, span_s) for seed in range(draws)]
    rows, pooled = [], 0
    for name, true in zip(NAMES, truth, strict=True):
        found = [getattr(draw.overhead, name) for draw in taken]
        errors = [100 * (one.value / true - 1) for one in found]
        held = sum(one.low <= true <= one.high for one in found)
        width = 50 * statistics.median(one.high - one.low for one in found) / true
        pooled += held
        worst = max(map(abs, errors))
        rows.append(
            f"| {name} | {statistics.fmean(errors):+.2f} % | {statistics.pstdev(errors):.2f} % | {worst:.2f} % |"
            f" {width:.2f} % | {held / draws:.1%} |"
        )
    share = pooled / len(NAMES) / draws
    margin = 1.96 * math.sqrt(share * (1 - share) / draws)  # the three of a draw err together
    seconds, rounds = (statistics.fmean(getattr(draw, name) for draw in taken) for name in ("device_s", "rounds"))
    contradicted = sum(draw.overhead.contradicts_model for draw in taken)
    head = "| | mean error | spread | worst | half-width | 95 % intervals hold |"
    rule = "|---|---|---|---|---|---|"
    last = f"| pooled | | | | | {share:.1%} ± {margin:.1%} |"
    facts = (
        f"span {span_s:.0f} s, drift {host.noise.drift:.1%}, {draws} draws: {rounds:.1f} rounds,"
        f" {seconds:.2f} s on the device; contradict the additive model: {contradicted}"
    )
    return "\n".join((facts, "", head, rule, *rows, last, ""))


def main() -> None:
    """Prints a table for every span."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--preset", default="edge")
    parser.add_argument("--spans", type=float, nargs="+", default=[0.0, 600.0, 1800.0, 3600.0], metavar="S")
    parser.add_argument("--drift", type=float, default=None, help="fraction; that of the preset by default")
    arguments = parser.parse_args()
    host = load_preset(arguments.preset).host
    if arguments.drift is not None:
        host = replace(host, noise=replace(host.noise, drift=arguments.drift))
    probes = timed_probes(arguments.preset)
    for span_s in arguments.spans:
        print(table(probes, host, arguments.draws, span_s), flush=True)


if __name__ == "__main__":
    main()
