"""Random networks on small feature maps, and random machines and options to compile them for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from networks_on_npu import NO_MEMORY, NetworkCase, network_of, small_machine
from onnx import NodeProto
from small_models import node, values

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.numpy_types import Array


@st.composite
def machines_for(draw: st.DrawFn, network: NetworkCase) -> Machine:
    """Draw machines that hold several, one or a part of a network's largest feature map and weights."""
    nb_bytes = int(network.largest_map_bytes * draw(st.sampled_from((2, 1, 0.5, 4, 0.25, 0.7, 20)))) // 64 * 64 + 320
    largest = max((array.nbytes for array in network.weights.values()), default=0)
    cache_bytes = draw(st.sampled_from((0, 1 << 10, 16 << 10)))
    return small_machine(
        nb_bytes,
        int(largest * draw(st.sampled_from((4, 2, 1, 0.5, 10)))) // 64 * 64 + 320,
        nb_bytes // draw(st.sampled_from((2, 4, 8))) * draw(st.sampled_from((1, 1, 0))),
        draw(st.sampled_from(((4, 4), (8, 2), (32, 32)))),
        llc=replace(find_machine("edge").llc, bytes=cache_bytes) if cache_bytes else NO_MEMORY,
        io_queue_depth=draw(st.sampled_from((16, 1, 3))),
        cp_queue_depth=draw(st.sampled_from((16, 1, 3))),
        vfu_queue_depth=draw(st.sampled_from((0, 16, 1, 3))),
        io_outstanding=draw(st.sampled_from((1, 1, 4))),
    )


@st.composite
def all_options(draw: st.DrawFn) -> Options:
    """Draw all options that a user may force; tile sizes and chains may or may not suit the network."""
    return Options(
        chains=draw(st.sampled_from(("auto", "layers", "auto", "whole"))),
        halo=draw(st.sampled_from(("retain", "auto", "retain", "retain-columns", "recompute", "refetch"))),
        tile=draw(st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9))),
        residency=draw(st.sampled_from(("auto", "weights", "features", "smaller"))),
        reorder=draw(st.booleans()),
        fences=draw(st.sampled_from((False, False, True))),
    )


# --- random networks -----------------------------------------------------------------------------------------------

_Shape = tuple[int, int, int, int]


