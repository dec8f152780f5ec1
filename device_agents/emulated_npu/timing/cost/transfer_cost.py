"""The bytes that IO commands move, and their demands on the resources that the cores of a chip share.

A view is fetched run by run in memory order, each run rounded up to whole bursts; GATHER fetches row by row. An axis of
stride zero is fetched once and repeated on chip. Packed weights on their way to SB are read with fewer bytes if the
memory holds them compressed (`Memory.weight_compression`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import PS_PER_NS, PS_PER_S, ceil_div
from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.unit_commands import EXTERNAL, Command, Descriptor, Function, Operand, Space


class Demand(NamedTuple):
    """The demand of an IO command on one resource: `work_ps` of use without other users, after `latency_ps`.

    `moved_bytes` is the payload, without the rounding to bursts.
    """

    resource: Resource
    latency_ps: int
    work_ps: int
    moved_bytes: int


class Traffic(NamedTuple):
    """Payload bytes that a command moves out of and into one external memory."""

    space: Space
    read_bytes: int
    written_bytes: int


class _Runs(NamedTuple):
    """Runs of adjacent bytes."""

    number: int
    length_bytes: int

    @property
    def bytes(self) -> int:
        return self.number * self.length_bytes


def _runs(descriptor: Descriptor, skip: int = 0) -> _Runs:
    """Return the runs of a view in memory order, without its first `skip` axes."""
    axes = sorted(
        (abs(stride), size)
        for size, stride in zip(descriptor.dims[skip:], descriptor.strides[skip:], strict=True)
        if size != 1 and stride != 0
    )
    if not descriptor.elements:
        return _Runs(0, 0)
    run, count = descriptor.dtype.bytes, 1
    for stride, size in axes:
        if stride == run and count == 1:
            run *= size
        else:
            count *= size
    return _Runs(count, run)


_Transfers = dict[Space, tuple[list[_Runs], list[_Runs]]]


def _transfers(command: Command, machine: Machine | None) -> _Transfers:
    """Return the runs that an IO command reads and writes, by external memory; without a machine uncompressed."""
    found: _Transfers = {}
    if not command.function.is_transfer or moves_nothing(command):
        return found
    first, target = present(command, command.first).descriptor, command.target.descriptor
    skip, times = 0, 1
    if command.function is Function.GATHER:
        index = present(command, command.second).descriptor
        skip, times = 1, index.elements
        if index.space in EXTERNAL:
            found[index.space] = ([_runs(index)], [])
    if first.space in EXTERNAL:
        row = _runs(first, skip)
        ratio = 1.0 if machine is None else _compression(machine, command)
        length_bytes = row.length_bytes if ratio == 1 else math.ceil(row.length_bytes / ratio)
        found.setdefault(first.space, ([], []))[0].append(_Runs(row.number * times, length_bytes))
    if target.space in EXTERNAL:
        found.setdefault(target.space, ([], []))[1].append(_runs(target))
    return found


def _compression(machine: Machine, command: Command) -> float:
    """Return bytes per byte that is read: more than 1 only for packed weights that go to SB."""
    if not command.loads_packed_weights or command.target.descriptor.space is not Space.SB:
        return 1.0
    source = present(command, command.first).descriptor
    memory: Memory = machine.llc if source.space is Space.LLC else machine.ddr
    return memory.weight_compression


def external_bytes(command: Command, machine: Machine | None = None) -> tuple[Traffic, ...]:
    """Return the bytes that an IO command reads and writes, by external memory; empty for a CP command.

    Without a machine, weights count as they are in SB.
    """
    return tuple(
        Traffic(space, *(sum(run.bytes for run in runs) for runs in sides))
        for space, sides in _transfers(command, machine).items()
    )


def demands(machine: Machine, command: Command) -> tuple[Demand, ...]:
    """Return the demands of an IO command on the resources of its chip; without sharing the longest is its duration.

    Empty for RECEIVE and for a SEND without payload; any other SEND counts as one to a core of the same chip. Raises
    `ExecutionFault` for a command that touches no external memory, and for a memory or link that the machine lacks.
    """
    if moves_nothing(command):
        return ()
    found = _memory_demands(machine, command, _transfers(command, machine))
    is_sent = command.function is Function.SEND
    return (*found, _link_demand(machine, command, Resource.LINK)) if is_sent else found


def demands_across(machine: Machine, command: Command) -> tuple[tuple[Demand, ...], tuple[Demand, ...]]:
    """Return the demands of a SEND to another chip on its own chip and on the other; raise as `demands`."""
    if moves_nothing(command):
        return (), ()
    transfers = _transfers(command, machine).items()
    reading: _Transfers = {space: (reads, []) for space, (reads, _) in transfers if reads}
    writing: _Transfers = {space: ([], writes) for space, (_, writes) in transfers if writes}
    link, way_out = (_link_demand(machine, command, each) for each in (Resource.LINK, Resource.CHIP_LINK))
    own = _memory_demands(machine, command, reading) if reading else ()
    return (*own, link, way_out), (*_memory_demands(machine, command, writing), link)


def moves_nothing(command: Command) -> bool:
    """Return whether an IO command takes no time: RECEIVE, and a SEND without payload."""
    return command.function is Function.RECEIVE or (command.function is Function.SEND and command.first is None)


def _memory_demands(machine: Machine, command: Command, transfers: _Transfers) -> tuple[Demand, ...]:
    if not transfers:
        what = f"{command.function.name} touches no external memory"
        raise ExecutionFault(what, "IO commands move data to or from DDR or LLC")
    return tuple(_memory_demand(machine, space, reads + writes) for space, (reads, writes) in transfers.items())


def _memory_demand(machine: Machine, space: Space, runs: list[_Runs]) -> Demand:
    memory: Memory = machine.llc if space is Space.LLC else machine.ddr
    if memory.bytes == 0:
        what = f"a command uses {space.name}"
        raise ExecutionFault(what, f"{machine.name} has none", "Compile the network for this machine")
    burst = memory.burst_bytes
    bursts_bytes = sum(run.number * ceil_div(run.length_bytes, burst) * burst for run in runs)
    work_ps = math.ceil(bursts_bytes * PS_PER_S / memory.bytes_per_s)
    return Demand(Resource(space), round(memory.latency_ns * PS_PER_NS), work_ps, sum(run.bytes for run in runs))


def _link_demand(machine: Machine, command: Command, resource: Resource) -> Demand:
    """Return the demand on a link, without latency: `message_ps` adds that to the arrival of the message."""
    link = machine.cores.link if resource is Resource.LINK else machine.cores.chip_link
    if link.bytes_per_s == 0:
        why = f"{machine.name} has no {resource.name.lower()}"
        raise ExecutionFault("a command sends over a link", why, "Compile the network for this machine")
    target = command.target.descriptor
    return Demand(resource, 0, math.ceil(target.bytes * PS_PER_S / link.bytes_per_s), target.bytes)


def message_ps(machine: Machine, sender: int, receiver: int) -> int:
    """Return the latency of a message: one link, or the links of both chips and the chip link between them."""
    cores = machine.cores
    link_ps, chip_link_ps = (round(link.latency_ns * PS_PER_NS) for link in (cores.link, cores.chip_link))
    return link_ps if cores.chip_of(sender) == cores.chip_of(receiver) else 2 * link_ps + chip_link_ps


def present(command: Command, operand: Operand | None) -> Operand:
    """Return the operand; raise `ExecutionFault` if the command lacks it."""
    if operand is None:
        raise ExecutionFault(f"{command.function.name} lacks an operand")
    return operand


def dims_of(command: Command, operand: Operand | None, rank: int) -> tuple[int, ...]:
    """Return the sizes of an operand; raise `ExecutionFault` unless the command has it with `rank` axes."""
    dims = present(command, operand).descriptor.dims
    if len(dims) != rank:
        raise ExecutionFault(f"{command.function.name} has an operand of {len(dims)} axes", f"it needs {rank}")
    return dims
