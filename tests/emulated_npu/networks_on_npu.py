"""Built-in and random networks, compiled and run on the emulated NPU beside ONNX Runtime."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from small_models import IR_VERSION, by_runtime, model

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.machine import Machine, Memory, Mfu, find_machine
from device_agents.emulated_npu.numpy_types import Array
from harness.network import zoo
from harness.network.model_references import LIGHT_FILES

TOLERANCE = 1e-4
"""Largest difference from ONNX Runtime, of the largest of its values."""

ROUNDINGS = 16
"""Rounding errors of the largest logit that two runtimes may differ by: the order of a sum is theirs to choose."""

ORDERS: tuple[Order, ...] = get_args(Order)
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
    functional = FunctionalMachine(memories_for(compiled.machine, compiled.program.footprint), order)
    return dict(run(compiled.program, functional, compiled.image(network.weights), network.inputs))


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
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    beside = {name: array for name, array in weights.items() if array.size > _SMALL_ELEMENTS}
    arrays = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in beside.values()]
    if beside:
        options.add_external_initializers(list(beside), arrays)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))
