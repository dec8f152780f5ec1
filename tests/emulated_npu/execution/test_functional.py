"""The functional machine: commands in memory, queues and semaphores, whole programs."""

from collections.abc import Iterable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scratchpad import Array, Scratchpad, dense

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, Deadlock, DoesNotFit, ExecutionFault
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.execution.interleaving import Order, run_items
from device_agents.emulated_npu.execution.memory import Memories
from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.program import Footprint, Port, Program
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.unit_commands import (
    Command,
    DataType,
    Descriptor,
    Fence,
    Function,
    Item,
    Operand,
    Post,
    Queue,
    Space,
    Wait,
)
from device_agents.emulated_npu.unit_settings import Activation, Binary, Settings

ORDERS: tuple[Order, ...] = get_args(Order)
FLOAT = DataType.FLOAT32


def nb(address: int, *dims: int) -> Operand:
    """Return a dense operand of floats in NB."""
    return Operand(dense(Space.NB, FLOAT, *dims), address)


def ddr(address: int, *dims: int) -> Operand:
    """Return a dense operand of floats in DDR."""
    return Operand(dense(Space.DDR, FLOAT, *dims), address)


@given(st.integers(0, 40), st.integers(0, 40))
def test_sources_are_read_before_the_target_is_written(source: int, target: int) -> None:
    """A copy between overlapping parts of a memory moves the old values, forwards and backwards."""
    pad = Scratchpad(1024)
    before = np.arange(64, dtype=np.float32)
    pad.put(before)
    moved = pad.run(Command(Function.COPY, nb(4 * target, 20), nb(4 * source, 20)))
    np.testing.assert_array_equal(moved, before[source : source + 20])


def test_a_transposition_in_place() -> None:
    """A target that is a permutation of its source gets the old values."""
    pad = Scratchpad(1024)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    place = pad.put(x)
    turned = Operand(Descriptor(Space.NB, FLOAT, (4, 4), (4, 16)), place.address)
    pad.machine.execute(Command(Function.COPY, turned, place))
    np.testing.assert_array_equal(pad.machine.memories.view(place), x.T)


def test_element_wise_in_place() -> None:
    """The target may be one of the sources."""
    pad = Scratchpad(1024)
    a, b = pad.put(np.array([1, -2, 3], np.float32)), pad.put(np.array([-4, 5, 6], np.float32))
    chosen = Settings(mode=Binary.ADD, activation=Activation.RELU)
    assert pad.run(Command(Function.BINARY, a, a, b, settings=chosen)).tolist() == [0, 3, 9]


def test_a_view_of_a_source_is_not_overwritten_by_its_own_activation() -> None:
    """Pooling by a window of one element, with an activation, does not change its source."""
    pad = Scratchpad(1024)
    x = pad.put(np.array([[[[-1], [2]]]], np.float32))
    chosen = Settings(activation=Activation.RELU)
    assert pad.run(Command(Function.POOL_MAX, pad.room((1, 1, 2, 1)), x, settings=chosen)).ravel().tolist() == [0, 2]
    assert pad.machine.memories.view(x).ravel().tolist() == [-1, 2]


MISPLACED = [
    Command(Function.LOAD, nb(0, 2), nb(8, 2)),
    Command(Function.STORE, nb(0, 2), nb(8, 2)),
    Command(Function.MAP, ddr(0, 2), nb(8, 2)),
    Command(Function.MAP, nb(0, 2), ddr(8, 2)),
    Command(Function.CONVOLVE, nb(0, 1, 1, 1, 1), nb(8, 1, 1, 1, 1), nb(16, 1, 1, 1, 1, 1)),
    Command(Function.MAP, nb(0, 2), nb(8, 2), accumulate=True),
    Command(Function.MAP, nb(0, 2)),
    Command(Function.FILL, nb(0, 2), nb(8, 2)),
]


@pytest.mark.parametrize("command", MISPLACED, ids=lambda command: command.function.name)
def test_operands_out_of_reach_of_their_unit(command: Command) -> None:
    """A missing or superfluous operand, or one the unit cannot reach, is a fault before anything is written."""
    with pytest.raises(ExecutionFault, match=command.function.name):
        Scratchpad(64).machine.execute(command)


# Queues and semaphores.

TO_CP, TO_IO = 0, 1


def steps(items: Iterable[Item]) -> list[IssuedStep]:
    """Return the items as steps; their positions are the instruction numbers."""
    return [*(IssuedStep(pc, item, 0) for pc, item in enumerate(items)), IssuedStep(-1, None, 0)]


