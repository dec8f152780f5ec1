"""Code generation: the control unit gets back exactly the items, from as few instructions as loops allow."""

from collections.abc import Iterable, Sequence

import pytest
from command_cases import compute, dense, load, moved, programs, store
from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.compiler.codegen.emit import emit
from device_agents.emulated_npu.isa.encoding import decode
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES, DataInstruction
from device_agents.emulated_npu.isa.sequencer import IssuedStep, sequence
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Operand, Post, Queue, Space, Wait
from device_agents.emulated_npu.unit_settings import Settings


def _steps(items: Sequence[Item]) -> list[IssuedStep]:
    """Return the code of items, after checking that the control unit issues exactly these items."""
    code, layers = emit(items)
    steps = list(sequence(code, layer_of=layers))
    assert [step.item for step in steps[:-1]] == list(items)
    return steps


def _instructions(items: Sequence[Item]) -> int:
    return len(emit(items)[0]) // INSTRUCTION_BYTES


@settings(max_examples=48)
@given(programs())
def test_the_control_unit_issues_exactly_the_items(items: list[Item]) -> None:
    """Items that are emitted and sequenced keep their addresses, descriptors, settings and layers."""
    _steps(items)


@settings(max_examples=15)
@given(st.lists(programs(), min_size=2, max_size=6))
def test_one_loop_nest_leaves_no_wrong_state_to_the_next(parts: list[list[Item]]) -> None:
    """Consecutive loop nests do not depend on the earlier contents of registers and slots."""
    _steps([item for part in (*parts, *parts[:2]) for item in part])


