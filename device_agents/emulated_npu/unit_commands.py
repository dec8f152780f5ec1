"""The commands that the units of the machine execute: data commands on strided views, and synchronisation.

A command is an instruction with its registers and slots resolved. The compiler produces commands and encodes them; the
sequencer decodes a program into the same commands again.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import lru_cache

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


class Function(enum.IntEnum):
    """The functions of data commands, by opcode. 0x20: IO, 0x30: CP on the MFU, 0x40: CP on the VFU."""

    LOAD = 0x20
    STORE = 0x21
    GATHER = 0x22
    SEND = 0x23
    RECEIVE = 0x24
    CONVOLVE = 0x30
    COPY = 0x40
    FILL = 0x41
    MAP = 0x42
    BINARY = 0x43
    AFFINE = 0x44
    WHERE = 0x45
    REDUCE = 0x46
    SOFTMAX = 0x47
    NORMALIZE = 0x48
    LRN = 0x49
    POOL_MAX = 0x4A
    POOL_AVERAGE = 0x4B
    DEPTHWISE = 0x4C
    TABLE = 0x4D

    @property
    def is_transfer(self) -> bool:
        """Whether it belongs to the class IO, else to CP."""
        return self < 0x30

    @property
    def is_vector(self) -> bool:
        """Whether it belongs to the class CP on the VFU."""
        return self >= 0x40

    @property
    def has_own_queue(self) -> bool:
        """Whether its commands may go to the queue of the VFU, or to that of the last-level cache."""
        return self.is_vector or self in (Function.LOAD, Function.STORE, Function.GATHER)


class Activation(enum.IntEnum):
    """Functions of one variable, for MAP and for epilogues; alpha and beta come from the settings."""

    NONE = 0
    RELU = 1
    LEAKY_RELU = 2  # alpha
    CLIP = 3  # alpha = low, beta = high
    SIGMOID = 4
    TANH = 5
    HARD_SIGMOID = 6  # max(0, min(1, alpha x + beta))
    HARD_SWISH = 7
    SWISH = 8  # x sigmoid(alpha x)
    GELU = 9  # exact, by erf
    GELU_TANH = 10
    ELU = 11  # alpha
    SELU = 12  # alpha, beta = gamma of ONNX
    SOFTPLUS = 13
    ERF = 14
    EXP = 15
    LOG = 16
    SQRT = 17
    RECIPROCAL = 18
    NEGATE = 19
    ABS = 20
    FLOOR = 21
    CEIL = 22
    ROUND = 23  # to even
    SIGN = 24
    NOT = 25
    SOFTSIGN = 26
    MISH = 27
    SIN = 28
    COS = 29
    SCALE = 30  # alpha x + beta
    CELU = 31  # alpha
    THRESHOLDED_RELU = 32  # alpha
    TAN = 33
    ASIN = 34
    ACOS = 35
    ATAN = 36
    SINH = 37
    COSH = 38
    ASINH = 39
    ACOSH = 40
    ATANH = 41


class Binary(enum.IntEnum):
    """Functions of two variables, the `mode` of BINARY."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3  # of integers: toward zero
    POWER = 4
    MAXIMUM = 5
    MINIMUM = 6
    EQUAL = 7
    LESS = 8
    LESS_EQUAL = 9
    GREATER = 10
    GREATER_EQUAL = 11
    AND = 12
    OR = 13
    XOR = 14
    MODULO = 15  # of integers: the sign of the divisor; of floats: of the dividend
    PRELU = 16  # a where a >= 0, else a b
    FLOOR_MODULO = 17  # the sign of the divisor
    TRUNCATED_MODULO = 18  # the sign of the dividend


class Reduction(enum.IntEnum):
    """The `mode` of REDUCE."""

    SUM = 0
    MEAN = 1
    MAXIMUM = 2
    MINIMUM = 3
    PRODUCT = 4
    SUM_SQUARE = 5
    L1 = 6
    L2 = 7
    ARGMAX = 8


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

    @property
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


Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Quantisation:
    """Integers that represent numbers, as in ONNX: the number is (integer - zero_point) x scale.

    `scale` is a positive float32. With scale 0 the elements are the numbers themselves.
    """

    scale: float = 0.0
    zero_point: int = 0


UNQUANTISED = Quantisation()


@dataclass(frozen=True)
class Settings:
    """The configuration of a unit, which CONFIG instructions write into a slot.

    Windows have three spatial axes. `pad` is the padding before the first element of each axis; the padding after the
    last one follows from the output size. `axes` is a bit mask of the axes of REDUCE, SOFTMAX and NORMALIZE. `mode` is
    a Binary, a Reduction, 1 for log-softmax, the window of LRN, or 1 for average pooling that counts the padding.
    The quantisation of an operand makes the unit convert its integers to float32 where it reads them, and its float32
    results to integers where it writes them.
    """

    kernel: Triple = (1, 1, 1)
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    pad: Triple = (0, 0, 0)
    activation: Activation = Activation.NONE
    axes: int = 0
    mode: int = 0
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    quantised_target: Quantisation = UNQUANTISED
    quantised_first: Quantisation = UNQUANTISED
    quantised_second: Quantisation = UNQUANTISED
    quantised_third: Quantisation = UNQUANTISED

    def __post_init__(self) -> None:
        # Every lookup of a cost needs the hash, and nearly all settings have no quantised operand.
        triples = (self.kernel, self.stride, self.dilation, self.pad)
        numbers = (self.activation, self.axes, self.mode, self.alpha, self.beta, self.gamma)
        codes = (self.quantised_target, self.quantised_first, self.quantised_second, self.quantised_third)
        object.__setattr__(self, "_hash", hash((triples, numbers, codes)))
        object.__setattr__(self, "_quantises", any(code.scale for code in codes))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    @property
    def quantises(self) -> bool:
        """Whether any operand is quantised."""
        return self._quantises  # type: ignore[attr-defined, no-any-return]


PLAIN = Settings()

NO_PEER = -1


@dataclass(frozen=True)
class Command:
    """One data command.

    Operands by function, dims in this order (D, H, W: the spatial axes; C: channels):

    - LOAD, STORE: `target` and `first` have equal dims; LOAD reads DDR or LLC, STORE writes them.
    - SEND: target and first have equal dims; the target lies in DDR or LLC of the core `peer`, which receives a message
      when it is written. Without first the SEND moves nothing: its message announces a target that was written before,
      in memory that both cores share, or by a payload that this core has sent to another core of the peer's group.
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
