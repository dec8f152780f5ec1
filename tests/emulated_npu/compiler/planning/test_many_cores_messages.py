"""Cores wait for messages before the commands that need them, and report messages that never arrive."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import small_machine
from scratchpad import Array, dense
from systems_of_cores import with_cores

from device_agents.emulated_npu.compiler.codegen.emit import emit
from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.regions import Region
from device_agents.emulated_npu.compiler.ordering.synchronise import synchronise
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, dense_strides, region_operand
from device_agents.emulated_npu.compiler.planning.receives import Message, ReceivedValue, with_receives
from device_agents.emulated_npu.emulator_errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.execution.stream_execution import GroupProgram, run_stream
from device_agents.emulated_npu.isa.program import Footprint, Port, Program
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Operand, Space

FLOAT = DataType.FLOAT32

# --- where RECEIVE stands --------------------------------------------------------------------------------------------


@st.composite
def _places(draw: st.DrawFn) -> list[ReceivedValue]:
    """Draw values of up to four axes in any order, adjacent in two memories."""
    found = []
    free = dict.fromkeys((Space.DDR, Space.LLC), 0)
    for number in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
        order = tuple(draw(st.permutations(range(len(shape)))))
        space = draw(st.sampled_from((Space.DDR, Space.LLC)))
        buffer = Buffer(space, free[space], FLOAT, (0,) * len(shape), dense_strides(shape, order, 4))
        found.append(ReceivedValue(Value(f"v{number}", shape, FLOAT, order, "received"), buffer))
        free[space] += 4 * int(np.prod(shape)) + 64
    return found


@st.composite
def _operands(draw: st.DrawFn, places: Sequence[ReceivedValue]) -> tuple[Operand, tuple[int, Region]]:
    """Draw a region of one of the values, with its axes in memory order."""
    number = draw(st.integers(0, len(places) - 1))
    place = places[number]
    region = []
    for size in place.value.shape:
        low = draw(st.integers(0, size - 1))
        region.append((low, draw(st.integers(low + 1, size))))
    return region_operand(place.buffer, tuple(region), place.value.order), (number, tuple(region))


def _elements(part: tuple[int, Region]) -> set[tuple[int, ...]]:
    number, region = part
    return {(number, *index) for index in itertools.product(*(range(*interval) for interval in region))}


@given(st.data())
@settings(max_examples=75)
def test_messages_are_awaited_before_they_are_needed_and_no_sooner(data: st.DataObject) -> None:
    """Each message is received once, in its sender's order, and no earlier than a load needs it."""
    places = data.draw(_places())
    sent = {
        sender: data.draw(st.lists(_operands(places), max_size=6))
        for sender in data.draw(st.sets(st.integers(0, 9), min_size=1, max_size=3))
    }
    loads = data.draw(st.lists(_operands(places), max_size=8))
    commands = [
        Command(Function.LOAD, Operand(replace(operand.descriptor, space=Space.NB), 0), operand, layer=number)
        for number, (operand, _) in enumerate(loads)
    ]
    arriving = {sender: [Message(operand) for operand, _ in messages] for sender, messages in sent.items()}
    found = with_receives(commands, arriving, places)
    assert [command for command in found if command.function is Function.LOAD] == commands
    for sender, messages in arriving.items():
        taken = [
            Message(command.target)
            for command in found
            if command.function is Function.RECEIVE and command.peer == sender
        ]
        assert taken == messages
    done = dict.fromkeys(sent, 0)
    position = 0
    for command, (_, part) in zip(commands, loads, strict=True):
        while found[position] is not command:
            assert found[position].layer == command.layer
            done[found[position].peer] += 1
            position += 1
        position += 1
        for sender, messages in sent.items():
            meeting = [turn for turn, (_, other) in enumerate(messages) if _elements(other) & _elements(part)]
            needed = max(meeting, default=-1) + 1
            before = sum(
                each.peer == sender for each in found[: found.index(command)] if each.function is Function.RECEIVE
            )
            assert done[sender] == before
            assert done[sender] >= needed
            earlier = [
                turn
                for load, (_, read) in zip(commands, loads, strict=True)
                if found.index(load) <= found.index(command)
                for turn, (_, other) in enumerate(messages)
                if _elements(other) & _elements(read)
            ]
            assert done[sender] == max(earlier, default=-1) + 1


