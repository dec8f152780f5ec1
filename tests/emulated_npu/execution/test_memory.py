"""Views of memory: their content, and that they never reach outside."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, DoesNotFit, ExecutionFault
from device_agents.emulated_npu.execution.memory import Memories, resolve_view
from device_agents.emulated_npu.unit_commands import DataType, Descriptor, Operand, Space

SIZE = 512
HUGE = 1 << 62


def memories() -> Memories:
    """Return NB with bytes that count up, and a small DDR."""
    made = Memories({Space.NB: SIZE, Space.DDR: SIZE})
    made.write(0, np.arange(SIZE, dtype=np.uint8), Space.NB)
    return made


SMALL_AXES = st.lists(st.tuples(st.integers(1, 5), st.integers(-20, 20)), max_size=3)
ANY_AXES = st.lists(
    st.tuples(st.one_of(st.integers(-1, 9), st.integers(-HUGE, HUGE)), st.integers(-HUGE, HUGE)), max_size=8
)


def touched(axes: list[tuple[int, int]], item_bytes: int) -> list[int]:
    """Return every byte that the elements of a view touch, relative to its address, once per element."""
    steps = [[index * stride for index in range(size)] for size, stride in axes]
    return [sum(parts) + byte for parts in itertools.product(*steps) for byte in range(item_bytes)]


@given(SMALL_AXES, st.integers(0, SIZE), st.sampled_from([DataType.UINT8, DataType.INT32]))
def test_a_view_shows_the_bytes_at_its_strides(axes: list[tuple[int, int]], address: int, dtype: DataType) -> None:
    """Every element is the bytes at address + sum of index * stride, or the view is refused for reaching outside."""
    descriptor = Descriptor(Space.NB, dtype, tuple(a for a, _ in axes), tuple(b for _, b in axes))
    places = [address + byte for byte in touched(axes, dtype.bytes)]
    if min(places) < 0 or max(places) >= SIZE:
        with pytest.raises(ExecutionFault, match="NB"):
            memories().view(Operand(descriptor, address))
    else:
        view = memories().view(Operand(descriptor, address))
        assert view.tobytes() == bytes(place % 256 for place in places)


@given(ANY_AXES, st.one_of(st.integers(-SIZE, 2 * SIZE), st.integers(-HUGE, HUGE)), st.sampled_from(list(DataType)))
def test_no_view_reaches_outside(axes: list[tuple[int, int]], address: int, dtype: DataType) -> None:
    """For any sizes, strides and address there is a view inside the memory, of bounded size, or a fault."""
    descriptor = Descriptor(Space.NB, dtype, tuple(a for a, _ in axes), tuple(b for _, b in axes))
    arrays = {Space.NB: np.zeros(SIZE, np.uint8)}
    try:
        view = Memories.over(arrays).view(Operand(descriptor, address))
    except ExecutionFault:
        return
    low, high = np.lib.array_utils.byte_bounds(view)
    start = arrays[Space.NB].ctypes.data
    assert start <= low and high <= start + SIZE
    assert view.size <= 1 << 26


@given(SMALL_AXES, st.sampled_from([DataType.UINT8, DataType.INT32]))
def test_targets_that_overlap_themselves_are_refused(axes: list[tuple[int, int]], dtype: DataType) -> None:
    """A view that counts as disjoint touches no byte twice."""
    descriptor = Descriptor(Space.NB, dtype, tuple(a for a, _ in axes), tuple(b for _, b in axes))
    bytes_touched = touched(axes, dtype.bytes)
    assert not resolve_view(descriptor).disjoint or len(set(bytes_touched)) == len(bytes_touched)


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4), st.integers(1, 3))
def test_parts_of_dense_tensors_are_targets(order: list[int], dims: list[int], step: int) -> None:
    """Transposed, reversed and subsampled views of a dense tensor count as disjoint."""
    strides, stride = [0] * 4, 4
    for axis in order:
        strides[axis] = -stride if axis % 2 else stride
        stride *= dims[axis] * step
    assert resolve_view(Descriptor(Space.NB, DataType.FLOAT32, tuple(dims), tuple(strides))).disjoint


def test_a_target_that_overlaps_itself_cannot_be_written() -> None:
    """A stride of zero along several elements may be read, but writing it is a fault."""
    operand = Operand(Descriptor(Space.NB, DataType.INT32, (3,), (0,)), 8)
    assert memories().view(operand).tolist() == [0x0B0A0908] * 3
    with pytest.raises(ExecutionFault, match="overlaps itself"):
        memories().writable(operand)


def test_a_fault_names_memory_range_and_size() -> None:
    """The message names the memory, the range of bytes and the size."""
    with pytest.raises(ExecutionFault, match="bytes 508 to 515 of NB") as caught:
        memories().view(Operand(Descriptor(Space.NB, DataType.FLOAT64, (), ()), 508))
    assert "512 bytes" in caught.value.why


@pytest.mark.parametrize("dims", [(0,), (4, 0), (-1,)])
def test_axes_without_elements_are_refused(dims: tuple[int, ...]) -> None:
    """A view with an empty axis is a fault."""
    with pytest.raises(ExecutionFault, match="sizes"):
        memories().view(Operand(Descriptor(Space.NB, DataType.INT8, dims, (1,) * len(dims)), 0))


def test_windows_repeat_more_elements_than_their_memory_has() -> None:
    """All windows of 9x9 of a map of 22x22 are a view, although they have 33 times as many elements as the map."""
    content, size, edge = np.arange(SIZE, dtype=np.uint8), 22, 9
    places = (size - edge + 1, size - edge + 1, edge, edge)
    view = Memories.over({Space.NB: content}).view(
        Operand(Descriptor(Space.NB, DataType.UINT8, places, (size, 1, size, 1)), 0)
    )
    windows = np.lib.stride_tricks.sliding_window_view(content[: size * size].reshape(size, size), (edge, edge))
    assert view.size > SIZE and np.array_equal(view, windows)


def test_repetition_has_a_limit() -> None:
    """Strides of zero cannot repeat a byte into any number of elements: such a run exceeds its budget."""
    with pytest.raises(BudgetExceeded, match="repeats"):
        memories().view(Operand(Descriptor(Space.NB, DataType.INT8, (1 << 40, 1 << 40), (0, 0)), 0))


def test_constants_lie_dense_where_they_are_written() -> None:
    """`write` places row-major elements at any address of DDR, and refuses an array that does not fit."""
    made = memories()
    made.write(3, np.arange(6, dtype=np.int32).reshape(2, 3).T)
    view = made.view(Operand(Descriptor(Space.DDR, DataType.INT32, (6,), (4,)), 3))
    assert view.tolist() == [0, 3, 1, 4, 2, 5]
    for address in (-1, SIZE - 3):
        with pytest.raises(ExecutionFault, match="DDR"):
            made.write(address, np.zeros(1, np.int32))


def test_large_memories_cost_nothing_until_they_are_used() -> None:
    """A DDR of 4 GiB can be allocated and its last byte written."""
    made = Memories({Space.DDR: 1 << 32})
    made.write((1 << 32) - 1, np.ones(1, np.uint8))
    assert made.size_bytes(Space.DDR) == 1 << 32


@pytest.mark.parametrize("size_bytes", [1 << 60, 1 << 70, -1])
def test_memories_that_the_host_cannot_allocate(size_bytes: int) -> None:
    """A size that the host cannot allocate raises an error that names the memory."""
    with pytest.raises(DoesNotFit, match="DDR"):
        Memories({Space.DDR: size_bytes})
