"""The split score: every number of S5.4 by hand on six nodes, and the coefficients that are refused.

The six nodes are visited a b c d e f. Up to c (paragraphs 69, 74 to 79): MACs 100 + 200 + 100 = 400 of 1000, inputs
40 + 60 + 60 = 160 of 300 bytes, static 20 + 40 + 40 = 100 bytes, routed 60 + 60 + 60 = 180 bytes.
"""

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from partition_cases import SIX_NODES, fabric, groups_of_sizes

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import Workload
from device_agents.emulated_npu.partition.split_score import AbsoluteScore, Shares, ShareScore, SplitRule

UP_TO_C = Workload(400, 160, 120, 100, 180)
# Two cores and one of 100 bytes each.
TWO_CORES, ONE_CORE = groups_of_sizes(fabric(1, 3, storage_bytes=100), (2, 1))


def test_the_sums_of_the_six_nodes() -> None:
    """MACs are 100 + 200 + 100 + 300 + 200 + 100, inputs 40 + 3 x 60 + 50 + 30, and so on."""
    assert SIX_NODES.workload == Workload(1000, 300, 210, 200, 320)
    assert sum((node.workload for node in SIX_NODES.nodes[:3]), Workload()) == Workload(400, 160, 120, 100, 180)


def test_shares_and_utilisation_by_hand() -> None:
    """Compute is 400 / 1000, routing 160 / 300, utilisation (100 * 0.5 + 160 * 0.25) / (2 * 100) = 90 / 200."""
    score = ShareScore(static_factor=0.5, dynamic_factor=0.25)
    assert score.shares(UP_TO_C, SIX_NODES.workload, TWO_CORES) == pytest.approx((0.4, 0.45, 160 / 300))


def test_a_share_averages_over_the_cores_and_utilisation_is_an_average_already() -> None:
    """On two cores each core does 0.2 of all MACs and 80 / 300 of the routing, and uses 45 of its 100 bytes."""
    assert Shares(0.4, 0.45, 160 / 300).per_core(2) == pytest.approx((0.2, 0.45, 80 / 300))


def test_the_share_score_of_unequal_groups_by_hand() -> None:
    """The same three nodes on two cores and on one, with weights 0.5, 1 and 0.75.

    Two cores: 0.4 / 2 * 0.5 + 90 / 200 * 1 + 160 / 300 / 2 * 0.75 = 0.1 + 0.45 + 0.2 = 0.75.
    One core:  0.4     * 0.5 + 90 / 100 * 1 + 160 / 300     * 0.75 = 0.2 + 0.90 + 0.4 = 1.50.
    """
    score = ShareScore(0.5, 1.0, 0.75, static_factor=0.5, dynamic_factor=0.25)
    assert score.score(UP_TO_C, SIX_NODES.workload, TWO_CORES) == pytest.approx(0.75)
    assert score.score(UP_TO_C, SIX_NODES.workload, ONE_CORE) == pytest.approx(1.5)


def test_the_absolute_score_of_unequal_groups_by_hand() -> None:
    """400 * 0.5 + 160 * 0.25 + 100 * 1 + 180 * 0.5 = 200 + 40 + 100 + 90 = 430: 215 for each of two cores."""
    score = AbsoluteScore(compute_weight=0.5, dynamic_weight=0.25, static_weight=1.0, routing_weight=0.5)
    assert score.score(UP_TO_C, SIX_NODES.workload, TWO_CORES) == 215
    assert score.score(UP_TO_C, SIX_NODES.workload, ONE_CORE) == 430


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (ShareScore(1, 0, 0), 0.4 / 2),
        (ShareScore(0, 1, 0), (100 + 160) / 200),
        (ShareScore(0, 0, 1), 160 / 300 / 2),
        (ShareScore(0, 1, 0, static_factor=3, dynamic_factor=2), (100 * 3 + 160 * 2) / 200),
    ],
)
def test_one_term_alone(score: ShareScore, expected: float) -> None:
    """Two of the weights may be 0; the factors of storage are no weights and may exceed 1."""
    assert score.score(UP_TO_C, SIX_NODES.workload, TWO_CORES) == pytest.approx(expected)


def test_a_share_of_nothing_is_zero() -> None:
    """In a network that computes and moves nothing, shares are 0."""
    assert ShareScore().score(Workload(), Workload(), ONE_CORE) == 0


_AMOUNTS = st.builds(Workload, *[st.integers(0, 2**63 - 1)] * 5)
_WEIGHTS = st.floats(0, 1)


@settings(max_examples=75, derandomize=True)
@given(
    _AMOUNTS,
    _AMOUNTS,
    st.one_of(
        st.builds(ShareScore, st.floats(0.1, 1), _WEIGHTS, _WEIGHTS, *[st.floats(1e-9, 1e100)] * 2),
        st.builds(AbsoluteScore, st.floats(0.1, 1), _WEIGHTS, _WEIGHTS, _WEIGHTS),
    ),
)
def test_no_score_falls_when_a_node_is_added(one: Workload, more: Workload, score: ShareScore | AbsoluteScore) -> None:
    """No score decreases when a node is added, and every workload has a finite score; the bisection relies on both."""
    for group in (ONE_CORE, TWO_CORES):
        before, after = (score.score(work, one + more, group) for work in (one, one + more))
        assert 0 <= before <= after < math.inf


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
@pytest.mark.parametrize("kind", [ShareScore, AbsoluteScore])
@pytest.mark.parametrize("name", ["compute_weight", "routing_weight"])
def test_a_weight_outside_0_to_1_is_refused(kind: Any, name: str, value: float) -> None:
    """The error names the weight, its value and the bounds, for both scores."""
    with pytest.raises(InvalidPartition, match=f"the {name.removesuffix('_weight')} weight is {value}") as caught:
        kind(**{name: value})
    assert "between 0 and 1" in caught.value.why


def test_all_weights_zero_are_refused() -> None:
    """Weights that are all zero are refused, because they never cause a split."""
    with pytest.raises(InvalidPartition, match="all weights are 0: compute_weight, storage_weight, routing_weight"):
        ShareScore(0, 0, 0)
    with pytest.raises(InvalidPartition, match="all weights are 0"):
        AbsoluteScore(0, 0, 0, 0)


_NOT_POSITIVE = (0.0, -1.0, math.nan, math.inf)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        *(
            ({name: value}, f"{name} is {value}")
            for name in ("static_factor", "dynamic_factor")
            for value in _NOT_POSITIVE
        ),
        *(({"threshold": value}, f"a split threshold of {value}") for value in (-0.5, math.nan)),
        ({"node_limit": 0}, "a limit of 0 nodes in a group"),
        *(({"period_s": value}, f"a period of {value} s") for value in _NOT_POSITIVE),
    ],
)
def test_a_value_out_of_range_is_refused(arguments: dict[str, Any], what: str) -> None:
    """The error names the factor, threshold, node limit or period, its value and the bound."""
    with pytest.raises(InvalidPartition, match=what) as caught:
        ShareScore(**arguments) if "factor" in what else SplitRule(ShareScore(), **arguments)
    assert re.search("above 0|at least", caught.value.why)


def test_a_group_of_one_core_named_twice_is_refused() -> None:
    """A group that names a core twice is refused, because averages count each core once."""
    with pytest.raises(InvalidPartition, match="core 1 is named twice"):
        CoreGroup((0, 1, 1), 0, ONE_CORE.core)
