"""Any schedule that queues and semaphores allow respects the dependences, with few waits."""

import random
from collections import Counter

from command_cases import commands, compute, conflicting_pairs, load, store
from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.compiler.ordering.synchronise import SEMAPHORES, fence_between_layers, synchronise
from device_agents.emulated_npu.unit_commands import Command, Fence, Item, Post, Queue, Wait


def _run(items: list[Item], chance: random.Random) -> list[tuple[int, int]]:
    """Return start and end of every command in a schedule in which queues advance in random order."""
    waiting: dict[Queue, list[int]] = {queue: [] for queue in Queue}
    levels: Counter[int] = Counter()
    running: dict[Queue, int] = {}
    issued = clock = 0
    times: dict[int, list[int]] = {}
    while issued < len(items) or any(waiting.values()) or running:
        clock += 1
        moves = [("end", queue) for queue in running]
        moves += [("begin", queue) for queue in Queue if waiting[queue] and queue not in running]
        if issued < len(items):
            item = items[issued]
            if not isinstance(item, Fence) or not (any(waiting.values()) or running):
                moves.append(("issue", Queue.IO))
        move, queue = chance.choice([move for move in moves if _allowed(move, items, waiting, levels)])
        if move == "issue":
            item = items[issued]
            if not isinstance(item, Fence):
                waiting[item.queue].append(issued)
            issued += 1
        elif move == "end":
            times[running.pop(queue)].append(clock)
        else:
            index = waiting[queue].pop(0)
            item = items[index]
            if isinstance(item, Wait):
                levels[item.semaphore] -= item.count
            elif isinstance(item, Post):
                levels[item.semaphore] += item.count
            else:
                times[index] = [clock]
                running[queue] = index
    assert not any(levels.values())
    return [(start, end) for _, (start, end) in sorted(times.items())]


def _allowed(move: tuple[str, Queue], items: list[Item], waiting: dict[Queue, list[int]], levels: Counter[int]) -> bool:
    kind, queue = move
    item = items[waiting[queue][0]] if kind == "begin" else None
    return not isinstance(item, Wait) or levels[item.semaphore] >= item.count


@settings(max_examples=150)
@given(st.lists(commands(), max_size=12), st.integers())
def test_no_schedule_violates_a_dependence(program: list[Command], seed: int) -> None:
    """For any speed of the queues, a command begins after all conflicting ones have ended, without deadlock."""
    items = synchronise(program)
    assert [item for item in items if isinstance(item, Command)] == program
    times = _run(items, random.Random(seed))
    assert all(times[earlier][1] < times[later][0] for earlier, later in conflicting_pairs(program))


@settings(max_examples=150)
@given(st.lists(commands(), max_size=12), st.integers())
def test_fences_replace_synchronisation_across_layers(program: list[Command], seed: int) -> None:
    """With fences no command of a layer begins before the layer before has ended, and conflicts stay ordered."""
    items = fence_between_layers(synchronise(program))
    times = _run(items, random.Random(seed))
    assert all(times[earlier][1] < times[later][0] for earlier, later in conflicting_pairs(program))
    for index in range(1, len(program)):
        if program[index].layer != program[index - 1].layer:
            assert max(end for _, end in times[:index]) < min(start for start, _ in times[index:])


@settings(max_examples=100)
@given(st.lists(commands(), max_size=12))
def test_posts_and_waits_match_one_to_one(program: list[Command]) -> None:
    """On each semaphore the n-th post precedes the n-th wait, and there is a wait for every post."""
    items = synchronise(program)
    for (poster, waiter), semaphore in SEMAPHORES.items():
        posts = [index for index, item in enumerate(items) if isinstance(item, Post) and item.semaphore == semaphore]
        waits = [index for index, item in enumerate(items) if isinstance(item, Wait) and item.semaphore == semaphore]
        assert len(posts) == len(waits)
        assert all(post < wait for post, wait in zip(posts, waits, strict=True))
        assert all(items[index].queue is poster for index in posts)  # type: ignore[union-attr]
        assert all(items[index].queue is waiter for index in waits)  # type: ignore[union-attr]


def test_what_earlier_waits_imply_is_not_waited_for() -> None:
    """Two loads for one compute need one wait, and a compute on data that have arrived needs none."""
    program = [load(0, 0), load(16, 16), compute(100, 0, 32), compute(200, 0), store(500, 100)]
    kinds = [type(item).__name__ for item in synchronise(program)]
    assert kinds == ["Command", "Command", "Post", "Wait", "Command", "Post", "Command", "Wait", "Command"]


def test_synchronisation_belongs_to_the_layer_of_its_command() -> None:
    """A post has the layer of the command before it, a wait the layer of the command after it."""
    items = synchronise([load(0, 0, layer=1), compute(100, 0, layer=2)])
    assert [item.layer for item in items] == [1, 1, 2, 2]
    assert fence_between_layers(items) == [items[0], Fence(layer=1), items[3]]
