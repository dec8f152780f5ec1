"""Random commands on small memories, and the pairs of them that conflict, found byte by byte."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import prod

from hypothesis import strategies as st
from timed_programs import digits

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
from device_agents.emulated_npu.unit_settings import Activation, Settings

_FUNCTIONS = (Function.LOAD, Function.STORE, Function.CONVOLVE, Function.COPY, Function.GATHER)
_SETTINGS = (Settings(), Settings(kernel=(1, 3, 3), pad=(0, 1, 1)), Settings(activation=Activation.CLIP, beta=6.0))


def dense(space: Space, *dims: int, dtype: DataType = DataType.INT8) -> Descriptor:
    """Return a view without gaps."""
    strides, step = [], dtype.bytes
    for size in reversed(dims):
        strides.append(step)
        step *= size
    return Descriptor(space, dtype, dims, tuple(reversed(strides)))


def load(target: int, source: int, size: int = 16, layer: int = 0) -> Command:
    """Return a LOAD from DDR to NB."""
    views = dense(Space.NB, size), dense(Space.DDR, size)
    return Command(Function.LOAD, Operand(views[0], target), Operand(views[1], source), layer=layer)


def store(target: int, source: int, size: int = 16, layer: int = 0) -> Command:
    """Return a STORE from NB to DDR."""
    views = dense(Space.DDR, size), dense(Space.NB, size)
    return Command(Function.STORE, Operand(views[0], target), Operand(views[1], source), layer=layer)


def compute(target: int, source: int, size: int = 16, layer: int = 0) -> Command:
    """Return a command from NB to NB on the CP queue."""
    view = dense(Space.NB, size)
    return Command(Function.MAP, Operand(view, target), Operand(view, source), layer=layer)


_RANKS, _MOST_DIM, _ADDRESSES = 4, 3, 61
_STRIDES = (0, 1, 4, 8, 12, 24, -4, -8, 48)
_TYPES = (DataType.INT8, DataType.INT32)


@cache
def operands(space: Space) -> st.SearchStrategy[Operand]:
    """Draw a dense, interleaved, broadcast or reversed view at one of a few addresses."""
    radices = (_RANKS, len(_TYPES), _ADDRESSES, *((_MOST_DIM, len(_STRIDES)) * (_RANKS - 1)))
    return st.integers(0, prod(radices) - 1).map(partial(_operand, space, radices))


def _operand(space: Space, radices: Sequence[int], number: int) -> Operand:
    rank, dtype, address, *shape = digits(number, radices)
    dims = tuple(1 + digit for digit in shape[: 2 * rank : 2])
    strides = tuple(_STRIDES[digit] for digit in shape[1 : 2 * rank : 2])
    return Operand(Descriptor(space, _TYPES[dtype], dims, strides), 200 + address)


_COMMAND_RADICES = (len(_FUNCTIONS), 2, 2, 2, len(_SETTINGS), 2, 4, 2)
_COMMANDS = st.integers(0, prod(_COMMAND_RADICES) - 1)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    """Draw a command of one of three layers or of none, with operands in spaces that its function allows."""
    number, spare, *has, settings, accumulate, layer, apart = digits(draw(_COMMANDS), _COMMAND_RADICES)
    function = _FUNCTIONS[number]
    targets = {Function.LOAD: (Space.NB, Space.SB), Function.STORE: (Space.DDR,)}.get(function, (Space.NB,))
    target = draw(operands(targets[spare % len(targets)]))
    first = draw(operands(Space.DDR if function in (Function.LOAD, Function.GATHER) else Space.NB))
    second = third = fourth = None
    if function is Function.CONVOLVE:
        second = draw(operands(Space.SB))
        third, fourth = (
            draw(operands(space)) if one else None for one, space in zip(has, (Space.NB, Space.SB), strict=True)
        )
    elif function is Function.GATHER:
        second = draw(operands(Space.NB))
    return Command(
        function,
        target,
        first,
        second,
        third,
        fourth,
        _SETTINGS[settings],
        function is Function.CONVOLVE and accumulate == 1,
        layer=layer - 1,
        own_queue=function.rule.has_own_queue and apart == 1,
    )


def conflicting_pairs(program: Sequence[Command]) -> list[tuple[int, int]]:
    """Return the positions (earlier, later) of commands that touch a common byte and of which one writes it."""
    writes = [_touched([command.target]) for command in program]
    reads = [_touched(command.sources) for command in program]
    return [
        (earlier, later)
        for later in range(len(program))
        for earlier in range(later)
        if writes[earlier] & (writes[later] | reads[later]) or reads[earlier] & writes[later]
    ]


def _touched(views: Iterable[Operand]) -> set[tuple[Space, int]]:
    """Return every byte that the views touch."""
    return {
        (view.descriptor.space, view.address + sum(offsets) + byte)
        for view in views
        for offsets in product(
            *(
                [i * stride for i in range(size)]
                for size, stride in zip(view.descriptor.dims, view.descriptor.strides, strict=True)
            )
        )
        for byte in range(view.descriptor.dtype.bytes)
    }


OPERANDS = ("target", "first", "second", "third", "fourth")


def moved(item: Item, offsets: Sequence[int]) -> Item:
    """Return the item with every operand's address moved by its offset; synchronisation is unchanged."""
    if not isinstance(item, Command):
        return item
    pairs = zip(OPERANDS, offsets, strict=True)
    views = {name: (getattr(item, name), offset) for name, offset in pairs}
    return replace(
        item,
        **{name: view and Operand(view.descriptor, view.address + offset) for name, (view, offset) in views.items()},
    )


@st.composite
def programs(draw: st.DrawFn) -> list[Item]:
    """Draw items in nested, ragged repetitions that advance by constants or alternate between two buffers."""
    waits = (Wait(Queue.CP, 0, layer=1), Wait(Queue.VFU, 2, layer=1))
    synchronisation = st.sampled_from((*waits, Post(Queue.IO, 0, layer=1), Fence(layer=0)))
    leaves: list[Item] = draw(st.lists(commands() | synchronisation, min_size=1, max_size=6))
    rng = random.Random(draw(st.integers(0, 2**32)))
    items = [item for _ in range(draw(st.integers(1, 4))) for item in _pattern(rng, leaves, 3)]
    for _ in range(draw(st.integers(0, 3))):
        items.insert(rng.randrange(len(items) + 1), moved(rng.choice(leaves), [rng.randrange(200) for _ in OPERANDS]))
    first = draw(st.integers(0, 5))
    return items[first : max(first + 1, len(items) - draw(st.integers(0, 5)))]


def _pattern(rng: random.Random, leaves: Sequence[Item], depth: int) -> list[Item]:
    """Draw one item, or a repeated body of patterns."""
    if depth == 0 or rng.random() < 0.2:
        return [rng.choice(leaves)]
    body = [item for _ in range(rng.randint(1, 3)) for item in _pattern(rng, leaves, depth - 1)]
    steps = [[rng.choice((0, 0, 16, 64, -8, 1000)) for _ in OPERANDS] for _ in body]
    buffers = [rng.choice((0, 0, 0, 512)) for _ in body]
    return [
        moved(item, [index * step + index % 2 * buffer for step in own])
        for index in range(rng.randint(2, 5))
        for item, own, buffer in zip(body, steps, buffers, strict=True)
    ]