@settings(max_examples=36)
@given(st.lists(programs(), min_size=1, max_size=3), st.integers(0, 2))
def test_scarce_registers_and_slots(parts: list[list[Item]], more: int) -> None:
    """If a loop needs more registers or slots than there are, every iteration sets them again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("device_agents.emulated_npu.compiler.codegen.emit.REGISTERS", 16 + 12 * more)
        patch.setattr("device_agents.emulated_npu.compiler.codegen.emit.DESCRIPTOR_SLOTS", 9 + 3 * more)
        patch.setattr("device_agents.emulated_npu.compiler.codegen.emit.SETTINGS_SLOTS", 4)
        _steps([item for part in parts for item in part])


def test_no_items_are_a_program() -> None:
    """The empty program halts."""
    assert [step.item for step in sequence(emit([])[0])] == [None]


def test_every_instruction_belongs_to_the_layer_of_the_item_behind_it() -> None:
    """CONFIG instructions belong to the item that they prepare, loop ends to their loop."""
    items: list[Item] = [load(0, 64 * k, layer=4) for k in range(9)] + [compute(512, 0, layer=6)]
    code, layers = emit(items)
    assert len(layers) == len(code) // INSTRUCTION_BYTES
    data = [pc for pc, one in enumerate(decode(code)) if isinstance(one, DataInstruction)]
    assert [layers[pc] for pc in data] == [4, 6]
    assert layers == tuple(sorted(layers))
    assert layers[0] == 4
    assert layers[data[0] + 3] == 6


def _tiles(rows: int, columns: int) -> list[Item]:
    """Double-buffered tiles on a grid, synchronised."""
    return [
        item
        for row in range(rows)
        for column in range(columns)
        for item in (
            load(100 * (column % 2), 5000 * row + 100 * column),
            Post(Queue.IO, 0, layer=0),
            Wait(Queue.CP, 0, layer=0),
            compute(400 + 100 * (column % 2), 100 * (column % 2)),
            Post(Queue.CP, 1, layer=0),
            Wait(Queue.IO, 1, layer=0),
            store(900000 + 9000 * row + 200 * column, 400 + 100 * (column % 2)),
        )
    ]


def test_code_of_a_tiled_layer_does_not_grow_with_its_tiles() -> None:
    """A layer of a thousand tiles is loops, and an iteration of two tiles takes few CONTROL and CONFIG instructions."""
    assert _instructions(_tiles(50, 20)) == _instructions(_tiles(5, 8))
    steps = _steps(_tiles(50, 20))
    # In an iteration of two tiles: two loads and two stores advance, and a branch.
    assert sum(step.control for step in steps) <= 500 * 5 + 50 * 12 + 60


def test_unchanged_operands_take_no_instructions() -> None:
    """A repeated command is one instruction: its registers and slots are already set."""
    distinct = [compute(16 * k, 1024 + 16 * k) for k in (0, 1, 3, 2, 7)]
    once, twice = _instructions(distinct), _instructions([*distinct, *distinct[::-1]])
    assert twice == once + len(distinct)


def _bodies(body: Iterable[Command], count: int, steps: Sequence[Sequence[int]]) -> list[Item]:
    """Return a body `count` times, with each command advanced by its own steps (target, first)."""
    pairs = list(zip(body, steps, strict=True))
    return [
        moved(command, [index * step for step in (*own, 0, 0, 0)]) for index in range(count) for command, own in pairs
    ]


def test_more_moving_addresses_than_registers() -> None:
    """Five hundred addresses that advance equally are still a loop."""
    items = _bodies([load(8 * k, 77 * k * k) for k in range(500)], 4, [(4096, 640)] * 500)
    _steps(items)
    assert _instructions(items) < 500 * 4


def test_more_constant_addresses_than_registers() -> None:
    """A loop does not rely on the earlier contents of a register that its body overwrites."""
    before = [compute(16 * k, 7) for k in range(250, 300)]
    _steps([*before, *_bodies([compute(16 * k, 90000) for k in range(300)], 4, [(0, 64)] * 300), *before])


def test_more_courses_than_registers() -> None:
    """A body in which every address advances differently issues the right items, as a loop or not."""
    _steps(_bodies([load(8 * k, 77 * k * k) for k in range(300)], 3, [(k, 1000 + k) for k in range(300)]))


def test_more_courses_than_registers_around_an_inner_loop() -> None:
    """A body in which every address advances differently may contain a loop."""
    outer = [load(8 * k, 77 * k * k) for k in range(300)]
    inner = [compute(64 * k, 5000 + 128 * k) for k in range(30)]
    steps = [(k, 1000 + k) for k in range(300)] + [(3, 5)] * 30
    _steps(_bodies([*outer, *inner], 3, steps))


def _shaped(size: int, at: int, layer_settings: Settings = Settings()) -> Command:  # noqa: B008
    views = dense(Space.NB, size), dense(Space.NB, size)
    return Command(Function.MAP, Operand(views[0], at), Operand(views[1], 8192), settings=layer_settings)


def test_more_shapes_and_settings_than_slots() -> None:
    """Loops whose bodies use more descriptors and settings than there are slots set them again in every iteration."""
    many = [_shaped(1 + k, 16 * k, Settings(alpha=1.0 + k % 50, axes=k % 7)) for k in range(200)]
    items = _bodies(many, 5, [(8, 0)] * 200)
    inner = _bodies([_shaped(300 + k, 16 * k, Settings(beta=2.0 + k)) for k in range(20)], 6, [(0, 24)] * 20)
    nested = [moved(item, [7 * index, 0, 0, 0, 0]) for index in range(3) for item in [*items[:150], *inner, *inner[:1]]]
    _steps([*items, *inner, *nested, *items[:50]])


def test_negative_zero_stays_negative() -> None:
    """Settings that are equal as values but differ in their bits are not mixed up."""
    items = [_shaped(4, 16 * k, Settings(alpha=-0.0 if k % 2 else 0.0, mode=1)) for k in range(12)]
    found = [step.item for step in sequence(emit(items)[0])][:-1]
    signs = [str(item.settings.alpha) for item in found if isinstance(item, Command)]
    assert signs == ["0.0", "-0.0"] * 6
