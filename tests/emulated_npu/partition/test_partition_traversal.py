"""The order in which a network's nodes are visited: the work pool (S5.3) and the graph that it walks."""

import pytest
from hypothesis import given, settings, strategies as st
from partition_cases import SIX_NODES, chain, edges, graphs, names, queues

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal, Workload, traverse, traverse_from


def test_the_example_of_eight_nodes() -> None:
    """The queues are [a] [b] [c,d] [d,e] [e,f] [g] [h] []: g merges e and f, which waits (paragraphs 98 to 105)."""
    graph = edges("abcdefgh", "ab", "bc", "bd", "ce", "df", "eg", "fg", "gh")
    traversal = traverse(graph)
    assert queues(graph, traversal) == ["a", "b", "cd", "de", "ef", "g", "h", ""]
    assert [names(graph, step.visited) for step in traversal.steps] == ["", "a", "b", "c", "d", "ef", "g", "h"]
    assert traversal.second_leg is None


def test_a_merge_waits_for_an_input_that_is_neither_visited_nor_queued() -> None:
    """a forks into b and the merge m; m enters only when d, the last of a -> b -> c -> d, has been visited."""
    graph = edges("abcdm", "ab", "bc", "cd", "dm", "am")
    assert queues(graph, traverse(graph)) == ["a", "b", "c", "d", "m", ""]


def test_other_successors_of_an_input_drawn_in_by_a_merge_enter_as_well() -> None:
    """b reaches the merge m, which takes c from the queue; c's other successor x enters after m."""
    graph = edges("abcmx", "ab", "ac", "bm", "cm", "cx")
    assert queues(graph, traverse(graph)) == ["a", "bc", "mx", "x", ""]


def test_an_input_that_enters_in_this_step_does_not_wait_yet() -> None:
    """In a -> m and a -> b -> m, b enters with a and is visited on its own, whatever the order of the edges."""
    for graph in (edges("abm", "ab", "am", "bm"), edges("amb", "ab", "am", "bm")):
        assert queues(graph, traverse(graph)) == ["a", "b", "m", ""]


def test_a_merge_that_is_not_complete_draws_nothing_in() -> None:
    """m merges b, c and e; e is not queued when b is visited, so c is visited on its own."""
    graph = edges("abcdem", "ab", "ac", "ad", "de", "bm", "cm", "em")
    assert queues(graph, traverse(graph)) == ["a", "bcd", "cd", "d", "e", "m", ""]


def test_all_inputs_of_the_network_are_in_the_first_queue() -> None:
    """Inputs a and b, merged by c, and the isolated node z are all in the first queue."""
    graph = edges("abcz", "ac", "bc")
    traversal = traverse(graph)
    assert queues(graph, traversal) == ["abz", "zc", "c", ""]
    assert names(graph, traversal.order) == "abzc"


def test_a_start_in_the_middle_visits_to_the_end_and_then_from_the_input() -> None:
    """From d the order is d e f, then a, b, c, each in its own step, because d is not part of the second leg."""
    traversal = traverse_from(SIX_NODES, 3)
    assert queues(SIX_NODES, traversal) == ["d", "e", "f", "", "a", "bc", "c", ""]
    assert names(SIX_NODES, traversal.order) == "defabc"
    assert traversal.second_leg == 3


def test_a_start_at_the_only_input_is_one_leg() -> None:
    """Every node depends on node a, so there is no second leg."""
    assert traverse_from(SIX_NODES, 0) == traverse(SIX_NODES)


def _check_steps(graph: NodeGraph, traversal: Traversal, split: int) -> None:
    """Assert that every node appears once, queues follow from steps, and predecessors come first within a leg."""
    assert sorted(traversal.order) == list(range(len(graph.nodes)))
    position = {node: at for at, node in enumerate(traversal.order)}
    for node, at in position.items():
        for predecessor in graph.nodes[node].predecessors:
            assert position[predecessor] < at or (at < split <= position[predecessor])
    before: tuple[int, ...] = ()
    for step in traversal.steps:
        if not step.visited:
            assert not before
        else:
            assert step.visited[0] == before[0]
            assert set(step.visited) <= set(before)
            kept = [node for node in before if node not in step.visited]
            assert list(step.queue[: len(kept)]) == kept
        before = step.queue
    assert not before


@settings(max_examples=75, derandomize=True)
@given(graphs())
def test_any_network_is_visited_once_in_topological_order(graph: NodeGraph) -> None:
    """In any network every node is visited once, after all its predecessors, and the queue keeps its order."""
    _check_steps(graph, traverse(graph), 0)


@settings(max_examples=75, derandomize=True)
@given(graphs(), st.data())
def test_any_start_loses_no_node_and_no_edge_leads_to_the_second_leg(graph: NodeGraph, data: st.DataObject) -> None:
    """From any start the first leg holds its dependents, and edges between legs lead from the second to the first."""
    start = data.draw(st.integers(0, len(graph.nodes) - 1))
    traversal = traverse_from(graph, start)
    split = len(graph.nodes) if traversal.second_leg is None else traversal.second_leg
    _check_steps(graph, traversal, split)
    assert traversal.order[0] == start
    first = set(traversal.order[:split])
    for node in range(len(graph.nodes)):
        inside = [predecessor in first for predecessor in graph.nodes[node].predecessors]
        assert (node in first) == (node == start or any(inside))


def test_a_long_chain_is_visited() -> None:
    """A chain of 5,000 nodes is visited in order, without recursion."""
    assert traverse(chain(*[Workload()] * 5000)).order == tuple(range(5000))


def test_the_bytes_that_cross_a_cut_count_an_output_once() -> None:
    """An output counts once for every cut between it and its readers.

    Order a b c d e f: a's 60 bytes go to b and c, b's and c's 30 each to d, d's 50 to e, e's 30 to f; f has no readers.
    Before b: a 60. Before c: a 60 (for c) + b 30. Before d: b 30 + c 30. Before e: d 50. Before f: e 30.
    From d (order d e f a b c) b's 30 and c's 30 go back to d: b's cross the cuts before e f a b, c's that before c as
    well. Before e: d 50 + 60. Before f: e 30 + 60. Before a: 60. Before b: a 60 + 60. Before c: a 60 + c 30.
    """
    assert SIX_NODES.cut_bytes(traverse(SIX_NODES).order) == (0, 60, 90, 60, 50, 30, 0)
    assert SIX_NODES.cut_bytes(traverse_from(SIX_NODES, 3).order) == (0, 110, 90, 60, 120, 90, 0)


def test_an_empty_network_is_refused() -> None:
    """A network without nodes cannot be partitioned."""
    with pytest.raises(InvalidPartition, match="a network without nodes"):
        NodeGraph(())
