"""The example of a search, on the emulated NPU and in a small space."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.search import evolution
from benchmarks.search.mobile_space import mobile_space
from harness import RepeatPolicy


def test_the_search_finds_the_best_candidate() -> None:
    """In a space whose best row is known, the search returns it."""
    target = np.array([3, 1, 4, 1, 2, 0, 2, 1])
    best = evolution.evolve((5,) * 8, lambda rows: -(rows != target).sum(axis=1).astype(float))
    assert best.tolist() == target.tolist()


@pytest.mark.long
def test_the_example_ends_with_a_measured_network(tmp_path: Path) -> None:
    """On a device without noise, the network that was found is below its bound and near its prediction."""
    found = evolution.search(mobile_space((8, 16), 16, 1), "npu01", tmp_path, 0.9, RepeatPolicy(runs=3))
    assert len(found.choices) == 2
    assert found.interval_s[0] <= found.predicted_s <= found.interval_s[1]
    assert abs(found.predicted_s / found.measured_s - 1) < 0.5
    assert found.estimates > 0
