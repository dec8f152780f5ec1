"""Possible assignments of layers to core groups are accepted, others refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks_on_npu import NetworkCase, network_of, small_machine
from random_networks import random_networks
from small_models import node, values
from systems_of_cores import assignments, groups_of, with_cores

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.regions import layer_producers
from device_agents.emulated_npu.compiler.splitting.assignment import (
    Assignment,
    GroupAssignment,
    InvalidAssignment,
    check_assignment,
    circle_of,
    group_names,
    stage_numbers,
)

MACHINE = with_cores(small_machine(), 2, 2)


def _diamond() -> NetworkCase:
    """a feeds b and c, both feed y."""
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "a", "b"), node("Tanh", "a", "c"), node("Add", "b c", "y")]
    return network_of(nodes, {"x": values((1, 4, 5, 5))}, {}, ["y"])


GRAPH = import_model(_diamond().model)
WHOLE = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("groups", "what", "why"),
    [
        ((), "The assignment has no groups", "at least one"),
        ((GroupAssignment((), WHOLE),), "Group 0 (cores ) has no cores", "no core would run its layers"),
        ((GroupAssignment((4,), WHOLE),), "Group 0 (core 4) lists core 4", "has 4 cores, 0 to 3"),
        ((GroupAssignment((-1,), WHOLE),), "Group 0 (core -1) lists core -1", "has 4 cores, 0 to 3"),
        (
            (GroupAssignment((0,), (0, 1)), GroupAssignment((1, 0), (2, 3))),
            "Core 0 is listed by Group 0 (core 0) and by Group 1 (cores 1, 0)",
            "a core runs one program",
        ),
        (
            (GroupAssignment((1, 2), WHOLE),),
            "Group 0 (cores 1, 2) lies on the chips 0, 1",
            "one chip, which has 2 cores",
        ),
        (
            (GroupAssignment((0,), WHOLE), GroupAssignment((1,), ())),
            "Group 1 (core 1) has no layers",
            "2 groups share 4 layers",
        ),
        ((GroupAssignment((0,), (0, 1, 2, 4)),), "Group 0 (core 0) lists layer 4", "has 4 hardware layers, 0 to 3"),
        ((GroupAssignment((0,), (0, 1, 1, 2, 3)),), "Layer 1 (b) is listed 2 times", "every layer runs once"),
        (
            (GroupAssignment((0,), (0, 1)), GroupAssignment((1,), (1, 2, 3))),
            "Layer 1 (b) is listed 2 times",
            "every layer runs once",
        ),
        (
            (GroupAssignment((0,), (0, 1)), GroupAssignment((1,), (3,))),
            "Layer 2 (c) is in no group",
            "1 of 4 layers are in none",
        ),
        (
            (GroupAssignment((0,), (0, 3, 1, 2)),),
            "Group 0 (core 0) runs layer 3 (y) before layer 1",
            "layer 1 (b) computes what it reads",
        ),
        (
            (GroupAssignment((0,), (0, 1, 3)), GroupAssignment((1,), (2,))),
            "The groups 0, 1 wait for each other",
            "c in group 1 reads a of group 0; y in group 0 reads c of group 1",
        ),
    ],
)
def test_what_is_wrong_is_named(groups: tuple[GroupAssignment, ...], what: str, why: str) -> None:
    """An impossible assignment is refused with groups, cores and layers by number and name, and the limit."""
    with pytest.raises(InvalidAssignment) as caught:
        check_assignment(Assignment(groups), GRAPH, MACHINE)
    assert caught.value.what == what
    assert why in caught.value.why
    assert caught.value.next_step


@pytest.mark.parametrize("layers", [(WHOLE,), ([0], [1], [2], [3]), ([0, 2], [1, 3]), ([3], [1, 2], [0])], ids=str)
def test_possible_assignments(layers: tuple[tuple[int, ...], ...]) -> None:
    """Groups may come in any order and need not have adjacent layers."""
    check_assignment(groups_of(*layers), GRAPH, MACHINE)


def test_groups_are_called_by_number_and_cores() -> None:
    """The names of groups list their cores."""
    names = group_names(Assignment((GroupAssignment((3,), (0,)), GroupAssignment((0, 1), (1, 2, 3)))))
    assert names == ("Group 0 (core 3)", "Group 1 (cores 0, 1)")


def test_parts_of_a_concatenation_do_not_wait_for_each_other() -> None:
    """A reader of a part of a value depends on the writer of that part, not on writers of other parts."""
    nodes = [node("Conv", "x w0", "a"), node("Concat", "a x", "c", axis=1), node("Conv", "c w1", "y")]
    nodes.insert(1, node("Conv", "a w2", "b"))
    nodes[2] = node("Concat", "a b", "c", axis=1)
    weights = {"w0": values((4, 4, 1, 1)), "w2": values((4, 4, 1, 1), 1), "w1": values((4, 8, 1, 1), 2)}
    graph = import_model(network_of(nodes, {"x": values((1, 4, 5, 5))}, weights, ["y"]).model)
    assert layer_producers(graph) == (frozenset(), frozenset({0}), frozenset({0, 1}))
    check_assignment(groups_of([0], [1], [2]), graph, MACHINE)


@given(st.data())
@settings(max_examples=24)
def test_random_assignments_are_possible(data: st.DataObject) -> None:
    """Every cut of every order in which data can flow is accepted, and stages lead from producers to readers."""
    graph = import_model(data.draw(random_networks()).model)
    machine = with_cores(small_machine(), 5)
    assignment = data.draw(assignments(graph, 5))
    check_assignment(assignment, graph, machine)
    group_of = {place: number for number, group in enumerate(assignment.groups) for place in group.layers}
    edges = {(group_of[one], group_of[place]) for place, found in enumerate(layer_producers(graph)) for one in found}
    stages = stage_numbers(len(assignment.groups), edges)
    for source, target in edges:
        assert source == target or stages[source] < stages[target]
    for number, stage in enumerate(stages):
        assert stage == max((stages[source] + 1 for source, target in edges if target == number != source), default=0)


@given(st.integers(1, 7), st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_circles(count: int, edges: set[tuple[int, int]]) -> None:
    """Groups that wait for each other form a circle; without a circle, stages can be numbered."""
    edges = {(source, target) for source, target in edges if max(source, target) < count}
    circle = circle_of(count, edges)
    if not circle:
        assert len(stage_numbers(count, edges)) == count
        return
    assert len(set(circle)) == len(circle) > 1
    assert set(zip(circle, (*circle[1:], circle[0]), strict=True)) <= edges
