"""Built-in and random networks, compiled and run on the emulated NPU beside ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from small_models import IR_VERSION, by_runtime, model, node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.machine import Machine, Memory, Mfu, find_machine
from harness.network import zoo
from harness.network.models import LIGHT_FILES

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-4
"""Largest difference from ONNX Runtime, of the largest of its values."""

ROUNDINGS = 16
"""Rounding errors of the largest logit that two runtimes may differ by: the order of a sum is theirs to choose."""

ORDERS: tuple[Order, ...] = ("program", "io-first", "cp-first")
NO_MEMORY = Memory(0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class NetworkCase:
    """A model with its initializers, an input, and ONNX Runtime's result.

    `weights` are all initializers by name; `largest_map_bytes` is the size of the largest tensor between nodes.
    """

    model: bytes
    weights: Mapping[str, Array]
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    largest_map_bytes: int = 0


def execute(compiled: Compiled, network: NetworkCase, order: Order = "program") -> dict[str, Array]:
    """Return the outputs of a functional run in fresh memories."""
    functional = FunctionalMachine(memories_for(compiled.machine, compiled.program.footprint))
    return dict(run(compiled.program, functional, compiled.image(network.weights), network.inputs, order=order))


def relative_error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """Return the largest difference over the largest value, the worst of all outputs; assert equal shapes and types."""
    worst = 0.0
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape, name
        assert found[name].dtype == wanted.dtype, name
        difference = float(np.abs(found[name].astype(float) - wanted.astype(float)).max(initial=0.0))
        assert math.isfinite(difference), name
        worst = max(worst, difference / max(float(np.abs(wanted).max(initial=0.0)), 1e-6))
    return worst


# --- small machines ------------------------------------------------------------------------------------------------


def small_machine(
    nb_bytes: int = 16 << 10,
    sb_bytes: int = 8 << 10,
    halo_bytes: int = 4 << 10,
    array: tuple[int, int] = (4, 4),
    **changes: Any,
) -> Machine:
    """Return the edge preset with little memory, no last-level cache, and a small matrix unit."""
    edge = find_machine("edge")
    mfu = Mfu(*array, "dot-product", "row", 2)
    small: dict[str, Any] = {
        "nb_bytes": nb_bytes,
        "sb_bytes": sb_bytes,
        "halo_bytes": halo_bytes,
        "mfu": mfu,
        "llc": NO_MEMORY,
    }
    return replace(edge, name="small", **(small | changes))


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


def network_of(
    nodes: Sequence[NodeProto], inputs: Mapping[str, Array], constants: Mapping[str, Array], outputs: Sequence[str]
) -> NetworkCase:
    """Return a small network with all its weights."""
    proto = model(nodes, inputs, constants, outputs)
    expected = dict(zip(outputs, by_runtime(proto, inputs), strict=True))
    return NetworkCase(proto.SerializeToString(), constants, inputs, expected)


# --- built-in networks ---------------------------------------------------------------------------------------------

_SMALL_ELEMENTS = 1024
"""Arrays above this travel beside the model and not in it."""


def builtin_model(name: str) -> ModelProto:
    """Return a built-in network as its file has it; the light ones generate weights by ConstantOfShape."""
    if name in LIGHT_FILES:
        folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
        return onnx.load(folder / LIGHT_FILES[name])
    return zoo.build(name)


def with_varied_weights(proto: ModelProto, seed: int = 0) -> tuple[bytes, dict[str, Array]]:
    """Return the model with every ConstantOfShape replaced by seeded weights, and all initializers by name.

    Weights of products use He's scale, variances and scales lie around one, biases and means around zero.
    """
    rng = np.random.default_rng(seed)
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    users = {source: (each, place) for each in proto.graph.node[::-1] for place, source in enumerate(each.input)}
    made = [each for each in proto.graph.node if each.op_type == "ConstantOfShape"]
    for each in made:
        known[each.output[0]] = _varied(rng, tuple(map(int, known.pop(each.input[0]))), *_use(users, each.output[0]))
        proto.graph.node.remove(each)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(_stub(name, array) for name, array in known.items())
    inputs = [value for value in proto.graph.input if value.name not in {*known, *(each.input[0] for each in made)}]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(IR_VERSION, proto.ir_version)  # initializers are no inputs
    return proto.SerializeToString(), known


def _stub(name: str, array: Array) -> TensorProto:
    if array.size <= _SMALL_ELEMENTS:
        return numpy_helper.from_array(array, name)
    stub = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    stub.data_location = TensorProto.EXTERNAL
    stub.external_data.add(key="location", value="beside")
    return stub


def _use(users: Mapping[str, tuple[NodeProto, int]], name: str) -> tuple[str, int]:
    """Return operator and operand index of the reader of a weight, ignoring nodes that only change its shape."""
    user, place = users[name]
    while user.op_type in ("Unsqueeze", "Reshape"):
        user, place = users[user.output[0]]
    return user.op_type, place


def _varied(rng: np.random.Generator, shape: tuple[int, ...], op: str, place: int) -> Array:
    if (op, place) in (("Conv", 1), ("Gemm", 1)):  # every Gemm here has its weights transposed
        array = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
    elif (op, place) in (("BatchNormalization", 1), ("BatchNormalization", 4)) or op == "Mul":
        array = rng.uniform(0.5, 1.5, shape)
    else:
        array = rng.standard_normal(shape) * 0.1
    return np.asarray(array, np.float32)


@cache
def builtin_network(name: str, varied: bool = True) -> NetworkCase:
    """Return a built-in network with an input and ONNX Runtime's result; unmodified unless `varied`."""
    proto = builtin_model(name)
    if varied:
        content, weights = with_varied_weights(proto)
    else:
        content = proto.SerializeToString()
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    constants = {tensor.name for tensor in proto.graph.initializer}
    rng = np.random.default_rng(1)
    inputs = {}
    for value in proto.graph.input:
        if value.name not in constants:
            kind = value.type.tensor_type
            shape = [axis.dim_value for axis in kind.shape.dim]
            floats = kind.elem_type == TensorProto.FLOAT
            array = rng.standard_normal(shape, np.float32) if floats else rng.integers(0, 2, shape)
            inputs[value.name] = array.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if varied and proto.graph.node[-1].op_type == "Softmax":
        content = _unsaturated(proto, weights, inputs)
    return NetworkCase(content, weights, inputs, _by_runtime(content, weights if varied else {}, inputs))


