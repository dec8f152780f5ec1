"""Networks whose weights fit into the caches only in part are between warm and cold."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from synthetic_tables import table_of

from benchmarks.search.mobile_space import mobile_space
from harness.architecture_search.search_space import SearchSpace
from harness.estimation.layer_estimates import LayerSum, look_up, mixture, sum_of_layers
from harness.measure.core_caches import HELD_CACHES, KEPT_S, cold_shares
from harness.network.keyed_network import keyed

CACHE = 1 << 20
SECONDS = st.floats(1e-6, 1.0)


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=9), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_weights_become_cold_with_their_size_and_with_time(sizes: list[int], time_s: float, more_s: float) -> None:
    """Weights that fit are warm if they are read again at once; larger ones, and a longer run, are never warmer."""
    weights_bytes = np.sort(np.array(sizes))
    at_once = cold_shares(weights_bytes, np.zeros(len(sizes)), CACHE)
    assert np.array_equal(at_once == 0.0, weights_bytes <= HELD_CACHES * CACHE)
    now, later = (cold_shares(weights_bytes, np.full(len(sizes), one), CACHE) for one in (time_s, time_s + more_s))
    assert np.all(np.diff(now) >= 0.0) and np.all(now <= later)
    assert np.all(at_once <= now) and later.max() <= 1.0


@given(st.floats(0.0, 1.0), SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_mixture_is_between_its_states_and_spreads_over_both(
    share: float, warm_s: float, warm_stderr_s: float, cold_s: float, cold_stderr_s: float
) -> None:
    """The mean is the weighted one of both states; the variance adds a third of what two states alone would have."""
    mean_s, variance_s2 = mixture(share, (warm_s, warm_stderr_s**2), (cold_s, cold_stderr_s**2))
    assert mean_s == pytest.approx((1.0 - share) * warm_s + share * cold_s)
    within_s2 = (1.0 - share) * warm_stderr_s**2 + share * cold_stderr_s**2
    assert variance_s2 == pytest.approx(within_s2 + share * (1.0 - share) * (cold_s - warm_s) ** 2 / 3.0)


def test_a_network_is_mixed_by_the_share_of_its_weights_in_memory() -> None:
    """Its sum is between those of warm and of cold layers, and moves to the latter as the caches become smaller."""
    space = SearchSpace.read(mobile_space((8, 16, 24), edge=16, blocks=1))
    table = table_of(space, "predicted")
    network = keyed(space.network_of([1] * len(space.sizes)), table.rules)
    warm, cold = (LayerSum.of(look_up(network, table, is_warm=state), table) for state in (True, False))
    assert warm.latency_s != cold.latency_s
    for caches, lost in ((1.0, 0.0), (1.25, 0.4), (2.0, 1.0)):
        cache_bytes = math.ceil(network.weight_bytes / caches / HELD_CACHES)
        own = dataclasses.replace(table, fingerprint={"core_cache_bytes": str(cache_bytes)})
        found = own.cold_share(network.weight_bytes, warm.latency_s)
        assert found == pytest.approx(1.0 - (1.0 - lost) * math.exp(-warm.latency_s / KEPT_S), abs=0.01)
        expected_s = (1.0 - found) * warm.latency_s + found * cold.latency_s
        assert sum_of_layers(network, own).latency_s == pytest.approx(expected_s, rel=1e-9)


def test_a_mixture_needs_more_than_the_warm_layers_of_one_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table has few warm layers, each network is warm or cold as a whole, whichever is nearer."""
    table = table_of(SearchSpace.read(mobile_space((8, 16), edge=16, blocks=1)), "plain")
    held_bytes = HELD_CACHES * int(table.fingerprint["core_cache_bytes"])
    states = ((1, 0.0), (held_bytes, 0.0), (held_bytes * 8 // 7, 0.0), (2 * held_bytes, 0.0), (1, 9 * KEPT_S))
    assert [table.cold_share(*state) for state in states] == pytest.approx([0.0, 0.0, 0.25, 1.0, 1.0], abs=0.01)
    monkeypatch.setattr("harness.lut.table.FEWEST_WARM", len(table.entries) + 1)
    assert [dataclasses.replace(table).cold_share(*state) for state in states] == [0.0, 0.0, 0.0, 1.0, 1.0]
