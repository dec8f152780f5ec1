"""Latencies of chains from windows, and shares of their layers, which keep sums and their variances."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from harness.latency.chain_latencies import ChainLatencies, chain_latencies
from harness.latency.chain_shares import shares
from harness.latency.chain_windows import window_contents
from harness.latency.layer_latency import Latency
from harness.latency.sparse_system import Equation, Solution, solve
from harness.latency.sum_errors import USUAL_EXCESS, border_errors, long_window_errors, root_mean_square
from harness.latency.unknowns import amounts_of, boundary, chain_alone, in_front
from harness.probe.chain_plan import ChainedLayer, ChainProbes
from harness.probe.overhead_terms import OverheadTerms

SEEDS = st.integers(0, 2**32 - 1)
A_S, B_S, C_S = 1e-10, 3e-10, 1e-4
NULLS = (
    OverheadTerms(input_bytes=1000),
    OverheadTerms(output_bytes=90_000),
    OverheadTerms(input_bytes=80_000, output_bytes=500),
)


def known(latency_s: float, stderr_s: float) -> Latency:
    """Return a measured latency."""
    return Latency(latency_s, stderr_s, True, 9, latency_s, stderr_s)


def row_of_chains(network: str, count: int, dropped: Sequence[int] = ()) -> list[ChainProbes]:
    """Return consecutive chains; the first reads its input from outside, and the third is equal to the second."""
    names = [f"{network}{at - (at == 2)}" for at in range(count)]
    chains = []
    for at, name in enumerate(names):
        meets = at + 1 < count and at not in dropped
        chains.append(
            ChainProbes(
                places=tuple((f"layer {layer}", name) for layer in range(1 + at % 4)),
                network=network,
                alone=f"alone {name}",
                alone_null="" if at == 0 else f"null {at % 3}",
                meeting=f"meeting {at} {name}" if meets else "",
                meeting_null="" if at == 0 or not meets else f"null {at % 3}",
                agrees=at not in dropped,
            )
        )
    return chains


def truth_of(chains: Sequence[ChainProbes], seed: int) -> dict[str, float]:
    """Return the seconds of chains, meetings and the layers in front of them; meetings may be negative."""
    draw = np.random.default_rng(seed)
    times = {chain.alone: float(draw.uniform(2e-5, 1e-3)) for chain in chains}
    times |= {chain.meeting: float(draw.uniform(-1e-5, 1e-5)) for chain in chains if chain.meeting}
    nulls = {null for chain in chains for null in (chain.alone_null, chain.meeting_null)} - {""}
    return times | {null: float(draw.uniform(1e-5, 1e-4)) for null in sorted(nulls)}


def terms_of(chains: Sequence[ChainProbes]) -> dict[str, OverheadTerms]:
    """Return the transfers of every probe."""
    probes = [name for c in chains for name in (c.alone, c.alone_null, c.meeting, c.meeting_null) if name]
    return {
        probe: OverheadTerms(input_bytes=100 * at, output_bytes=70 * at)
        for at, probe in enumerate(dict.fromkeys(probes))
    }


def overhead_s(terms: OverheadTerms) -> float:
    """Return the seconds of host and transfers."""
    return C_S + A_S * terms.input_bytes + B_S * terms.output_bytes


def totals(chains: Sequence[ChainProbes], truth: Mapping[str, float]) -> dict[str, float]:
    """Return every window's total: the layers in front, its chains, and their meeting."""
    terms, found = terms_of(chains), {}
    for at, chain in enumerate(chains):
        front = truth.get(chain.alone_null, 0.0)
        found[chain.alone_null] = front
        found[chain.alone] = front + truth[chain.alone]
        if chain.meeting:
            front = truth.get(chain.meeting_null, 0.0)
            found[chain.meeting_null] = front
            found[chain.meeting] = front + truth[chain.alone] + truth[chains[at + 1].alone] + truth[chain.meeting]
    return {probe: overhead_s(terms[probe]) + time_s for probe, time_s in found.items() if probe}


