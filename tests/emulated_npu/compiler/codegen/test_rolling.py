"""Repeated items become loops, which unroll to exactly the same items."""

from collections.abc import Sequence
from dataclasses import replace

from command_cases import compute, load, moved, programs, store
from hypothesis import given, settings

from device_agents.emulated_npu.compiler.codegen.rolling import (
    OPERANDS,
    CodePart,
    Loop,
    RolledItem,
    Straight,
    advance,
    roll,
)
from device_agents.emulated_npu.unit_commands import Command, Item, Operand, Queue, Wait


def _shape(nodes: Sequence[CodePart]) -> list[object]:
    """Return the numbers of items, and (count, shape of the body) for loops."""
    return [len(node.entries) if isinstance(node, Straight) else (node.count, _shape(node.body)) for node in nodes]


def _unrolled(nodes: Sequence[CodePart], indices: tuple[int, ...] = ()) -> list[Item]:
    """Return the items of the nodes inside loops at these iterations, in the order of execution."""
    found: list[Item] = []
    for node in nodes:
        if isinstance(node, Loop):
            for index in range(node.count):
                found += _unrolled(node.body, (*indices, index))
        else:
            found += [_at(entry, indices) for entry in node.entries]
    return found


def _at(entry: RolledItem, indices: tuple[int, ...]) -> Item:
    """Return an item with the addresses of its operands at these iterations."""
    item = entry.item
    for place, name in enumerate(OPERANDS if isinstance(item, Command) else ()):
        operand: Operand | None = getattr(item, name)
        if operand is not None:
            move = sum(index * steps[place] for index, steps in zip(indices, entry.steps, strict=True))
            item = replace(item, **{name: replace(operand, address=operand.address + move)})
    return item


@settings(max_examples=48)
@given(programs())
def test_unrolling_inverts_roll(items: list[Item]) -> None:
    """The loops unroll to the same items in the same order."""
    assert _unrolled(roll(items)) == items


@settings(max_examples=18)
@given(programs())
def test_rolling_never_grows_and_advance_peels_iterations(items: list[Item]) -> None:
    """There are no more entries than items, and the single iterations of a loop add up to the loop."""
    nodes = roll(items)
    assert _size(nodes) <= len(items)
    for node in nodes:
        if isinstance(node, Loop):
            peeled = [advance(part, 0, index) for index in range(node.count) for part in node.body]
            assert _unrolled(peeled) == _unrolled([node])


def _size(nodes: Sequence[CodePart]) -> int:
    return sum(len(node.entries) if isinstance(node, Straight) else _size(node.body) for node in nodes)


def _tile(row: int, column: int) -> list[Item]:
    """Return load, wait, two computes and store, on a grid of tiles."""
    at = 5000 * row + 100 * column
    return [load(0, at), Wait(Queue.CP, 0, layer=0), compute(100, 0), compute(200, 100), store(90000 + 2 * at, 200)]


def test_nested_loops_are_found() -> None:
    """Rows of tiles with one more load in every row are two nested loops."""
    items: list[Item] = [
        item
        for row in range(7)
        for item in [load(700, 40 * row, 32), *(item for column in range(6) for item in _tile(row, column))]
    ]
    assert _shape(roll(items)) == [(7, [1, (6, [5])])]


def test_three_levels_are_found() -> None:
    """Blocks of rows of tiles are three nested loops."""
    rows: list[Item] = [
        item
        for row in range(4)
        for item in [load(700, 40 * row, 32), *(item for column in range(6) for item in _tile(row, column))]
    ]
    items = [
        item
        for block in range(3)
        for item in [load(800, 300 * block, 8), *(moved(item, [0, 111 * block, 0, 0, 0]) for item in rows)]
    ]
    assert _shape(roll(items)) == [(3, [1, (4, [1, (6, [5])])])]


def test_alternating_buffers_repeat_in_pairs() -> None:
    """Addresses that alternate between two buffers make a body of two tiles."""
    items = [item for k in range(20) for item in (load(100 * (k % 2), 16 * k), compute(300, 100 * (k % 2)))]
    assert _shape(roll(items)) == [(10, [4])]


def test_ragged_ends_do_not_shift_the_body() -> None:
    """A shorter row before repeated rows does not shift their start, which would divide the inner loop."""
    rows = [
        item
        for row in range(8)
        for item in [
            load(700, 40 * row, 32),
            *(item for column in range(2 if row == 0 else 6) for item in _tile(row, column)),
        ]
    ]
    shape = _shape(roll(rows))
    assert shape[-1] == (7, [1, (6, [5])])


def test_other_steps_are_other_loops() -> None:
    """A run of tiles whose step changes half-way is two loops."""
    items = [load(0, 16 * k) for k in range(10)] + [load(0, 10000 + 48 * k) for k in range(10)]
    assert _shape(roll(items)) == [(10, [1]), (10, [1])]


def test_layers_are_not_mixed() -> None:
    """Repetitions do not cross layers, since an instruction belongs to one."""
    items = [load(0, 16 * k, layer=k // 10) for k in range(20)]
    assert _shape(roll(items)) == [(10, [1]), (10, [1])]


def test_distant_repetitions_of_a_long_body() -> None:
    """A body of several hundred different items is found by the distance at which they recur."""
    body: list[Command] = [load(0, 7 * k, 1 + k) for k in range(400)]
    items = [moved(item, [0, 5 * index, 0, 0, 0]) for index in range(4) for item in body]
    assert _shape(roll(items)) == [(4, [400])]
