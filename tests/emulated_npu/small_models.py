"""Small ONNX models for tests, and their results by ONNX Runtime and by the graph of hardware layers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, helper, numpy_helper
from reference_graph import run_graph

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.numpy_types import Array

IR_VERSION = 8


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    """Return a node named as its output; inputs and outputs are separated by blanks, "-" is an absent one."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, output.split(), output.split()[0], **attributes)


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> ModelProto:
    """Return a model; inputs have the shapes and types of the arrays, outputs are float32 of inferred shape."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def by_runtime(proto: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of ONNX Runtime without graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more would start and wait busily, which takes longer than a small model
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, dict(inputs))
    return results


def assert_accounted(graph: Graph) -> None:
    """Assert that every node of the model is in exactly one layer or free."""
    members = Counter(name for layer in graph.layers for name in layer.nodes)
    members.update(graph.free_nodes)
    assert set(members.values()) <= {1}
    assert len(members) == graph.node_count


def imported(proto: ModelProto, inputs: Mapping[str, Array], tolerance: float = 2e-5, least: float = 1e-6) -> Graph:
    """Return the model's graph; assert that its results equal ONNX Runtime's, relative to the largest element.

    Elements below `least` count as large as it: where they are differences, they have the rounding of larger numbers.
    """
    graph = import_model(proto)
    assert_accounted(graph)
    found = run_graph(graph, inputs, {})
    wanted = dict(zip((value.name for value in proto.graph.output), by_runtime(proto, inputs), strict=True))
    for name, array in wanted.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype
        scale = max(float(np.abs(array).max()), least) if array.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(found[name].astype(float), array.astype(float), rtol=0, atol=tolerance * scale)
    return graph


def values(shape: Sequence[int], seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Return uniformly distributed float32 values."""
    return np.random.default_rng(seed).uniform(low, high, tuple(shape)).astype(np.float32)


def functions(graph: Graph) -> list[str]:
    """Return the functions of the layers in order, by name."""
    return [layer.function.name for layer in graph.layers]
