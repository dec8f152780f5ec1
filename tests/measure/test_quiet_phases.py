"""Runs in slow phases of a machine are found by the runs around them, and left out."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from harness.measure.noise.quiet_phases import FEWEST_KEPT, Phases, at_typical_speed, by_probe, phases_of
from harness.samples import ProbeSample, Sample

SEEDS = st.integers(0, 2**32 - 1)


def runs_of(
    seed: int, *, probes: int = 30, rounds: int = 12, scatter: float = 0.01, phases: bool = True
) -> tuple[list[ProbeSample], dict[str, float], list[bool]]:
    """Return the runs of a batch in random order, the latency of each probe, and which runs were slowed.

    Phases last 20 to 60 runs and take 1.2 to 1.9 times as long; about a third of the runs are in one.
    """
    random = np.random.default_rng(seed)
    latencies = {f"p{at}": float(np.exp(random.uniform(np.log(1e4), np.log(1e7)))) for at in range(probes)}
    factors: list[float] = []
    while len(factors) < probes * rounds:
        factors += [1.0] * int(random.integers(40, 120))
        factors += [float(random.uniform(1.2, 1.9)) if phases else 1.0] * int(random.integers(20, 60))
    taken: list[ProbeSample] = []
    for _ in range(rounds):
        for name in random.permutation(list(latencies)):
            spent_ns = latencies[name] * factors[len(taken)] * np.exp(random.normal(0, scatter))
            taken.append(ProbeSample(str(name), 0, Sample(int(spent_ns), int(spent_ns))))
    return taken, latencies, [factor > 1 for factor in factors[: len(taken)]]


def medians(taken: Sequence[ProbeSample]) -> dict[str, float]:
    """Return the median processor time of each probe in nanoseconds."""
    return {probe: statistics.median(one.cpu_ns or 0 for one in own) for probe, own in by_probe(taken).items()}


@settings(max_examples=25)
@given(SEEDS)
def test_phases_leave_latencies_as_they_are_in_quiet_ones(seed: int) -> None:
    """With a third of the runs slowed by 20 to 90 %, medians are those of the quiet machine; plain medians are not."""
    taken, latencies, slowed = runs_of(seed)
    found = medians(phases_of(taken, "cpu").quiet)
    errors = [abs(found[probe] / latency - 1) for probe, latency in latencies.items()]
    plain = [abs(value / latencies[probe] - 1) for probe, value in medians(taken).items()]
    assert statistics.fmean(errors) < 0.015 and max(errors) < 0.1
    if sum(slowed) > 0.25 * len(slowed):
        assert statistics.fmean(plain) > statistics.fmean(errors)
    assert abs(phases_of(taken, "cpu").slow_share - statistics.fmean(slowed)) < 0.1


@settings(max_examples=25)
@given(SEEDS)
def test_all_probes_together_take_as_long_as_by_plain_medians(seed: int) -> None:
    """At typical speed the medians of all probes add up to those of all runs, and keep their ratios of quiet phases."""
    taken, _, _ = runs_of(seed)
    found = phases_of(taken, "cpu")
    (typical,) = at_typical_speed([found])
    quiet, lengthened = medians(found.quiet), medians(typical.quiet)
    assert sum(lengthened.values()) == pytest.approx(sum(medians(taken).values()), rel=1e-4)
    assert max(lengthened[probe] / quiet[probe] for probe in quiet) == pytest.approx(found.typical, rel=1e-3)


def test_campaigns_of_one_table_have_one_typical_speed() -> None:
    """A campaign without slow phases is lengthened like one with them, because a table has both; alone it is not."""
    slow, calm = phases_of(runs_of(1)[0], "cpu"), phases_of(runs_of(2, phases=False)[0], "cpu")
    assert calm.typical == 1.0 < slow.typical
    assert list(at_typical_speed([calm])) == [calm]
    factors = [
        medians(after.quiet)["p0"] / medians(before.quiet)["p0"]
        for before, after in zip([slow, calm], at_typical_speed([slow, calm]), strict=True)
    ]
    assert factors[0] == pytest.approx(factors[1], rel=1e-3)
    assert 1 < factors[0] < slow.typical


@pytest.mark.parametrize(("scatter", "bias"), [(0.1, 0.03), (0.2, 0.07)])
def test_scatter_in_phases_costs_few_runs(scatter: float, bias: float) -> None:
    """Where runs scatter by 10 or 20 % as well, most of the quiet ones are kept, not only the fastest."""
    kept, errors = [], []
    for seed in range(10):
        taken, latencies, slowed = runs_of(seed, scatter=scatter, rounds=40)
        found = phases_of(taken, "cpu")
        kept.append((1 - found.slow_share) / (1 - statistics.fmean(slowed)))
        errors += [medians(found.quiet)[probe] / latency - 1 for probe, latency in latencies.items()]
    assert statistics.fmean(kept) > 0.45
    assert abs(statistics.fmean(errors)) < bias


@settings(max_examples=25)
@given(SEEDS, st.floats(0.1, 0.2))
def test_a_batch_may_be_slow_most_of_the_time(seed: int, quiet_share: float) -> None:
    """If threads were far apart in all but a few rounds, latencies are those of these rounds."""
    random = np.random.default_rng(seed)
    taken, latencies, _ = runs_of(seed, rounds=40, phases=False)
    factors = {probe: float(random.uniform(1.4, 2.2)) for probe in latencies}
    quiet = int(quiet_share * len(taken))
    slowed = [ProbeSample(one.probe, 0, Sample(int(one.sample.wall_ns * factors[one.probe]))) for one in taken[quiet:]]
    kept = by_probe(phases_of([*taken[:quiet], *slowed], "wall").quiet)
    errors = [statistics.median(one.wall_ns for one in kept[probe]) / ns - 1 for probe, ns in latencies.items()]
    assert statistics.fmean(map(abs, errors)) < 0.02 and max(map(abs, errors)) < 0.1


@settings(max_examples=25)
@given(SEEDS, st.sampled_from(("normal", "exponential", "two speeds")), st.sampled_from((0.01, 0.2)))
def test_scatter_alone_is_no_phase(seed: int, distribution: str, scatter: float) -> None:
    """If runs scatter but do not depend on time, all are kept, whatever the distribution."""
    random = np.random.default_rng(seed)
    taken, _, _ = runs_of(seed, phases=False)
    draws = {
        "normal": random.normal(0, scatter, len(taken)),
        "exponential": random.exponential(scatter, len(taken)),
        "two speeds": scatter * (random.random(len(taken)) < 0.4),
    }
    spent = [int((one.sample.cpu_ns or 0) * np.exp(draw)) for one, draw in zip(taken, draws[distribution], strict=True)]
    taken = [ProbeSample(one.probe, 0, Sample(ns, ns)) for one, ns in zip(taken, spent, strict=True)]
    found = phases_of(taken, "cpu")
    assert replace(found, interruptions=0.0) == Phases(tuple(taken))
    assert 0 <= found.interruptions <= 3 * scatter


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 4), st.integers(1, 12))
def test_each_probe_keeps_its_quietest_runs(seed: int, probes: int, rounds: int) -> None:
    """The result is a part of the runs in their order, and each probe keeps three of them, or all if it has fewer."""
    taken, _, _ = runs_of(seed, probes=probes, rounds=rounds)
    kept = phases_of(taken, "cpu").quiet
    rest = iter(taken)
    assert all(one in rest for one in kept)
    assert all(len(own) >= min(FEWEST_KEPT, rounds) for own in by_probe(kept).values())
    assert by_probe(kept).keys() == by_probe(taken).keys()


def test_batches_have_phases_of_their_own() -> None:
    """Batches whose runs alternate in time give the same result as each batch alone."""
    first, second = (runs_of(seed)[0] for seed in (1, 2))
    other = [ProbeSample(one.probe, 1, one.sample) for one in second]
    mixed = [one for pair in zip(first, other, strict=True) for one in pair]
    kept = phases_of(mixed, "cpu").quiet
    assert [one for one in kept if one.batch == 0] == list(phases_of(first, "cpu").quiet)
    assert [one.sample for one in kept if one.batch == 1] == [one.sample for one in phases_of(second, "cpu").quiet]


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_the_clock_of_the_host_decides(clock: str) -> None:
    """Phases are left out on clocks of the host."""
    assert phases_of(runs_of(3)[0], clock).slow_share > 0.1


def test_a_device_with_its_own_clock_keeps_all_runs() -> None:
    """Other work of the host does not slow a device with a clock of its own, so all of its runs count."""
    taken = [ProbeSample(one.probe, 0, Sample(1, None, one.sample.wall_ns)) for one in runs_of(4)[0]]
    assert phases_of(taken, "device") == Phases(tuple(taken))


def test_no_runs_have_no_phases() -> None:
    """A campaign without samples has no slow share."""
    assert phases_of([], "cpu") == Phases(())