def solved(chains: Sequence[ChainProbes], seen: Mapping[str, float], relative: float) -> Solution:
    """Solve the system of the windows and three calibration probes."""
    terms = terms_of(chains)
    calibration = [Equation(amounts_of(null, {}), overhead_s(null), 1e-10) for null in NULLS]
    windows = [
        Equation(amounts_of(terms[probe], contents), seen[probe], relative * seen[probe])
        for probe, contents in window_contents(chains, seen)
    ]
    return solve([*calibration, *windows])


def solved_alone(chains: Sequence[ChainProbes], seen: Mapping[str, float]) -> Solution:
    """Solve the system of windows without overhead."""
    return solve([Equation(contents, seen[probe], 1e-9) for probe, contents in window_contents(chains, seen)])


@given(SEEDS, st.integers(1, 7), st.sets(st.integers(0, 5), max_size=2))
@settings(max_examples=25)
def test_exact_totals_give_the_exact_chains(seed: int, count: int, dropped: set[int]) -> None:
    """Exact totals give the true chains, each with its part of its meetings in proportion to its length."""
    chains = [*row_of_chains("one", count, sorted(dropped)), *row_of_chains("other", 2)]
    truth = truth_of(chains, seed)
    found = chain_latencies(chains, solved(chains, totals(chains, truth), 1e-6))
    assert found.chains == tuple(chains)
    alone = [truth[chain.alone] for chain in chains]
    wanted = list(alone)
    for at, chain in enumerate(chains):
        if chain.meeting:
            per_second = truth[chain.meeting] / (alone[at] + alone[at + 1])
            wanted[at] += per_second * alone[at]
            wanted[at + 1] += per_second * alone[at + 1]
    assert found.values == pytest.approx(wanted, rel=1e-5)


def test_the_charging_of_a_meeting_has_an_error_without_effect_on_sums() -> None:
    """A saving of 20 us between chains of 100 and 300 us is charged as 5 and 15 us.

    The error is that of one draw with probability 1/4 of the whole saving, 20 us * (1/4 * 3/4)^(1/2), with opposite
    signs in the two chains: the sum has none.
    """
    chains = row_of_chains("n", 2)
    truth = {"alone n0": 1e-4, "alone n1": 3e-4, "meeting 0 n0": -2e-5, "null 1": 1e-5}
    found = chain_latencies(chains, solved(chains, totals(chains, truth), 1e-6))
    assert found.values == pytest.approx([9.5e-5, 2.85e-4], rel=1e-4)
    doubt = 4e-10 * 3 / 16
    assert found.charging == pytest.approx(np.array([[doubt, -doubt], [-doubt, doubt]]), rel=1e-2)


def test_a_window_contains_what_precedes_it_its_chains_and_their_boundary() -> None:
    """A pair of equal chains holds the layers in front, twice the chain, and their boundary; each chain only itself."""
    chains = row_of_chains("n", 4)
    contents = dict(window_contents(chains, terms_of(chains)))
    pair = boundary(chains[1], chains[2])
    assert contents["meeting 1 n1"] == {in_front("null 1"): 1, chain_alone(chains[1]): 2, pair: 1}
    assert contents["alone n0"] == {chain_alone(chains[0]): 1}


def test_windows_that_were_not_measured_are_left_out() -> None:
    """A chain whose window was not measured has no latency; the other chains have theirs."""
    chains = row_of_chains("n", 5)
    seen = totals(chains, truth_of(chains, 1))
    del seen["alone n3"]
    found = chain_latencies(chains, solved(chains, seen, 1e-6))
    assert [chain.alone for chain in found.chains] == ["alone n0", "alone n1", "alone n1", "alone n4"]


