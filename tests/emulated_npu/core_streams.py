"""Programs of several cores that exchange messages, and an exact machine in fractions to compare their times with."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import strategies as st
from timed_programs import compute, compute_apart, convolve, digits, load, operand, store

from device_agents.emulated_npu.compiler.ordering.synchronise import SEMAPHORES
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.machine.parts import Cores, Interconnect
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Item, Post, Queue, Space, Wait

# A byte is one cycle of 1000 ps on DDR, half of one on the link, two on the way out of a chip.
FOUR_CORES = Cores(2, 2, Interconnect(2e9, 3.0), Interconnect(5e8, 7.0))
ONE_CHIP = Cores(8, 1, Interconnect(2e9, 3.0), Interconnect(0.0, 0.0))


def send(size: int, peer: int, space: Space = Space.DDR) -> Command:
    """Return a SEND of `size` bytes from NB to the memory of another core."""
    return Command(Function.SEND, operand(space, size), operand(Space.NB, size), peer=peer)


def forward(size: int, peer: int, source: Space, space: Space = Space.DDR) -> Command:
    """Return a SEND of `size` bytes from external memory to that of another core."""
    return Command(Function.SEND, operand(space, size), operand(source, size), peer=peer)


def notify(peer: int) -> Command:
    """Return a SEND without payload, which announces shared data."""
    return Command(Function.SEND, operand(Space.DDR, 1), peer=peer)


def receive(peer: int) -> Command:
    """Return a RECEIVE of the next message."""
    return Command(Function.RECEIVE, operand(Space.DDR, 1), peer=peer)


@dataclass(frozen=True)
class RandomStream:
    """Programs of cores, their chips and groups (`layout`), ring depths by group, and the number of inputs."""

    cores: list[CoreSteps]
    layout: Cores
    depths: dict[int, int]
    inputs: int

    @property
    def commands(self) -> int:
        """The number of commands that all cores run for all inputs."""
        return self.inputs * sum(isinstance(step.item, Command) for each in self.cores for step in each.steps)


_KINDS = "llxscwpmmmf"
_RADICES = (12, 12, 6, 6, len(_KINDS), 2, 6, 2)
_ITEMS = st.integers(0, math.prod(_RADICES) - 1)


@st.composite
def streams(draw: st.DrawFn, queues: int = 2) -> RandomStream:
    """Draw streams that end: nothing waits for a later message."""
    layout = draw(st.sampled_from((FOUR_CORES, ONE_CHIP)))
    numbers = draw(st.lists(st.integers(0, 3), min_size=2, max_size=4, unique=True))
    group_of = {core: draw(st.integers(0, 2)) for core in numbers}
    items: dict[int, list[tuple[Item, int]]] = {core: [] for core in numbers}
    spare: Counter[tuple[int, int]] = Counter()
    pairs = [pair for pair in SEMAPHORES if max(pair) < queues]
    for _ in range(draw(st.integers(1, 18))):
        first, second, place, size, kind, cached, way, control = digits(draw(_ITEMS), _RADICES)
        core, peer = numbers[first % len(numbers)], numbers[second % len(numbers)]
        (queue, other), size = pairs[place % len(pairs)], size + 1
        item: Item | None = None
        if _KINDS[kind] == "m" and peer != core:
            space = (Space.DDR, Space.LLC)[cached]
            ways = [send(size, peer, space), forward(size, peer, Space.DDR, space), notify(peer)]
            item = ways[way % (3 if layout.chip_of(core) == layout.chip_of(peer) else 2)]
            items[peer].append((receive(core), 1 - control))
        elif _KINDS[kind] == "w" and spare[core, SEMAPHORES[other, queue]]:
            spare[core, SEMAPHORES[other, queue]] -= 1
            item = Wait(queue, SEMAPHORES[other, queue])
        elif _KINDS[kind] == "p":
            spare[core, SEMAPHORES[queue, other]] += 1
            item = Post(queue, SEMAPHORES[queue, other])
        elif _KINDS[kind] == "f":
            item = Fence()
        elif _KINDS[kind] == "x":
            item = Command(Function.LOAD, operand(Space.LLC, size), operand(Space.DDR, size))
        elif _KINDS[kind] in "ls":
            item = {"l": load, "s": store}[_KINDS[kind]](size)
        elif queues == 2:
            item = compute(size)
        else:
            item = compute_apart(size) if queue is Queue.VFU else convolve((1, size), 4, 4)
        if item is not None:
            items[core].append((item, control))
    cores = [
        CoreSteps(core, group_of[core], [IssuedStep(pc, item, control) for pc, (item, control) in enumerate(mine)])
        for core, mine in items.items()
    ]
    depths = {group: draw(st.integers(1, 2)) for group in sorted(set(group_of.values()))}
    return RandomStream(cores, layout, depths, draw(st.integers(1, 3)))


@dataclass
class _Transfer:
    resource: tuple[int, str]
    from_ps: Fraction
    left_ps: Fraction


@dataclass
class _RandomCore:
    source: CoreSteps
    run: int = 0
    begun: bool = False
    position: int = 0
    issue_ps: Fraction = Fraction(-1)
    queues: tuple[list[int], ...] = field(default_factory=lambda: tuple([] for _ in Queue))
    free_ps: list[Fraction] = field(default_factory=lambda: [Fraction(0)] * len(Queue))
    transfers: list[_Transfer] = field(default_factory=list)
    sending: Command | None = None
    semaphores: list[int] = field(default_factory=lambda: [0] * 8)
    begin_ps: Fraction = Fraction(0)

    def idle(self, queue: int, now: Fraction) -> bool:
        return self.free_ps[queue] <= now and (queue != Queue.IO or not (self.transfers or self.sending))

    def done(self, now: Fraction) -> bool:
        return (
            self.position == len(self.source.steps)
            and not any(self.queues)
            and all(self.idle(queue, now) for queue in Queue)
        )


Runs = dict[tuple[int, int], tuple[Fraction, Fraction]]


class ExactMachine:
    """Tries every action at every instant at which something can change; slow and simple."""

    def __init__(self, cores: Sequence[CoreSteps], machine: Machine, inputs: int, depths: Mapping[int, int]) -> None:
        self.machine, self.inputs, self.depths = machine, inputs, depths
        self.cores = {each.core: _RandomCore(each) for each in cores}
        self.group_of = {each.core: each.group for each in cores}
        self.ended = dict.fromkeys(depths, 0)  # runs that a group has ended
        self.arrivals: dict[tuple[int, int, int], list[Fraction]] = {}  # by sender, receiver, run
        self.now = Fraction(0)
        self.runs: Runs = {}
        self.costs = CostModel(machine)

    def simulate(self) -> Runs | None:
        """Return start and end of every run, by core and run; None for a deadlock."""
        while True:
            while sum(self._act(core) for core in list(self.cores.values())):
                pass
            if all(core.run == self.inputs for core in self.cores.values()):
                return self.runs
            if not self._advance():
                return None

    def _advance(self) -> bool:
        times = [time for each in self.arrivals.values() for time in each]
        for core in self.cores.values():
            times += [core.issue_ps, *core.free_ps]
            for transfer in core.transfers:
                running = transfer.from_ps <= self.now
                times.append(self.now + transfer.left_ps * self._users(transfer) if running else transfer.from_ps)
        later = min((time for time in times if time > self.now), default=None)
        if later is None:
            return False
        shares = [(transfer, self._users(transfer)) for core in self.cores.values() for transfer in core.transfers]
        for transfer, users in shares:
            if transfer.from_ps <= self.now:
                transfer.left_ps -= (later - self.now) / users
        self.now = later
        return True

    def _users(self, transfer: _Transfer) -> int:
        every = [each for core in self.cores.values() for each in core.transfers]
        return sum(each.resource == transfer.resource and each.from_ps <= self.now for each in every)

    def _act(self, core: _RandomCore) -> bool:
        """Perform one action that a core can do now; return whether there was one."""
        number, now = core.source.core, self.now
        if core.run == self.inputs:
            return False
        if not core.begun:
            if self.ended[self.group_of[number]] < core.run:
                return False
            fresh = _RandomCore(core.source, core.run, True, begin_ps=now, free_ps=[now] * len(Queue))
            self.cores[number] = fresh
            return True
        over = [each for each in core.transfers if each.from_ps <= now and each.left_ps == 0]
        if over:
            core.transfers.remove(over[0])
            return True
        if core.sending and not core.transfers:
            self._tell(core, core.sending)
            core.sending = None
            return True
        if self._issues(core) or any(self._serves(core, queue) for queue in Queue):
            return True
        if not core.done(now):
            return False
        self.runs[number, core.run] = core.begin_ps, now
        core.run, core.begun = core.run + 1, False
        group = self.group_of[number]
        members = [each for each in self.cores.values() if self.group_of[each.source.core] == group]
        self.ended[group] = min(each.run for each in members)
        return True

    def _issues(self, core: _RandomCore) -> bool:
        steps = core.source.steps
        if core.position == len(steps):
            return False
        step = steps[core.position]
        if core.issue_ps < 0:
            instructions = step.control + (step.item is not None)
            core.issue_ps = self.now + instructions * self.machine.issue_cycles * self.costs.cycle_ps
        if core.issue_ps > self.now:
            return False
        if isinstance(step.item, Fence):
            if any(core.queues) or not all(core.idle(queue, self.now) for queue in Queue):
                return False
        elif step.item is not None:
            queue = self.machine.queue_of(step.item.queue)
            if len(core.queues[queue]) == self.machine.queue_depths[queue]:
                return False
            core.queues[queue].append(core.position)
        core.position, core.issue_ps = core.position + 1, Fraction(-1)
        return True

    def _serves(self, core: _RandomCore, queue: Queue) -> bool:
        if not core.queues[queue] or not core.idle(queue, self.now):
            return False
        item = core.source.steps[core.queues[queue][0]].item
        if isinstance(item, Wait):
            if core.semaphores[item.semaphore] < item.count:
                return False
            core.semaphores[item.semaphore] -= item.count
        elif isinstance(item, Post):
            core.semaphores[item.semaphore] += item.count
        elif isinstance(item, Command) and not self._begins(core, item):
            return False
        core.queues[queue].pop(0)
        return True

    def _begins(self, core: _RandomCore, command: Command) -> bool:
        number, run = core.source.core, core.run
        if command.function is Function.RECEIVE:
            arrivals = self.arrivals.get((command.peer, number, run), [])
            if not arrivals or arrivals[0] > self.now:
                return False
            arrivals.pop(0)
        elif command.function is Function.SEND:
            group = self.group_of[command.peer]
            if command.first and group != self.group_of[number] and self.ended[group] <= run - self.depths[group]:
                return False
            core.sending = command
            if command.first:
                self._send(core, command)
        elif command.queue is Queue.IO:
            self._transfer(core, number, command, command.target.descriptor.elements)
        else:
            core.free_ps[self.machine.queue_of(command.queue)] = self.now + self.costs.duration_ps(command)
        return True

    def _send(self, core: _RandomCore, command: Command) -> None:
        number, size = core.source.core, command.target.descriptor.elements
        chips = self.machine.cores.chip_of(number), self.machine.cores.chip_of(command.peer)
        link, way_out = self.machine.cores.link, self.machine.cores.chip_link
        self._add(core, (chips[0], "link"), 0, size, link.bytes_per_s)
        if chips[0] == chips[1]:
            self._transfer(core, number, command, size)
            return
        self._add(core, (chips[0], "way out"), 0, size, way_out.bytes_per_s)
        self._add(core, (chips[1], "link"), 0, size, link.bytes_per_s)
        for operand_of, chip in ((command.first, chips[0]), (command.target, chips[1])):
            if operand_of:
                self._memory(core, chip, operand_of.descriptor.space, size)

    def _transfer(self, core: _RandomCore, number: int, command: Command, size: int) -> None:
        spaces = [each.descriptor.space for each in (command.first, command.target) if each]
        for space in set(spaces):
            self._memory(core, self.machine.cores.chip_of(number), space, size * spaces.count(space))

    def _memory(self, core: _RandomCore, chip: int, space: Space, size: int) -> None:
        if space in (Space.DDR, Space.LLC):
            memory = self.machine.ddr if space is Space.DDR else self.machine.llc
            self._add(core, (chip, space.name), memory.latency_ns, size, memory.bytes_per_s)

    def _add(self, core: _RandomCore, where: tuple[int, str], latency_ns: float, size: int, bytes_per_s: float) -> None:
        left_ps = Fraction(size * 10**12) / Fraction(bytes_per_s)
        core.transfers.append(_Transfer(where, self.now + Fraction(latency_ns) * 1000, left_ps))

    def _tell(self, core: _RandomCore, command: Command) -> None:
        number, cores = core.source.core, self.machine.cores
        delay_ns = Fraction(cores.link.latency_ns)
        if cores.chip_of(number) != cores.chip_of(command.peer):
            delay_ns = 2 * delay_ns + Fraction(cores.chip_link.latency_ns)
        key = (number, command.peer, core.run)
        self.arrivals.setdefault(key, []).append(self.now + 1000 * delay_ns)
