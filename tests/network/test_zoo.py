"""The zoo builds networks that are valid, runnable, and of the published size."""

import functools
import importlib
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper, shape_inference

from harness.network import zoo

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before onnxruntime is imported, which happens inside `run`

VOCABULARY = 30522
PARAMETERS = {
    "mobilenetv2": 3_504_872,
    "resnet18": 11_689_512,
    "efficientnet_b0": 5_288_548,
    "dscnn": 23_756,
    "vit_tiny": 5_717_416,
    "bert_mini": 11_170_560,
}
MULTIPLY_ADDS = {  # published, rounded as there; BERT-Mini has no published figure
    "mobilenetv2": 0.301e9,
    "resnet18": 1.814e9,
    "efficientnet_b0": 0.386e9,
    "dscnn": 2.7e6,
    "vit_tiny": 1.26e9,
}
OUTPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "mobilenetv2": {"logits": (1, 1000)},
    "resnet18": {"logits": (1, 1000)},
    "efficientnet_b0": {"logits": (1, 1000)},
    "dscnn": {"probabilities": (1, 12)},
    "vit_tiny": {"logits": (1, 1000)},
    "bert_mini": {"last_hidden_state": (1, 128, 256), "pooler_output": (1, 256)},
}
INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "mobilenetv2": {"input": (1, 3, 224, 224)},
    "resnet18": {"input": (1, 3, 224, 224)},
    "efficientnet_b0": {"input": (1, 3, 224, 224)},
    "dscnn": {"input": (1, 1, 49, 10)},
    "vit_tiny": {"input": (1, 3, 224, 224)},
    "bert_mini": {"input_ids": (1, 128), "attention_mask": (1, 128)},
}

Arrays = dict[str, NDArray[Any]]
every_network = pytest.mark.parametrize("name", zoo.NAMES)


@functools.cache
def built(name: str) -> ModelProto:
    """Return the network with the default seed, built once; tests do not change it."""
    return zoo.build(name)


