"""Networks, plans and runs of probes for the tests of this folder."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from device_agents import arrays
from harness.network.assemble import AssembledModel
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes

os.environ["ORT_DISABLE_TELEMETRY"] = "1"


@functools.cache
def cut_network(name: str) -> CutNetwork:
    """Return a built-in network, cut by default rules as for a device that reports no graph."""
    network = load_network(f"builtin:{name}")
    blocked = frozenset(tensor for tensor, kind in network.types.items() if len(kind.shape) == 4)
    return CutNetwork(network, cut(network, DEFAULT_RULES), blocked)


@functools.cache
def plan_of(name: str, auxiliary: AuxiliaryKind) -> ProbePlan:
    """Return the probe plan of one network."""
    return plan_probes([cut_network(name)], DEFAULT_RULES, auxiliary)


def graph_of(model: AssembledModel) -> GraphProto:
    """Return the graph that is sent."""
    return onnx.load_model_from_string(model.content).graph


def checkable(model: AssembledModel) -> ModelProto:
    """Return the model with its absent weights as inputs, so that the checker needs no file."""
    copy = onnx.load_model_from_string(model.content)
    absent = {spec.name for spec in model.weights}
    weights = [tensor for tensor in copy.graph.initializer if tensor.name in absent]
    kept = [tensor for tensor in copy.graph.initializer if tensor.name not in absent]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    copy.graph.input.extend(helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in weights)
    return copy


def bytes_of(values: Sequence[ValueInfoProto]) -> int:
    """Return the size of graph inputs or outputs in bytes."""
    return sum(
        math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        * helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize
        for value in values
    )


def run_on_onnxruntime(model: AssembledModel, optimised: str | None = None) -> list[Any]:
    """Return a model's outputs for generated weights and inputs; the runtime writes its graph to `optimised`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if optimised:
        options.optimized_model_filepath = optimised
    weights = [onnxruntime.OrtValue.ortvalue_from_numpy(arrays.make(spec.wire())) for spec in model.weights]
    if weights:
        options.add_external_initializers([spec.name for spec in model.weights], weights)
    session = onnxruntime.InferenceSession(model.content, options, ["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, {spec.name: arrays.make(spec.wire()) for spec in model.inputs})
    return outputs


def executed_by_openvino(model: AssembledModel) -> list[str]:
    """Return the kinds of the nodes that OpenVINO executes for a model, in an order of execution."""
    from device_agents.backends.onnx_bytes import with_weights
    from device_agents.backends.openvino.openvino_backend import openvino

    content = with_weights(model.content, {spec.name: arrays.make(spec.wire()) for spec in model.weights})
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    graph = core.compile_model(core.read_model(content), "CPU", settings).get_runtime_model()
    kinds = (one.get_rt_info()["layerType"] for one in graph.get_ordered_ops())
    return [kind for kind in (str(getattr(kind, "value", kind)) for kind in kinds) if kind != "Const"]
