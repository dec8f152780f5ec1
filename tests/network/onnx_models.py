"""Small ONNX models for the tests of this folder, and functions that run them on ONNX Runtime."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from device_agents import arrays
from harness.host_runtime import open_session
from harness.network.assemble import AssembledModel
from harness.network.network import Network
from harness.network.reading.prepare import prepare
from harness.network.reading.read import check_model

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

Shape = Sequence[int | str]
IMAGE = (1, 4, 6, 6)
WEIGHT = np.linspace(-1, 1, 4 * 4 * 3 * 3, dtype=np.float32).reshape(4, 4, 3, 3)
FLOAT = TensorProto.FLOAT


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node from tensor names separated by spaces; `_` is an absent tensor."""
    reads, writes = ([name.replace("_", "") for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(op, reads, writes, f"{op} of {inputs}", **attributes)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    types: Mapping[str, int] | None = None,
    listed: Sequence[str] = (),
) -> ModelProto:
    """Return a model; tensors are float32 unless `types` has another type, `listed` initializers are also inputs."""
    known = types or {}
    arrays_of = {name: np.asarray(value) for name, value in (constants or {}).items()}
    values = [helper.make_tensor_value_info(name, known.get(name, FLOAT), shape) for name, shape in inputs.items()]
    for name in listed:
        kind = helper.np_dtype_to_tensor_dtype(arrays_of[name].dtype)
        values.append(helper.make_tensor_value_info(name, kind, arrays_of[name].shape))
    results = [helper.make_tensor_value_info(name, known.get(name, FLOAT), ()) for name in outputs]
    tensors = [numpy_helper.from_array(value, name) for name, value in arrays_of.items()]
    graph = helper.make_graph(nodes, "file", values, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def prepared(model: ModelProto, dims: Mapping[str, int] | None = None) -> Network:
    """Return the model as harness reads it."""
    return prepare(check_model("file", model, model.SerializeToString()), dims or {})


def network_of(*args: Any, dims: Mapping[str, int] | None = None, **options: Any) -> Network:
    """Return the network of `model_of`, prepared."""
    return prepared(model_of(*args, **options), dims)


def run_plain(model: ModelProto, feeds: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """Return values of tensors of a model, computed by ONNX Runtime without optimisation."""
    import onnxruntime

    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
    session = onnxruntime.InferenceSession(copy.SerializeToString(), _options("DISABLE_ALL"), ["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    feeds = {name: value for name, value in feeds.items() if name in wanted}
    return dict(zip(outputs, session.run(list(outputs), feeds), strict=True))


def run_assembled(model: AssembledModel, level: str = "DISABLE_ALL") -> tuple[list[Any], list[Any]]:
    """Return inputs and outputs of an assembled model, run with weights and inputs that a device generates."""

    options = _options(level)
    session = open_session(model.content, options, {spec.name: arrays.make(spec.wire()) for spec in model.weights})
    feeds = {spec.name: arrays.make(spec.wire()) for spec in model.inputs}
    return list(feeds.values()), session.run(None, feeds)


def _options(level: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    return options


UNARY = ("Relu", "Sigmoid", "Abs", "Identity", "Dropout", "Cast")
BINARY = ("Add", "Mul", "Sub")


@st.composite
def random_dags(draw: st.DrawFn, operators: Sequence[str] = (*UNARY, *BINARY, "Conv", "Split")) -> ModelProto:
    """Draw networks of up to a dozen nodes on one shape, with shared results, dead ends and several outputs."""
    tensors = ["in0", "in1"]
    written: list[str] = []
    nodes = []
    for index in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(operators))
        results = [f"t{index}"]
        reads = [draw(st.sampled_from(tensors[-5:])) for _ in range(2 if op in BINARY else 1)]
        extra: dict[str, Any] = {}
        if op == "Conv":
            reads, extra = [*reads, "weight"], {"pads": [1, 1, 1, 1]}
        if op == "Cast":
            extra = {"to": FLOAT}
        if op == "Split":  # two halves, joined again, so that every tensor keeps the shape
            halves = [f"half{index}a", f"half{index}b"]
            nodes.append(helper.make_node("Split", [*reads, "sizes"], halves, f"split{index}", axis=1))
            op, reads, extra = "Concat", halves[:: draw(st.sampled_from((1, -1)))], {"axis": 1}
            if draw(st.booleans()):
                reads = [reads[0], reads[0]]
        nodes.append(helper.make_node(op, reads, results, f"node{index}", **extra))
        tensors += results
        written += results
    real = [node.output[0] for node in nodes if node.op_type not in ("Identity", "Dropout", "Cast", "Split")]
    if not real:
        nodes.append(helper.make_node("Relu", [tensors[-1]], ["last"], "last"))
        real = ["last"]
    outputs = list(dict.fromkeys([draw(st.sampled_from(real)), *draw(st.lists(st.sampled_from(written), max_size=2))]))
    constants = {"weight": WEIGHT, "sizes": np.array([2, 2])}
    return model_of(nodes, {"in0": IMAGE, "in1": IMAGE}, outputs, constants)
