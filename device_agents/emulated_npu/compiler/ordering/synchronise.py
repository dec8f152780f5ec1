"""Synchronises the two queues by counting semaphores, and puts fences between layers.

A queue is in order and has one server, so dependences within a queue need no synchronisation. For the other queue it
suffices to wait for the latest command that a command depends on, which posts when it has finished.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.emulated_npu.compiler.ordering.hazards import SEPARATE, Conflicts, dependencies
from device_agents.emulated_npu.unit_commands import Command, Fence, Item, Post, Queue, Wait

SEMAPHORE_OF_POSTER = {Queue.IO: 0, Queue.CP: 1}
"""The semaphore to which a queue posts and on which the other queue waits."""

_OTHER = {Queue.IO: Queue.CP, Queue.CP: Queue.IO}


def synchronise(commands: Sequence[Command], memory_of: Sequence[int] = SEPARATE) -> list[Item]:
    """Return the commands in order, with a post after the source and a wait before the target of each dependence."""
    return synchronised(commands, dependencies(commands, memory_of), range(len(commands)))


def synchronised(commands: Sequence[Command], conflicts: Sequence[Conflicts], order: Sequence[int]) -> list[Item]:
    """Return the commands in an order of their positions, with a post and a wait for each dependence between queues.

    `conflicts` are those of the commands as they are; the order keeps them. A dependence is dropped if the queue has
    already waited for the same or a later command. Hence every post has exactly one wait, later in the program, and the
    n-th wait on a semaphore belongs to its n-th post.
    """
    places = [-1] * (len(commands) + 1)  # the last is that of no command
    for place, position in enumerate(order):
        places[position] = place
    awaited = {Queue.IO: -1, Queue.CP: -1}
    waits: dict[int, Queue] = {}
    posts: dict[int, Queue] = {}
    for position in order:
        queue, found = commands[position].queue, conflicts[position]
        before = (found.compute,) if queue is Queue.IO else (found.load, found.store, found.weights)
        latest = max(places[each] for each in before)
        if latest > awaited[queue]:
            awaited[queue] = latest
            waits[position] = queue
            posts[order[latest]] = _OTHER[queue]
    items: list[Item] = []
    for position in order:
        command = commands[position]
        if position in waits:
            queue = waits[position]
            items.append(Wait(queue, SEMAPHORE_OF_POSTER[_OTHER[queue]], layer=command.layer))
        items.append(command)
        if position in posts:
            queue = posts[position]
            items.append(Post(queue, SEMAPHORE_OF_POSTER[queue], layer=command.layer))
    return items


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
