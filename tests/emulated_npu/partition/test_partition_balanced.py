"""The balanced partition: the exact minimum of the largest stage time, compared with the partition by score."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st
from partition_cases import SIX_NODES, chain, fabric, graphs, groups_of_sizes, parts

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.balanced import ResidentTimes, StageTimes, balanced_partition, group_loads
from device_agents.emulated_npu.partition.greedy import partition_by_score
from device_agents.emulated_npu.partition.groups import CoreCapability, CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload, WorkloadNode, traverse, traverse_from
from device_agents.emulated_npu.partition.split_score import AbsoluteScore, SplitRule


def _macs(*amounts: int) -> NodeGraph:
    return chain(*(Workload(compute_macs=amount) for amount in amounts))


def _times(times: Sequence[float], groups: int) -> StageTimes:
    return StageTimes((tuple(times),) * groups, (0,) * (len(times) + 1), (0.0,) * groups)


def test_it_beats_the_greedy_split_side_by_side() -> None:
    """The balanced partition takes 5, 4, 4, 2 where the partition by score takes 5, 4, 5, 1.

    MACs 4 4 1 1 4 4 1 1 on groups of 2, 1, 1 and 1 cores: by score 4 4 1 1 | 4 | 4 1 | 1. At a threshold of 4 the first
    group takes 4 4 (8 / 2), the second 1 1, the third 4, the fourth 4, and a fifth 1 1, one too many: 5 is the smallest
    largest time. Of the splits that reach it, 4 4 1 1 | 4 | 4 | 1 1 has the smallest sum of squares.
    """
    graph = _macs(4, 4, 1, 1, 4, 4, 1, 1)
    traversal = traverse(graph)
    groups = groups_of_sizes(fabric(1, 5), (2, 1, 1, 1))
    cost = StageTimes(
        tuple(tuple(node.workload.compute_macs / len(group.cores) for node in graph.nodes) for group in groups),
        (0,) * 9,
        (0.0,) * 4,
    )
    by_score = partition_by_score(graph, traversal, groups, SplitRule(AbsoluteScore(1, 0, 0, 0)))
    balanced = balanced_partition(graph, traversal, groups, cost)
    assert parts(graph, by_score) == ["0123", "4", "56", "7"]
    assert group_loads(graph, traversal, cost, (0, 0, 0, 0, 1, 2, 2, 3)) == (5, 4, 5, 1)
    assert parts(graph, balanced) == ["0123", "4", "5", "67"]
    assert tuple(part.load for part in balanced.sub_structures) == (5, 4, 4, 2)


def test_bytes_across_a_cut_move_the_cut() -> None:
    """Times 2 2 2 on two groups, 3 bytes before node 1 and 1 before node 2: 4 + 1 | 2 is better than 2 + 3 | 4."""
    graph = _macs(2, 2, 2)
    cost = StageTimes(((2, 2, 2),) * 2, (0, 3, 1, 0), (1.0, 0.0))
    partition = balanced_partition(graph, traverse(graph), groups_of_sizes(fabric(1, 2), [1] * 2), cost)
    assert parts(graph, partition) == ["01", "2"]
    assert [part.load for part in partition.sub_structures] == [5, 2]


def test_no_stage_reaches_over_the_legs_of_a_start_in_the_middle() -> None:
    """From d of the six nodes, two groups can only take d e f | a b c, however uneven the times are."""
    cost = _times([9, 9, 9, 1, 1, 1], 2)
    partition = balanced_partition(SIX_NODES, traverse_from(SIX_NODES, 3), groups_of_sizes(fabric(1, 2), [1] * 2), cost)
    assert parts(SIX_NODES, partition) == ["def", "abc"]


def test_every_group_gets_a_node() -> None:
    """If one node takes all the time, each other group still gets one of the rest."""
    graph = _macs(9, 0, 0, 0)
    partition = balanced_partition(
        graph, traverse(graph), groups_of_sizes(fabric(1, 4), [1] * 4), _times([9, 0, 0, 0], 4)
    )
    assert parts(graph, partition) == ["0", "1", "2", "3"]


@settings(max_examples=60, derandomize=True)
@given(graphs(most=9), st.data())
def test_no_split_has_a_smaller_largest_stage(graph: NodeGraph, data: st.DataObject) -> None:
    """For any network, start, groups, storage and stage times, no feasible split has a smaller largest stage."""
    count = len(graph.nodes)
    start = data.draw(st.none() | st.integers(0, count - 1))
    traversal = traverse(graph) if start is None else traverse_from(graph, start)
    number = data.draw(st.integers(1 if traversal.second_leg is None else 2, min(4, count)))
    storage = [data.draw(st.sampled_from([20, 40, 10**6])) for _ in range(number)]
    groups = tuple(CoreGroup((core,), 0, CoreCapability(1e9, held)) for core, held in enumerate(storage))
    times = st.lists(st.integers(0, 20), min_size=count, max_size=count)
    cost = StageTimes(
        tuple(tuple(map(float, data.draw(times))) for _ in groups),
        graph.cut_bytes(traversal.order),
        tuple(float(data.draw(st.integers(0, 3))) for _ in groups),
    )
    splits = (
        (0, *cuts, count)
        for cuts in itertools.combinations(range(1, count), number - 1)
        if traversal.second_leg is None or traversal.second_leg in cuts
    )
    stored = [graph.nodes[node].workload.stored_bytes for node in traversal.order]
    held = (
        cuts
        for cuts in splits
        if all(sum(stored[slice(*ends)]) <= most for ends, most in zip(itertools.pairwise(cuts), storage, strict=True))
    )
    loads = [[cost(*ends, group) for group, ends in enumerate(itertools.pairwise(cuts))] for cuts in held]
    if not loads:
        with pytest.raises(DoesNotFit):
            balanced_partition(graph, traversal, groups, cost)
        return
    best = min((max(values), sum(value**2 for value in values)) for values in loads)
    partition = balanced_partition(graph, traversal, groups, cost)
    found = [part.load for part in partition.sub_structures]
    assert (max(found), sum(value**2 for value in found)) == pytest.approx(best)
    assert tuple(node for part in partition.sub_structures for node in part.nodes) == traversal.order
    assert [part.group for part in partition.sub_structures] == list(range(number))


def test_hundreds_of_nodes_on_sixteen_groups() -> None:
    """With 430 equal nodes on 16 groups the largest stage has 27 nodes, 430 / 16 rounded up."""
    graph = _macs(*[1] * 430)
    groups = groups_of_sizes(fabric(1, 16), [1] * 16)
    partition = balanced_partition(graph, traverse(graph), groups, _times([1.0] * 430, 16))
    assert max(part.load for part in partition.sub_structures) == 27
    assert min(part.load for part in partition.sub_structures) == 26


def test_no_stage_exceeds_the_storage_of_its_group() -> None:
    """Nodes of 30, 40, 40 and 10 bytes with times 1 1 1 9, so that the last is best alone.

    Cores of 110 bytes hold 30 40 40 | 10, cores of 80 only 30 40 | 40 10. With cores of 60 the first holds 30 and
    leaves 90 to the second, which is too much.
    """
    graph = chain(*(Workload(1, amount - 10, 0, 10) for amount in (30, 40, 40, 10)))
    cost = _times([1, 1, 1, 9], 2)
    for storage, expected in ((110, ["012", "3"]), (80, ["01", "23"])):
        groups = groups_of_sizes(fabric(1, 2, storage_bytes=storage), [1, 1])
        assert parts(graph, balanced_partition(graph, traverse(graph), groups, cost)) == expected
    groups = groups_of_sizes(fabric(1, 2, storage_bytes=60), [1, 1])
    with pytest.raises(DoesNotFit, match="group 1 does not hold nodes '1' to '3'") as caught:
        balanced_partition(graph, traverse(graph), groups, cost)
    assert "90 bytes of storage, the limit is 60 (1 core)" in caught.value.why
    assert caught.value.demand_bytes == 90


def test_a_node_that_no_group_holds_is_named() -> None:
    """The error names the node, its demand and the limit of the largest group."""
    graph = chain(*(Workload(1, 0, 0, amount) for amount in (10, 301, 10)))
    groups = groups_of_sizes(fabric(1, 4, storage_bytes=100), (1, 3))
    cost = _times([1, 1, 1], 2)
    with pytest.raises(DoesNotFit, match="no core group holds node '1'") as caught:
        balanced_partition(graph, traverse(graph), groups, cost)
    assert "301 bytes of storage, the limit is 300 (3 cores)" in caught.value.why
    assert caught.value.demand_bytes == 301


def test_more_groups_than_nodes_are_refused() -> None:
    """The error names both numbers."""
    graph = _macs(1, 1)
    with pytest.raises(InvalidPartition, match="3 core groups for 2 nodes") as caught:
        balanced_partition(graph, traverse(graph), groups_of_sizes(fabric(1, 3), [1] * 3), _times([1, 1], 3))
    assert "at most 2 groups" in caught.value.why


def test_weights_that_stay_make_a_stage_faster() -> None:
    """Four nodes of 10, or 4 with resident weights: groups with room for 100 bytes of weights take one node of 100.

    Weights of 100, 40, 40 and 100: a cut into three is 0 | 1 2 | 3 with 4, 8 and 4, because 1 and 2 together fit.
    """
    nodes = tuple(WorkloadNode(str(index), Workload(), (index - 1,) if index else ()) for index in range(4))
    graph = NodeGraph(nodes)
    staying = ResidentTimes(((4,) * 4,) * 3, (100, 40, 40, 100), (100,) * 3)
    cost = StageTimes(((10,) * 4,) * 3, (0,) * 5, (0.0,) * 3, staying)
    found = balanced_partition(graph, traverse(graph), groups_of_sizes(fabric(1, 3), [1] * 3), cost)
    assert parts(graph, found) == ["0", "12", "3"]
    assert [part.load for part in found.sub_structures] == [4, 8, 4]
    fetched = StageTimes(cost.node_times, cost.cut_bytes, cost.time_per_byte)
    assert group_loads(graph, traverse(graph), fetched, (0, 1, 1, 2)) == (10, 20, 10)
