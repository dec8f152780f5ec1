"""Networks whose weights fit into the caches only in part are between warm and cold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_tables import table_of

from benchmarks.search.mobile_space import mobile_space
from harness.architecture_search.search_space import SearchSpace
from harness.estimation.layer_estimates import LayerSum, look_up, mixture, sum_of_layers
from harness.measure.core_caches import HELD_CACHES, cold_shares
from harness.network.keyed_network import keyed

CACHE = 1 << 20
SECONDS = st.floats(1e-6, 1.0)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9))
def test_the_bytes_that_stay_in_the_caches_are_those_that_fit(sizes: list[int]) -> None:
    """No share is cold of weights that fit; of larger ones the caches keep what they hold, whatever the size."""
    weights_bytes = np.array(sizes)
    cold = cold_shares(weights_bytes, CACHE)
    warm_bytes = (1.0 - cold) * weights_bytes
    assert warm_bytes == pytest.approx(np.minimum(weights_bytes, HELD_CACHES * CACHE), rel=1e-9)


@given(st.floats(0.0, 1.0), SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_mixture_is_between_its_states_and_spreads_over_both(
    share: float, warm_s: float, warm_stderr_s: float, cold_s: float, cold_stderr_s: float
) -> None:
    """Mean and mean square of a mixture are the weighted means of those of its states."""
    mean_s, variance_s2 = mixture(share, (warm_s, warm_stderr_s**2), (cold_s, cold_stderr_s**2))
    assert mean_s == pytest.approx((1.0 - share) * warm_s + share * cold_s)
    square_s2 = (1.0 - share) * (warm_s**2 + warm_stderr_s**2) + share * (cold_s**2 + cold_stderr_s**2)
    assert variance_s2 + mean_s**2 == pytest.approx(square_s2)


def test_a_network_is_mixed_by_the_share_of_its_weights_in_memory() -> None:
    """Its sum moves from that of warm layers to that of cold ones as the caches become smaller."""
    space = SearchSpace.read(mobile_space((8, 16, 24), edge=16, blocks=1))
    table = table_of(space, "predicted")
    network = keyed(space.network_of([1] * len(space.sizes)), table.rules)
    warm, cold = (LayerSum.of(look_up(network, table, is_warm=state), table) for state in (True, False))
    assert warm.latency_s != cold.latency_s
    for caches, share in ((1, 0.0), (2, 0.5), (4, 0.75), (8, 0.875)):
        cache_bytes = network.weight_bytes // caches // HELD_CACHES
        own = dataclasses.replace(table, fingerprint={"core_cache_bytes": str(cache_bytes + (caches == 1))})
        found = own.cold_share(network.weight_bytes)
        assert found == pytest.approx(share, abs=0.01)
        expected_s = (1.0 - found) * warm.latency_s + found * cold.latency_s
        assert sum_of_layers(network, own).latency_s == pytest.approx(expected_s, rel=1e-9)


def test_warm_layers_are_not_predicted_from_those_of_one_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table has few warm layers, each network whose weights do not all fit is cold."""
    table = table_of(SearchSpace.read(mobile_space((8, 16), edge=16, blocks=1)), "plain")
    held_bytes = HELD_CACHES * int(table.fingerprint["core_cache_bytes"])
    sizes = np.array([1, held_bytes, held_bytes + 1, 2 * held_bytes])
    assert table.cold_shares(sizes) == pytest.approx([0.0, 0.0, 0.0, 0.5], abs=0.01)
    monkeypatch.setattr("harness.lut.table.FEWEST_WARM", len(table.entries) + 1)
    assert dataclasses.replace(table).cold_shares(sizes).tolist() == [0.0, 0.0, 1.0, 1.0]
