"""Memory that the cores of a group share is reused only when all cores have finished with it."""

from collections import Counter
from collections.abc import Mapping
from random import Random

from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.planning.barriers import Phases, barriers, with_notices
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, region_operand
from device_agents.emulated_npu.compiler.planning.receives import ReceivedValue, messages_to, with_receives
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Space, plain_bytes

_PLACES = [
    ReceivedValue(
        Value(f"v{phase}", (8,), DataType.FLOAT32, (0,), "received"),
        Buffer(Space.LLC, 64 * phase, DataType.FLOAT32, (0,), (4,)),
    )
    for phase in range(8)
]
_NB = plain_bytes(Space.NB, 0, 32)
_ELSEWHERE = 9
"""A core of another group."""


def _programs(random: Random) -> tuple[dict[int, list[Command]], Mapping[int, Phases]]:
    """Return commands of some cores, and their phases: layer p computes value p in phase p, on some of the cores.

    They store it in their memory or send it to another group alone, and may all read the same values.
    """
    cores = random.randint(2, 3)
    found: dict[int, list[Command]] = {core: [] for core in range(cores)}
    phases: dict[int, dict[int, int]] = {core: {} for core in range(cores)}
    for phase in range(random.randint(3, 8)):
        leaves = random.random() < 0.3
        for core in random.sample(range(cores), random.randint(1, cores)):
            phases[core][phase] = phase
            for _ in range(random.randint(1, 2)):
                sources = random.sample(range(phase), min(phase, random.randint(0, 2)))
                for source in sources:
                    part = region_operand(_PLACES[source].buffer, ((0, random.randint(1, 8)),), (0,))
                    found[core].append(Command(Function.LOAD, _NB, part, layer=phase))
                target = region_operand(_PLACES[phase].buffer, ((core, core + 1),), (0,))
                if leaves:
                    found[core].append(Command(Function.SEND, target, _NB, peer=_ELSEWHERE, layer=phase))
                    continue
                found[core].append(Command(Function.STORE, target, _NB, layer=phase))
                for peer in random.sample([one for one in range(cores) if one != core], random.randint(0, cores - 1)):
                    found[core].append(Command(Function.SEND, target, peer=peer, layer=phase))
    return found, phases


@given(st.integers(0, 1 << 60))
@settings(max_examples=250)
def test_a_core_stores_nothing_before_others_have_ended_the_earlier_phases(seed: int) -> None:
    """In any interleaving of cores, a core that stores finds all others at its phase or later, and all cores end."""
    random = Random(seed)
    programs, phases = _programs(random)
    cores = range(len(programs))
    noted, notices = {}, {}
    for core in cores:
        others = {peer: phases[peer] for peer in cores if peer != core}
        noted[core], notices[core] = with_notices(programs[core], phases[core], others)
    sent = {
        core: {place: one for place, one in enumerate(own) if one.function is Function.SEND}
        for core, own in noted.items()
    }
    waiting = {}
    for core in cores:
        peers = {peer: (sent[peer].values(), phases[peer]) for peer in cores if peer != core}
        awaited = barriers(noted[core], phases[core], core, peers)
        waiting[core] = with_receives(noted[core], messages_to(core, sent, notices), _PLACES, awaited)
    messages: Counter[tuple[int, int]] = Counter()
    place = [0] * len(cores)
    slow = random.choice(cores)  # goes on only where it must
    while any(place[core] < len(waiting[core]) for core in cores):
        ready = [core for core in cores if _goes_on(core, waiting[core], place[core], messages)]
        assert ready, "every core waits for another"
        core = random.choice([one for one in ready if one != slow] or ready)
        command = waiting[core][place[core]]
        place[core] += 1
        if command.function is Function.SEND:
            messages[core, command.peer] += 1
        elif command.function is Function.RECEIVE:
            messages[command.peer, core] -= 1
        elif command.function is Function.STORE:
            left = [one.layer for peer in cores if peer != core for one in waiting[peer][place[peer] :] if _moves(one)]
            assert min(left, default=command.layer) >= command.layer
    assert not any(count for (_, peer), count in messages.items() if peer != _ELSEWHERE)


def _goes_on(core: int, commands: list[Command], place: int, messages: Counter[tuple[int, int]]) -> bool:
    if place == len(commands):
        return False
    command = commands[place]
    return command.function is not Function.RECEIVE or messages[command.peer, core] > 0


def _moves(command: Command) -> bool:
    return command.function in (Function.LOAD, Function.STORE)


def test_a_core_that_goes_on_alone_sends_nothing() -> None:
    """After several phases in a row, a core notifies the others once: they wait for no other message."""
    targets = [region_operand(_PLACES[phase].buffer, ((0, 8),), (0,)) for phase in range(4)]
    commands = [Command(Function.STORE, target, _NB, layer=phase) for phase, target in enumerate(targets)]
    noted, notices = with_notices(commands, {0: 0, 1: 1, 2: 2, 3: 3}, {1: {7: 0, 8: 3}, 2: {9: 1}})
    sends = {place: (one.layer, one.peer) for place, one in enumerate(noted) if one.function is Function.SEND}
    assert list(sends.values()) == [(0, 2), (2, 1)]
    assert sends.keys() == notices
