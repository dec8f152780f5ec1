"""The commands that the units of the machine execute: data commands on strided views, and synchronisation.

A command is an instruction with its registers and slots resolved. The compiler produces commands and encodes them; the
sequencer decodes a program into the same commands again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from device_agents.emulated_npu.unit_settings import PLAIN, Binary, Reduction, Settings

MAX_RANK = 6


class Space(enum.IntEnum):
    """The memories. HALO is the auxiliary buffer, a part of the SRAM of NB."""

    DDR = 0
    LLC = 1
    NB = 2
    SB = 3
    HALO = 4


class DataType(enum.IntEnum):
    """Element types in memory."""

    FLOAT32 = 0
    INT8 = 1
    INT32 = 2
    INT64 = 3
    BOOL = 4
    UINT8 = 5
    FLOAT16 = 6
    FLOAT64 = 7
    INT16 = 8
    UINT16 = 9

    @property
    def bytes(self) -> int:
        """Size of an element."""
        return _ITEM_BYTES[self]


_ITEM_BYTES = (4, 1, 4, 8, 1, 1, 2, 8, 2, 2)


class Queue(enum.IntEnum):
    """The instruction queues; each is in order and has one server.

    The VFU queue is the CP queue on a machine where both compute units share one, and the LLC queue is the IO queue on
    a machine where all transfers share one.
    """

    IO = 0
    CP = 1
    VFU = 2
    LLC = 3


SOURCES = ("first", "second", "third", "fourth")
_ANYWHERE = frozenset(Space)
EXTERNAL = frozenset({Space.DDR, Space.LLC})
_NEURONS = frozenset({Space.NB, Space.HALO})
_WEIGHTS = frozenset({Space.SB})
_SCRATCHPAD = _NEURONS | _WEIGHTS


@dataclass(frozen=True)
class FunctionRule:
    """What holds of all commands of a function; docs/isa.md describes what they compute.

    By default a function of the VFU that reads one operand, element by element.

    - `required`, `optional`: its operands beside the target. `reaches`: the memories in which the target and each
      source may lie.
    - `multiplies`: it sums products of its first and second operand, and takes scale, shift and addend.
    - `has_window`: it slides a window over spatial axes. `works_along_axes`: it combines the elements along the axes of
      its settings. `activates`: it ends with the activation of its settings, after work of its own.
    - `modes`: the values of `mode` in its settings, if they name functions.
    - `accumulates`: it may add to its target. `names_peer`: it names another core. `has_own_queue`: its commands may go
      to the queue of the VFU, or to that of the last-level cache.
    """

    required: tuple[str, ...] = SOURCES[:1]
    optional: tuple[str, ...] = ()
    reaches: tuple[frozenset[Space], ...] = (_NEURONS,) * 5
    multiplies: bool = False
    has_window: bool = False
    works_along_axes: bool = False
    activates: bool = False
    modes: frozenset[int] = frozenset()
    accumulates: bool = False
    names_peer: bool = False
    has_own_queue: bool = True


_ONE, _TWO, _THREE = SOURCES[:1], SOURCES[:2], SOURCES[:3]
_MOVED = (_SCRATCHPAD, _SCRATCHPAD)
_WITH_FACTORS = (_NEURONS, _NEURONS, _WEIGHTS, _NEURONS, _WEIGHTS)
_SUMS = FunctionRule(_TWO, ("third", "fourth"), multiplies=True, has_window=True, activates=True)
_POOL = FunctionRule(has_window=True, activates=True)


class Function(enum.IntEnum):
    """The functions of data commands, by opcode, each with its `rule`.

    0x20: IO, 0x30: CP on the MFU, 0x40: CP on the VFU.
    """

    rule: FunctionRule

    LOAD = 0x20, FunctionRule(reaches=(_ANYWHERE, EXTERNAL))
    STORE = 0x21, FunctionRule(reaches=(EXTERNAL, _ANYWHERE))
    GATHER = 0x22, FunctionRule(_TWO, reaches=(_ANYWHERE, _ANYWHERE, _ANYWHERE))
    SEND = 0x23, FunctionRule((), _ONE, (EXTERNAL, _ANYWHERE), names_peer=True, has_own_queue=False)
    RECEIVE = 0x24, FunctionRule((), reaches=(EXTERNAL,), names_peer=True, has_own_queue=False)
    CONVOLVE = 0x30, replace(_SUMS, reaches=_WITH_FACTORS, accumulates=True, has_own_queue=False)
    COPY = 0x40, FunctionRule(reaches=_MOVED)
    FILL = 0x41, FunctionRule((), reaches=_MOVED[:1])
    MAP = 0x42, FunctionRule()
    BINARY = 0x43, FunctionRule(_TWO, activates=True, modes=frozenset(map(int, Binary)))
    AFFINE = 0x44, FunctionRule(_THREE, activates=True)
    WHERE = 0x45, FunctionRule(_THREE, activates=True)
    REDUCE = 0x46, FunctionRule(works_along_axes=True, modes=frozenset(map(int, Reduction)))
    SOFTMAX = 0x47, FunctionRule(works_along_axes=True)
    NORMALIZE = 0x48, FunctionRule(_ONE, ("second", "third"), works_along_axes=True, activates=True)
    LRN = 0x49, FunctionRule(activates=True)
    POOL_MAX = 0x4A, _POOL
    POOL_AVERAGE = 0x4B, _POOL
    DEPTHWISE = 0x4C, _SUMS
    TABLE = 0x4D, FunctionRule(_TWO, activates=True)

    def __new__(cls, opcode: int, rule: FunctionRule = FunctionRule()) -> Function:
        """Return a member, an integer with a rule."""
        member = int.__new__(cls, opcode)
        member._value_, member.rule = opcode, rule
        return member

    @property
    def is_transfer(self) -> bool:
        """Whether it belongs to the class IO, else to CP."""
        return self < 0x30

    @property
    def is_vector(self) -> bool:
        """Whether it belongs to the class CP on the VFU."""
        return self >= 0x40

    @property
    def multiplies(self) -> bool:
        """Whether it sums products of its first and second operand; see `FunctionRule`."""
        return self.rule.multiplies


@dataclass(frozen=True)
class Descriptor:
    """The shape of a strided view: memory, element type, sizes, and strides in bytes.

    Strides may be zero (broadcast) or negative. A view of rank 0 has one element.
    """

    space: Space
    dtype: DataType
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        # Every lookup of a cost, a slot or a signature needs the hash.
        object.__setattr__(self, "_hash", hash((self.space, self.dtype, self.dims, self.strides)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Size of the elements, repeated ones included."""
        return math.prod(self.dims) * self.dtype.bytes

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The first byte and one past the last byte that the view touches, relative to its address."""
        low, high = 0, self.dtype.bytes
        for size, stride in zip(self.dims, self.strides, strict=True):
            if stride < 0:
                low += (size - 1) * stride
            else:
                high += (size - 1) * stride
        return low, high


@lru_cache(maxsize=1 << 16)
def descriptor_of(space: Space, dtype: DataType, dims: tuple[int, ...], strides: tuple[int, ...]) -> Descriptor:
    """Return the descriptor with these fields; equal ones are one object, so that look-ups compare no fields."""
    return Descriptor(space, dtype, dims, strides)


@dataclass(frozen=True)
class Operand:
    """A view at an address in bytes."""

    descriptor: Descriptor
    address: int

    @property
    def span(self) -> tuple[int, int]:
        """The address of the first byte and the one past the last byte that the view touches."""
        low, high = self.descriptor.extent
        return self.address + low, self.address + high


NO_PEER = -1


def plain_bytes(space: Space, address: int, size_bytes: int) -> Operand:
    """Return bytes in one run, as packed weights are."""
    return Operand(descriptor_of(space, DataType.UINT8, (size_bytes,), (1,)), address)


@dataclass(frozen=True)
class Command:
    """One data command.

    Operands by function, dims in this order (D, H, W: the spatial axes; C: channels):

    - LOAD, STORE: `target` and `first` have equal dims; LOAD reads DDR or LLC, STORE writes them.
    - SEND: target and first have equal dims; the target lies in DDR or LLC of the core `peer`, which receives a message
      when it is written. Without first the SEND moves nothing: its message announces a target that was written before,
      in memory that both cores share, or by a payload that this core has sent to another core of the peer's group.
      Or it says only that this core has ended a layer; the target is then any operand that this core accessed.
    - RECEIVE: blocks its queue until the next message of the core `peer` has arrived; the target is its payload.
    - GATHER: target (n, row...) = first (rows, row...) at the rows that second (n) holds.
    - CONVOLVE: target (D, H, W, M), first (D, H, W, C), second: weights (kd, kh, kw, C, M) in SB, third: addend before
      the activation (as target), fourth: scale and shift of every channel (2, M) in SB. With `accumulate` the products
      are added to the target. A matrix product is (1, 1, rows, K) by (1, 1, 1, K, N).
    - COPY (converts types), MAP: target and first. FILL: target, with alpha. Strides zero broadcast.
    - TABLE: target and first; second (2, n) has the breakpoints and values of a piecewise linear function.
    - BINARY: first, second. AFFINE: first * second + third. WHERE: second where first is true, else third.
    - REDUCE: target has size 1 along `axes`. SOFTMAX: first. NORMALIZE: (first - mean) / sqrt(variance + alpha)
      * second + third along `axes`; second and third are optional and have the dims of the target.
    - CONVOLVE and DEPTHWISE of bytes whose first operand is quantised with scale 1 add products of integers less their
      zero points. A fourth operand of INT32 then has two or three rows: a number that is added to the sums, the factor
      that makes them float32 (its bits), and the zero points of the weights, if they differ between channels.
    - LRN: first; channels are the last axis; alpha, beta, gamma (ONNX's bias), mode = size.
    - POOL_*: target (D, H, W, C), first (D, H, W, C). DEPTHWISE: target (D, H, W, C, m), first (D, H, W, C, m),
      second: weights (kd, kh, kw, C, m), fourth: scale and shift (2, C, m), third as in CONVOLVE; all in NB.

    All other operands have the dims of the target. Every CP command except FILL, COPY, REDUCE and SOFTMAX ends with the
    activation of its settings. Operands in NB may also lie in HALO (COPY). `peer` is the other core of SEND and
    RECEIVE, else NO_PEER. With `own_queue` a command of the VFU goes to the VFU queue instead of the CP queue, and a
    transfer between the last-level cache and the core to the LLC queue instead of the IO queue.
    `layer` is the hardware layer of the command, -1 for none; it is debugging information and not encoded.
    """

    function: Function
    target: Operand
    first: Operand | None = None
    second: Operand | None = None
    third: Operand | None = None
    fourth: Operand | None = None
    settings: Settings = PLAIN
    accumulate: bool = False
    peer: int = NO_PEER
    layer: int = -1
    own_queue: bool = False

    @property
    def queue(self) -> Queue:
        """The queue it is issued to."""
        if self.function < 0x30:
            return Queue.LLC if self.own_queue else Queue.IO
        return Queue.VFU if self.own_queue else Queue.CP

    @property
    def loads_packed_weights(self) -> bool:
        """Whether it moves packed weights, bytes in one run, to SB or on their way there to the last-level cache.

        A second factor of bytes has several axes.
        """
        if self.function is not Function.LOAD or self.first is None:
            return False
        target, source = self.target.descriptor, self.first.descriptor
        plain = target.dtype is source.dtype is DataType.UINT8 and target.strides == source.strides == (1,)
        return plain and target.space in (Space.SB, Space.LLC)

    def with_operands(self, operands: Mapping[str, Operand]) -> Command:
        """Return the command with other operands, by field; `dataclasses.replace` takes several times as long."""
        copied = object.__new__(Command)
        copied.__dict__.update(self.__dict__, **operands)
        return copied

    @property
    def sources(self) -> tuple[Operand, ...]:
        """The operands that it reads, without the target."""
        return tuple(item for item in (self.first, self.second, self.third, self.fourth) if item is not None)


@dataclass(frozen=True)
class _SemaphoreAccess:
    queue: Queue
    semaphore: int
    count: int = 1
    layer: int = -1


class Wait(_SemaphoreAccess):
    """At the head of `queue`: blocks until the semaphore is at least `count`, then lowers it by that."""


class Post(_SemaphoreAccess):
    """At the head of `queue`, when everything before it has finished: raises the semaphore by `count`."""


@dataclass(frozen=True)
class Fence:
    """The control unit issues nothing until all queues have drained."""

    layer: int = -1


Item = Command | Wait | Post | Fence
