"""A network as the hardware computes it: values, views of values, and hardware layers (S3.6).

All axes are ONNX's logical axes. Only `order` describes how a value lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import PLAIN, Settings

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.graph.odd_blocks import TransformedConvolution


@dataclass(frozen=True)
class LazyConstant:
    """A tensor that is computed when the network is loaded, by `compute` from the initializers `sources`.

    Compilation needs its type only. The loader computes its values. `quantised` has the integers that its elements are
    computed from, if the network stores integers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DataType
    sources: tuple[str, ...]
    compute: Callable[..., Any] = field(compare=False)
    quantised: QuantisedConstant | None = field(default=None, compare=False)


@dataclass(frozen=True)
class QuantisedConstant:
    """Integers that represent the numbers (integers - zero_point) x scale.

    Scale and zero point have one element, or one for each index of `axis`. Without a zero point it is 0.
    """

    integers: LazyConstant
    scale: LazyConstant
    zero_point: LazyConstant | None
    axis: int | None


@dataclass(frozen=True)
class Value:
    """A tensor in memory. `order` lists its axes from the outermost to the innermost: NCHW maps keep (0, 2, 3, 1).

    Several layers may write a value, each its own part (a concatenation). Other cores write a "received" value, at
    least in part: it keeps its address while the program runs. A "setup" value is written once, when the program is
    loaded, and keeps its address between runs.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DataType
    order: tuple[int, ...]
    kind: Literal["input", "constant", "activation", "received", "setup"]
    is_output: bool = False
    constant: LazyConstant | None = None


@dataclass(frozen=True)
class ViewAxis:
    """One axis of a view: it advances by `step` along the axis `base` of the value; without a base, it repeats."""

    size: int
    base: int | None = None
    step: int = 1


@dataclass(frozen=True)
class View:
    """Part of a value under other axes; no data move.

    The element at index i is the value's element at `start[b] + sum of step * i[a]` over the axes a with base b.
    Covers slices, splits, transpositions, squeezes, expansions, broadcasts and reshapes that divide axes.
    """

    value: str
    start: tuple[int, ...]
    axes: tuple[ViewAxis, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the view's axes."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def region(self) -> tuple[tuple[int, int], ...]:
        """The intervals of the view's axes."""
        return tuple((0, size) for size in self.shape)

    @cached_property
    def value_region(self) -> tuple[tuple[int, int], ...]:
        """The smallest region of the value that contains the view."""
        return self.value_region_of(self.region)

    def value_region_of(self, region: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Return the smallest region of the value that contains a region of the view."""
        low = list(self.start)
        high = [start + 1 for start in self.start]
        for axis, (first, stop) in zip(self.axes, region, strict=True):
            base, step = axis.base, axis.step
            if base is not None:
                begin, end = step * first, step * (stop - 1)
                low[base] += begin if begin < end else end
                high[base] += end if begin < end else begin
        return tuple(zip(low, high, strict=True))

    def base(self, axis: int) -> int:
        """Return the axis of the value along which `axis` advances; raises ValueError for a repeating axis."""
        base = self.axes[axis].base
        if base is None:
            raise ValueError(f"axis {axis} of the view of {self.value} repeats")
        return base


@dataclass(frozen=True)
class HardwareLayer:
    """One hardware layer: computed by one kind of command, in as many commands as the memories require.

    `inputs` by function, with the shapes:

    - CONVOLVE, convolution: first (N, C, spatial...), output (N, M, spatial...); `weights` of shape
      (M, C / groups, kernel...); spatial axes: 1 to 3.
    - CONVOLVE, matrix product (`matrix` is true): first (batch..., rows, K), output (batch..., rows, N); either
      `weights` of shape (K, N), or a second input (batch..., K, N).
    - DEPTHWISE: as convolution with groups == C; `weights` (M, 1, kernel...).
    - POOL_*, LRN: first (N, C, spatial...), output (N, C, spatial...). Kernels in `settings` are right-aligned in the
      triple: (1, kh, kw) for two spatial axes; `settings.pad` is the whole layer's leading padding.
    - COPY, MAP, BINARY, AFFINE, WHERE: every input has the shape of the output (broadcast by view axes).
    - TABLE: first has the shape of the output; second (2, n): breakpoints and values.
    - REDUCE: first; `settings.axes` refers to first's axes; the output has 1 there.
    - SOFTMAX, NORMALIZE: first (and for NORMALIZE scale and shift, broadcast to the output's shape).
    - GATHER: first (rows, row...) and second (index...) of integers; output (index..., row...).

    CONVOLVE and DEPTHWISE apply `scale_shift`, a constant (2, M), then add `residual`, which has the output's shape,
    then apply `settings.activation`. For products of integers `scale_shift` may be of INT32, and have a third row
    (`Command`). `factor_type` is the element type of the weights, or of the second input in their place. `nodes` are
    the names of the ONNX nodes that the layer computes; a copy that the compiler adds has none.
    """

    index: int
    name: str
    nodes: tuple[str, ...]
    function: Function
    inputs: tuple[View, ...]
    output: View
    settings: Settings = PLAIN
    weights: LazyConstant | None = None
    groups: int = 1
    matrix: bool = False
    scale_shift: LazyConstant | None = None
    residual: View | None = None
    factor_type: DataType = DataType.FLOAT32

    @property
    def fixed_weights(self) -> LazyConstant:
        """The weights; raises ValueError for a layer without weights."""
        if self.weights is None:
            raise ValueError(f"{self.name} has no weights")
        return self.weights

    @cached_property
    def reads(self) -> tuple[View, ...]:
        """Every view that the layer reads: the inputs and the residual."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)


@dataclass(frozen=True)
class Graph:
    """A network as hardware layers in topological order, with its values by name.

    `free_nodes` are ONNX nodes that became views; `node_count` counts all nodes of the model. In the part of a network
    that one core runs, other cores write some of the `foreign` values and read some of the `shared` values.
    `sliced` are by index the layers that are parts of a layer which several cores share: they are in no chain with
    others, and the memories delay their transfers for other cores.

    `setup` computes the values of kind "setup" once, when the program is loaded. `staged` values are stored off chip
    between writer and reader even if they fit on chip; `cached` values lie in the last-level cache if they fit. `dft`
    lists the convolutions that are computed by DFT.
    """

    values: Mapping[str, Value]
    layers: tuple[HardwareLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    free_nodes: tuple[str, ...]
    node_count: int
    foreign: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    sliced: frozenset[int] = frozenset()
    setup: Graph | None = None
    staged: frozenset[str] = frozenset()
    cached: frozenset[str] = frozenset()
    dft: tuple[TransformedConvolution, ...] = ()


def constant_value(constant: LazyConstant) -> Value:
    """Return a constant as a value, with its axes in memory in their order."""
    order = tuple(range(len(constant.shape)))
    return Value(constant.name, constant.shape, constant.dtype, order, "constant", constant=constant)
