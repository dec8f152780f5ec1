"""Synchronises the queues by counting semaphores, and puts fences between layers.

A queue is in order and has one server, so dependences within a queue need no synchronisation. For each other queue it
suffices to wait for the latest command that a command depends on, which posts when it has finished. Each pair of queues
has a semaphore for each direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from device_agents.emulated_npu.compiler.ordering.hazards import SEPARATE, Conflicts, dependencies
from device_agents.emulated_npu.unit_commands import Command, Fence, Item, Post, Queue, Wait

SEMAPHORES = {
    (Queue.IO, Queue.CP): 0,
    (Queue.CP, Queue.IO): 1,
    (Queue.IO, Queue.VFU): 2,
    (Queue.VFU, Queue.IO): 3,
    (Queue.CP, Queue.VFU): 4,
    (Queue.VFU, Queue.CP): 5,
    (Queue.IO, Queue.LLC): 6,
    (Queue.LLC, Queue.IO): 7,
    (Queue.CP, Queue.LLC): 8,
    (Queue.LLC, Queue.CP): 9,
    (Queue.VFU, Queue.LLC): 10,
    (Queue.LLC, Queue.VFU): 11,
}
"""The semaphore to which one queue posts and on which another one waits."""

_NEVER = -1


def synchronise(commands: Sequence[Command], memory_of: Sequence[int] = SEPARATE) -> list[Item]:
    """Return the commands in order, with a post after the source and a wait before the target of each dependence."""
    return synchronised(commands, dependencies(commands, memory_of))


def synchronised(commands: Sequence[Command], conflicts: Sequence[Conflicts]) -> list[Item]:
    """Return the commands in order, with a post and a wait for each of their conflicts between queues.

    A conflict is dropped if the queue has already waited for the same or a later command, itself or through another
    queue. Hence every post has exactly one wait, later in the program, and the n-th wait on a semaphore belongs to its
    n-th post.
    """
    waits, posts = _matched([command.queue for command in commands], conflicts)
    items: list[Item] = []
    for place, command in enumerate(commands):
        queue, layer = command.queue, command.layer
        items += [_access(Wait, queue, SEMAPHORES[other, queue], layer) for other in waits.get(place, ())]
        items.append(command)
        items += [_access(Post, queue, SEMAPHORES[queue, other], layer) for other in posts.get(place, ())]
    return items


@lru_cache(maxsize=1 << 12)
def _access(kind: type[Wait | Post], queue: Queue, semaphore: int, layer: int) -> Wait | Post:
    """Return a wait or a post; equal ones are one object."""
    return kind(queue, semaphore, layer=layer)


_Queues = dict[int, list[Queue]]


def _matched(queues: Sequence[Queue], conflicts: Sequence[Conflicts]) -> tuple[_Queues, _Queues]:
    """Return by command the queues that it waits for, and the queues to which it posts."""
    waits: _Queues = {}
    posts: _Queues = {}
    # By queue: the last command of every queue that has finished when the next command of this one begins. A command
    # that another one waits for keeps what was known at its begin.
    finished = {queue: [_NEVER] * len(Queue) for queue in Queue}
    known: list[list[int]] = []
    for position, (queue, found) in enumerate(zip(queues, conflicts, strict=True)):
        mine = finished[queue]
        for awaited in sorted(found, reverse=True):
            if awaited == _NEVER:
                break
            other = queues[awaited]
            if other is not queue and mine[other] < awaited:
                waits.setdefault(position, []).append(other)
                posts.setdefault(awaited, []).append(queue)
                mine = list(map(max, mine, known[awaited]))
                mine[other] = max(mine[other], awaited)
        finished[queue] = mine
        known.append(mine)
    return waits, posts


def fence_between_layers(items: Sequence[Item]) -> list[Item]:
    """Return items of `synchronise` with a fence between layers, without posts and waits that a fence replaces.

    A fence belongs to the layer that it ends.
    """
    section = 0
    sections: list[int] = []
    for index, item in enumerate(items):
        section += index > 0 and item.layer != items[index - 1].layer
        sections.append(section)
    replaced = _crossing_pairs(items, sections)
    result: list[Item] = []
    for index, item in enumerate(items):
        if index > 0 and sections[index] != sections[index - 1]:
            result.append(Fence(layer=items[index - 1].layer))
        if index not in replaced:
            result.append(item)
    return result


def _crossing_pairs(items: Sequence[Item], sections: Sequence[int]) -> set[int]:
    """Return the indices of posts and waits in different sections, matched in order on each semaphore."""
    posts: dict[int, list[int]] = {}
    taken: dict[int, int] = {}
    crossing: set[int] = set()
    for index, item in enumerate(items):
        if isinstance(item, Post):
            posts.setdefault(item.semaphore, []).append(index)
        elif isinstance(item, Wait):
            turn = taken.get(item.semaphore, 0)
            taken[item.semaphore] = turn + 1
            post = posts[item.semaphore][turn]
            if sections[post] != sections[index]:
                crossing |= {post, index}
    return crossing