def test_interleaved_parts_are_separate() -> None:
    """A load of some channels does not wait for other channels whose bytes interleave with them."""
    shape, order = (1, 8, 5, 5), (0, 2, 3, 1)
    buffer = Buffer(Space.LLC, 1024, FLOAT, (0, 0, 0, 0), dense_strides(shape, order, 4))
    place = ReceivedValue(Value("v", shape, FLOAT, order, "received"), buffer)

    def channels(low: int, high: int) -> Operand:
        return region_operand(buffer, ((0, 1), (low, high), (0, 5), (0, 5)), order)

    loads = [Command(Function.LOAD, _nb(0, 4), channels(*part), layer=0) for part in ((0, 4), (4, 8))]
    found = with_receives(loads, {3: [Message(channels(0, 4))], 5: [Message(channels(4, 8))]}, [place])
    assert [(command.function, command.peer) for command in found] == [
        (Function.RECEIVE, 3),
        (Function.LOAD, -1),
        (Function.RECEIVE, 5),
        (Function.LOAD, -1),
    ]


# --- cores that run ---------------------------------------------------------------------------------------------------

MACHINE = with_cores(small_machine(), 3)
X = np.arange(4, dtype=np.float32)


def _nb(address: int, *dims: int) -> Operand:
    return Operand(dense(Space.NB, FLOAT, *dims), address)


def _ddr(address: int, *dims: int) -> Operand:
    return Operand(dense(Space.DDR, FLOAT, *dims), address)


