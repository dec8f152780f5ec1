"""Core groups of a machine, and what partitioning needs of them: fabric, traversal, assignment (S5.1 to S5.6)."""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.emulated_npu.compiler.splitting.assignment import (
    Assignment,
    GroupAssignment,
    core_speed,
    group_machines,
    with_room,
)
from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes
from device_agents.emulated_npu.partition.groups import CoreCapability, CoreGroup, Fabric, one_kind, parse_groups
from device_agents.emulated_npu.partition.node_graph import Traversal, traverse, traverse_from
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.unit_commands import Function


def fabric_of(machine: Machine, storage_bytes: int | None = None) -> Fabric:
    """Return the cores of a machine with their capability.

    The storage of a core is NB, SB and its part of the last-level cache, and it can hold its part of the DDR. With
    `storage_bytes` it stores and holds that much. Parts depend on the cores in use on the chip, as in `group_machines`.
    """
    cores = machine.cores

    def capability(core: Machine) -> CoreCapability:
        own_bytes = core.nb_bytes if core.shared_buffer else core.nb_bytes + core.sb_bytes
        macs_per_s = core_speed(core, Function.CONVOLVE)
        return CoreCapability(macs_per_s, storage_bytes or own_bytes, speed=macs_per_s / first_macs_per_s)

    first_macs_per_s = core_speed(machine, Function.CONVOLVE)
    kinds = tuple((kind.first, kind.last, capability(kind.core)) for kind in machine.kinds)
    shared = (0, 0) if storage_bytes else (machine.llc.bytes, machine.ddr.bytes)
    return Fabric(cores.chips, cores.per_chip, capability(machine), *shared, kinds)


def form_groups(fabric: Fabric, text: str, cores: int | None = None) -> tuple[CoreGroup, ...]:
    """Return core groups from a text: lists of cores (`0-3/4,5`), or a number of groups of one core each.

    `cores` is the number of cores to divide among a number of groups. The groups are distributed evenly over the chips,
    because every chip has its own DDR. Raises InvalidPartition for cores that the fabric does not have, or if lists and
    `cores` contradict each other.
    """
    text = text.strip()
    if not (text.isascii() and text.isdecimal()):
        groups = parse_groups(fabric, text)
        named = sum(len(group.cores) for group in groups)
        if cores is not None and cores != named:
            raise InvalidPartition(f"the groups {text} list {named} cores", f"--cores is {cores}")
        return fabric.shared_by(groups)
    count = int(text[:20])
    total = count if cores is None else cores
    if not 1 <= count <= total <= fabric.cores:
        limit = f"at least 1, and at most as many as cores; the machine has {fabric.cores}"
        raise InvalidPartition(f"{count} core groups of {total} cores", limit, "Ask for fewer groups, or more cores")
    chips = min(fabric.chips, count)
    formed: list[CoreGroup] = []
    numbers = _evenly(count, chips)
    for chip, (number, here) in enumerate(zip(numbers, _cores_for(numbers, total), strict=True)):
        if here > fabric.cores_per_chip:
            what = f"{count} core groups of {total} cores"
            why = f"a group lies on one chip, which has {fabric.cores_per_chip} cores"
            raise InvalidPartition(what, why, "Ask for more groups, or fewer cores")
        first = chip * fabric.cores_per_chip
        for size in _evenly(here, number):
            formed.append(one_kind(fabric, CoreGroup(tuple(range(first, first + size)), chip, fabric.own(first))))
            first += size
    return fabric.shared_by(formed)


def _cores_for(numbers: Sequence[int], total: int) -> list[int]:
    """Return how many cores each chip gives to its number of groups: equally many, the rest where most groups are."""
    least, rest = divmod(total, len(numbers))
    with_most = sorted(range(len(numbers)), key=lambda chip: (numbers[chip], chip))[len(numbers) - rest :]
    return [least + (chip in with_most) for chip in range(len(numbers))]


def _evenly(total: int, parts: int) -> list[int]:
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def contended(machine: Machine, groups: Sequence[CoreGroup], kind: Machine | None = None) -> Machine:
    """Return the machine of one core while all cores work, on the chip with the most cores in use, and with room.

    The core is of a kind (`Machine.of_core`), by default that of the first group.
    """
    cores = [core for group in groups for core in group.cores]
    wanted = machine.of_core(cores[0]) if kind is None else kind
    one_each = zip(cores, group_machines(machine, [[core] for core in cores]), strict=True)
    found = (own for core, (own,) in one_each if machine.of_core(core) == wanted)
    return with_room(min(found, key=lambda own: own.ddr.bytes_per_s))


def traversal_from(nodes: NetworkNodes, start: str | None) -> Traversal:
    """Return the traversal of the nodes, from the inputs or from a named node; raises InvalidPartition."""
    if start is None:
        return traverse(nodes.graph)
    names = [node.name for node in nodes.graph.nodes]
    if start not in names:
        shown = ", ".join(names[:8])
        raise InvalidPartition(f"there is no node {start!r} to start from", f"nodes are {shown}, … ({len(names)})")
    return traverse_from(nodes.graph, names.index(start))


def assignment_of(partition: CorePartition, nodes: NetworkNodes) -> Assignment:
    """Return the assignment of the layers of each group to its cores; groups without nodes are left out."""
    groups = []
    for used in partition.used:
        layers = tuple(layer for node in partition.nodes_of(used) for layer in nodes.layers[node])
        groups.append(GroupAssignment(partition.groups[used].cores, layers))
    return Assignment(tuple(groups))
