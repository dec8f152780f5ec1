"""The share of a campaign that is done, from what its batches have taken to load and to visit so far."""

import itertools
import threading
from unittest.mock import Mock

import pytest

from harness.measure.campaign_forecast import CampaignForecast
from harness.measure.fusion.cutting import with_chains
from harness.measure.progress import Progress, steps_of
from harness.network.effort import networks_effort
from harness.network.model_references import load_network
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.probe_plan import CutNetwork


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


def test_an_overdue_step_is_never_negative() -> None:
    """The first step of a batch that takes longer than others predict has no time left, not less than none."""
    forecast = CampaignForecast([1.0, 1.0], [1.0, 1.0], [[2]] * 2, [0, 0], compiles=True)
    forecast.loaded(0, 1.0)
    forecast.loading(1, 0.0, 1.0, 0.0)
    forecast.loading(1, 0.0, 0.25, 5.0)
    assert forecast.step_s == 0.0


def test_a_resumed_campaign_has_the_effort_of_what_is_left() -> None:
    """Finished batches are not compiled; rounds alone take less than any compilation, and finished ones nothing."""
    loads, passes = [10.0, 10.0, 1.0], [[4, 8], [4], []]
    cases = {(0, 4, 0): 10.0, (4, 3, 0): 20.0, (8, 4, 0): 0.0, (9, 9, 9): 0.0}
    for rounds, effort in cases.items():
        assert CampaignForecast(loads, [1.0] * 3, passes, list(rounds), compiles=True).effort == effort
    assert CampaignForecast(loads, [1.0] * 3, [[3]] * 3, [3, 3, 0], compiles=True).effort == 1.0
    assert CampaignForecast([0.0] * 3, [1.0] * 3, [[3]] * 3, [3, 1, 0], compiles=True).effort == 5.0
    assert CampaignForecast(loads, [1.0] * 3, [[3]] * 3, [3, 1, 0]).effort == 5.0


@pytest.mark.parametrize("chains", [1, 2])
def test_a_network_of_one_chain_has_no_windows_to_compile(chains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows take an effort where there are several chains, and none, which is not unknown, where there is one."""
    monkeypatch.setattr("harness.measure.fusion.cutting.plan_chains", lambda *_: ((), ()))
    network = load_network("builtin:dscnn")
    nodes = range(len(network.nodes))
    graph = RuntimeGraph((), frozenset(), tuple(frozenset(nodes[at::chains]) for at in range(chains)))
    seen: list[Progress] = []
    with_chains(Mock(), [CutNetwork(network, (), frozenset(), graph)], seen.append, threading.Event())
    assert [one.effort for one in seen] == [pytest.approx(networks_effort([network]) if chains > 1 else 0.0)]


def test_steps_are_counted_from_one() -> None:
    """The first step has no forecast, and the last one is not beyond the end."""
    seen: list[Progress] = []
    show = steps_of(seen.append, "comparing")
    for done in range(4):
        show(done, 3)
    assert [one.batch for one in seen[1:]] == [0, 1, 2, 2]
    assert [one.share for one in seen[1:]] == [None, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