def double_buffered(machine: FunctionalMachine) -> list[Item]:
    """Return items that copy four blocks of DDR through two alternating buffers in NB to the second half of DDR."""
    machine.memories.write(0, np.arange(4, dtype=np.float32))
    items: list[Item] = []
    for block in range(4):
        items.append(Command(Function.LOAD, nb(0, 1), ddr(4 * block, 1)))
        items += [Post(Queue.IO, TO_CP), Wait(Queue.CP, TO_CP)]
        items.append(Command(Function.BINARY, nb(4, 1), nb(0, 1), nb(0, 1)))
        items += [Post(Queue.CP, TO_IO), Wait(Queue.IO, TO_IO)]
        items.append(Command(Function.STORE, ddr(16 + 4 * block, 1), nb(4, 1)))
    return items


def outcome(items: Iterable[Item], order: Order, machine: FunctionalMachine) -> Array:
    """Return the second half of DDR after the items."""
    run_items(steps(items), machine.execute, order=order)
    return machine.memories.view(ddr(16, 4)).copy()


@pytest.mark.parametrize("order", ORDERS)
def test_a_synchronised_program_gives_the_same_in_every_order(order: Order) -> None:
    """With all semaphores, the order of the queues does not change the result."""
    machine = Scratchpad(64).machine
    values = outcome(double_buffered(machine), order, machine)
    np.testing.assert_array_equal(values, [0, 2, 4, 6])


@pytest.mark.parametrize("direction", [TO_CP, TO_IO])
def test_a_missing_semaphore_shows_in_an_extreme_order(direction: int) -> None:
    """Without one direction of semaphores, program order still works and one of the extreme orders fails."""

    def values(order: Order) -> list[float]:
        machine = Scratchpad(64).machine
        items = [
            item
            for item in double_buffered(machine)
            if not (isinstance(item, (Wait, Post)) and item.semaphore == direction)
        ]
        return list(outcome(items, order, machine))

    assert values("program") == [0, 2, 4, 6]
    assert values("io-first") != [0, 2, 4, 6] or values("cp-first") != [0, 2, 4, 6]


@pytest.mark.parametrize("order", ORDERS)
def test_a_fence_orders_both_queues(order: Order) -> None:
    """Without semaphores, everything before a fence takes effect before everything after it."""
    machine = Scratchpad(64).machine
    items = double_buffered(machine)
    fenced = [Fence() if isinstance(item, Post) else item for item in items if not isinstance(item, Wait)]
    with_last = [thing for item in fenced for thing in ((Fence(), item) if isinstance(item, Command) else (item,))]
    np.testing.assert_array_equal(outcome(with_last, order, machine), [0, 2, 4, 6])


@pytest.mark.parametrize("order", ORDERS)
def test_a_wait_may_be_issued_before_its_post(order: Order) -> None:
    """A waiting queue does not stop the issue of the other queue's POST."""
    machine = Scratchpad(64).machine
    machine.memories.write(0, np.array([3], np.float32))
    items: list[Item] = [
        Wait(Queue.CP, 5, count=2),
        Command(Function.MAP, nb(4, 1), nb(0, 1)),
        Post(Queue.CP, 6),
        Command(Function.LOAD, nb(0, 1), ddr(0, 1)),
        Post(Queue.IO, 5),
        Post(Queue.IO, 5),
        Wait(Queue.IO, 6),
        Command(Function.STORE, ddr(16, 1), nb(4, 1)),
    ]
    assert outcome(items, order, machine)[0] == 3


@pytest.mark.parametrize("order", ORDERS)
def test_a_deadlock_names_both_instructions(order: Order) -> None:
    """A deadlock names instruction, queue and semaphore of both heads."""
    items: list[Item] = [
        Wait(Queue.IO, 2),
        Wait(Queue.CP, 7, count=3),
        Post(Queue.CP, 2),
        Post(Queue.IO, 7, count=3),
    ]
    with pytest.raises(Deadlock) as caught:
        outcome(items, order, Scratchpad(64).machine)
    assert "instruction 0 in queue IO waits for semaphore 2" in caught.value.what
    assert "instruction 1 in queue CP waits for semaphore 7 to be 3" in caught.value.what


def test_a_fault_names_its_instruction() -> None:
    """The message of a fault begins with the number of the instruction."""
    items: list[Item] = [Fence(), Command(Function.FILL, nb(100, 1))]
    with pytest.raises(ExecutionFault, match="instruction 1: bytes 100 to 103 of NB"):
        outcome(items, "program", Scratchpad(64).machine)


# Programs.