class _Sketch:
    """A network under construction: tensors of rank 4 by name, and the nodes that produce them."""

    def __init__(self, draw: st.DrawFn, shape: _Shape) -> None:
        self.draw = draw
        self.shapes: dict[str, _Shape] = {"x": shape}
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}

    def constant(self, array: Array) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def weights(self, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        return self.constant(values(shape, len(self.constants), low, high))

    def add(self, op: str, inputs: Sequence[str], shape: _Shape, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), name, **attributes))
        self.shapes[name] = shape
        return name

    def pick(self) -> str:
        """Draw a tensor, usually the newest."""
        names = list(self.shapes)[::-1]
        return self.draw(st.sampled_from((names[0], names[0], *names)))

    def windowed(self, size: int, most: int = 5) -> tuple[int, int, int, tuple[int, int], int] | None:
        """Draw kernel, stride, dilation, padding and output size along an axis, for an input of `size`."""
        kernel, stride = self.draw(st.integers(1, most)), self.draw(st.integers(1, 3))
        dilation = self.draw(st.sampled_from((1, 1, 2)))
        span = (kernel - 1) * dilation + 1
        pads = (self.draw(st.integers(0, kernel - 1)), self.draw(st.integers(0, kernel - 1)))
        reach = size + sum(pads) - span
        return None if reach < 0 else (kernel, stride, dilation, pads, reach // stride + 1)


def _convolution(sketch: _Sketch) -> None:
    source = sketch.pick()
    count, channels, *sizes = sketch.shapes[source]
    axes = [sketch.windowed(size) for size in sizes]
    groups = sketch.draw(st.sampled_from((1, 1, channels, math.gcd(channels, 2))))
    outputs = groups * sketch.draw(st.integers(1, 9 if groups == 1 else 2))
    if axes[0] is None or axes[1] is None:
        return
    kernel, strides, dilations, pads, out = zip(*(axis for axis in axes if axis is not None), strict=True)
    weights = sketch.weights(outputs, channels // groups, *kernel)
    bias = [sketch.weights(outputs)] if sketch.draw(st.booleans()) else []
    begins, ends = zip(*pads, strict=True)
    window = {"strides": list(strides), "dilations": list(dilations), "pads": [*begins, *ends]}
    name = sketch.add("Conv", [source, weights, *bias], (count, outputs, *out), group=groups, **window)
    if sketch.draw(st.booleans()):
        sketch.add(sketch.draw(st.sampled_from(("Relu", "Sigmoid", "HardSwish"))), [name], (count, outputs, *out))


def _pooling(sketch: _Sketch) -> None:
    source = sketch.pick()
    count, channels, *sizes = sketch.shapes[source]
    op = sketch.draw(st.sampled_from(("MaxPool", "AveragePool")))
    attributes: dict[str, Any] = {"count_include_pad": sketch.draw(st.integers(0, 1))} if op == "AveragePool" else {}
    axes = [sketch.windowed(size, 3) for size in sizes]
    if axes[0] is None or axes[1] is None:
        return
    kernel, strides, _, pads, _ = zip(*(axis for axis in axes if axis is not None), strict=True)
    begins, ends = zip(*pads, strict=True)
    ceil = sketch.draw(st.integers(0, 1))
    out = []
    for size, span, stride, pad in zip(sizes, kernel, strides, pads, strict=True):
        reach = size + sum(pad) - span
        if reach < 0:
            return
        windows = -(-reach // stride) + 1 if ceil else reach // stride + 1
        if (windows - 1) * stride >= size + pad[0]:  # versions of ONNX disagree on windows that begin behind the map
            return
        out.append(windows)
    attributes |= {"kernel_shape": list(kernel), "strides": list(strides), "pads": [*begins, *ends], "ceil_mode": ceil}
    sketch.add(op, [source], (count, channels, out[0], out[1]), **attributes)


def _residual(sketch: _Sketch) -> None:
    first = sketch.pick()
    same = [name for name, shape in sketch.shapes.items() if shape == sketch.shapes[first]]
    second = sketch.draw(st.sampled_from(same))
    sketch.add(sketch.draw(st.sampled_from(("Add", "Add", "Mul", "Max"))), [first, second], sketch.shapes[first])


def _concatenation(sketch: _Sketch) -> None:
    first = sketch.pick()
    axis = sketch.draw(st.sampled_from((1, 1, 2, 3)))

    def rest(name: str) -> Sequence[int]:
        return [size for place, size in enumerate(sketch.shapes[name]) if place != axis]

    same = [name for name in sketch.shapes if rest(name) == rest(first)]
    parts = [first, *sketch.draw(st.lists(st.sampled_from(same), min_size=1, max_size=2))]
    shape = list(sketch.shapes[first])
    shape[axis] = sum(sketch.shapes[name][axis] for name in parts)
    sketch.add("Concat", parts, (shape[0], shape[1], shape[2], shape[3]), axis=axis)


def _one_to_one(sketch: _Sketch) -> None:
    source = sketch.pick()
    shape = sketch.shapes[source]
    kind = sketch.draw(st.sampled_from(("Relu", "Sigmoid", "Softmax", "Scale", "LayerNormalization", "Transpose")))
    if kind == "Softmax":
        sketch.add(kind, [source], shape, axis=sketch.draw(st.integers(1, 3)))
    elif kind == "Scale":
        factor = sketch.weights(1, shape[1], 1, 1)
        sketch.add("Mul", [source, factor], shape)
    elif kind == "LayerNormalization":
        axis = sketch.draw(st.integers(2, 3))
        scale, shift = (sketch.weights(*shape[axis:]) for _ in range(2))
        sketch.add(kind, [source, scale, shift], shape, axis=axis, epsilon=0.1)
    elif kind == "Transpose":
        order = [0, *sketch.draw(st.permutations((1, 2, 3)))]
        moved = [shape[place] for place in order]
        sketch.add(kind, [source], (moved[0], moved[1], moved[2], moved[3]), perm=order)
    else:
        sketch.add(kind, [source], shape)


def _product(sketch: _Sketch) -> None:
    source = sketch.pick()
    count, channels, rows, depth = sketch.shapes[source]
    if sketch.draw(st.booleans()):
        columns = sketch.draw(st.integers(1, 9))
        name = sketch.add("MatMul", [source, sketch.weights(depth, columns)], (count, channels, rows, columns))
        if sketch.draw(st.booleans()):
            sketch.add("Add", [name, sketch.weights(columns)], (count, channels, rows, columns))
        return
    fitting = [name for name, shape in sketch.shapes.items() if shape[:2] == (count, channels) and shape[3] == depth]
    other = sketch.draw(st.sampled_from(fitting))
    columns = sketch.shapes[other][2]
    turned = sketch.add("Transpose", [other], (count, channels, depth, columns), perm=[0, 1, 3, 2])
    sketch.add("MatMul", [source, turned], (count, channels, rows, columns))


def _squeeze(sketch: _Sketch) -> None:
    source = sketch.pick()
    shape = sketch.shapes[source]
    pooled = sketch.add("GlobalAveragePool", [source], (*shape[:2], 1, 1))
    if sketch.draw(st.booleans()):
        sketch.add("Mul", [source, pooled], shape)


def _slice(sketch: _Sketch) -> None:
    source = sketch.pick()
    axis = sketch.draw(st.integers(1, 3))
    shape = list(sketch.shapes[source])
    start = sketch.draw(st.integers(0, shape[axis] - 1))
    step = sketch.draw(st.sampled_from((1, 1, 2)))
    end = sketch.draw(st.integers(start + 1, shape[axis]))
    shape[axis] = -(-(end - start) // step)
    numbers = [sketch.constant(np.array([number], np.int64)) for number in (start, end, axis, step)]
    sketch.add("Slice", [source, *numbers], (shape[0], shape[1], shape[2], shape[3]))


WINDOWS = (_convolution, _convolution, _convolution, _pooling, _residual, _concatenation)
"""Steps of networks whose layers can be chained."""

ALL_STEPS = (*WINDOWS, _convolution, _one_to_one, _product, _squeeze, _slice)


@st.composite
def random_networks(
    draw: st.DrawFn, steps: Sequence[Callable[[_Sketch], None]] = ALL_STEPS, most_nodes: int = 7, most_pixels: int = 24
) -> NetworkCase:
    """Draw nodes of all kinds on small feature maps; unread tensors are outputs, sometimes others, too."""
    pixels = st.sampled_from((most_pixels, most_pixels // 2, most_pixels - 1, *range(1, most_pixels)))
    sketch = _Sketch(draw, (1, draw(st.sampled_from((4, 1, 2, 3, 6, 8))), draw(pixels), draw(pixels)))
    for step in draw(st.lists(st.sampled_from(steps), min_size=min(3, most_nodes), max_size=most_nodes)):
        step(sketch)
    if not sketch.nodes:
        sketch.add("Relu", ["x"], sketch.shapes["x"])
    read = {name for each in sketch.nodes for name in each.input}
    outputs = [name for name in sketch.shapes if name not in read and name != "x"]
    also = draw(st.sampled_from(("", *(name for name in sketch.shapes if name not in {"x", *outputs}))))
    inputs = {"x": values(sketch.shapes["x"], 99)}
    network = network_of(sketch.nodes, inputs, sketch.constants, [*outputs, *filter(None, [also])])
    return replace(network, largest_map_bytes=4 * max(map(math.prod, sketch.shapes.values())))
