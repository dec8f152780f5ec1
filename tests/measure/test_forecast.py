"""The share of a campaign that is done, from what its batches have taken to load and to visit so far."""

from __future__ import annotations

import itertools

import pytest

from harness.measure.forecast import CampaignForecast
from harness.measure.progress import Progress, steps_of


def test_a_steady_campaign_is_forecast_exactly() -> None:
    """If all batches take as long to load and to visit by their size, the first one predicts the rest."""
    sizes, passes = [10.0, 20.0, 30.0], [[4, 8]] * 3
    forecast = CampaignForecast(sizes, sizes, passes, [0, 0, 0])
    assert forecast.remaining_s is None
    left_s = sum(0.5 * size + 8 * 0.01 * size for size in sizes)
    for (at, size), rounds in itertools.product(enumerate(sizes), [4]):
        forecast.loaded(at, 0.5 * size)
        forecast.visited(at, rounds, rounds * 0.01 * size)
        forecast.ended(at, 8, 1.0, kept=True)
        left_s -= 0.5 * size + rounds * 0.01 * size
        assert forecast.remaining_s == pytest.approx(left_s)


def test_batches_that_do_not_stay_are_loaded_for_each_pass() -> None:
    """A batch that is dropped is loaded again, and one whose probes scatter is visited beyond the passes."""
    forecast = CampaignForecast([1.0], [1.0], [[4, 8]], [0])
    forecast.loaded(0, 3.0)
    forecast.visited(0, 4, 4.0)
    forecast.ended(0, 8, 1.0, kept=False)
    assert forecast.remaining_s == pytest.approx(3.0 + 4.0)
    forecast.ended(0, 20, 0.5, kept=False)
    assert forecast.remaining_s == pytest.approx(2 * 3.0 + 4.0 + 0.5 * 12.0)


def test_a_batch_that_is_being_loaded_counts_with_the_rest() -> None:
    """After a quarter of the work in two seconds, six are left, and the rounds behind them."""
    forecast = CampaignForecast([1.0, 3.0], [1.0, 1.0], [[2]] * 2, [0, 0])
    forecast.loaded(0, 1.0)
    forecast.visited(0, 2, 2.0)
    forecast.ended(0, 2, 1.0, kept=True)
    forecast.loading(1, 0.25, 0.5, 2.0)
    assert forecast.remaining_s == pytest.approx(6.0 + 2.0)
    assert forecast.step_s == pytest.approx(2.0)


def test_a_batch_takes_as_long_to_load_as_others_by_its_effort() -> None:
    """When loading begins, the step is what others predict, and nothing for a batch with nothing to compile."""
    forecast = CampaignForecast([2.0, 6.0, 0.0], [1.0] * 3, [[2]] * 3, [0, 0, 0], compiles=True)
    assert forecast.effort == pytest.approx(8.0)
    forecast.loading(0, 0.0, 1.0, 0.0)
    forecast.loaded(0, 1.0)
    forecast.visited(0, 2, 2.0)
    forecast.ended(0, 2, 1.0, kept=True)
    for batch, expected_s in ((1, 3.0), (2, 0.0)):
        forecast.loading(batch, 0.0, 1.0, 0.0)
        assert forecast.step_s == pytest.approx(expected_s)
        assert forecast.remaining_s == pytest.approx(expected_s + 2.0 + 2.0)
        forecast.loaded(batch, expected_s)


def test_steps_are_counted_from_one() -> None:
    """The first step has no forecast, and the last one is not beyond the end."""
    seen: list[Progress] = []
    show = steps_of(seen.append, "comparing")
    for done in range(4):
        show(done, 3)
    assert [one.batch for one in seen[1:]] == [0, 1, 2, 2]
    assert [one.share for one in seen[1:]] == [None, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
