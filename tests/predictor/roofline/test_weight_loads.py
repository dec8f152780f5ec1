"""What is left of a network's layers whose weights are loaded while others compute."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.predictor.roofline.weight_loads import WeightLoads

BYTE_S = 1e-10
SECONDS = st.floats(1e-7, 1e-3)
LAYERS = st.lists(st.tuples(st.integers(0, 1 << 22), SECONDS, SECONDS, SECONDS), min_size=1, max_size=12)


def loads_of(layers: list[tuple[int, float, float, float]], power: float) -> WeightLoads:
    """Return layers of these bytes of weights, and seconds of other work, of the memory within it, and to launch."""
    sizes, others_s, memory_s, launch_s = np.array(layers, float).T
    picks = np.zeros(len(layers), dtype=bool)
    return WeightLoads(sizes, BYTE_S * sizes, others_s, np.minimum(memory_s, others_s), launch_s, power, picks)


def seconds(loads: WeightLoads, ahead_bytes: float) -> np.ndarray:
    """Return what is left of each layer, in seconds."""
    joined_s = (loads.others_s**loads.power + loads.loads_s**loads.power) ** (1 / loads.power)
    return loads.left(ahead_bytes) * (loads.launch_s + joined_s)


@given(layers=LAYERS, power=st.floats(1, 8), sizes=st.lists(st.integers(0, 1 << 24), min_size=2, max_size=5))
def test_a_larger_buffer_never_makes_a_layer_longer(
    layers: list[tuple[int, float, float, float]], power: float, sizes: list[int]
) -> None:
    """No layer gets longer with a larger buffer, nor shorter than its other work; the first one stays as it is."""
    loads = loads_of(layers, power)
    found = [seconds(loads, size) for size in sorted(sizes)]
    for small, large in itertools.pairwise(found):
        assert np.all(large <= small * (1 + 1e-9))
    assert np.all(found[-1] >= (loads.launch_s + loads.others_s) * (1 - 1e-9))
    assert found[-1][0] == pytest.approx(seconds(loads, 0)[0])


@given(layers=LAYERS, power=st.floats(1, 8), size=st.integers(1, 1 << 24))
def test_the_way_to_the_memory_carries_all_weights(
    layers: list[tuple[int, float, float, float]], power: float, size: int
) -> None:
    """Any buffer leaves at least the time of all loads of weights."""
    loads = loads_of(layers, power)
    assert seconds(loads, size).sum() >= loads.loads_s.sum() * (1 - 1e-9)


@given(layers=LAYERS, seed=st.integers(0, 1 << 30), size=st.integers(1, 1 << 24))
def test_many_networks_together_are_as_each_alone(
    layers: list[tuple[int, float, float, float]], seed: int, size: int
) -> None:
    """What is left of the layers of a network depends on neither other networks nor idle layers among its own."""
    loads, random = loads_of(layers, 2.0).with_idle_layer(), np.random.default_rng(seed)
    idle = len(layers)
    order = random.integers(0, idle + 1, (9, 5))
    together = loads.left(size, order)
    for column, own in zip(order.T, together.T, strict=True):
        assert own[column < idle] == pytest.approx(loads.left(size, column[column < idle]), rel=1e-9)


def test_loads_are_as_fast_as_those_of_most_layers_by_hand() -> None:
    """Of three rates, the middle one counts: 100 µs of work load a quarter of 1,200,000 bytes, 30 of 120 µs."""
    sizes, loads_s = np.array([0, 1_200_000, 100, 100]), np.array([0, 1.2e-4, 1e-7 / 3, 1e-7])
    others_s = np.array([1e-4, 1e-6, 1e-6, 1e-6])
    picks = np.zeros(4, dtype=bool)
    loads = WeightLoads(sizes.astype(float), loads_s, others_s, np.zeros(4), np.zeros(4), 50.0, picks)
    assert loads.left(1 << 24)[1] == pytest.approx(0.75, rel=1e-3)


def test_two_layers_by_hand() -> None:
    """100 µs of work load 800,000 bytes, 80 of the 120 µs of the next layer's weights, or what the buffer holds."""
    loads = loads_of([(0, 1e-4, 0.0, 0.0), (1_200_000, 1e-6, 0.0, 0.0), (0, 1e-6, 0.0, 0.0)], 50.0)
    loads = replace(loads, memory_s=np.array([2e-5, 0, 0]))
    assert seconds(loads, 1 << 24) == pytest.approx([1e-4, 4e-5, 1e-6], rel=1e-3)
    assert seconds(loads, 200_000) == pytest.approx([1e-4, 1e-4, 1e-6], rel=1e-3)
    assert seconds(loads, 0) == pytest.approx([1e-4, 1.2e-4, 1e-6], rel=1e-3)


def test_rows_of_computed_places_hold_up_loads_by_hand() -> None:
    """Of 100 µs before such a layer and 50 µs behind it, only these load the next 1,200,000 bytes."""
    loads = loads_of([(0, 1e-4, 0, 0), (0, 1e-6, 0, 0), (0, 5e-5, 0, 0), (1_200_000, 1e-6, 0, 0)], 50.0)
    loads = replace(loads, picks=np.array([False, True, False, False]))
    assert seconds(loads, 1 << 24)[3] == pytest.approx(7e-5, rel=1e-3)


def test_weights_in_use_leave_less_room_for_the_next_by_hand() -> None:
    """Beside 300,000 bytes in use, a buffer of 500,000 holds 200,000 of the next 400,000, half of its 40 µs."""
    loads = loads_of([(300_000, 1e-4, 0.0, 0.0), (400_000, 1e-6, 0.0, 0.0)], 50.0)
    assert seconds(loads, 500_000) == pytest.approx([1e-4, 2e-5], rel=1e-3)
