"""Errors of a, b and c of the emulated NPU, and how often their 95 % intervals hold, over many seeded draws.

Each draw is a calibration as `harness profile` runs it and `harness lut build` fits it: the same null probes in the
same order, stopped by the same rule, on a host of another seed. Makespans are simulated once. A part of
docs/accuracy.md.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.accuracy.devices import Run
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, signed, table
from benchmarks.parts import say
from device_agents.backends.emulated_npu import EmulatedNpuBackend
from device_agents.emulated_npu.host_processor import HostModel
from device_agents.emulated_npu.machine import Host, load_preset
from harness.latency.drift import SLOW_DRIFT
from harness.latency.overhead import Overhead
from harness.latency.overhead_fit import fit_overhead, levelled_nulls
from harness.measure.device_requests import load_request
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
PRESET = "edge"
DRAWS, QUICK_DRAWS = 1_000, 30
CAMPAIGN, SPREAD_S = 0.0, 1_800.0
"""Rounds one after the other, as `harness profile` takes them, and at random moments of half an hour."""


@dataclass(frozen=True)
class Timed:
    """A null probe and its time on the NPU."""

    id: str
    terms: OverheadTerms
    npu_s: float


def timed_probes(preset: str) -> tuple[Timed, ...]:
    """Return the reference probe, then the calibration probes."""
    device = EmulatedNpuBackend({"preset": preset, "noise": 0})
    return tuple(
        _timed(device, probe)
        for probe in (reference_probe(), *calibration_probes(AuxiliaryKind.ROWPOOL, LARGEST_BYTES))
    )


def _timed(device: EmulatedNpuBackend, probe: Probe) -> Timed:
    device.load(load_request(probe))
    return Timed(probe.id, probe.terms, device.oracle(probe.id).makespan_s)


@dataclass(frozen=True)
class Draw:
    """One calibration: the fitted overhead, its rounds and its seconds on the device."""

    overhead: Overhead
    rounds: int
    device_s: float


def calibrate(probes: Sequence[Timed], host: Host, seed: int, span_s: float) -> Draw:
    """Calibrate on a host of this seed, with rounds at random moments within `span_s` (0: one after the other)."""
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
        if rounds >= policy.min_rounds:  # more rounds visit uncertain probes only, as in a campaign
            measured = {probe.id: summarise(samples[probe.id], CLOCK) for probe in nulls}
            uncertain = {name: measured[name] for name in unsettled(measured, policy.target)}
            visited = frozenset((*uncertain, reference.id))
            if rounds == wanted:
                wanted += policy.more_rounds(rounds, uncertain)
    del samples[reference.id]
    terms_of = {probe.id: probe.terms for probe in nulls}
    levelled, drift = levelled_nulls(samples, terms_of, CLOCK, 0.0 if span_s > 0 else SLOW_DRIFT)
    return Draw(fit_overhead(levelled, drift=drift), rounds, device_s)


def overhead_section(run: Run) -> Section:
    """Measure how often the 95 % intervals of a, b and c hold over seeded draws."""
    draws = QUICK_DRAWS if run.quick else DRAWS
    host, probes = load_preset(PRESET).host, timed_probes(PRESET)
    texts, shares = [], []
    for span_s in (CAMPAIGN, SPREAD_S):
        say(f"overhead: {draws} draws over {span_s:.0f} s")
        text, share = coverage(probes, host, draws, span_s)
        texts.append(text)
        shares.append(share)
    figure = f"{percent(shares[0])} of {len(NAMES) * draws:,}"
    target = reached("npu01: 95 % intervals of a, b, c hold", figure, 0.93 <= shares[0] <= 0.97)
    return Section("\n\n".join(texts), (target,))


def coverage(probes: Sequence[Timed], host: Host, draws: int, span_s: float) -> tuple[str, float]:
    """Return errors and coverage of each coefficient as text, and the share of all intervals that hold."""
    truth = HostModel(host, 0).true_overhead()
    taken = [calibrate(probes, host, seed, span_s) for seed in range(draws)]
    rows: list[tuple[object, ...]] = []
    held_in_all = 0
    for name, true in zip(NAMES, truth, strict=True):
        found = [getattr(draw.overhead, name) for draw in taken]
        errors = [one.value / true - 1 for one in found]
        held = sum(one.low <= true <= one.high for one in found)
        half_width = statistics.median(one.high - one.low for one in found) / 2 / true
        held_in_all += held
        worst = max(map(abs, errors))
        figures = (signed(statistics.fmean(errors), 2), percent(statistics.pstdev(errors), 2), percent(worst, 2))
        rows.append((name, *figures, f"±{percent(half_width, 2)}", percent(held / draws)))
    share = held_in_all / len(NAMES) / draws
    rows.append(("**pooled**", "", "", "", "", f"**{percent(share)}**"))
    header = ("", "mean error", "spread", "worst", "half-width", "inside the 95 % interval")
    when = "one after the other, as in a campaign" if span_s == CAMPAIGN else f"spread over {span_s:.0f} s"
    seconds, rounds = (statistics.fmean(getattr(draw, name) for draw in taken) for name in ("device_s", "rounds"))
    words = f"{draws:,} draws, rounds {when}: each takes {rounds:.1f} rounds and {seconds:.2f} s on the device."
    return f"{words}\n\n{table(header, rows)}", share