def test_chains_and_their_sum_scatter_as_the_covariance_says() -> None:
    """Over noisy campaigns, chains and their sum scatter by the standard errors of the covariance."""
    chains = [
        ChainProbes((("layer", str(at)),), "n", f"alone {at}", "", f"meeting {at}" if at < 11 else "", "", True)
        for at in range(12)
    ]
    truth = truth_of(chains, 3)
    draw = np.random.default_rng(4)
    exact = totals(chains, truth)
    sums, values, covariance = [], [], np.zeros((12, 12))
    for _ in range(60):
        seen = {probe: total * (1 + 0.01 * draw.standard_normal()) for probe, total in exact.items()}
        found = chain_latencies(chains, solved(chains, seen, 0.01))
        values.append(found.values)
        sums.append(found.values.sum())
        covariance += found.covariance / 60
    # Of 60 draws a spread is known to 9 % (one in twelve), and three times that is 27 %.
    assert np.std(sums) == pytest.approx(math.sqrt(covariance.sum()), rel=0.27)
    # The widest of twelve.
    assert np.std(values, axis=0) == pytest.approx(np.sqrt(np.diag(covariance)), rel=0.45)


def test_no_chain_is_negative() -> None:
    """A chain whose meetings save more than it takes keeps a tenth of its time, and the sum does not change.

    Half of each meeting's 95 us leaves chains of 100 us with 52.5, 5 and 52.5 us: the second keeps 10 us, and the third
    is charged the difference.
    """
    chains = [
        ChainProbes((("layer", str(at)),), "n", f"alone {at}", "", f"meeting {at}" if at < 2 else "", "", True)
        for at in range(3)
    ]
    truth = {f"alone {at}": 1e-4 for at in range(3)} | {"meeting 0": -9.5e-5, "meeting 1": -9.5e-5}
    found = chain_latencies(chains, solved(chains, totals(chains, truth), 1e-6))
    assert found.values == pytest.approx([5.25e-5, 1e-5, 4.75e-5], rel=1e-4)


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=40)
def test_shares_are_positive_and_add_up_to_their_chains(seed: int, count: int) -> None:
    """The shares of each chain's layers add up to the chain, and so do their variances and covariances."""
    draw = np.random.default_rng(seed)
    chains = tuple(row_of_chains("n", count))
    root = draw.standard_normal((count, count)) * 1e-6
    latencies = ChainLatencies(chains, 10 ** draw.uniform(-6, -3, count), root @ root.T, np.zeros((count, count)))
    places = sorted({place for chain in chains for place in chain.places})
    layers = {
        place: known(float(10 ** draw.uniform(-7, -3)), float(10 ** draw.uniform(-8, -5)))
        for place in places
        if draw.random() < 0.8
    }
    found = shares(latencies, layers)
    assert found.places == tuple(place for chain in chains for place in chain.places)
    assert (found.values > 0).all()
    owner = np.array(found.chains)[None, :] == np.arange(count)[:, None]
    assert owner @ found.values == pytest.approx(latencies.values, rel=1e-12)
    assert owner @ found.covariance @ owner.T == pytest.approx(latencies.covariance, abs=1e-9 * found.covariance.max())
    assert np.linalg.eigvalsh(found.covariance).min() >= -1e-9 * found.covariance.max()


def test_few_chains_leave_layers_in_doubt() -> None:
    """Layers of 2 and 6 us in a chain of 4 us take 1 and 3 us, with errors of USUAL_DOUBT: 0.3 and 0.9 us.

    An error of one layer is divided between both by their shares of 1/4 and 3/4, so each has a variance of
    (3/4)² * 0.3² + (1/4)² * 0.9² = 0.10125 us², besides its share of the chain's variance of 0.16 us².
    """
    chain = ChainProbes((("a", ""), ("b", "")), "n", "alone", "", "", "", True)
    latencies = ChainLatencies((chain,), np.array([4e-6]), np.array([[0.16e-12]]), np.zeros((1, 1)))
    layers = {("a", ""): known(2e-6, 0.0), ("b", ""): known(6e-6, 0.0)}
    found = shares(latencies, layers)
    assert found.values == pytest.approx([1e-6, 3e-6])
    assert np.diag(found.covariance) == pytest.approx(
        [(0.10125 + 0.16 / 16) * 1e-12, (0.10125 + 0.16 * 9 / 16) * 1e-12]
    )
    assert found.covariance.sum() == pytest.approx(0.16e-12)


