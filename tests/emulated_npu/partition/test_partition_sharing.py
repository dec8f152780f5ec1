"""Several parts on a core group: figure 1 of the source, and any network with more parts than groups."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st
from partition_cases import SIX_NODES, chain, fabric, graphs, groups_of_sizes, parts

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload, traverse, traverse_from
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.partition.shared_groups import partition_by_score_sharing_groups
from device_agents.emulated_npu.partition.split_score import AbsoluteScore, ShareScore, SplitRule

COMPUTE = ShareScore(1, 0, 0)


def _homes(partition: CorePartition) -> list[int]:
    return [part.group for part in partition.sub_structures]


def test_four_parts_on_two_groups() -> None:
    """As in figure 1, the first two of four parts are on the first group, the others on the second.

    MACs 3 1 2 2 1 3 2 2: at a threshold of 4 the parts are 3 1 | 2 2 | 1 3 | 2 2, of 4 each.
    """
    graph = chain(*(Workload(compute_macs=amount) for amount in (3, 1, 2, 2, 1, 3, 2, 2)))
    groups = groups_of_sizes(fabric(1, 2), [1, 1])
    score = SplitRule(AbsoluteScore(1, 0, 0, 0))
    partition = partition_by_score_sharing_groups(graph, traverse(graph), groups, score, 4)
    assert parts(graph, partition) == ["01", "23", "45", "67"]
    assert _homes(partition) == [0, 0, 1, 1]
    assert partition.threshold == 4
    assert [part.load for part in partition.sub_structures] == [4, 4, 4, 4]
    assert partition.nodes_of(1) == (4, 5, 6, 7)
    assert partition.used == (0, 1)


def test_a_node_limit_makes_more_parts_than_groups() -> None:
    """Six nodes, at most two in a part, are three parts; of two groups one runs two of them.

    MACs a to f: 100 200 | 100 300 | 200 100. Two parts together have 700 or 700: the first way is taken.
    """
    groups = groups_of_sizes(fabric(1, 2), [1] * 2)
    partition = partition_by_score_sharing_groups(
        SIX_NODES, traverse(SIX_NODES), groups, SplitRule(COMPUTE, node_limit=2)
    )
    assert parts(SIX_NODES, partition) == ["ab", "cd", "ef"]
    assert _homes(partition) in ([0, 1, 1], [0, 0, 1])
    assert any("3 parts share 2 groups" in event for event in partition.events)


def test_a_larger_group_takes_more_parts() -> None:
    """Of six equal parts a group of two cores takes four, a group of one core takes two: each core has two."""
    graph = chain(*(Workload(compute_macs=100),) * 6)
    groups = groups_of_sizes(fabric(1, 3), [2, 1])
    rule = SplitRule(AbsoluteScore(1, 0, 0, 0), node_limit=1)
    partition = partition_by_score_sharing_groups(graph, traverse(graph), groups, rule)
    assert _homes(partition) == [0, 0, 0, 0, 1, 1]


def test_parts_that_groups_cannot_hold_together_are_refused() -> None:
    """Three parts of 60 bytes do not fit two groups of 100, whose sum would suffice; the error has the numbers."""
    graph = chain(*(Workload(static_bytes=60),) * 3)
    groups = groups_of_sizes(fabric(1, 2, storage_bytes=100), [1] * 2)
    with pytest.raises(DoesNotFit, match="2 groups cannot hold 3 parts in their order") as caught:
        partition_by_score_sharing_groups(graph, traverse(graph), groups, SplitRule(COMPUTE, node_limit=1))
    assert "demand 180 bytes, the groups hold 200" in caught.value.why


def test_fewer_parts_than_groups_are_refused() -> None:
    """Every group executes a part."""
    with pytest.raises(InvalidPartition, match="at most 1 parts for 2 groups"):
        partition_by_score_sharing_groups(
            SIX_NODES, traverse(SIX_NODES), groups_of_sizes(fabric(1, 2), [1] * 2), SplitRule(COMPUTE), 1
        )


@settings(max_examples=75, derandomize=True)
@given(graphs(), st.data())
def test_any_network_shares_groups_within_their_capability(graph: NodeGraph, data: st.DataObject) -> None:
    """Every node is in one part, parts of a group follow each other, and no group holds more than it can.

    No other assignment of these parts to the groups, in their order, has a smaller largest score.
    """
    start = data.draw(st.none() | st.integers(0, len(graph.nodes) - 1))
    traversal = traverse(graph) if start is None else traverse_from(graph, start)
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=min(4, len(graph.nodes))))
    groups = groups_of_sizes(fabric(4, 3, storage_bytes=data.draw(st.integers(5, 80))), sizes)
    limit = data.draw(st.none() | st.integers(1, 4))
    rule = SplitRule(data.draw(st.sampled_from((ShareScore(), AbsoluteScore()))), node_limit=limit)
    most = data.draw(st.none() | st.integers(len(groups), 12))
    try:
        partition = partition_by_score_sharing_groups(graph, traversal, groups, rule, most)
    except (DoesNotFit, InvalidPartition):
        return
    found = [node for part in partition.sub_structures for node in part.nodes]
    assert tuple(found) == traversal.order
    homes = _homes(partition)
    assert homes == sorted(homes)
    assert limit is None or max(len(part.nodes) for part in partition.sub_structures) <= limit
    for number, group in enumerate(groups):
        held = sum(part.workload.stored_bytes for part in partition.parts_of(number))
        assert held <= group.held_bytes
    if len(homes) > len(groups) and traversal.second_leg is None:
        _assert_best(graph, partition, rule)


def _assert_best(graph: NodeGraph, partition: CorePartition, rule: SplitRule) -> None:
    works = [part.workload for part in partition.sub_structures]
    groups, whole = partition.groups, graph.workload

    def largest(cuts: tuple[int, ...]) -> float:
        worst = 0.0
        for group, (first, last) in zip(groups, itertools.pairwise((0, *cuts, len(works))), strict=True):
            total = sum(works[first:last], Workload())
            if rule.score.occupied_bytes(total) > group.held_bytes:
                return float("inf")
            worst = max(worst, rule.score.score(total, whole, group))
        return worst

    homes = _homes(partition)
    ours = largest(tuple(homes.index(group) for group in range(1, len(groups))))
    ends = range(1, len(works))
    best = min(map(largest, itertools.combinations(ends, len(groups) - 1)), default=ours)
    assert ours <= best * (1 + 1e-9)