def _program(commands: Sequence[Command], inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Program:
    """Return a program with four floats at byte 0 and four at byte 16 of its DDR: its input and its output."""
    code, layer_of = emit(synchronise(commands))
    ports = [
        tuple(Port(name, address, FLOAT, (4,), (4,)) for name in names)
        for address, names in ((0, inputs), (16, outputs))
    ]
    return Program("small", code, (), layer_of, *ports, Footprint(64, 0, 64, 0, 0))


LOAD = Command(Function.LOAD, _nb(0, 4), _ddr(0, 4))
STORE = Command(Function.STORE, _ddr(16, 4), _nb(0, 4))


def _send(peer: int, address: int, *, payload: bool = True) -> Command:
    return Command(Function.SEND, _ddr(address, 4), _nb(0, 4) if payload else None, peer=peer)


def _receive(peer: int, address: int) -> Command:
    return Command(Function.RECEIVE, _ddr(address, 4), peer=peer)


def _run(*groups: dict[int, Program]) -> dict[str, Array]:
    return dict(run_stream([GroupProgram(group, ()) for group in groups], MACHINE, ({"x": X},))[0])


def test_what_is_sent_is_there_when_it_has_been_received() -> None:
    """A message reaches a group whose cores run first and wait."""
    second = _program([_receive(2, 0), LOAD, STORE], outputs=["y"])
    first = _program([LOAD, _send(0, 0)], inputs=["x"])
    np.testing.assert_array_equal(_run({0: second}, {2: first})["y"], X)


def test_what_is_not_received_is_not_there() -> None:
    """A core that does not wait reads the old contents, even if the sender has already sent."""
    first = _program([LOAD, _send(1, 0)], inputs=["x"])
    second = _program([LOAD, STORE, _receive(0, 0)], outputs=["y"])
    np.testing.assert_array_equal(_run({0: first}, {1: second})["y"], np.zeros(4))


def test_cores_of_a_group_share_memory_and_notify_each_other() -> None:
    """A message without payload moves nothing: both cores share the memory."""
    first = _program([LOAD, Command(Function.STORE, _ddr(32, 4), _nb(0, 4)), _send(1, 32, payload=False)], inputs=["x"])
    second = _program([_receive(0, 32), replace(LOAD, first=_ddr(32, 4)), STORE], outputs=["y"])
    np.testing.assert_array_equal(_run({1: second, 0: first})["y"], X)


def test_word_of_a_payload_is_as_good_as_the_payload() -> None:
    """A group gets data once: a core with only a notification may be ahead of the core that receives the data."""
    sender = _program([LOAD, _send(1, 0), _send(2, 0, payload=False)], inputs=["x"])
    notified = _program([_receive(0, 0), LOAD, STORE], outputs=["y"])
    np.testing.assert_array_equal(_run({0: sender}, {2: notified, 1: _program([_receive(0, 0)])})["y"], X)


_STREAM = [{"x": X + 10 * number} for number in range(5)]


def test_senders_run_ahead() -> None:
    """Messages of five inputs can be pending at once; each has the values of its input."""
    first = _program([LOAD, _send(1, 32), _send(2, 0)], inputs=["x"])
    second = _program([_receive(0, 32), replace(LOAD, first=_ddr(32, 4)), _send(2, 48)])
    both = [_receive(1, 48), replace(LOAD, first=_ddr(48, 4)), STORE, _receive(0, 0), LOAD]
    third = _program([*both, Command(Function.STORE, _ddr(32, 4), _nb(0, 4))], outputs=["y"])
    third = replace(third, outputs=(*third.outputs, replace(third.outputs[0], name="z", address=32)))
    groups = [GroupProgram({core: program}, ()) for core, program in enumerate((first, second, third))]
    for run in (run_stream(groups, MACHINE, _STREAM), run_stream(groups[::-1], MACHINE, _STREAM)):
        for inputs, outputs in zip(_STREAM, run, strict=True):
            np.testing.assert_array_equal(outputs["y"], inputs["x"])
            np.testing.assert_array_equal(outputs["z"], inputs["x"])


def test_cores_of_a_group_take_the_next_input_together() -> None:
    """Cores share memory for one input at a time: a core that needs nothing from others waits for them to end."""
    writer = _program(
        [LOAD, Command(Function.STORE, _ddr(32, 4), _nb(0, 4)), _send(1, 32, payload=False)], inputs=["x"]
    )
    reader = _program([_receive(0, 32), replace(LOAD, first=_ddr(32, 4)), STORE], outputs=["y"])
    for programs in ({0: writer, 1: reader}, {1: reader, 0: writer}):
        run = run_stream([GroupProgram(programs, ())], MACHINE, _STREAM)
        for inputs, outputs in zip(_STREAM, run, strict=True):
            np.testing.assert_array_equal(outputs["y"], inputs["x"])


def test_messages_that_nobody_takes_are_not_the_next_input_s() -> None:
    """A RECEIVE takes a message of its own input; if there is none left, the cores are deadlocked."""
    sender = _program([LOAD, _send(1, 0), _send(1, 0)], inputs=["x"])
    once = _program([_receive(0, 0), LOAD, STORE], outputs=["y"])
    groups = [GroupProgram({0: sender}, ()), GroupProgram({1: once}, ())]
    outputs = run_stream(groups, MACHINE, _STREAM)
    assert [output["y"][0] for output in outputs] == [0, 10, 20, 30, 40]
    thrice = _program([_receive(0, 0)] * 3)
    with pytest.raises(Deadlock, match=r"core 1: instruction \d+ in queue IO waits for a message of core 0"):
        run_stream([groups[0], GroupProgram({1: thrice}, ())], MACHINE, _STREAM)


def test_a_message_of_something_else_is_a_fault() -> None:
    """A message whose view differs between sender and receiver is refused with core, instruction and both views."""
    with pytest.raises(
        ExecutionFault, match=r"core 1: instruction \d+: RECEIVE has invalid operands or settings"
    ) as caught:
        _run({0: _program([LOAD, _send(1, 0)], inputs=["x"])}, {1: _program([_receive(0, 16)])})
    assert "core 0 has sent DDR 0" in caught.value.why
    assert "not DDR 16" in caught.value.why


def test_a_message_to_nobody_is_a_fault() -> None:
    """A message to a core without a program is refused."""
    with pytest.raises(ExecutionFault, match="core 0") as caught:
        _run({0: _program([LOAD, _send(2, 0)], inputs=["x"])})
    assert "core 2 has no program" in caught.value.why


def test_a_deadlock_names_every_core() -> None:
    """A deadlock of two cores is reported, even if a third core does not wait."""
    programs = [_program([_receive(peer, 0), LOAD, _send(peer, 0)], inputs=["x"]) for peer in (1, 0)]
    with pytest.raises(Deadlock) as caught:
        _run({0: programs[0]}, {1: programs[1]}, {2: _program([_receive(0, 0)])})
    parts = caught.value.what.split("; core ")
    assert len(parts) == 3
    for part, (core, peer) in zip(parts, ((0, 1), (1, 0), (2, 0)), strict=True):
        assert part.removeprefix("core ").startswith(f"{core}: instruction ")
        assert f"in queue IO waits for a message of core {peer}" in part
