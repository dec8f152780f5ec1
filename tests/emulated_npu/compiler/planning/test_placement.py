"""Operands address the elements of regions; buffers share addresses at different times and leave room for halos."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from small_models import node, values

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.graph.hardware_graph import View, ViewAxis
from device_agents.emulated_npu.compiler.graph.regions import Region
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime, allocate
from device_agents.emulated_npu.compiler.planning.memory_places import (
    Buffer,
    buffer_bytes,
    dense_strides,
    region_operand,
    view_operand,
)
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.execution.memory import Memories
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType, Space


@st.composite
def buffers(draw: st.DrawFn) -> tuple[Buffer, tuple[int, ...], Array, Memories]:
    """Draw a buffer that holds a part of a value densely, its order, and the part on logical axes."""
    extents = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    order = tuple(draw(st.permutations(range(len(extents)))))
    address = draw(st.integers(0, 40)) * 4
    origin = tuple(draw(st.integers(0, 9)) for _ in extents)
    buffer = Buffer(Space.NB, address, DataType.INT32, origin, dense_strides(extents, order, 4))
    memories = Memories(dict.fromkeys(Space, address + buffer_bytes(extents, DataType.INT32)))
    part: Array = np.arange(math.prod(extents), dtype=np.int32).reshape(extents)
    memories.write(address, np.ascontiguousarray(part.transpose(order)), Space.NB)
    return buffer, order, part, memories


def _regions(data: st.DataObject, buffer: Buffer, part: Array) -> Region:
    """Draw a region of the part in the buffer, on the value's axes."""
    region = []
    for first, size in zip(buffer.origin, part.shape, strict=True):
        low = data.draw(st.integers(0, size - 1))
        region.append((first + low, first + data.draw(st.integers(low + 1, size))))
    return tuple(region)


@given(st.data())
@settings(max_examples=75)
def test_a_region_is_that_part_of_the_value(data: st.DataObject) -> None:
    """The operand of a region addresses its elements in memory order, for any order of axes and start of the buffer."""
    buffer, order, part, memories = data.draw(buffers())
    region = _regions(data, buffer, part)
    shown = memories.view(region_operand(buffer, region, order))
    slices = tuple(slice(low - first, high - first) for (low, high), first in zip(region, buffer.origin, strict=True))
    assert np.array_equal(shown.ravel(), part[slices].transpose(order).ravel())


@given(st.data())
@settings(max_examples=75)
def test_a_view_walks_the_value(data: st.DataObject) -> None:
    """The operand of a view addresses the element at start + step * i, or one element along a repeating axis."""
    buffer, _, part, memories = data.draw(buffers())
    start, axes, slices = [], [], []
    for axis, (first, size) in enumerate(zip(buffer.origin, part.shape, strict=True)):
        step = data.draw(st.sampled_from((1, 2, -1)))
        count = data.draw(st.integers(1, -(-size // abs(step))))
        span = (count - 1) * abs(step)
        low = data.draw(st.integers(0, size - 1 - span))
        start.append(first + (low + span if step < 0 else low))
        axes.append(ViewAxis(count, axis, step))
        indices = range(low, low + span + 1, abs(step))
        slices.append(list(indices)[:: -1 if step < 0 else 1])
    if len(axes) < 6:
        axes.append(ViewAxis(3))
    view = View("v", tuple(start), tuple(axes))
    expected = (
        np.repeat(part[np.ix_(*slices)][..., None], 3, axis=-1) if len(axes) > part.ndim else part[np.ix_(*slices)]
    )
    region = tuple((data.draw(st.integers(0, size - 1)), size) for size in view.shape)
    shown = memories.view(view_operand(buffer, view, region))
    assert np.array_equal(shown, expected[tuple(slice(*interval) for interval in region)])


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9), st.integers(0, 9)), max_size=20))
@settings(max_examples=75)
def test_what_lives_at_the_same_time_does_not_overlap(drawn: list[tuple[int, int, int]]) -> None:
    """Addresses are aligned and below the top, and only buffers with disjoint lifetimes share them."""
    items = [Lifetime(str(place), size, min(a, b), max(a, b)) for place, (size, a, b) in enumerate(drawn)]
    addresses, top = allocate(items)
    assert set(addresses) == {item.name for item in items}
    for item in items:
        assert addresses[item.name] % 64 == 0
        assert addresses[item.name] + item.bytes <= top
        for other in items:
            if other is not item and other.first <= item.last and item.first <= other.last:
                low, high = addresses[item.name], addresses[other.name]
                assert low + item.bytes <= high or high + other.bytes <= low
    most = max(sum(aligned(item.bytes) for item in items if item.first <= step <= item.last) for step in range(10))
    assert top >= most


# Softmax over all of a map of 4 x 40 x 40 floats: 25600 bytes, twice. The halo of a row of tiles: 2 x 40 x 4 floats.
SOFTMAX_BYTES, HALO_BYTES = 51200, 1280


def _network() -> NetworkCase:
    nodes = [node("Conv", "x w", "t", pads=[1, 1, 1, 1]), node("Flatten", "t", "f"), node("Softmax", "f", "y")]
    return network_of(nodes, {"x": values((1, 4, 40, 40))}, {"w": values((4, 4, 3, 3))}, ["y"])


@pytest.mark.parametrize("nb_bytes", [SOFTMAX_BYTES, SOFTMAX_BYTES + HALO_BYTES - 64])
def test_layers_that_fit_alone_and_not_with_the_halo_of_another(nb_bytes: int) -> None:
    """The halo buffer reduces the room of every layer; the error has the demand and the remaining room."""
    machine = small_machine(nb_bytes=nb_bytes, halo_bytes=4096)
    with pytest.raises(DoesNotFit) as caught:
        compile_model(_network().model, machine, Options("layers", halo="retain", tile=(8, 40)))
    assert caught.value.what == f"y needs {SOFTMAX_BYTES} bytes of NB"
    assert caught.value.why == f"there are {nb_bytes - HALO_BYTES} beside {HALO_BYTES} of halo buffer"


def test_a_chain_whose_layers_have_no_room_alone() -> None:
    """A chained convolution that is not cut needs no halo, even if the forced cut would not fit."""
    machine = small_machine(nb_bytes=SOFTMAX_BYTES, halo_bytes=4096)
    network = _network()
    compiled = compile_model(network.model, machine, Options(halo="retain", tile=(8, 40)))
    assert len(compiled.chains) == 1
    assert compiled.decisions[0].singly_ps is None
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE
