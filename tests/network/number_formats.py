"""Two small networks in the number formats that people export: half precision, QDQ, QOperator and dynamic."""

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto

from device_agents import arrays
from harness.network.assemble import AssembledModel
from harness.network.zoo.graph_builder import Convolution, GraphBuilder

FORMATS = ("float32", "float16", "qdq-u8", "qdq-s8-per-channel", "qoperator", "dynamic")
NETWORKS = ("residual", "attention")
_WIDTH, _LENGTH, _HEADS = 64, 16, 2


@functools.cache
def network_in(name: str, number_format: str) -> ModelProto:
    """Return one of NETWORKS in one of FORMATS, calibrated on random data."""
    model = {"residual": _residual, "attention": _attention}[name]()
    if number_format == "float32":
        return model
    if number_format == "float16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        return convert_float_to_float16(model)
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantised.onnx"
        onnx.save(model, source)
        _quantise(model, str(source), str(target), number_format)
        return onnx.load(target)


def executed(model: ModelProto | AssembledModel) -> GraphProto:
    """Return the graph that ONNX Runtime executes for a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    content = model.SerializeToString() if isinstance(model, ModelProto) else model.content
    if isinstance(model, AssembledModel):
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(arrays.make(spec.wire())) for spec in model.weights]
        options.add_external_initializers([spec.name for spec in model.weights], values)
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        entry = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{entry}_file_name", "optimised.weights")
        options.add_session_config_entry(f"{entry}_min_size_in_bytes", "1024")
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return onnx.load(f"{folder}/optimised.onnx", load_external_data=False).graph


def operators(graph: GraphProto) -> Counter[str]:
    """Return how often a graph has each operator."""
    return Counter(f"{node.domain}.{node.op_type}" for node in graph.node)


def _residual() -> ModelProto:
    graph = GraphBuilder("residual", 1)
    image = graph.input("image", (1, 3, 32, 32))
    x = graph.conv_bn("first", image, Convolution(3, 16, 3), "Relu")
    y = graph.conv_bn("left", x, Convolution(16, 16, 3), "Relu")
    y = graph.conv_bn("right", y, Convolution(16, 16, 3))
    x = graph.node("Relu", "sum.relu", graph.node("Add", "sum", y, x))
    x = graph.node("Flatten", "flat", graph.node("GlobalAveragePool", "pool", x))
    graph.output("scores", graph.gemm("classifier", x, (16, 10)), (1, 10))
    return graph.model()


def _attention() -> ModelProto:
    graph = GraphBuilder("attention", 2)
    x = graph.input("tokens", (1, _LENGTH, _WIDTH))
    heads = []
    for name in ("query", "key", "value"):
        linear = graph.linear(name, x, (_WIDTH, _WIDTH))
        split = graph.reshape(f"{name}.split", linear, (1, _LENGTH, _HEADS, _WIDTH // _HEADS))
        heads.append(graph.node("Transpose", f"{name}.heads", split, perm=[0, 2, 1, 3]))
    turned = graph.node("Transpose", "key.turned", heads[1], perm=[0, 1, 3, 2])
    weights = graph.node("Softmax", "weights", graph.node("MatMul", "scores", heads[0], turned), axis=-1)
    mixed = graph.node("Transpose", "merge", graph.node("MatMul", "mix", weights, heads[2]), perm=[0, 2, 1, 3])
    mixed = graph.reshape("merge.reshape", mixed, (1, _LENGTH, _WIDTH))
    x = graph.node("Add", "sum", graph.linear("project", mixed, (_WIDTH, _WIDTH)), x)
    x = graph.layer_norm_decomposed("norm", x, _WIDTH, epsilon=1e-5)
    graph.output("mixed", x, (1, _LENGTH, _WIDTH))
    return graph.model()


class _RandomData:
    def __init__(self, model: ModelProto) -> None:
        generator = np.random.default_rng(0)
        shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}
        self._feeds: Iterator[dict[str, Any]] = iter(
            [{name: generator.uniform(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}] * 2
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _quantise(model: ModelProto, source: str, target: str, number_format: str) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    if number_format == "dynamic":
        quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        return
    signed = number_format == "qdq-s8-per-channel"
    quantize_static(
        source,
        target,
        _RandomData(model),
        quant_format=QuantFormat.QOperator if number_format == "qoperator" else QuantFormat.QDQ,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=signed,
    )
