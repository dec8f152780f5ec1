"""Moves of nodes between groups: parallel branches that a cut of the traversal cannot separate."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from partition_cases import fabric, graphs, groups_of_sizes, parts

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.balanced import (
    ResidentTimes,
    StageTimes,
    StorageLimits,
    balanced_partition,
    group_loads,
    refined_partition,
)
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload, WorkloadNode, traverse


def test_a_group_gets_two_parts_of_the_traversal() -> None:
    """Three inputs take 4, 5 and 3, their sum nothing. A cut has 4 + 5 or 5 + 3; a and c on a group have 7, b has 5.

    The traversal is a b c y. With b on the last group, beside the sum, the first group has two parts, a and c.
    """
    nodes = (*(WorkloadNode(name, Workload()) for name in "abc"), WorkloadNode("y", Workload(), (0, 1, 2)))
    graph = NodeGraph(nodes)
    cost = StageTimes(((4, 5, 3, 0),) * 2, (0,) * 5, (0.0, 0.0))
    groups = groups_of_sizes(fabric(1, 2), [1] * 2)
    cut = balanced_partition(graph, traverse(graph), groups, cost)
    assert max(part.load for part in cut.sub_structures) == 8
    found = refined_partition(graph, traverse(graph), cut, cost, StorageLimits.of(groups))
    assert parts(graph, found) == ["a", "b", "c", "y"]
    assert [part.group for part in found.sub_structures] == [0, 1, 0, 1]
    assert {part.group: part.load for part in found.sub_structures} == {0: 7, 1: 5}
    assert found.nodes_of(0) == (0, 2)


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
    assert max(fetched.loads(found)) == 20


@settings(max_examples=75, derandomize=True)
@given(graphs(), st.data())
def test_moves_never_make_the_slowest_group_slower(graph: NodeGraph, data: st.DataObject) -> None:
    """Every node is in one part, data flow from earlier to later groups, every group keeps a node and its limit."""
    traversal = traverse(graph)
    count = data.draw(st.integers(1, min(4, len(graph.nodes))))
    groups = groups_of_sizes(fabric(4, 1, storage_bytes=data.draw(st.integers(20, 120))), [1] * count)
    times = data.draw(st.lists(st.integers(0, 9), min_size=len(graph.nodes), max_size=len(graph.nodes)))
    per_byte = tuple(data.draw(st.floats(0, 1)) for _ in groups)
    cost = StageTimes((tuple(times),) * count, graph.cut_bytes(traversal.order), per_byte)
    limits = StorageLimits.of(groups)
    try:
        cut = balanced_partition(graph, traversal, groups, cost)
    except (DoesNotFit, InvalidPartition):
        return
    found = refined_partition(graph, traversal, cut, cost, limits)
    assert [node for part in found.sub_structures for node in part.nodes] == list(traversal.order)
    assert set(found.used) == set(range(count))
    group_of = {node: part.group for part in found.sub_structures for node in part.nodes}
    for node, each in enumerate(graph.nodes):
        assert all(group_of[one] <= group_of[node] for one in each.predecessors)
    for number in range(count):
        assert sum(limits.demand_bytes(part.workload) for part in found.parts_of(number)) <= limits.held_bytes[number]
    before, after = (
        max(group_loads(graph, traversal, cost, [own[node] for node in range(len(graph.nodes))]))
        for own in ({node: part.group for part in one.sub_structures for node in part.nodes} for one in (cut, found))
    )
    assert after <= before