def described(count: int) -> tuple[list[ChainProbes], dict[str, float]]:
    """Return chains of 100 us of a chained device without meetings, checked in threes, and the totals of their windows.

    The windows of three take 6 and 9 us less than their chains, and the one across both another 12 us less.
    """
    layer = ChainedLayer(0, 0, 0, False)
    chains = [
        ChainProbes((("layer", str(at)),), "n", f"alone {at}", "", "", "", False, ordered=(layer,))
        for at in range(count)
    ]
    chains[0] = replace(chains[0], check="check 0", across="across 0")
    chains[3] = replace(chains[3], check="check 3")
    seen = {f"alone {at}": 1e-4 for at in range(count)}
    return chains, seen | {"check 0": 2.94e-4, "check 3": 2.91e-4, "across 0": 5.73e-4}


def test_long_windows_are_charged_to_their_chains() -> None:
    """What windows of three take is charged to their chains, and what one across two of these takes to all of its six.

    Chains of 100 us are charged a third of -6 or -9 us and a sixth of -12 us; the one that is in no window is charged
    nothing.
    """
    chains, seen = described(7)
    solution = solved_alone(chains, seen)
    found = chain_latencies(chains, solution)
    assert found.values == pytest.approx([9.6e-5] * 3 + [9.5e-5] * 3 + [1e-4], rel=1e-4)
    # The longest window corrects 673 us by 12; these count as uniform between none and all. No window holds the last
    # of the seven chains of 100 us: it has the usual error.
    unheld = USUAL_EXCESS / 7
    assert long_window_errors(chains, solution) == {
        "n": pytest.approx(math.hypot(12 / 673 / math.sqrt(3), unheld), rel=1e-3)
    }
    # Without a window across them, the two of three chains are the longest: errors of one sign add up.
    apart = [replace(one, across="") for one in chains]
    assert long_window_errors(apart, solution) == {
        "n": pytest.approx(math.hypot(15 / 685 / math.sqrt(3), unheld), rel=1e-3)
    }
    # Without windows of several chains the usual error counts, and a pair has none.
    assert long_window_errors([replace(one, check="", across="") for one in chains], solution) == {"n": USUAL_EXCESS}
    assert long_window_errors(chains[:2], solution) == {}


