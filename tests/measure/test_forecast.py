"""Forecasts of campaigns, also on campaigns that were recorded."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from recorded_campaigns import replay

from harness.measure.forecast import CampaignForecast, ClosingForecast, ProcessForecast
from harness.measure.progress import Progress, followed_by, steps_of

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
STEPS = 1000
SHOWN_S = 1.0
"""What a line shows at least, and therefore how far off it may be."""


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_forecasts_are_within_a_factor_of_two(path: Path) -> None:
    """After the first tenth of a recorded command, its time left is within a factor of two for 90 % of the rest.

    Nothing is forecast while networks are read and cut, before the plan of the campaign is known.
    """
    moments, end_s = replay(path)
    first_s = max(0.1 * end_s, moments[0].at_s)
    good = []
    for step in range(STEPS):
        now_s = first_s + (end_s - first_s) * step / STEPS
        known = [one for one in moments if one.at_s <= now_s]
        true_s = end_s - now_s
        shown_s = max(SHOWN_S, known[-1].left_s - (now_s - known[-1].at_s))
        good.append(true_s / 2 <= shown_s <= 2 * true_s or abs(shown_s - true_s) <= SHOWN_S)
    assert sum(good) >= 0.9 * len(good), f"{sum(good) / len(good):.0%}"


def test_a_steady_campaign_is_forecast_exactly() -> None:
    """If all batches take as long to load and to visit by their size, the first one foretells the rest."""
    sizes, passes = [10.0, 20.0, 30.0], [[4, 8]] * 3
    forecast = CampaignForecast(sizes, passes, [0, 0, 0])
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
    forecast = CampaignForecast([1.0], [[4, 8]], [0])
    forecast.loaded(0, 3.0)
    forecast.visited(0, 4, 4.0)
    forecast.ended(0, 8, 1.0, kept=False)
    assert forecast.remaining_s == pytest.approx(3.0 + 4.0)
    forecast.ended(0, 20, 0.5, kept=False)
    assert forecast.remaining_s == pytest.approx(2 * 3.0 + 4.0 + 0.5 * 12.0)


def test_a_batch_that_is_being_loaded_counts_with_the_rest() -> None:
    """After a quarter of the models in two seconds, six are left, and the rounds behind them."""
    forecast = CampaignForecast([1.0, 1.0], [[2]] * 2, [0, 0])
    forecast.loaded(0, 1.0)
    forecast.visited(0, 2, 2.0)
    forecast.ended(0, 2, 1.0, kept=True)
    forecast.loading(1, 0.25, 2.0)
    assert forecast.remaining_s == pytest.approx(6.0 + 2.0)


def test_earlier_campaigns_foretell_the_first_minutes() -> None:
    """Before the first visit the time left is that of earlier campaigns, without the batches that are done."""
    forecast = CampaignForecast([30.0, 10.0], [[2], [2]], [2, 0], prior_s=80.0)
    assert forecast.remaining_s == pytest.approx(20.0)


def test_further_processes_take_as_long_as_the_first() -> None:
    """Processes that have not begun take as long as the one before by their loads, and what follows is added."""
    forecast = ProcessForecast([20, 10, 10], after_s=3.0, after_openings=4.0)
    forecast.begin(0, 100.0)
    forecast.opened(100.5)
    assert forecast.remaining_s(None, 105.0) is None
    assert forecast.remaining_s(15.0, 105.0) == pytest.approx(15.0 + 20.0 + 3.0 + 4 * 0.5)
    forecast.begin(2, 200.0)
    forecast.opened(209.0)
    assert forecast.remaining_s(2.0, 209.0) == pytest.approx(2.0 + 3.0 + 4 * 0.5)


def test_what_follows_a_campaign_is_part_of_its_time_left() -> None:
    """Further processes are measured behind long campaigns alone, and the golden probe behind each."""
    closing = ClosingForecast(1.0, 5.0, 10.0)
    assert (closing.later_s(9.0), closing.later_s(11.0)) == (1.0, 6.0)
    seen: list[Progress] = []
    observe = followed_by(seen.append, closing.later_s)
    observe(Progress("measuring", 0, 2, remaining_s=20.0))
    observe(Progress("compiling", 0, 2))
    assert [one.remaining_s for one in seen] == [26.0, None]


def test_steps_are_counted_from_one() -> None:
    """The first step has no forecast, and the last one is not beyond the end."""
    seen: list[Progress] = []
    show = steps_of(seen.append, "comparing")
    for done in range(4):
        show(done, 3)
    assert [one.batch for one in seen] == [0, 1, 2, 2]
    assert seen[0].remaining_s is None and seen[-1].remaining_s == 0.0