@functools.cache
def session(name: str) -> Any:
    """Return a single-threaded ONNX Runtime session of the network."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(built(name).SerializeToString(), options, providers=["CPUExecutionProvider"])


def inputs(name: str, seed: int) -> Arrays:
    """Return random inputs of the network; no token is padding."""
    random = np.random.default_rng(seed)
    if name == "bert_mini":
        ids = random.integers(0, VOCABULARY, (1, 128))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return {"input": random.standard_normal(INPUTS[name]["input"], dtype=np.float32)}


def run(name: str, feed: Arrays) -> Arrays:
    """Return the network's outputs by name."""
    names = [output.name for output in session(name).get_outputs()]
    return dict(zip(names, session(name).run(names, feed), strict=True))


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the shape of a tensor; an open dimension is 0."""
    return tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)


def inferred_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors whose shape onnx can infer."""
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {value.name: shape_of(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    return shapes | {weight.name: tuple(weight.dims) for weight in graph.initializer}


def is_running_statistic(name: str) -> bool:
    """Return whether a weight is a running mean or variance of batch norm, which is not trainable."""
    return name.endswith((".running_mean", ".running_var"))


def multiply_adds(model: ModelProto) -> int:
    """Return the multiply-adds of convolutions and matrix products."""
    shapes, total = inferred_shapes(model), 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            total += math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        elif node.op_type in ("Gemm", "MatMul"):
            total += math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    return total


@every_network
def test_passes_the_checker(name: str) -> None:
    """Every network passes the ONNX checker, shape inference included."""
    onnx.checker.check_model(built(name), full_check=True)


@every_network
def test_has_opset_17_and_ir_8(name: str) -> None:
    """Every network has opset 17 of the default domain, IR version 8 and its own name."""
    model = built(name)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    assert model.graph.name == name


@every_network
def test_inputs_are_data_only(name: str) -> None:
    """Weights are raw float32 initializers and never graph inputs."""
    graph = built(name).graph
    assert {value.name: shape_of(value) for value in graph.input} == INPUTS[name]
    assert all(weight.data_type == TensorProto.FLOAT and weight.raw_data for weight in graph.initializer)


@every_network
def test_every_weight_is_used_and_every_node_has_its_own_name(name: str) -> None:
    """Every initializer is read, and no two nodes share a name."""
    graph = built(name).graph
    used = {tensor for node in graph.node for tensor in node.input}
    assert {weight.name for weight in graph.initializer} <= used
    assert len({node.name for node in graph.node} - {""}) == len(graph.node)


@every_network
def test_every_shape_can_be_inferred(name: str) -> None:
    """Shape inference finds a fixed shape for every tensor of every network."""
    model = built(name)
    shapes = inferred_shapes(model)
    assert [tensor for node in model.graph.node for tensor in node.output if 0 in shapes.get(tensor, (0,))] == []


@every_network
def test_parameter_count_is_the_published_one(name: str) -> None:
    """The number of trainable parameters, without running statistics, is exactly the published one."""
    weights = built(name).graph.initializer
    assert (
        sum(math.prod(weight.dims) for weight in weights if not is_running_statistic(weight.name)) == PARAMETERS[name]
    )


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_multiply_adds_are_the_published_ones(name: str) -> None:
    """The multiply-adds agree with the published figure within its rounding."""
    assert multiply_adds(built(name)) == pytest.approx(MULTIPLY_ADDS[name], rel=0.02)


@every_network
def test_batch_norm_is_near_identity(name: str) -> None:
    """Batch norm has scales around 1, means around 0 and positive variances."""
    weights = {weight.name: weight for weight in built(name).graph.initializer}
    for node in built(name).graph.node:
        if node.op_type == "BatchNormalization":
            scale, _, mean, variance = (numpy_helper.to_array(weights[tensor]) for tensor in node.input[1:])
            assert abs(scale.mean() - 1) < 0.1
            assert abs(mean.mean()) < 0.1
            assert variance.min() > 0


@every_network
def test_onnxruntime_runs_it(name: str) -> None:
    """ONNX Runtime runs every network; the outputs have the declared shapes and are finite."""
    outputs = run(name, inputs(name, seed=1))
    assert {output: value.shape for output, value in outputs.items()} == OUTPUTS[name]
    assert {value.name: shape_of(value) for value in built(name).graph.output} == OUTPUTS[name]
    assert all(np.isfinite(value).all() for value in outputs.values())


@every_network
def test_output_depends_on_the_input(name: str) -> None:
    """Two random inputs give outputs that differ by far more than rounding, within an output and between the two."""
    first, second = run(name, inputs(name, seed=1)), run(name, inputs(name, seed=2))
    for output, value in first.items():
        assert value.std() > 1e-3
        assert np.abs(value - second[output]).max() > 1e-3 * value.std()


def test_bert_ignores_padding() -> None:
    """Tokens that the attention mask excludes do not change the states of the other tokens."""
    feed, other = inputs("bert_mini", seed=1), inputs("bert_mini", seed=2)
    feed["attention_mask"][:, 100:] = 0
    changed = {**feed, "input_ids": np.concatenate([feed["input_ids"][:, :100], other["input_ids"][:, 100:]], axis=1)}
    states = [run("bert_mini", each)["last_hidden_state"][:, :100] for each in (feed, changed)]
    np.testing.assert_allclose(states[0], states[1], atol=1e-4)


def test_both_forms_of_layer_norm_occur() -> None:
    """The vision transformer has layer norm as one operator, BERT has it decomposed."""
    operators = {name: [node.op_type for node in built(name).graph.node] for name in ("vit_tiny", "bert_mini")}
    assert operators["vit_tiny"].count("LayerNormalization") == 2 * 12 + 1
    assert "LayerNormalization" not in operators["bert_mini"]
    assert operators["bert_mini"].count("ReduceMean") == 2 * (2 * 4 + 1)


def test_batch_norm_is_not_folded() -> None:
    """The number of batch norm nodes is that of the published networks."""
    for name, count in (("mobilenetv2", 52), ("resnet18", 20), ("efficientnet_b0", 49), ("dscnn", 9)):
        operators = [node.op_type for node in built(name).graph.node]
        assert operators.count("BatchNormalization") == count


@every_network
def test_the_seed_decides_the_weights_and_nothing_else(name: str) -> None:
    """Building twice with one seed gives the same bytes; another seed changes every weight and nothing else."""
    first, second = built(name), zoo.build(name, seed=7)
    assert zoo.build(name, seed=7).SerializeToString() == second.SerializeToString()
    assert list(first.graph.node) == list(second.graph.node)
    for one, two in zip(first.graph.initializer, second.graph.initializer, strict=True):
        assert (one.name, one.dims) == (two.name, two.dims)
        assert one.raw_data != two.raw_data


def test_unknown_name_lists_the_names() -> None:
    """An unknown name raises a ValueError that lists the names."""
    with pytest.raises(ValueError, match=", ".join(zoo.NAMES)):
        zoo.build("resnet19")


def test_importing_the_zoo_does_not_import_onnx() -> None:
    """Importing the package does not import onnx."""
    program = "import sys, harness.network.zoo; sys.exit('onnx' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