def test_pairs_are_the_longest_windows_of_three_chains() -> None:
    """Three chains of 100 us whose pairs save 2 and 4 us: the sum is off by 6 of 294 us or less, as of neighbours."""
    layer = ChainedLayer(0, 0, 0, False)
    chains = [
        ChainProbes(
            (("layer", f"{at}"),), "n", f"alone {at}", "", f"pair {at}" if at < 2 else "", "", True, ordered=(layer,)
        )
        for at in range(3)
    ]
    truth = {f"alone {at}": 1e-4 for at in range(3)} | {"pair 0": -2e-6, "pair 1": -4e-6}
    solution = solved(chains, totals(chains, truth), 1e-6)
    expected = {"n": pytest.approx(6 / 294 / math.sqrt(3), rel=1e-3)}
    assert (long_window_errors(chains, solution), border_errors(chains, solution)) == (expected, {})
    neighbours = [replace(one, ordered=()) for one in chains]
    assert (long_window_errors(neighbours, solution), border_errors(neighbours, solution)) == ({}, expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_the_error_of_another_sum_is_that_of_one_more_draw(errors: list[float]) -> None:
    """The error of another sum lies between the mean and the largest of the known ones: a single large one counts."""
    found = root_mean_square(errors)
    assert sum(errors) / len(errors) <= found * (1 + 1e-9) and found <= max(errors) * (1 + 1e-9)


def test_chains_without_latency_leave_the_usual_error() -> None:
    """Chains that noise makes zero or negative say nothing of sums: the usual error counts."""
    chains, _ = described(7)
    windows = ["check 0", "check 3", "across 0"]
    seen = {f"alone {at}": -1e-6 * (at % 2) for at in range(7)} | dict.fromkeys(windows, 0.0)
    assert long_window_errors(chains, solved_alone(chains, seen)) == {"n": USUAL_EXCESS}


@pytest.mark.parametrize(
    ("weight_bytes", "values_us"),
    [
        (
            400_000,
            (85.0, 195.0),
        ),  # the saved 20 us are half of the loads' 40 us: a quarter of it, the square, hides loads
        (200_000, (100.0, 180.0)),  # all loads are hidden
        (0, (100 - 20 / 3, 200 - 40 / 3)),
    ],
)
def test_a_saving_is_charged_to_the_chain_whose_work_it_hides(
    weight_bytes: int, values_us: tuple[float, float]
) -> None:
    """Saved time is charged to the chain behind as far as it hides loads of its weights, else to the chain in front.

    The third chain loads 1 MB in 100 us, the fastest of all: 10 bytes in a nanosecond.
    """
    chains = [
        ChainProbes((("layer", "0"),), "n", "alone 0", "", "meeting 0", "", True, weight_bytes=(0,)),
        ChainProbes((("layer", "1"),), "n", "alone 1", "", "", "", True, weight_bytes=(weight_bytes,)),
        ChainProbes((("layer", "2"),), "n", "alone 2", "", "", "", True, weight_bytes=(1_000_000,)),
    ]
    truth = {"alone 0": 1e-4, "alone 1": 2e-4, "alone 2": 1e-4, "meeting 0": -2e-5}
    found = chain_latencies(chains, solved(chains, totals(chains, truth), 1e-6))
    assert found.values == pytest.approx([*(1e-6 * one for one in values_us), 1e-4], rel=1e-3)


def test_an_unmeasured_layer_is_as_uncertain_as_it_is_long() -> None:
    """An unmeasured layer of three in a chain of 6 us takes the mean of 2 us, with a standard error of 2 us.

    Its variance is (2/3)² * 2² of its own error and (1/3)² * (0.3² + 0.9²) of the others' USUAL_DOUBT.
    """
    chain = ChainProbes((("a", ""), ("b", ""), ("c", "")), "n", "alone", "", "", "", True)
    latencies = ChainLatencies((chain,), np.array([6e-6]), np.zeros((1, 1)), np.zeros((1, 1)))
    layers = {("a", ""): known(1e-6, 0.0), ("c", ""): known(3e-6, 0.0)}
    found = shares(latencies, layers)
    assert found.values == pytest.approx([1e-6, 2e-6, 3e-6])
    assert found.covariance[1, 1] == pytest.approx((4 * 4 / 9 + 0.9 / 9) * 1e-12)


def test_no_chains_have_no_shares() -> None:
    """A device without chains has no shares."""
    found = shares(ChainLatencies((), np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0))), {})
    assert (found.places, found.values.shape, found.covariance.shape) == ((), (0,), (0, 0))


def test_a_chain_of_one_layer_is_that_layer() -> None:
    """A chain of one layer is that layer's, whatever its time in context."""
    chain = ChainProbes((("a", ""),), "n", "alone", "", "", "", True)
    latencies = ChainLatencies((chain,), np.array([4e-6]), np.array([[1e-14]]), np.zeros((1, 1)))
    for layers in ({}, {("a", ""): known(9e-6, 1e-6)}):
        found = shares(latencies, layers)
        assert (found.values[0], found.covariance[0, 0]) == pytest.approx((4e-6, 1e-14))
