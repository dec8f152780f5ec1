"""The rule that ends the measurement of a network when its comparison is decided."""

import math
import random
import statistics

import pytest
from hypothesis import given, strategies as st

from harness.measure.noise.machine_noise import between_processes
from harness.validation.stopping_rule import CONFIDENCE, FEWEST_PROCESSES, StoppingRule

MOST = 8
TRIALS = 600
NEVER = math.inf
latencies = st.floats(1e-5, 10)


def measured(chance: random.Random, rule: StoppingRule, true_s: float, spread: float) -> tuple[list[float], str]:
    """Measure a network in processes of a simulated device until the rule stops it."""
    processes_s: list[float] = []
    while True:
        processes_s.append(true_s * chance.gauss(1, spread))
        if stop := rule.stop(processes_s, NEVER):
            return processes_s, stop


@pytest.mark.parametrize("spread", [0.0005, 0.005, 0.03])
@pytest.mark.parametrize(
    ("error", "half"), [(0.03, 0.031), (0.05, 0.049), (0.1, 0.05), (0.2, 0.3), (0.0, 0.002), (0.005, 0.05)]
)
def test_decided_verdicts_are_those_of_the_device(spread: float, error: float, half: float) -> None:
    """Where the rule calls a comparison decided, both verdicts are wrong in no more than 5 % of all networks.

    The true latency is near a border of the interval or far from it, and the true error near the floor or far from it.
    """
    chance = random.Random(f"{spread} {error} {half}")
    estimated_s = 1.0 + error
    interval_s = (estimated_s - half, estimated_s + half)
    rule = StoppingRule(estimated_s, interval_s, 0.0, MOST)
    truth = (interval_s[0] <= 1.0 <= interval_s[1], error > spread)
    wrong = 0
    for _ in range(TRIALS):
        processes_s, stop = measured(chance, rule, 1.0, spread)
        latency_s, floor = statistics.median(processes_s), between_processes(processes_s)
        assert floor is not None
        found = (interval_s[0] <= latency_s <= interval_s[1], abs(estimated_s / latency_s - 1) > floor)
        wrong += stop == "decided" and found != truth
    slack = 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / TRIALS)
    assert wrong / TRIALS <= 1 - CONFIDENCE + slack


def test_clear_comparisons_take_the_fewest_processes() -> None:
    """An estimate that is far off, on a device that repeats to a tenth of a percent, is decided at the first look."""
    chance, rule = random.Random(0), StoppingRule(1.5, (1.4, 1.6), 0.0, 5)
    stops = [measured(chance, rule, 1.0, 0.001) for _ in range(100)]
    assert sum(len(processes_s) == FEWEST_PROCESSES and stop == "decided" for processes_s, stop in stops) > 90


def test_a_device_without_noise_is_decided_at_once() -> None:
    """Processes that agree exactly decide a comparison, whatever the estimate is."""
    for estimated_s in (0.5, 1.0, 1.5):
        rule = StoppingRule(estimated_s, (0.9 * estimated_s, 1.1 * estimated_s), 0.0, 5)
        assert rule.stop([1.0] * FEWEST_PROCESSES, NEVER) == "decided"


@given(st.lists(latencies, min_size=1, max_size=6), latencies, st.floats(0, 0.5), st.integers(1, 6))
def test_no_network_is_measured_more_or_less_often_than_stated(
    processes_s: list[float], estimated_s: float, target: float, most: int
) -> None:
    """The rule never stops below the fewest processes or the most if that is less, and always at the most."""
    rule = StoppingRule(estimated_s, (0.9 * estimated_s, 1.1 * estimated_s), target, most)
    stop = rule.stop(processes_s, 0.0)
    if len(processes_s) < min(most, FEWEST_PROCESSES):
        assert stop is None
    elif len(processes_s) >= most:
        assert stop is not None
    else:
        assert stop in ("decided", "target")


@given(st.lists(latencies, min_size=FEWEST_PROCESSES, max_size=6), latencies, st.floats(1e-3, 1e3))
def test_the_rule_does_not_depend_on_the_unit(processes_s: list[float], estimated_s: float, scale: float) -> None:
    """Latencies that are all multiplied by a number lead to the same decision."""
    stops = []
    for unit in (1.0, 2.0 ** round(math.log2(scale))):
        interval_s = (0.8 * estimated_s * unit, 1.3 * estimated_s * unit)
        rule = StoppingRule(estimated_s * unit, interval_s, 0.01, 7)
        stops.append(rule.stop([one * unit for one in processes_s], NEVER))
    assert stops[0] == stops[1]


def test_the_target_ends_a_network_that_is_not_decided() -> None:
    """A latency within the target is measured no further, although the verdicts may still change."""
    rule = StoppingRule(1.0, (0.5, 1.5), 0.01, 9)
    processes_s = [0.999, 1.0, 1.001, 1.0005]
    assert rule.stop(processes_s, 0.0101) is None
    assert rule.stop(processes_s, 0.0099) == "target"
