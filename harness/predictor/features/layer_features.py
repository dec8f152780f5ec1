"""The features of a layer that a predictor learns from: operator, shapes, window, groups, and derived sizes."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.errors import UsageError

Pair = tuple[int, int]
"""Height and width."""
LEAST_SAMPLES = 20
"""The fewest layers that a predictor learns from."""
CODE_LEVELS = 3
"""The first levels of a class name the code that a device runs; finer ones name only what is fused to it."""
INTEGER, UNFOLDED, UNSIGNED = "-integer", "-unfolded", "-unsigned"
"""Parts of the names of convolutions whose sums stay integers, and of those on bytes that have no separate kernel.

Both copy all windows of their map one after another, and multiply matrices, which takes twice as long with the third.
"""
RECURRENT = "mac/recurrent/steps"
"""The class of recurrent layers, which repeat one product: a table with any of them predicts the others."""
DEQUANTISED = "-dequantised"
"""A part of the names of products on floats whose weights are integers, which runtimes make floats at each run."""
FLOAT_WEIGHTS = "-rounded"
"""That of products of bytes whose weights are floats: runtimes round them as they load, to asymmetric bytes."""
NARROW = "-narrow"
"""That of convolutions on floats with maps of two axes whose channels no kernel on blocks reads, see `reads_blocks`."""
MULTIPLIED = f"multiplied{NARROW}"
"""The kind of depthwise ones among them, and of those with several outputs per channel: a product for each channel."""
PACKED = "-packed4-int8"
"""That of products of floats, quantised as the layer runs, with blocks of weights of four bits."""
_JUMP, _BYTE_JUMP, _START = 16, 64, 1024
"""Floats and bytes that are copied in the time of one jump, and floats in that in which a group's product starts."""
_MACS, _MACS_3D = 8, 20
"""Multiply-adds of ONNX Runtime in the time in which it copies an element of a window."""
_EACH = 8192
"""Multiply-adds in the time in which one of many products starts."""
_OTHER_AXES = ("-1d", "-3d")
_PRODUCT = "mac/product/"
WIDEST = 16
"""Channels in a block, or in the widest vector."""
_WORD, _LEAST_OUTPUTS, _SUM_BYTES = 4, 16, 4