def _unsaturated(proto: ModelProto, weights: dict[str, Array], inputs: Mapping[str, Array]) -> bytes:
    """Scale the last product so that the input of softmax has a deviation of one; else almost all outputs are 0."""
    output = proto.graph.output[0].name
    proto.graph.output[0].name = proto.graph.node[-1].input[0]
    logits = _by_runtime(proto.SerializeToString(), weights, inputs)[proto.graph.output[0].name]
    proto.graph.output[0].name = output
    last = next(each for each in proto.graph.node[::-1] if each.op_type in ("Conv", "Gemm"))
    reshaped = {each.output[0]: each.input[0] for each in proto.graph.node if each.op_type == "Reshape"}
    scaled = {reshaped.get(name, name) for name in last.input[1:]}
    for name in scaled:
        weights[name] = weights[name] / logits.std()
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in scaled]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend([*kept, *(_stub(name, weights[name]) for name in sorted(scaled))])
    content: bytes = proto.SerializeToString()
    return content


def saturated_softmaxes(network: NetworkCase) -> list[NodeProto]:
    """Return the Softmax nodes whose result is an output and whose input is so large that rounding errors change it."""
    proto = onnx.load_model_from_string(network.model)
    last = [each for each in proto.graph.node if each.op_type == "Softmax" and each.output[0] in network.expected]
    logits = with_outputs(network, [each.input[0] for each in last]).expected if last else {}
    return [each for each in last if ROUNDINGS * np.spacing(np.abs(logits[each.input[0]]).max()) > TOLERANCE]


def with_outputs(network: NetworkCase, names: Sequence[str]) -> NetworkCase:
    """Return the same network with the named tensors as additional outputs."""
    proto = onnx.load_model_from_string(network.model)
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    stubs = {each.name for each in proto.graph.initializer if each.data_location == TensorProto.EXTERNAL}
    beside = {name: network.weights[name] for name in stubs}
    content = proto.SerializeToString()
    return replace(network, model=content, expected=_by_runtime(content, beside, network.inputs))


def softmax_by_runtime(network: NetworkCase, softmax: NodeProto, logits: Array) -> Array:
    """Return ONNX Runtime's result of one Softmax node of the network for an input."""
    versions = onnx.load_model_from_string(network.model).opset_import
    opset = next(each.version for each in versions if each.domain == "")
    inputs = {softmax.input[0]: logits}
    return by_runtime(model([softmax], inputs, outputs=softmax.output, opset=opset), inputs)[0]


def _by_runtime(content: bytes, weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    beside = {name: array for name, array in weights.items() if array.size > _SMALL_ELEMENTS}
    arrays = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in beside.values()]
    if beside:
        options.add_external_initializers(list(beside), arrays)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))
