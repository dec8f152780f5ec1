"""Rounds: their content and their end."""

from collections.abc import Callable

import pytest
from stepping_machine import SPACE, measure

from harness.errors import ConfigurationError
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.space.data_movement import Elementwise
from harness.space.drawn_layers import even_layers
from harness.space.planner import Parts, Round, explore
from harness.space.space import LayerSpace
from harness.space.space_profile import SpaceResult


@pytest.fixture(autouse=True)
def known_tiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the search for the tiling, which takes most of a training: rounds do not depend on it."""
    monkeypatch.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1, ((1, 16, 1),)))


class Recorded:
    """Records the rounds and answers them."""

    def __init__(self, answer: Callable[[Round], list[Parts] | None] = measure) -> None:
        self.rounds: list[Round] = []
        self._answer = answer

    def measure(self, asked: Round) -> list[Parts] | None:
        """Record the round and return its measured layers."""
        self.rounds.append(asked)
        return self._answer(asked)


def _explore(recorded: Recorded, **options: object) -> SpaceResult:
    settings = {"count": 120, "target": 0.0, **options}
    return explore(SPACE, recorded.measure, **settings)  # type: ignore[arg-type]


def test_no_layer_is_measured_twice_and_no_more_than_were_allowed() -> None:
    """All layers of all rounds differ, and there are as many as the count."""
    recorded = Recorded()
    result = _explore(recorded)
    layers = [layer for asked in recorded.rounds for layer in asked.layers]
    assert len(layers) == len(set(layers)) == result.measured == 120
    assert result.stopped == "count"


def test_the_same_seed_gives_the_same_rounds() -> None:
    """Rounds depend only on seed and latencies, so that an interrupted command can resume."""
    first, again, other = Recorded(), Recorded(), Recorded()
    _explore(first, seed=7)
    _explore(again, seed=7)
    _explore(other, seed=8)
    assert first.rounds == again.rounds != other.rounds


def test_it_stops_when_layers_are_predicted_well_enough() -> None:
    """With a target of 100 %, the second round is the last: it is the first with predictions."""
    result = _explore(Recorded(), target=1.0)
    assert (result.stopped, len(result.rounds)) == ("target", 2)
    assert result.rounds[0].error is None
    assert result.rounds[1].error is not None


def test_no_predictor_is_trained_that_cannot_reach_the_target() -> None:
    """With a target far below the first error, only one round has an error; with one within reach, all later ones."""
    small = [one.error for one in _explore(Recorded(), count=160, target=1e-9).rounds]
    assert [error is None for error in small] == [True, False, *[True] * (len(small) - 2)] and len(small) > 2
    first = small[1]
    assert first is not None
    reached = [one.error for one in _explore(Recorded(), count=160, target=first / 2).rounds]
    assert reached[1] == first and None not in reached[1:]


def test_rounds_are_parts_of_one_even_sample() -> None:
    """All rounds together are the even sample of the space, whose first layers are the first round."""
    recorded = Recorded()
    _explore(recorded, seed=3)
    even = even_layers(SPACE, 120, 3)
    assert recorded.rounds[0].layers == tuple(even[:40])
    assert {layer for asked in recorded.rounds for layer in asked.layers} == set(even)


def test_refused_layers_count_towards_the_limit() -> None:
    """Refused layers count towards the limit, and the others are measured."""

    def refusing(asked: Round) -> list[Parts]:
        pairs = zip(asked.layers, measure(asked), strict=True)
        return [() if isinstance(layer, Elementwise) else parts for layer, parts in pairs]

    recorded = Recorded(refusing)
    result = _explore(recorded)
    tried = sum(len(asked.layers) for asked in recorded.rounds)
    assert tried == 120 and result.measured + sum(one.refused for one in result.rounds) == tried
    assert sum(one.refused for one in result.rounds) > 0


def test_a_budget_that_is_too_small_ends_the_rounds() -> None:
    """If the budget does not allow a round, the rounds before it count."""
    recorded = Recorded(lambda asked: measure(asked) if asked.number == 0 else None)
    result = _explore(recorded)
    assert (result.stopped, result.measured) == ("budget", 40)


def test_a_round_that_exceeds_the_budget_is_halved() -> None:
    """If the rest of the budget allows only a part of the next round, that part is measured."""
    left = [100]

    def within(asked: Round) -> list[Parts] | None:
        if len(asked.layers) > left[0]:
            return None
        left[0] -= len(asked.layers)
        return measure(asked)

    recorded = Recorded(within)
    result = _explore(recorded, count=160)
    assert [len(asked.layers) for asked in recorded.rounds] == [40, 80, 40, 80, 40]
    assert [asked.number for asked in recorded.rounds] == [0, 1, 1, 2, 2]
    assert (result.stopped, result.measured) == ("budget", 80)


def test_a_space_of_few_layers_is_exhausted() -> None:
    """All eight layers of a space of eight are measured, once."""
    few = LayerSpace.model_validate({"layers": ({"op": "Relu", "channels": [8, 16, 24, 32], "size": [7, 14]},)})
    recorded = Recorded()
    result = explore(few, recorded.measure)
    assert (result.stopped, result.measured) == ("exhausted", 8)


def test_each_block_has_its_share_of_any_number_of_layers() -> None:
    """Blocks take turns by their shares, so that the first layers are one of each; all are within the limits."""
    layers = even_layers(SPACE, 30, 0)
    assert len(set(layers)) == 30
    for count in (2, 12, 30):
        assert sum(isinstance(layer, Elementwise) for layer in layers[:count]) == pytest.approx(count / 3, abs=1)
    assert {type(layer) for layer in layers[:2]} == {type(layer) for layer in layers}
    assert all(SPACE.limits.hold(layer) for layer in layers)


def test_huge_spaces_are_sampled_not_listed() -> None:
    """Layers can be drawn from a space of more than 1e12 layers."""
    channels, edge = {"low": 1, "high": 4096}, {"low": 1, "high": 512}
    block = {"op": "Conv", "channels_in": channels, "channels_out": channels, "size": edge, "width": edge}
    space = LayerSpace.model_validate({"layers": (block,)})
    assert space.count > 1e12
    assert len(even_layers(space, 100, 0)) == 100


def test_a_space_without_a_layer_within_its_limits_is_refused() -> None:
    """The error names the limits."""
    block = {"op": "Relu", "channels": [64], "size": [56]}
    space = LayerSpace.model_validate({"limits": {"max_bytes": 100}, "layers": (block,)})
    with pytest.raises(ConfigurationError, match="max_bytes"):
        even_layers(space, 4, 0)
