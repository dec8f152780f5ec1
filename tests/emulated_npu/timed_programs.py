"""Machines, commands and step lists for the tests of time, and a tick-by-tick machine to compare with."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from device_agents.emulated_npu.compiler.ordering.synchronise import SEMAPHORES
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Dataflow, Host, Machine, Memory, Mfu, Noise
from device_agents.emulated_npu.machine.parts import Cores, Interconnect, Packing, Vfu
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
from device_agents.emulated_npu.unit_settings import Settings

CYCLE_PS = 1000
ONE_CORE = Cores(1, 1, Interconnect(0.0, 0.0), Interconnect(0.0, 0.0))
_HOST = Host(0.0, 0.0, 1e9, 0.0, 0.0, Noise(0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0))


def machine(**changes: Any) -> Machine:
    """Return a machine without latency and start-up, on which a byte or an element takes one cycle of 1000 ps."""
    plain = Machine(
        name="plain",
        clock_hz=10**9,
        data_type=DataType.INT8,
        mfu=Mfu(4, 4, "dot-product", "none", 0),
        vfu=Vfu(1, 8, 0),
        nb_bytes=1 << 20,
        sb_bytes=1 << 20,
        shared_buffer=False,
        halo_bytes=1 << 16,
        llc=Memory(1 << 20, 4e9, 0.0, 1),
        ddr=Memory(1 << 30, 1e9, 0.0, 1),
        io_queue_depth=4,
        cp_queue_depth=4,
        issue_cycles=0,
        cores=ONE_CORE,
        host=_HOST,
    )
    return replace(plain, **changes)


def mfu(
    rows: int, columns: int, dataflow: Dataflow = "dot-product", packing: Packing = "none", startup: int = 0
) -> Mfu:
    """Return a matrix unit."""
    return Mfu(rows, columns, dataflow, packing, startup)


def operand(space: Space, *dims: int, address: int = 0, dtype: DataType = DataType.INT8) -> Operand:
    """Return a contiguous view, last axis innermost."""
    strides, stride = [], dtype.bytes
    for size in reversed(dims):
        strides.append(stride)
        stride *= size
    return Operand(Descriptor(space, dtype, dims, tuple(reversed(strides))), address)


def load(size: int, *, layer: int = 0, address: int = 0, space: Space = Space.DDR) -> Command:
    """Return a LOAD of `size` bytes into NB."""
    return Command(
        Function.LOAD, operand(Space.NB, size, address=address), operand(space, size, address=address), layer=layer
    )


def store(size: int, *, layer: int = 0, address: int = 0) -> Command:
    """Return a STORE of `size` bytes from NB into DDR."""
    target, source = operand(Space.DDR, size, address=address), operand(Space.NB, size, address=address)
    return Command(Function.STORE, target, source, layer=layer)


def compute(size: int, *, layer: int = 0, address: int = 0) -> Command:
    """Return a command on `size` elements in place on the VFU."""
    view = operand(Space.NB, size, address=address)
    return Command(Function.MAP, view, view, layer=layer)


def convolve(
    pixels: tuple[int, int],
    channels: int,
    columns: int,
    kernel: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    layer: int = 0,
) -> Command:
    """Return a convolution without padding."""
    height, width = ((p - 1) * s + k for p, s, k in zip(pixels, stride, kernel, strict=True))
    return Command(
        Function.CONVOLVE,
        operand(Space.NB, 1, *pixels, columns),
        operand(Space.NB, 1, height, width, channels),
        operand(Space.SB, 1, *kernel, channels, columns),
        settings=Settings(kernel=(1, *kernel), stride=(1, *stride)),
        layer=layer,
    )


def cached_load(size: int, *, layer: int = 0) -> Command:
    """Return a LOAD of `size` bytes from the last-level cache in its own queue."""
    return replace(load(size, layer=layer, space=Space.LLC), own_queue=True)


def compute_apart(size: int, *, layer: int = 0) -> Command:
    """Return a command on `size` elements on the VFU in its own queue."""
    return replace(compute(size, layer=layer), own_queue=True)


def steps_of(*items: Item, control: int = 0) -> list[IssuedStep]:
    """Return steps in program order, with `control` instructions before each."""
    return [IssuedStep(pc, item, control) for pc, item in enumerate(items)]


_KINDS = "llsccwpppf"
_RADICES = (len(_KINDS), 5, 9, 3, 12, 6, 2, 4, 4)
_ITEMS = st.integers(0, math.prod(_RADICES) - 1)


def digits(number: int, radices: Sequence[int]) -> Iterator[int]:
    """Yield the digits of a number, each below its radix: to draw each of them takes several times as long."""
    for radix in radices:
        number, digit = divmod(number, radix)
        yield digit


@st.composite
def programs(draw: st.DrawFn, shared_semaphores: bool = False, min_items: int = 0, queues: int = 2) -> list[IssuedStep]:
    """Draw programs that may deadlock; semaphore 0 leads from IO to CP and 1 back, unless all queues share them.

    With three queues, the MFU takes its commands from CP and the VFU from its own queue. With four, some loads are from
    the last-level cache, in its queue.
    """
    steps: list[IssuedStep] = []
    for _ in range(draw(st.integers(min_items, 24))):
        kind, layer, size, count, place, peer, shared, control, fence = digits(draw(_ITEMS), _RADICES)
        queue = Queue(place % queues)
        others = [other for other in Queue if other < queues and (queue, other) in SEMAPHORES]
        other = others[peer % len(others)]
        item: Item | None = None
        if _KINDS[kind] == "l" and queue is Queue.LLC:
            item = cached_load(size + 1, layer=layer - 1)
        elif _KINDS[kind] in "lsc":
            make = {"l": load, "s": store, "c": compute if queues == 2 else _on_a_unit(queue)}[_KINDS[kind]]
            item = make(size + 1, layer=layer - 1)
        elif _KINDS[kind] == "w":
            semaphore = shared if shared_semaphores else SEMAPHORES[other, queue]
            item = Wait(queue, semaphore, 1 + count // 2, layer - 1)
        elif _KINDS[kind] == "p":
            semaphore = shared if shared_semaphores else SEMAPHORES[queue, other]
            item = Post(queue, semaphore, 1 + count // 2, layer - 1)
        elif fence == 0:
            item = Fence(layer - 1)
        if item is not None:
            steps.append(IssuedStep(len(steps), item, control))
    return [*steps, IssuedStep(len(steps), None, 1)] if draw(st.booleans()) else steps


def _on_a_unit(queue: Queue) -> Callable[..., Command]:
    if queue is Queue.VFU:
        return compute_apart
    return lambda size, layer: convolve((1, size), 4, 4, layer=layer)


@st.composite
def sound_programs(draw: st.DrawFn, min_items: int = 1, queues: int = 2) -> list[IssuedStep]:
    """Draw programs that end on any machine: every WAIT has its units posted before it in program order."""
    spare: Counter[int] = Counter()
    kept: list[IssuedStep] = []
    for step in draw(programs(min_items=min_items, queues=queues)):
        if isinstance(step.item, Wait):
            if spare[step.item.semaphore] < step.item.count:
                continue
            spare[step.item.semaphore] -= step.item.count
        elif isinstance(step.item, Post):
            spare[step.item.semaphore] += step.item.count
        kept.append(step)
    return kept


def tick_by_tick(steps: Sequence[IssuedStep], described: Machine, lengths: Sequence[int], most: int) -> int | None:
    """Return the makespan in cycles by trying every action at every tick; None for a deadlock.

    `lengths`: cycles of each step on its unit.
    """
    depths = described.queue_depths
    queues: list[list[int]] = [[] for _ in Queue]
    free, semaphores = [0] * len(queues), [0] * len(SEMAPHORES)
    position, ready_at = 0, -1
    since: dict[int, int] = {}
    for now in range(most):
        moved = True
        while moved:
            moved = False
            while position < len(steps):
                item = steps[position].item
                if ready_at < 0:
                    ready_at = now + (steps[position].control + (item is not None)) * described.issue_cycles
                if now < ready_at:
                    break
                if isinstance(item, Fence):
                    if any(queues) or max(free) > now:
                        break
                elif item is not None:
                    own = described.queue_of(item.queue)
                    if len(queues[own]) >= depths[own]:
                        break
                    queues[own].append(position)
                position, ready_at = position + 1, -1
            heads = [number for number in range(len(queues)) if queues[number] and free[number] <= now]
            # Who has waited longer takes first, in the order of the queues where several came at the same tick.
            for number in sorted(heads, key=lambda each: (since.setdefault(queues[each][0], now), each)):
                if _acts(steps[queues[number][0]].item, semaphores):
                    free[number] = now + lengths[queues[number].pop(0)]
                    moved = True
                    break
        if position == len(steps) and not any(queues) and now >= max(free):
            return now
    return None


def _acts(item: Item | None, semaphores: list[int]) -> bool:
    if isinstance(item, Wait):
        if semaphores[item.semaphore] < item.count:
            return False
        semaphores[item.semaphore] -= item.count
    elif isinstance(item, Post):
        semaphores[item.semaphore] += item.count
    return True
