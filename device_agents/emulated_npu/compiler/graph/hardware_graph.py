"""The graph that the importer makes of an ONNX network: values, views of them, and hardware layers (S3.6).

Axes are ONNX's logical axes throughout; how a value lies in memory is its `order` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from device_agents.emulated_npu.unit_commands import PLAIN, DataType, Function, Settings

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.graph.odd_blocks import TransformedConvolution

_PART = "\x00written"


@dataclass(frozen=True)
class LazyConstant:
    """A tensor known when the network is loaded, made from the initializers `sources` by `compute`.

    Compilation needs its type alone; values are asked for when memory is filled.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DataType
    sources: tuple[str, ...]
    compute: Callable[..., Any] = field(compare=False)


@dataclass(frozen=True)
class Value:
    """A tensor in memory. `order` lists its axes from the outermost to the innermost: NCHW maps keep (0, 2, 3, 1).

    A value may be written by several layers (a concatenation), each its own part. What is "received" is written, at
    least in part, by other cores: it keeps its place for as long as the program runs. What is "setup" is written
    once, when the program is loaded, and keeps its place from run to run.
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
    """One axis of a view: `base` is the axis of the value that it walks along by `step`; None repeats."""

    size: int
    base: int | None = None
    step: int = 1


@dataclass(frozen=True)
class View:
    """Part of a value under other axes, without moving anything.

    The element at index i is the value's element at `start[b] + sum of step * i[a]` over the axes a with base b.
    Covers slices, splits, transpositions, squeezes, expansions, broadcasts and reshapes that divide axes.
    """

    value: str
    start: tuple[int, ...]
    axes: tuple[ViewAxis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the view's axes."""
        return tuple(axis.size for axis in self.axes)

    def base(self, axis: int) -> int:
        """The axis of the value that `axis` walks along; a repeating axis has none, which is an error to ask."""
        base = self.axes[axis].base
        if base is None:
            raise ValueError(f"axis {axis} of the view of {self.value} repeats")
        return base


@dataclass(frozen=True)
class HardwareLayer:
    """One hardware layer: what one kind of command computes, cut into as many commands as memory asks for.

    `inputs` by function, with the shapes:

    - CONVOLVE, convolution: first (N, C, spatial...), output (N, M, spatial...); `weights` of shape
      (M, C / groups, kernel...); spatial axes: 1 to 3.
    - CONVOLVE, matrix product (`matrix` is true): first (batch..., rows, K), output (batch..., rows, N); either
      `weights` of shape (K, N), or a second input (batch..., K, N).
    - DEPTHWISE: as convolution with groups == C; `weights` (M, 1, kernel...).
    - POOL_*, LRN: first (N, C, spatial...), output (N, C, spatial...). Kernels in `settings` are right-aligned in the
      triple: (1, kh, kw) for two spatial axes; `settings.pad` is the whole layer's leading padding.
    - COPY, MAP, BINARY, AFFINE, WHERE: every input has the shape of the output (broadcast by view axes).
    - REDUCE: first; `settings.axes` refers to first's axes; the output has 1 there.
    - SOFTMAX, NORMALIZE: first (and for NORMALIZE scale and shift, broadcast to the output's shape).
    - GATHER: first (rows, row...) and second (index...) of integers; output (index..., row...).

    `residual` is added in CONVOLVE and DEPTHWISE before the activation and has the output's shape; `scale_shift`
    is a Constant (2, M) applied before it. `settings.activation` comes last. `nodes` are the names of the ONNX
    nodes that it stands for: none, where the layer is a copy of our own.
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

    @property
    def fixed_weights(self) -> LazyConstant:
        """The weights of a layer that has them; to ask another is an error."""
        if self.weights is None:
            raise ValueError(f"{self.name} has no weights")
        return self.weights

    @property
    def reads(self) -> tuple[View, ...]:
        """Every view that it reads from values: the inputs and the residual."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)


@dataclass(frozen=True)
class Graph:
    """A network as hardware layers in topological order, with its values by name.

    `free_nodes` are ONNX nodes that became views; `node_count` all that the model has. Where it is the part of a
    network that one core runs, `foreign` are the values of which other cores write something, and `shared` those of
    which they read what is written here. Layers whose indices are in `alone` are chains by themselves.

    `setup` makes the values of kind "setup"; it runs once, when the program is loaded. `staged` values leave the core
    between those that write and those that read them, whatever fits on chip; `cached` ones lie in the last-level cache
    wherever they fit. `dft` are the convolutions that have become the layers of a DFT.
    """

    values: Mapping[str, Value]
    layers: tuple[HardwareLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    free_nodes: tuple[str, ...]
    node_count: int
    foreign: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    alone: frozenset[int] = frozenset()
    setup: Graph | None = None
    staged: frozenset[str] = frozenset()
    cached: frozenset[str] = frozenset()
    dft: tuple[TransformedConvolution, ...] = ()


def written_part(name: str) -> str:
    """The name, within a chain, of what the chain adds to a value of which it also reads what others have written."""
    return name + _PART


def whole_value(name: str) -> str:
    """The value that a name within a chain stands for."""
    return name.removesuffix(_PART)


def with_parts(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """The values, each under its name and that of its written part."""
    return {**values, **{written_part(name): value for name, value in values.items()}}
