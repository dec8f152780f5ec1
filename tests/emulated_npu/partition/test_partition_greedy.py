"""The partition by split score (S5.5, S5.6): where it splits, and what it does if the groups do not hold the network.

The six nodes a b c d e f have 100, 200, 100, 300, 200 and 100 MACs (1000 in all): with the compute share as only weight
their scores on one core are 0.1, 0.2, 0.1, 0.3, 0.2 and 0.1, and half of that on two.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings, strategies as st
from partition_cases import SIX_NODES, chain, fabric, graphs, groups_of_sizes, names, parts

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.greedy import partition_by_score, partition_by_score_adding_groups
from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric, parse_groups
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal, Workload, traverse, traverse_from
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.partition.split_score import AbsoluteScore, ShareScore, SplitRule, Splitting

COMPUTE = ShareScore(1, 0, 0)
MACS = AbsoluteScore(1, 0, 0, 0)


def _macs(*amounts: int) -> NodeGraph:
    return chain(*(Workload(compute_macs=amount) for amount in amounts))


def _static(*amounts: int) -> NodeGraph:
    return chain(*(Workload(compute_macs=1, static_bytes=amount) for amount in amounts))


def _split(graph: NodeGraph, sizes: Sequence[int], rule: SplitRule, **core: int) -> CorePartition:
    """Return the partition on groups of these sizes, all on one chip."""
    return partition_by_score(graph, traverse(graph), groups_of_sizes(fabric(1, sum(sizes), **core), sizes), rule)


def _split_adding(graph: NodeGraph, given: str, rule: SplitRule, machine: Fabric) -> CorePartition:
    return partition_by_score_adding_groups(graph, traverse(graph), parse_groups(machine, given), rule, machine)


# --- where it splits -------------------------------------------------------------------------------------------------


def test_the_score_over_the_threshold_closes_a_group_before_the_current_node() -> None:
    """Groups of 2, 1 and 1 cores, threshold 0.3.

    Two cores: a 0.05, b 0.15, c 0.2, d 0.35 > 0.3: a b c. One core: d 0.3 is not above 0.3, e 0.5 is: d alone. One
    core: e 0.2, f 0.3; the rest is last.
    """
    partition = _split(SIX_NODES, (2, 1, 1), SplitRule(COMPUTE, 0.3))
    assert parts(SIX_NODES, partition) == ["abc", "d", "ef"]
    assert [part.group for part in partition.sub_structures] == [0, 1, 2]
    assert [part.workload.compute_macs for part in partition.sub_structures] == [400, 300, 300]
    assert [part.load for part in partition.sub_structures] == pytest.approx([0.2, 0.3, 0.3])
    assert (partition.threshold, partition.events) == (0.3, ())


def test_every_step_has_its_score_and_why_it_closes() -> None:
    """The steps of the same partition: the node that closes a group is tried again in the next one."""
    partition = _split(SIX_NODES, (2, 1, 1), SplitRule(COMPUTE, 0.3))
    assert [(names(SIX_NODES, (step.node,)), step.group, step.closes) for step in partition.steps] == [
        ("a", 0, None),
        ("b", 0, None),
        ("c", 0, None),
        ("d", 0, "threshold"),
        ("d", 1, None),
        ("e", 1, "threshold"),
        ("e", 2, None),
        ("f", 2, None),
    ]
    assert [step.score for step in partition.steps] == pytest.approx([0.05, 0.15, 0.2, 0.35, 0.3, 0.5, 0.2, 0.3])
    assert [step.accumulated.compute_macs for step in partition.steps] == [100, 300, 400, 700, 300, 500, 200, 300]


def test_the_node_limit_closes_a_group() -> None:
    """A group takes at most two nodes, whatever the score."""
    partition = _split(SIX_NODES, [1] * 3, SplitRule(COMPUTE, 1.0, node_limit=2))
    assert parts(SIX_NODES, partition) == ["ab", "cd", "ef"]
    assert [step.closes for step in partition.steps if step.closes] == ["node limit", "node limit"]


def test_a_node_that_exceeds_alone_forms_its_own() -> None:
    """With MACs 1, 8, 1, 1 and threshold 5 the sub-structures are 1 (1 + 8 > 5), 8 alone, and 1 + 1."""
    graph = _macs(1, 8, 1, 1)
    partition = _split(graph, [1] * 3, SplitRule(MACS, 5))
    assert parts(graph, partition) == ["0", "1", "23"]
    assert [part.load for part in partition.sub_structures] == [1, 8, 2]


def test_a_start_in_the_middle_begins_a_new_sub_structure_at_its_second_leg() -> None:
    """From d, threshold 0.5, one core each: d 0.3, e 0.5, f 0.6 > 0.5: d e; f 0.1 ends the first leg; a b c 0.4.

    f and a together would be 0.2, but then the group of f would wait for e's group, which waits for d's, which waits
    for that of a.
    """
    partition = partition_by_score(
        SIX_NODES, traverse_from(SIX_NODES, 3), groups_of_sizes(fabric(1, 3), [1] * 3), SplitRule(COMPUTE, 0.5)
    )
    assert parts(SIX_NODES, partition) == ["de", "f", "abc"]


# --- the groups do not hold the network ------------------------------------------------------------------------------


def test_more_sub_structures_than_groups_raise_the_threshold() -> None:
    """Two groups of one core. Threshold 0.3: a b | c | d | e f, four. The smallest that gives two, 0.6: a b c | d e f.

    (a b c d is 0.7; with less than 0.6 d e and f part, which is a third.)
    """
    partition = _split(SIX_NODES, [1] * 2, SplitRule(COMPUTE, 0.3))
    assert parts(SIX_NODES, partition) == ["abc", "def"]
    assert partition.threshold == pytest.approx(0.6)
    assert partition.events == ("threshold raised from 0.3 to 0.6: 4 sub-structures for 2 groups",)


def test_storage_that_does_not_suffice_splits_before_the_node_that_exceeds_it() -> None:
    """Cores of 100 bytes hold 60 + 40 but not 60 + 40 + 1, although the threshold would allow it."""
    graph = _static(60, 40, 1, 5)
    partition = _split(graph, [1] * 2, SplitRule(COMPUTE, 1.0), storage_bytes=100)
    assert parts(graph, partition) == ["01", "23"]
    assert partition.events == (
        "group 0 closed below the threshold: "
        "node '2' would bring group 0 to 101 bytes of storage, the limit is 100 (1 core)",
    )


def test_a_lower_threshold_is_taken_where_only_that_makes_it_fit() -> None:
    """Groups of 2, 1 and 2 cores of 100 bytes, nodes of 50, 50 and 150: the last one needs two cores.

    At threshold 1 the first group takes 0 and 1 and leaves 2 to the single core. Below the score 2/3 / 2 = 1/3 of
    0 and 1 the first takes 0, the second 1 (1 and 2 are 200 bytes) and the third 2; any from 0 on yields that.
    """
    graph = _static(50, 50, 150)
    partition = _split(graph, (2, 1, 2), SplitRule(COMPUTE, 1.0), storage_bytes=100)
    assert parts(graph, partition) == ["0", "1", "2"]
    assert partition.events[0].startswith("threshold lowered from 1 to 0: ")
    assert "node '2' asks group 1 for 150 bytes of storage, the limit is 100 (1 core)" in partition.events[0]


def test_compute_counts_where_a_period_is_given() -> None:
    """At 100 MACs per second and an input every 2 s a core takes 200 MACs: 150 + 50 fit, one more does not."""
    graph = _macs(150, 50, 1)
    free = _split(graph, [1] * 2, SplitRule(MACS, 1000), macs_per_s=100)
    assert parts(graph, free) == ["012"]
    assert free.events == ("no nodes are left for the last group",)
    timed = _split(graph, [1] * 2, SplitRule(MACS, 1000, period_s=2), macs_per_s=100)
    assert parts(graph, timed) == ["01", "2"]
    assert "201 multiply-adds in 2 s, the limit is 200 (1 core)" in timed.events[0]


def test_a_group_is_added_on_the_second_chip() -> None:
    """Two chips of two cores, one-core groups on the first, threshold 0.3: a b | c | d | e f need two more groups.

    Chip 0 has no core left, so they are cores 2 and 3 of chip 1; the threshold stays.
    """
    machine = fabric(2, 2)
    partition = _split_adding(SIX_NODES, "0/1", SplitRule(COMPUTE, 0.3), machine)
    assert parts(SIX_NODES, partition) == ["ab", "c", "d", "ef"]
    assert [(group.chip, group.cores) for group in partition.groups] == [(0, (0,)), (0, (1,)), (1, (2,)), (1, (3,))]
    assert partition.threshold == 0.3
    assert partition.events == (
        "group 2 added on chip 1 (cores 2): 4 sub-structures for 2 groups",
        "group 3 added on chip 1 (cores 3): 4 sub-structures for 3 groups",
    )


def test_a_group_is_added_on_the_same_chip_while_it_has_free_cores() -> None:
    """Chips of three cores, groups of core 0 and 1: the third group is core 2, the fourth lies on chip 1."""
    machine = fabric(2, 3)
    partition = _split_adding(SIX_NODES, "0/1", SplitRule(COMPUTE, 0.3), machine)
    assert [group.cores for group in partition.groups] == [(0,), (1,), (2,), (3,)]


def test_an_added_group_is_large_enough_for_its_first_node() -> None:
    """150 bytes need two cores of 100; chip 0 has one left, so the group is two cores of chip 1."""
    machine = fabric(2, 2, storage_bytes=100)
    graph = _static(90, 150)
    partition = _split_adding(graph, "0", SplitRule(COMPUTE), machine)
    assert [group.cores for group in partition.groups] == [(0,), (2, 3)]
    assert "node '1' would bring group 0 to 240 bytes of storage, the limit is 100 (1 core)" in partition.events[0]


def test_no_group_is_added_if_the_given_ones_hold_the_network() -> None:
    """Without a threshold the given group takes the whole network, and no group is added."""
    machine = fabric(2, 2)
    partition = _split_adding(SIX_NODES, "0-1", SplitRule(COMPUTE), machine)
    assert parts(SIX_NODES, partition) == ["abcdef"]
    assert len(partition.groups) == 1


# --- without a threshold ---------------------------------------------------------------------------------------------


def test_without_a_threshold_the_smallest_is_searched() -> None:
    """Three groups take a b c 0.4 | d 0.3 | e f 0.3; any threshold below 0.4 separates c and gives a fourth."""
    partition = _split(SIX_NODES, [1] * 3, SplitRule(COMPUTE))
    assert parts(SIX_NODES, partition) == ["abc", "d", "ef"]
    assert partition.threshold == pytest.approx(0.4)
    assert partition.events == ("threshold found by search: 0.4 is the smallest with which 3 groups hold the network",)


# --- properties ------------------------------------------------------------------------------------------------------


@st.composite
def _tasks(draw: st.DrawFn) -> tuple[NodeGraph, Traversal, tuple[CoreGroup, ...], SplitRule]:
    graph = draw(graphs())
    start = draw(st.none() | st.integers(0, len(graph.nodes) - 1))
    traversal = traverse(graph) if start is None else traverse_from(graph, start)
    least = 1 if traversal.second_leg is None else 2
    sizes = draw(st.lists(st.integers(1, 4), min_size=least, max_size=max(least, min(5, len(graph.nodes)))))
    storage = draw(st.sampled_from([20, 40, 10**6]))
    shares = st.sampled_from([COMPUTE, ShareScore(), ShareScore(0.5, 0.25, 1, 2, 0.5)])
    score: ShareScore | AbsoluteScore = draw(st.one_of(shares, st.sampled_from([MACS, AbsoluteScore()])))
    scale = 1 if isinstance(score, ShareScore) else 30
    threshold = draw(st.none() | st.floats(0, 1).map(lambda value: value * scale))
    rule = SplitRule(score, threshold, draw(st.none() | st.integers(1, 6)))
    return graph, traversal, groups_of_sizes(fabric(8, 4, storage_bytes=storage), sizes), rule


def _check(graph: NodeGraph, traversal: Traversal, rule: SplitRule, partition: CorePartition) -> None:
    assert tuple(node for part in partition.sub_structures for node in part.nodes) == traversal.order
    assert [part.group for part in partition.sub_structures] == list(range(len(partition.sub_structures)))
    assert len(partition.sub_structures) <= len(partition.groups)
    assert partition.threshold is not None
    for part in partition.sub_structures:
        group = partition.groups[part.group]
        assert part.workload == sum((graph.nodes[node].workload for node in part.nodes), Workload())
        assert part.load == rule.score.score(part.workload, graph.workload, group)
        assert part.load <= partition.threshold or len(part.nodes) == 1
        assert rule.node_limit is None or len(part.nodes) <= rule.node_limit
        assert rule.score.occupied_bytes(part.workload) <= group.storage_bytes
    taken = [step for step in partition.steps if step.closes is None]
    assert tuple(step.node for step in taken) == traversal.order
    for step, following in pairwise(partition.steps):
        if step.closes == "threshold":
            assert step.score > partition.threshold
        assert step.closes is None or (step.node, step.group + 1) == (following.node, following.group)
    _check_acyclic(graph, partition)


def _check_acyclic(graph: NodeGraph, partition: CorePartition) -> None:
    """Remove sub-structures without open dependencies until none is left."""
    where = {node: part.group for part in partition.sub_structures for node in part.nodes}
    waits = {
        part.group: {where[before] for node in part.nodes for before in graph.nodes[node].predecessors} - {part.group}
        for part in partition.sub_structures
    }
    while waits:
        ready = [group for group, others in waits.items() if not others & set(waits)]
        assert ready
        for group in ready:
            del waits[group]


@settings(max_examples=100, derandomize=True)
@given(_tasks())
def test_any_network_that_fits_is_split_within_threshold_limit_and_capability(
    task: tuple[NodeGraph, Traversal, tuple[CoreGroup, ...], SplitRule],
) -> None:
    """Every node appears once in visiting order, without cycles, and within the threshold unless alone."""
    graph, traversal, groups, rule = task
    try:
        partition = partition_by_score(graph, traversal, groups, rule)
    except DoesNotFit:
        return
    _check(graph, traversal, rule, partition)


@settings(max_examples=75, derandomize=True)
@given(_tasks())
def test_added_groups_hold_the_network_and_keep_the_threshold(
    task: tuple[NodeGraph, Traversal, tuple[CoreGroup, ...], SplitRule],
) -> None:
    """With added groups the same holds, the threshold stays, cores are used once, and each addition has an event."""
    graph, traversal, groups, rule = task
    machine = fabric(8, 4, storage_bytes=groups[0].core.storage_bytes)
    try:
        partition = partition_by_score_adding_groups(graph, traversal, groups, rule, machine)
    except DoesNotFit:
        return
    _check(graph, traversal, rule, partition)
    assert rule.threshold is None or partition.threshold == rule.threshold
    assert partition.groups[: len(groups)] == groups
    cores = [core for group in partition.groups for core in group.cores]
    assert len(cores) == len(set(cores))
    added = [event for event in partition.events if " added on chip " in event]
    assert len(added) == len(partition.groups) - len(groups)


@settings(max_examples=50, derandomize=True)
@given(_tasks())
def test_the_searched_threshold_is_the_smallest(
    task: tuple[NodeGraph, Traversal, tuple[CoreGroup, ...], SplitRule],
) -> None:
    """Of all possible scores of stretches on any group, no smaller one makes the network fit."""
    graph, traversal, groups, rule = task
    assume(rule.threshold is None)
    splitting = Splitting(graph, traversal, rule)
    count = len(graph.nodes)
    scores = {0.0} | {
        splitting.score(start, stop, group)
        for group in groups
        for start in range(count)
        for stop in range(start + 1, count + 1)
    }
    fitting = []
    for score in scores:
        stretches = splitting.walk(groups, score)
        if len(stretches) <= len(groups) and not any(stretch.lack for stretch in stretches):
            fitting.append(score)
    if fitting:
        assert partition_by_score(graph, traversal, groups, rule).threshold == min(fitting)
    else:
        with pytest.raises((DoesNotFit, InvalidPartition)):
            partition_by_score(graph, traversal, groups, rule)


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_more_groups_than_nodes_are_refused() -> None:
    """The error names both numbers."""
    with pytest.raises(InvalidPartition, match="7 core groups for 6 nodes") as caught:
        _split(SIX_NODES, [1] * 7, SplitRule(COMPUTE))
    assert "at most 6 groups" in caught.value.why


def test_a_node_that_no_group_holds_is_named() -> None:
    """The error names the node, its demand and the limit of the largest group."""
    graph = _static(10, 301, 10)
    with pytest.raises(DoesNotFit, match="no core group holds node '1'") as caught:
        _split(graph, (1, 3), SplitRule(COMPUTE), storage_bytes=100)
    assert "301 bytes of storage, the limit is 300 (3 cores)" in caught.value.why
    assert caught.value.demand_bytes == 301


def test_a_node_that_no_chip_holds_is_named() -> None:
    """An added group has at most the cores of a chip: 2 cores of 100 bytes."""
    machine = fabric(4, 2, storage_bytes=100)
    graph = _static(10, 201)
    with pytest.raises(DoesNotFit, match="no core group holds node '1'") as caught:
        _split_adding(graph, "0", SplitRule(COMPUTE), machine)
    assert "201 bytes of storage, the limit is 200 (2 cores)" in caught.value.why


def test_groups_too_small_for_the_network_together_are_named() -> None:
    """Three nodes of 80 bytes do not fit two cores of 100, whatever the threshold."""
    graph = _static(80, 80, 80)
    for threshold in (None, 0.5):
        with pytest.raises(DoesNotFit, match="2 groups cannot hold the network, whatever the threshold") as caught:
            _split(graph, [1] * 2, SplitRule(COMPUTE, threshold), storage_bytes=100)
        assert "3 sub-structures for 2 groups" in caught.value.why
        assert "node '1' would bring group 0 to 160 bytes of storage, the limit is 100 (1 core)" in caught.value.why


def test_a_node_limit_that_the_groups_cannot_keep_is_named() -> None:
    """Six nodes, at most two per group, need three sub-structures."""
    with pytest.raises(DoesNotFit) as caught:
        _split(SIX_NODES, [1] * 2, SplitRule(COMPUTE, node_limit=2))
    assert "3 sub-structures for 2 groups; at most 2 nodes in each" in caught.value.why


def test_no_core_left_for_another_group_is_named() -> None:
    """Threshold 0.3 needs four groups of one core, but there are three cores."""
    machine = fabric(1, 3)
    with pytest.raises(DoesNotFit, match="there is no free core group for node 'e'") as caught:
        _split_adding(SIX_NODES, "0/1", SplitRule(COMPUTE, 0.3), machine)
    assert "0 of 3 cores are free, 3 groups are formed" in caught.value.why


def test_a_start_in_the_middle_needs_two_groups() -> None:
    """The second leg begins a new sub-structure, which one group cannot take."""
    with pytest.raises(InvalidPartition, match="1 core groups") as caught:
        partition_by_score(
            SIX_NODES, traverse_from(SIX_NODES, 3), groups_of_sizes(fabric(1, 1), [1] * 1), SplitRule(COMPUTE, 1e9)
        )
    assert "at least 2" in caught.value.why
