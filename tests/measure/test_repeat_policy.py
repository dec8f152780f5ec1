"""The order of visits and the stop rule."""

import json
import math
import os
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.device.variant import Variant
from harness.errors import UsageError
from harness.measure.policy import KEPT_PASSES, PASSES, REFERENCE_EVERY, RepeatPolicy, unsettled, visit_order
from harness.measure.summary import Measurement

PROBES = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), unique=True, max_size=120)


def measured(latency_s: float, halfwidth_s: float) -> Measurement:
    """Return a measurement with this location and interval."""
    return Measurement(latency_s, halfwidth_s / 2, halfwidth_s, 10, 0, "device")


@given(st.integers(0, 2**32), st.integers(0, 50), st.integers(0, 50), PROBES)
def test_every_probe_is_visited_once_with_the_reference_at_even_distances(
    seed: int, batch: int, round: int, probes: list[str]
) -> None:
    """A round is a permutation of its probes, with the reference probe before every 25 of them."""
    order = visit_order(seed, batch, round, probes, "REFERENCE")
    assert sorted(probe for probe in order if probe != "REFERENCE") == sorted(probes)
    at = [position for position, probe in enumerate(order) if probe == "REFERENCE"]
    assert at == list(range(0, len(order), REFERENCE_EVERY + 1))


@given(PROBES, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_the_probes_are_listed(probes: list[str], random: object) -> None:
    """The order of visits does not depend on the order in which a plan lists its probes."""
    shuffled = list(probes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert visit_order(1, 2, 3, shuffled, "R") == visit_order(1, 2, 3, probes, "R")


def test_the_order_is_the_same_in_another_process() -> None:
    """The order of visits is the same in every process, so a resumed campaign finds its slots again."""
    program = (
        "import json; from harness.measure.policy import visit_order;"
        "print(json.dumps(visit_order(7, 1, 2, [f'p{n}' for n in range(60)], 'R')))"
    )
    orders = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        )
        orders.append(json.loads(ran.stdout))
    assert orders[0] == orders[1] == visit_order(7, 1, 2, [f"p{n}" for n in range(60)], "R")


def test_rounds_batches_and_seeds_have_orders_of_their_own() -> None:
    """No two rounds, batches or seeds share an order, so drift meets each probe at different positions."""
    probes = [f"p{n}" for n in range(30)]
    places = [(seed, batch, round) for seed in range(3) for batch in range(3) for round in range(10)]
    assert len({tuple(visit_order(*place, probes, "R")) for place in places}) == len(places)


def test_a_probe_has_no_favourite_position() -> None:
    """Over many rounds the mean position of each probe lies in the middle, within five standard errors."""
    probes, rounds = [f"p{n}" for n in range(20)], 400
    total = dict.fromkeys(probes, 0)
    for round in range(rounds):
        for position, probe in enumerate(name for name in visit_order(0, 0, round, probes, "R") if name != "R"):
            total[probe] += position
    spread = math.sqrt((len(probes) ** 2 - 1) / 12 / rounds)
    assert all(abs(sum_ / rounds - (len(probes) - 1) / 2) < 5 * spread for sum_ in total.values())


@given(st.integers(1, 200))
def test_fixed_runs_are_exact(runs: int) -> None:
    """With a fixed number of runs, the passes end there and no further rounds follow (S1.6)."""
    policy = RepeatPolicy(runs=runs)
    assert policy.passes()[-1] == policy.fewest_rounds == runs
    assert policy.more_rounds(runs, {"p": measured(1.0, 1.0)}) == 0


@given(st.integers(1, 60), st.sampled_from([PASSES, KEPT_PASSES]))
def test_passes_rise_to_the_fewest_rounds(rounds: int, count: int) -> None:
    """Rounds are spread over passes, and the first already gives every probe its minimum."""
    passes = RepeatPolicy(min_rounds=rounds, max_rounds=60).passes(count)
    assert passes == tuple(sorted(set(passes)))
    assert passes[-1] == max(rounds, min(3, rounds))
    assert passes[0] >= min(3, rounds)
    assert len(passes) <= count


@given(st.integers(12, 40), st.floats(0.0101, 10))
def test_the_wider_an_interval_the_more_rounds_follow(rounds: int, halfwidth: float) -> None:
    """The further rounds follow the square-root law: at least four if there is room, and none beyond 40."""
    policy = RepeatPolicy(target=0.01, max_rounds=40)
    more = policy.more_rounds(rounds, {"p": measured(1.0, halfwidth), "q": measured(1.0, 0.001)})
    assert 0 <= more <= 40 - rounds
    assert more >= min(4, 40 - rounds)
    if rounds + more < 40:
        assert rounds + more >= rounds * (halfwidth / 0.01) ** 2 or more == 4
    assert policy.more_rounds(rounds, {}) == 0


@given(st.integers(1, 40), st.floats(0, 10))
def test_each_probe_has_the_rounds_that_it_needs_by_itself(rounds: int, halfwidth: float) -> None:
    """A probe at the target needs no further round; another one as many as the square-root law says."""
    needed = RepeatPolicy(target=0.01).needed_rounds(rounds, measured(1.0, halfwidth))
    assert needed > 0 or halfwidth < 0.0101
    assert needed == 0 or halfwidth > 0.01
    assert needed == 0 or needed - 1 < rounds * ((halfwidth / 0.01) ** 2 - 1) <= needed


def test_a_negligible_probe_does_not_hold_its_batch() -> None:
    """A probe whose interval is negligible in the sum is settled, however wide the interval is by itself."""
    batch = {"large": measured(1.0, 0.001), "tiny": measured(1e-6, 9e-7)}
    assert unsettled(batch, 0.01) == ()
    assert unsettled({"tiny": batch["tiny"]}, 0.01) == ("tiny",)


def test_a_probe_with_a_single_sample_is_never_settled() -> None:
    """A probe with a single sample is never settled."""
    assert unsettled({"p": measured(1.0, math.inf), "q": measured(1e9, 0.1)}, 0.01) == ("p",)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("runs", value) for value in (0, "9", True)),
        *(("min_rounds", value) for value in (1.5, 41)),
        *(("max_rounds", value) for value in (None, 11)),
        *(("target", value) for value in (math.nan, math.inf, 0, True, "0.1")),
        *((name, value) for name in ("budget_s", "wall_s") for value in (math.nan, -1, True, "1")),
    ],
)
def test_a_policy_that_cannot_end_is_refused(name: str, wrong: Any) -> None:
    """Rounds are whole, 1 or more and in order, the target is a share, times are 0 or more; the error has the name."""
    with pytest.raises(UsageError, match=name):
        RepeatPolicy(**{name: wrong})


def test_numbers_of_numpy_are_numbers() -> None:
    """A policy of numpy's numbers is that of plain ones, and its settings can be written as JSON."""
    policy = RepeatPolicy(runs=cast("int", np.int64(9)), target=cast("float", np.float32(0.25)), budget_s=np.float64(2))
    assert policy == RepeatPolicy(runs=9, target=0.25, budget_s=2.0)
    assert json.dumps(policy.settings("profile", 0)) == json.dumps(RepeatPolicy(9, 0.25).settings("profile", 0))


@pytest.mark.parametrize("wrong", ["2", 2.0, True, 0])
def test_a_batch_is_a_whole_number(wrong: Any) -> None:
    """A batch or a number of threads of another type is refused, instead of looked for among the tables."""
    for name in ("batch", "threads"):
        with pytest.raises(UsageError, match=name):
            Variant(**{name: wrong})
