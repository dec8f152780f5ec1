"""The memories of the machine as bytes, and strided views that never reach outside them.

Every access of the functional machine goes through `Memories.view`, which checks the whole extent of a view before
any byte is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, DoesNotFit, ExecutionFault
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import MAX_RANK, Descriptor, Operand, Space

ON_CHIP = frozenset({Space.NB, Space.SB, Space.HALO})
_WINDOW_ELEMENTS = 1 << 26
"""Elements that a view of a small memory may have: windows of 9x9 repeat each element of a map 81 times."""


@dataclass(frozen=True, slots=True)
class ResolvedView:
    """A descriptor as NumPy needs it. It touches bytes [low, high) from its address; `disjoint`: no byte twice."""

    space: Space
    low: int
    high: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    elements: int
    disjoint: bool


@lru_cache(maxsize=1 << 16)
def resolve_view(descriptor: Descriptor) -> ResolvedView:
    """Resolve a descriptor; raise ExecutionFault for a rank above 6 or an axis without elements."""
    dims, strides = descriptor.dims, descriptor.strides
    if len(dims) != len(strides) or len(dims) > MAX_RANK:
        raise ExecutionFault(f"a view has {len(dims)} sizes and {len(strides)} strides", f"there are {MAX_RANK} axes")
    if any(size < 1 for size in dims):
        raise ExecutionFault(f"a view has the sizes {dims}", "every axis needs at least one element")
    low, high = descriptor.extent
    # The stride of an axis with one element is never used and may be any number.
    used = tuple(stride if size > 1 else 0 for size, stride in zip(dims, strides, strict=True))
    return ResolvedView(
        space=descriptor.space,
        low=low,
        high=high,
        shape=dims,
        strides=used,
        dtype=NUMPY_TYPES[descriptor.dtype],
        elements=descriptor.elements,
        disjoint=_is_disjoint(dims, used, descriptor.dtype.bytes),
    )


def _is_disjoint(dims: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool:
    """Return whether elements cannot overlap: each axis, sorted by stride, steps over all that those before it span."""
    span = item_bytes
    for stride, size in sorted((abs(stride), size) for size, stride in zip(dims, strides, strict=True) if size > 1):
        if stride < span:
            return False
        span += (size - 1) * stride
    return True


def _zeros(space: Space, size_bytes: int) -> Array:
    try:
        return np.zeros(size_bytes, np.uint8)
    except (MemoryError, ValueError) as error:
        what = f"the host cannot allocate {size_bytes} bytes for {space.name}"
        raise DoesNotFit(what, "its memory is too small", f"describe a machine with less {space.name}") from error


class Memories:
    """One array of bytes per memory, zero at first; pages are allocated when touched."""

    def __init__(self, sizes: Mapping[Space, int]) -> None:
        """Allocate memories of `sizes` bytes, 0 by default. Raises DoesNotFit if the host lacks memory."""
        self._use({space: _zeros(space, sizes.get(space, 0)) for space in Space})

    @classmethod
    def with_one_buffer(cls, sizes: Mapping[Space, int]) -> Memories:
        """Allocate memories in which NB and SB are the same bytes at the same addresses; raise as the constructor."""
        memories = cls({**sizes, Space.NB: max(sizes.get(Space.NB, 0), sizes.get(Space.SB, 0)), Space.SB: 0})
        return cls.over({space: memories._arrays[Space.NB if space is Space.SB else space] for space in Space})

    @classmethod
    def over(cls, arrays: Mapping[Space, Array]) -> Memories:
        """Return memories over contiguous byte arrays of the caller, for instance between guard bytes."""
        memories = cls.__new__(cls)
        memories._use({space: arrays.get(space, np.zeros(0, np.uint8)) for space in Space})
        return memories

    def beside(self, other: Memories) -> Memories:
        """Return these on-chip memories with the DDR and LLC of `other`, a core of the same group."""
        external = frozenset(Space) - ON_CHIP
        return Memories.over({space: (other if space in external else self)._arrays[space] for space in Space})

    def _use(self, arrays: Mapping[Space, Array]) -> None:
        self._arrays = [arrays[space] for space in Space]
        on_chip = max(_WINDOW_ELEMENTS, *(arrays[space].size for space in ON_CHIP))
        largest = max(array.size for array in self._arrays)
        # Strides of zero would let a view have more elements than there is memory to compute them in.
        self._most_elements = [on_chip if space in ON_CHIP else largest for space in Space]

    def size_bytes(self, space: Space) -> int:
        """Return the size of a memory."""
        return int(self._arrays[space].size)

    def view(self, operand: Operand) -> Array:
        """Return the operand as an array that shares the memory; addresses need no alignment.

        Raises ExecutionFault if a byte lies outside its memory. Raises BudgetExceeded if repeated elements make the
        view larger than the largest memory on the same side, on the chip or off it; windows of a map on the chip may
        repeat more.
        """
        access, address = resolve_view(operand.descriptor), operand.address
        memory = self._arrays[access.space]
        if address + access.low < 0 or address + access.high > memory.size:
            raise ExecutionFault(
                f"bytes {address + access.low} to {address + access.high - 1} of {access.space.name} are out of bounds",
                f"{access.space.name} has {memory.size} bytes",
            )
        if access.elements > self._most_elements[access.space]:
            what = f"a view of {access.space.name} repeats its elements and has {access.elements} of them"
            why = f"at most {self._most_elements[access.space]} are possible"
            raise BudgetExceeded(what, why, "Run a smaller network, or time it without values")
        return np.ndarray(access.shape, access.dtype, memory, address, access.strides)

    def writable(self, operand: Operand) -> Array:
        """Return the same as `view`; also raise ExecutionFault if elements overlap, which makes writes ambiguous."""
        access = resolve_view(operand.descriptor)
        if not access.disjoint:
            what = f"a target in {access.space.name} overlaps itself"
            raise ExecutionFault(what, f"sizes {access.shape}, strides {access.strides} bytes")
        return self.view(operand)

    def write(self, address: int, array: Array, space: Space = Space.DDR) -> None:
        """Write the elements of `array` densely, in row-major order, at `address`.

        Raises ExecutionFault if they do not fit.
        """
        memory = self._arrays[space]
        if address < 0 or address + array.nbytes > memory.size:
            what = f"{array.nbytes} bytes at {address} do not fit in {space.name}"
            raise ExecutionFault(what, f"it has {memory.size} bytes")
        if array.size:
            np.copyto(np.ndarray(array.shape, array.dtype, memory, address), array)

    def clear_on_chip(self) -> None:
        """Fill NB, SB and HALO with zeros, as at the start of a run."""
        for space in ON_CHIP:
            self._arrays[space].fill(0)