DOUBLE = """
    descriptor d0, ddr, float32, 1
    axis d0, 0, 4, 4
    descriptor d1, nb, float32, 1
    axis d1, 0, 4, 4
    set r1, 64
    load target=r0:d1, first=r0:d0
    post io, m0, 1
    wait cp, m0, 1
    binary target=r0:d1, first=r0:d1, second=r0:d1
    post cp, m1, 1
    wait io, m1, 1
    store target=r1:d0, first=r0:d1
    halt
"""


def program(text: str, ddr_bytes: int = 128) -> Program:
    """Return a program with four floats of input x at 0 and of output y at 64 in DDR."""
    code = assemble(text)
    count = len(code) // 16
    ports = [Port(name, address, FLOAT, (2, 2), (8, 4)) for name, address in (("x", 0), ("y", 64))]
    footprint = Footprint(ddr_bytes, 0, 64, 0, 0)
    return Program("test", code, ("one",), (0,) * count, (ports[0],), (ports[1],), footprint)


def machine_for(one: Program, order: Order = "program", budget_instructions: int = 1000) -> FunctionalMachine:
    """Return a machine with memories of the program's footprint."""
    memories = Memories({Space.DDR: one.footprint.ddr_bytes, Space.NB: one.footprint.nb_bytes})
    return FunctionalMachine(memories, order, budget_instructions)


X = np.array([[1, 2], [3, 4]], np.float32)


@pytest.mark.parametrize("order", ORDERS)
def test_a_program_gives_its_outputs(order: Order) -> None:
    """A run returns its outputs by name, and a second run returns the same."""
    one = program(DOUBLE)
    machine = machine_for(one, order)
    for _ in range(2):
        outputs = run(one, machine, (), {"x": X})
        np.testing.assert_array_equal(outputs["y"], 2 * X)


def test_constants_are_filled_in() -> None:
    """The content of `fill` is in DDR before the run."""
    one = program(DOUBLE)
    empty = Program(one.machine, one.code, one.layers, one.layer_of, (), one.outputs, one.footprint)
    outputs = run(empty, machine_for(one), [(0, X)], {})
    np.testing.assert_array_equal(outputs["y"], 2 * X)


def test_on_chip_memories_are_empty_at_the_start() -> None:
    """A program that reads NB before writing it reads zeros, even after another run."""
    one = program(DOUBLE)
    machine = machine_for(one)
    run(one, machine, (), {"x": X})
    forgetful = program("\n".join(line for line in DOUBLE.splitlines() if "load" not in line))
    np.testing.assert_array_equal(run(forgetful, machine, (), {"x": X})["y"], 0 * X)


def test_registers_come_from_memory_after_a_fence() -> None:
    """In every order, a register loaded from NB gets the value that was loaded into NB before the fence."""
    text = DOUBLE.replace(
        "    set r1, 64\n",
        """    descriptor d2, ddr, int64, 0
    descriptor d3, nb, int64, 0
    set r2, 32
    load target=r2:d3, first=r2:d2
    fence
    load_register r1, nb, int64, r2, 0
""",
    )
    one = program(text)
    for order in ORDERS:
        outputs = run(one, machine_for(one, order), [(32, np.array([64], np.int64))], {"x": X})
        np.testing.assert_array_equal(outputs["y"], 2 * X)


def test_an_endless_loop_ends_at_the_budget() -> None:
    """An endless loop stops after the instructions of the caller's budget."""
    one = program(
        "again:\n    fill target=r0:d1\n    jump again\n".replace("again:", DOUBLE.split("set")[0] + "again:")
    )
    with pytest.raises(BudgetExceeded):
        run(one, machine_for(one), (), {"x": X})


@pytest.mark.parametrize("inputs", [{}, {"x": X[0]}, {"x": X.astype(np.float64)}])
def test_inputs_that_do_not_fit(inputs: dict[str, Array]) -> None:
    """A missing input, another shape or another type raises an error that names the input."""
    one = program(DOUBLE)
    with pytest.raises(ExecutionFault, match="input x"):
        run(one, machine_for(one), (), inputs)


def test_memories_have_the_size_of_the_footprint() -> None:
    """Memories have exactly the compiled size; if the machine has less, the error names its parameter."""
    edge = load_preset("edge")
    footprint = Footprint(ddr_bytes=1000, llc_bytes=0, nb_bytes=500, sb_bytes=30, halo_bytes=0)
    memories = memories_for(edge, footprint)
    assert [memories.size_bytes(space) for space in Space] == [1000, 0, 500, 30, 0]
    with pytest.raises(DoesNotFit, match="SB") as caught:
        memories_for(edge, Footprint(0, 0, 0, (edge.nb_bytes + edge.sb_bytes) + 1, 0))
    assert "_bytes" in caught.value.next_step
