"""Quantised networks for tests, built by hand and by ONNX Runtime's quantiser, and their results by ONNX Runtime."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from small_models import IR_VERSION, node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.numpy_types import Array

OPSET = 17


def integers(shape: Sequence[int], dtype: Any, seed: int = 0) -> Array:
    """Return uniformly distributed integers of the whole range of a type."""
    ends = np.iinfo(dtype)
    found: Array = np.random.default_rng(seed).integers(ends.min, ends.max, tuple(shape), dtype, endpoint=True)
    return found


def network(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Sequence[str] = ("y",),
    opset: int = OPSET,
) -> ModelProto:
    """Return a model whose nodes may be of ONNX Runtime's domain."""
    graph = helper.make_graph(
        list(nodes),
        "quantised",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def by_runtime(proto: ModelProto, inputs: Mapping[str, Array], optimised: bool = True) -> dict[str, Array]:
    """Return ONNX Runtime's outputs by name, with its integer kernels if it optimises the network."""
    try:
        session = _session(proto, optimised, "1")
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:  # of products of int8 and int8, which are exact
        session = _session(proto, optimised, "0")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _session(proto: ModelProto, optimised: bool, precision: str) -> onnxruntime.InferenceSession:
    """Return a session; without precision, processors without VNNI saturate uint8 times int8 at 16 bits."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", precision)
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED if optimised else level.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def on_npu(
    proto: ModelProto, inputs: Mapping[str, Array], machine: Machine | str = "edge"
) -> tuple[Compiled, dict[str, Array]]:
    """Return the compiled network and its outputs by name."""
    target = find_machine(machine) if isinstance(machine, str) else machine
    compiled = compile_model(proto.SerializeToString(), target)
    functional = FunctionalMachine(memories_for(compiled.machine, compiled.program.footprint))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    return compiled, run(compiled.program, functional, compiled.image(weights), inputs)


class _Samples(CalibrationDataReader):
    """A few seeded inputs, by which the quantiser chooses ranges."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._samples: Iterator[dict[str, Array]] = iter([{"x": values(shape, seed)} for seed in range(4)])

    def get_next(self) -> dict[str, Array] | None:  # type: ignore[override]
        return next(self._samples, None)


SCALES: Mapping[str, Array] = {
    "xs": np.array(0.031, np.float32),
    "zs": np.array(0.05, np.float32),
    "ys": np.array(0.37, np.float32),
    "xz": np.array(117, np.uint8),
    "zz": np.array(17, np.uint8),
    "yz": np.array(100, np.uint8),
}
"""Scales and zero points of tensors x, y and z in tests."""


def convolution(
    x: Any, w: Any, channels: int, zero: int, bias: bool, groups: int = 1
) -> tuple[list[NodeProto], dict[str, Array], dict[str, Array]]:
    """Return a QLinearConv of these types, its inputs and its constants; `channels` is the number of weight scales."""
    rng = np.random.default_rng(3)
    zeros = {np.uint8: (117, 100), np.int8: (-7, 9)}[x]
    constants = {
        "xs": np.float32(0.031),
        "xz": np.array(zeros[0], x),
        "w": integers((12, 6 // groups, 3, 3), w, 2),
        "ws": rng.uniform(0.001, 0.02, channels).astype(np.float32) if channels > 1 else np.float32(0.0123),
        "wz": np.full(channels if channels > 1 else (), zero, w),
        "ys": np.float32(0.37),
        "yz": np.array(zeros[1], x),
        "b": rng.integers(-5000, 5000, 12).astype(np.int32),
    }
    read = "x xs xz w ws wz ys yz" + " b" * bias
    one = node("QLinearConv", read, "y", pads=[1, 1, 1, 1], strides=[2, 1], group=groups)
    return [one], {"x": integers((2, 6, 11, 9), x)}, constants


def small_network() -> tuple[ModelProto, tuple[int, ...]]:
    """Return a float network with depthwise convolution, residual sum, pools, concatenation and Gemm, and its input."""
    rng = np.random.default_rng(7)

    def weights(*shape: int) -> Array:
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    constants = {
        "w0": weights(8, 3, 3, 3),
        "b0": weights(8, 1).reshape(8),
        "w1": weights(8, 1, 3, 3),
        "b1": weights(8, 1).reshape(8),
        "w2": weights(8, 8, 1, 1),
        "w3": weights(6, 16, 3, 3),
        "b3": weights(6, 1).reshape(6),
        "w4": weights(10, 6),
        "b4": weights(10, 1).reshape(10),
        "w5": weights(10, 5),
    }
    nodes = [
        node("Conv", "x w0 b0", "c0", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c0", "r0"),
        node("Conv", "r0 w1 b1", "c1", pads=[1, 1, 1, 1], group=8),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2"),
        node("Add", "c2 r0", "a"),
        node("MaxPool", "a", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", "a", "v", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", "m v", "k", axis=1),
        node("Conv", "k w3 b3", "c3", pads=[1, 1, 1, 1]),
        node("Sigmoid", "c3", "s3"),
        node("Mul", "c3 s3", "h3"),
        node("GlobalAveragePool", "h3", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w4 b4", "d", transB=1),
        node("MatMul", "d w5", "y"),
    ]
    shape = (1, 3, 16, 16)
    return network(nodes, {"x": values(shape)}, constants), shape


def quantised(
    proto: ModelProto,
    shape: Sequence[int],
    form: QuantFormat = QuantFormat.QDQ,
    activations: QuantType = QuantType.QUInt8,
    weights: QuantType = QuantType.QInt8,
    per_channel: bool = True,
    **extra: Any,
) -> ModelProto:
    """Return the network as ONNX Runtime quantises it, with ranges of a few seeded inputs."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "integer.onnx"
        onnx.save(proto, source)
        quantize_static(
            str(source),
            str(target),
            _Samples(shape),
            quant_format=form,
            activation_type=activations,
            weight_type=weights,
            per_channel=per_channel,
            extra_options=extra,
        )
        return onnx.load(target)