@dataclass(frozen=True)
class LayerFeatures:
    """One layer as a loop nest over batch, groups, channels, output pixels and kernel taps.

    `operator` is any name that distinguishes layers that run different code, for instance "Conv" and "MaxPool". It may
    be a path of ever finer classes such as "mac/conv/dense/Relu": a rare class is learnt with its coarser classes.
    Sizes of layers without a batch, pixels or a window are 1. `weight_elements` is 0 for operators without weights;
    each step of a recurrent layer reads the weights of its state again, which counts. `extra_operands` counts further
    tensors of the output's shape that the layer reads, such as the other summand of a fused residual addition. `run`
    counts the elements that a layer moves or combines without a jump in memory, 0 where nothing interrupts it: a
    transposition of the last axis has runs of one element. `maps` counts the inputs that are feature maps,
    `Network.feature_maps`: other readers wait for their conversion. `warm` states that the layer finds its inputs,
    weights and code in the caches of a processor, as in a small network; with `cold_weights`, a warm layer reads its
    weights from memory. `result_elements` counts the elements of the result where
    they are not those of the loop nest: a transposed convolution adds up a larger product, which not every device
    writes. It is 0 elsewhere. `parts` counts the tensors that a layer joins or divides, or the steps of a recurrent
    one: each has a start of its own. `paged` states that a transposition reads or writes elements that are whole pages
    apart.
    """

    operator: str
    batch: int
    in_channels: int
    out_channels: int
    in_size: Pair
    out_size: Pair
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    groups: int = 1
    weight_elements: int = 0
    extra_operands: int = 0
    element_bytes: int = 4
    dilation: Pair = (1, 1)
    run: int = 0
    maps: int = 0
    warm: bool = False
    cold_weights: bool = False
    result_elements: int = 0
    parts: int = 1
    paged: bool = False

    def __post_init__(self) -> None:
        sizes = (self.batch, self.in_channels, self.out_channels, self.groups, self.element_bytes, self.parts)
        if min(*sizes, *self.in_size, *self.out_size, *self.kernel, *self.stride, *self.dilation) < 1:
            raise UsageError(
                f"Layer {self.operator} has a size below 1", why=str(self), next_step="Give every size as 1 or more"
            )
        if min(self.weight_elements, self.extra_operands, self.run, self.maps, self.result_elements) < 0:
            raise UsageError(f"Layer {self.operator} has a negative count", why=str(self), next_step="Give 0 or more")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise UsageError(
                f"{self.groups} groups do not divide the channels of {self.operator}",
                why=f"{self.in_channels} input and {self.out_channels} output channels",
                next_step="Give a number of groups that divides both",
            )

    @property
    def rows(self) -> int:
        """Output pixels over the whole batch."""
        return self.batch * self.out_size[0] * self.out_size[1]

    @property
    def columns(self) -> int:
        """Output channels of a group."""
        return self.out_channels // self.groups

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def is_channelwise(self) -> bool:
        """Whether each output channel reads one input channel, no other does, and no product is computed for it."""
        alone = self.groups == self.in_channels == self.out_channels
        return alone and not multiplies_windows(self.operator)

    @property
    def macs(self) -> int:
        """Multiply-adds including padding, or the operations of the same loop nest without weights."""
        return self.rows * self.out_channels * (self.in_channels // self.groups) * self.taps

    @property
    def in_bytes(self) -> int:
        """Bytes of the main input, without the rows between windows, which nothing reads."""
        skips = self.stride[0] > self.kernel[0]
        rows = min(self.in_size[0], self.out_size[0] * self.kernel[0]) if skips else self.in_size[0]
        return self.batch * self.in_channels * rows * self.in_size[1] * self.element_bytes

    @property
    def out_bytes(self) -> int:
        """Bytes of the output, in elements as wide as those of the input.

        Convolutions whose sums stay integers write four bytes for each; products of matrices do not count these.
        """
        return self.rows * self.out_channels * (_SUM_BYTES if INTEGER in self.operator else self.element_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return self.weight_elements * self.element_bytes

    @property
    def unfolded_bytes(self) -> int:
        """Bytes of windows that the layer copies before its product, with the time of jumps between them."""
        if (self.taps == 1 and self.stride == (1, 1)) or not unfolds(self.operator):
            return 0
        height, _ = self.kernel
        if multiplies_windows(self.operator):  # a line of a map is copied at once, for each tap
            lines = 0 if code_of(self.operator).endswith(_OTHER_AXES) else self.batch * self.out_size[0]
            copied = (self.rows + _JUMP * lines) * self.taps * self.in_channels
            return (copied + self.groups * _START) * self.element_bytes
        # Taps that lie together are copied at once: those of a line, but each of a group by itself.
        apart = UNFOLDED in self.operator and (self.groups > 1 or self.dilation[1] > 1)
        jumps = self.taps * self.groups if apart else height
        return self.rows * (self.taps * self.in_channels + _BYTE_JUMP * jumps) * self.element_bytes

    @property
    def copy_macs(self) -> int:
        """Multiply-adds that a core could do while it copies the windows of a layer, or starts one of many products.

        The copies (see `unfolded_bytes`) stay in its cache. Along three axes, the place of each element is computed.
        """
        if self.operator.startswith(_PRODUCT):
            return _EACH * self.groups if self.groups > 1 else 0
        if not multiplies_windows(self.operator):
            return 0
        each = _MACS_3D if code_of(self.operator).endswith("-3d") else _MACS
        return each * self.unfolded_bytes // self.element_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written at least once."""
        return self.in_bytes + self.weight_bytes + self.unfolded_bytes + self.out_bytes * (1 + self.extra_operands)


@dataclass(frozen=True)
class TrainingExample:
    """A measured layer to train on.

    `stderr_s` is the standard error of its latency. `sources` names the networks with this layer: the layers of one
    network are held out together, because a new network brings all of its layers together.
    """

    layer: LayerFeatures
    latency_s: float
    stderr_s: float = 0.0
    sources: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 0.0 < self.latency_s < float("inf"):
            raise UsageError(
                f"Latency {self.latency_s!r} s of {self.layer.operator} is not a positive, finite time",
                why="The predictor uses the logarithms of latencies",
                next_step="Omit layers that were not measured",
            )


@functools.lru_cache(maxsize=1 << 12)
def classes_of(operator: str) -> tuple[str, ...]:
    """Return the classes of an operator from coarse to fine, itself last."""
    parts = operator.split("/")
    return tuple("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def code_of(operator: str) -> str:
    """Return the class that names the code of an operator."""
    return classes_of(operator)[:CODE_LEVELS][-1]


def unfolds(operator: str) -> bool:
    """Return whether convolutions of this class copy the windows of their map before a product."""
    return INTEGER in operator or UNFOLDED in operator or multiplies_windows(operator)


def multiplies_windows(operator: str) -> bool:
    """Return whether layers of this class are convolutions on floats of one or three axes, or with computed weights.

    Runtimes have kernels for maps of two axes, groups of whole vectors and weights that they arrange beforehand. For
    all others, they copy windows and multiply matrices, each group by itself, even if it has one channel.
    """
    return operator.startswith("mac/conv/") and code_of(operator).endswith((*_OTHER_AXES, DEQUANTISED, NARROW))


def reads_blocks(kind: str, inputs: int, outputs: int, groups: int) -> bool:
    """Return whether runtimes have a kernel on blocks of channels for a convolution on floats.

    It has `inputs` in each group and `outputs` in all. Blocks are read by words of four channels. Fewer channels than a
    block, as those of an image, are read from the plain layout. Groups of several channels must be whole blocks.
    """
    if kind == "dense":
        return inputs < WIDEST or inputs % _WORD == 0
    if kind == "depthwise":
        return outputs % _WORD == 0
    return kind == "transposed" or inputs % WIDEST == outputs // groups % WIDEST == 0


def axes_suffix(axes: int) -> str:
    """Return what sets the class of code for maps of other than two spatial axes apart."""
    return "" if axes == 2 else f"-{axes}d"


def plane_of(sizes: Sequence[int]) -> Pair:
    """Return any number of spatial sizes as height and width."""
    return (math.prod(sizes[:-1]), sizes[-1]) if len(sizes) > 1 else (sizes[0] if sizes else 1, 1)


def moves_bytes(operator: str) -> bool:
    """Return whether layers of this class are convolutions on bytes, signed or unsigned, whatever they return."""
    return operator.startswith("mac/conv/") and any(part in operator for part in (INTEGER, "-int8", "-signed"))


def unfolding(kind: str, inputs: int, outputs: int, *, unsigned: bool) -> str:
    """Return the prefix of the type in the name of a convolution on bytes; kernels differ by channels and weights.

    Kernels of runtimes read windows in place where words of four `inputs` give at least a vector of `outputs`, and the
    weights are signed. Those of `unsigned` weights take longer.
    """
    if unsigned and kind != "grouped":
        return UNSIGNED if kind == "depthwise" else UNFOLDED + UNSIGNED
    in_words = inputs % _WORD == outputs % _WORD == 0 and outputs >= _LEAST_OUTPUTS
    return UNFOLDED if kind == "grouped" or (kind == "dense" and not in_words) else ""


def matrix_product(*, rows: int, depth: int, columns: int, batch: int = 1) -> LayerFeatures:
    """Return `batch` float32 products of shapes (rows, depth) and (depth, columns), each with its own right side."""
    return LayerFeatures(
        operator="MatMul",
        batch=1,
        in_channels=batch * depth,
        out_channels=batch * columns,
        in_size=(rows, 1),
        out_size=(rows, 1),
        groups=batch,
        weight_elements=batch * depth * columns,
    )


def recurrent(
    operator: str, *, steps: int, batch: int, inputs: int, state: int, columns: int, directions: int
) -> LayerFeatures:
    """Return a recurrent layer of `columns` gates: a product of all gates for each step, a group for each direction.

    A step needs the state of the one before it, so that it reads the weights of the state again, and has a start of its
    own.
    """
    found = matrix_product(rows=steps * batch, depth=inputs + state, columns=columns, batch=directions)
    read = directions * columns * (inputs + steps * state)
    return replace(found, operator=f"{RECURRENT}/{operator}", weight_elements=read, parts=steps * directions)


def channelwise(
    operator: str,
    *,
    batch: int,
    channels: int,
    in_size: Pair,
    out_size: Pair,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
) -> LayerFeatures:
    """Return a float32 operator without weights on single channels: pooling, activations, additions."""
    return LayerFeatures(
        operator=operator,
        batch=batch,
        in_channels=channels,
        out_channels=channels,
        in_size=in_size,
        out_size=out_size,
        kernel=kernel,
        stride=stride,
        groups=channels,
    )
