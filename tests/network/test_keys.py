"""Layer keys are equal for the same work on a device, different for other work, and contain no names."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_models import FLOAT, WEIGHT, model_of, network_of, node, prepared, random_dags

from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.layers import cut

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = (1, 4, 8, 8)
Pair = tuple[dict[str, Any], dict[str, Any]]


def keys_of(model: ModelProto) -> list[str]:
    """Return the keys of all layers, sorted."""
    return sorted(layer.key.text for layer in cut(prepared(model), DEFAULT_RULES))


def key_of(nodes: list[NodeProto], shape: tuple[int, ...] = IMAGE, **options: Any) -> str:
    """Return the key of a network of one layer on input `x`."""
    (layer,) = cut(network_of(nodes, {"x": shape}, **options), DEFAULT_RULES)
    return layer.key.text


def one(op: str, shape: tuple[int, ...] = IMAGE, opset: int = 17, **attributes: Any) -> str:
    """Return the key of one operator; those with weights get a 3x3 kernel of four channels."""
    weights = {"w": WEIGHT} if op.startswith("Conv") else {}
    return key_of([helper.make_node(op, ["x", *weights], ["y"], **attributes)], shape, constants=weights, opset=opset)


def renamed(model: ModelProto) -> ModelProto:
    """Return the model with new names for every tensor and node."""
    copy = ModelProto()
    copy.CopyFrom(model)
    fresh: dict[str, str] = {"": ""}

    def of(name: str) -> str:
        return fresh.setdefault(name, f"other/{len(fresh)}")

    for number, one_node in enumerate(copy.graph.node):
        one_node.name = f"another {number % 2}"
        one_node.input[:] = [of(name) for name in one_node.input]
        one_node.output[:] = [of(name) for name in one_node.output]
    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.initializer):
        value.name = of(value.name)
    return copy


def reordered(model: ModelProto, seed: int) -> ModelProto:
    """Return the model with its nodes in another topological order."""
    copy = ModelProto()
    copy.CopyFrom(model)
    waiting = list(copy.graph.node)
    known = {value.name for value in (*copy.graph.input, *copy.graph.initializer)}
    choose, ordered = random.Random(seed), []
    while waiting:
        node = choose.choice([node for node in waiting if known.issuperset(node.input)])
        waiting.remove(node)
        ordered.append(node)
        known.update(node.output)
    del copy.graph.node[:]
    copy.graph.node.extend(ordered)
    return copy


@given(random_dags())
def test_names_do_not_matter(model: ModelProto) -> None:
    """Renaming every tensor and node, even to equal node names, changes no key."""
    assert keys_of(renamed(model)) == keys_of(model)


@given(random_dags(), st.integers(0, 1000))
def test_order_of_independent_nodes_does_not_matter(model: ModelProto, seed: int) -> None:
    """Any topological order of the nodes gives the same keys."""
    assert keys_of(reordered(model, seed)) == keys_of(model)


SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "convolution defaults": ("Conv", {}, {"strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4, "group": 1}),
    "kernel shape": ("Conv", {}, {"kernel_shape": [3, 3]}),
    "auto pad notset": ("Conv", {}, {"auto_pad": "NOTSET"}),
    "auto pad valid": ("Conv", {"auto_pad": "VALID"}, {"pads": [0] * 4}),
    "auto pad same": ("Conv", {"auto_pad": "SAME_UPPER"}, {"pads": [1] * 4}),
    "auto pad same dilated": (
        "Conv",
        {"auto_pad": "SAME_UPPER", "dilations": [2, 2]},
        {"pads": [2] * 4, "dilations": [2, 2]},
    ),
    "auto pad same upper strided": (
        "Conv",
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"pads": [0, 0, 1, 1], "strides": [2, 2]},
    ),
    "auto pad same lower strided": (
        "Conv",
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"pads": [1, 1, 0, 0], "strides": [2, 2]},
    ),
    "pooling with auto pad": (
        "MaxPool",
        {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]},
    ),
    "pooling defaults": (
        "AveragePool",
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0] * 4, "ceil_mode": 0, "count_include_pad": 0},
    ),
    "max pooling defaults": (
        "MaxPool",
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [2, 2], "dilations": [1, 1], "storage_order": 0},
    ),
    "transposed convolution": ("ConvTranspose", {}, {"group": 1, "strides": [1, 1], "kernel_shape": [3, 3]}),
    "transposed convolution output padding": ("ConvTranspose", {}, {"output_padding": [0, 0]}),
    "softmax axis": ("Softmax", {}, {"axis": -1}),
    "reduction keeps dimensions": ("ReduceMean", {"axes": [2]}, {"axes": [2], "keepdims": 1}),
    "reduction over all axes": ("ReduceMean", {}, {"axes": [0, 1, 2, 3]}),
    "transpose reverses": ("Transpose", {}, {"perm": [3, 2, 1, 0]}),
    "flatten axis": ("Flatten", {}, {"axis": 1}),
    "leaky slope": ("LeakyRelu", {}, {"alpha": 0.01}),
    "normalisation over channels": ("LRN", {"size": 3}, {"size": 3, "alpha": 0.0001, "beta": 0.75, "bias": 1.0}),
}


@pytest.mark.parametrize("case", SAME)
def test_what_is_spelled_out_equals_what_is_left_to_defaults(case: str) -> None:
    """The same operator written with and without defaults, kernel sizes and automatic padding has one key."""
    op, brief, explicit = SAME[case]
    assert one(op, **brief) == one(op, **explicit)


def test_an_empty_region_is_none() -> None:
    """A Resize that names an empty region has the key, and so the latency, of one without a region."""
    constants = {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    resizes = [node("Resize", f"x {region} scales", "y", mode="linear") for region in ("_", "none")]
    without, empty = (key_of([resize], constants=constants) for resize in resizes)
    assert empty == without


DIFFERENT: dict[str, Pair] = {
    "shape": ({"op": "Relu"}, {"op": "Relu", "shape": (1, 4, 8, 9)}),
    "rank": ({"op": "Relu"}, {"op": "Relu", "shape": (4, 8, 8)}),
    "stride": ({"op": "Conv", "pads": [1] * 4}, {"op": "Conv", "pads": [1] * 4, "strides": [2, 2]}),
    "pads at equal shapes": ({"op": "Conv", "pads": [1, 1, 1, 1]}, {"op": "Conv", "pads": [0, 0, 2, 2]}),
    "dilation at equal shapes": ({"op": "Conv", "pads": [1] * 4}, {"op": "Conv", "pads": [2] * 4, "dilations": [2, 2]}),
    "permutation at equal shapes": (
        {"op": "Transpose", "perm": [0, 1, 2, 3]},
        {"op": "Transpose", "perm": [0, 1, 3, 2]},
    ),
    "softmax over other axes": ({"op": "Softmax", "axis": 1}, {"op": "Softmax", "axis": 2}),
    "softmax before and after opset 13": (
        {"op": "Softmax", "axis": 1, "opset": 12},
        {"op": "Softmax", "axis": 1, "opset": 13},
    ),
    "log softmax before and after opset 13": (
        {"op": "LogSoftmax", "axis": 1, "opset": 12},
        {"op": "LogSoftmax", "axis": 1, "opset": 13},
    ),
    "softmax defaults before and after opset 13": ({"op": "Softmax", "opset": 12}, {"op": "Softmax", "opset": 13}),
    "padding counted": (
        {"op": "AveragePool", "kernel_shape": [3, 3], "pads": [1] * 4},
        {"op": "AveragePool", "kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_other_work_has_another_key(case: str) -> None:
    """Operators that do different work have different keys, even if all shapes are equal."""
    first, second = DIFFERENT[case]
    assert one(**first) != one(**second)


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_old_opsets_of_most_operators_share_keys(opset: int) -> None:
    """A convolution has one key in every opset, so that tables outlive exporters."""
    assert one("Conv", opset=opset, pads=[1] * 4) == one("Conv", opset=17, pads=[1] * 4)


def test_groups_make_a_difference() -> None:
    """Depthwise and dense convolutions differ."""
    keys = [
        key_of([helper.make_node("Conv", ["x", "w"], ["y"], group=group)], constants={"w": WEIGHT[:, : 4 // group]})
        for group in (1, 2, 4)
    ]
    assert len(set(keys)) == 3


def test_types_make_a_difference() -> None:
    """The same operator on other element types has another key."""
    node = helper.make_node("Abs", ["x"], ["y"])
    kinds = (FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64)
    assert len({key_of([node], types={"x": kind, "y": kind}) for kind in kinds}) == len(kinds)


def test_constant_and_activation_operands_differ() -> None:
    """A product with weights and a product of two activations have different keys."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = cut(network_of([node], {"x": (1, 4)}, constants={"w": np.ones((4, 4), np.float32)}), ())
    activations = cut(network_of([node], {"x": (1, 4), "w": (4, 4)}), ())
    assert weights[0].key != activations[0].key


def test_residual_wiring_makes_a_difference() -> None:
    """Adding a layer's own input, another tensor, or the result to itself give three keys."""
    keys = set()
    for second in ("x", "z", "a"):
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            helper.make_node("Add", ["a", second], ["b"]),
            helper.make_node("Relu", ["b"], ["y"]),
        ]
        network = network_of(nodes, {"x": IMAGE, "z": IMAGE}, constants={"w": WEIGHT})
        rules = [FusionRule("Conv(x0);Add(0,0);Relu(1)"), FusionRule("Conv(x0);Add(0,x1);Relu(1)")]
        (layer,) = cut(network, rules)
        keys.add(layer.key)
    assert len(keys) == 3


VALUES: dict[str, tuple[NodeProto, dict[str, Any], dict[str, Any]]] = {
    "slice": (
        helper.make_node("Slice", ["x", "s", "e"], ["y"]),
        {"s": np.array([0, 0, 0, 0]), "e": np.array([1, 2, 8, 8])},
        {"s": np.array([0, 2, 0, 0]), "e": np.array([1, 4, 8, 8])},
    ),
    "reshape": (
        helper.make_node("Reshape", ["x", "s"], ["y"]),
        {"s": np.array([2, 2, 8, 8])},
        {"s": np.array([1, 4, 64])},
    ),
    "pad": (
        helper.make_node("Pad", ["x", "p"], ["y"]),
        {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        {"p": np.array([0, 0, 2, 2, 0, 0, 0, 0])},
    ),
    "exponent": (helper.make_node("Pow", ["x", "e"], ["y"]), {"e": np.float32(2)}, {"e": np.float32(3)}),
}


@pytest.mark.parametrize("case", VALUES)
def test_constants_that_say_what_to_do_count_by_value(case: str) -> None:
    """Values of bounds, shapes, paddings and exponents are part of a key."""
    node, first, second = VALUES[case]
    assert key_of([node], constants=first) != key_of([node], constants=second)
    assert key_of([node], constants=first) == key_of([node], constants=dict(first))


def test_long_attributes_stand_in_a_key_by_their_hash() -> None:
    """Thousands of numbers, such as the thresholds of a forest, make a short key, which differs for other numbers."""

    def scaled(last: float) -> str:
        scale = [0.5] * 999 + [last]
        node = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0] * 1000, scale=scale)
        model = model_of([node], {"x": (1, 1000)})
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
        (key,) = keys_of(model)
        return key

    assert scaled(1.0) == scaled(1.0) != scaled(2.0)
    assert len(scaled(1.0)) < 150


@pytest.mark.parametrize("channels", [1, 4])
def test_weights_do_not_count_by_value(channels: int) -> None:
    """Values of weights are not part of a key, even for a bias or a kernel of one element."""

    def trained(value: float) -> str:
        node = helper.make_node("Conv", ["x", "w", "b"], ["y"])
        kernel = np.full((channels, 4, 1, 1), value, np.float32)
        return key_of([node], constants={"w": kernel, "b": np.full(channels, value, np.float32)})

    assert trained(0.25) == trained(-0.5)


@pytest.mark.parametrize("attributes", [{}, {"auto_pad": "SAME_UPPER"}, {"pads": [1] * 4}])
def test_quantised_convolutions_find_their_kernel(attributes: dict[str, Any]) -> None:
    """A quantised convolution has the same key with and without kernel_shape."""
    constants = {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((4, 4, 3, 3), np.uint8)}
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    keys = [
        key_of(
            [helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], **attributes, **extra)],
            constants=constants,
            types=types,
        )
        for extra in ({}, {"kernel_shape": [3, 3]})
    ]
    assert keys[0] == keys[1]


def test_batch_norm_constants_do_not_count() -> None:
    """Neither epsilon nor the values of scale, bias, mean and variance are part of a key."""

    def normalisation(value: float, **attributes: float) -> str:
        constants = {name: np.full(4, value, np.float32) for name in "sbmv"}
        return key_of(
            [helper.make_node("BatchNormalization", ["x", *constants], ["y"], **attributes)], constants=constants
        )

    assert normalisation(1) == normalisation(2, epsilon=1e-3)


def test_a_tensor_read_twice_is_one_input() -> None:
    """A tensor times itself and a product of two tensors have different keys."""
    square = cut(network_of([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": IMAGE}), ())
    product = cut(network_of([helper.make_node("Mul", ["x", "z"], ["y"])], {"x": IMAGE, "z": IMAGE}), ())
    assert square[0].key != product[0].key
    assert square[0].graph.inputs == ("x",)


def test_which_results_are_used_counts() -> None:
    """A split of which the first part is used and one of which the second is used have different keys."""
    split = helper.make_node("Split", ["x", "n"], ["a", "b"], axis=1)
    keys = {
        cut(
            network_of(
                [split, helper.make_node("Relu", [used], ["y"])], {"x": IMAGE}, constants={"n": np.array([1, 3])}
            ),
            (),
        )[0].key
        for used in "ab"
    }
    assert len(keys) == 2


def test_digest_is_short_and_stands_for_the_text() -> None:
    """A digest has sixteen hexadecimal digits and differs for different texts."""
    (first,), (second,) = (
        cut(network_of([helper.make_node(op, ["x"], ["y"])], {"x": IMAGE}), ()) for op in ("Abs", "Neg")
    )
    assert len(first.key.digest) == 16
    assert int(first.key.digest, 16) >= 0
    assert str(first.key) == first.key.digest != second.key.digest


PROGRAM = """
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe_plan import CutNetwork, plan_probes
network = load_network("builtin:dscnn")
layers = cut(network, DEFAULT_RULES)
plan = plan_probes([CutNetwork(network, layers, frozenset(network.types))], DEFAULT_RULES, AuxiliaryKind.AVGPOOL)
print(*(layer.key for layer in layers), plan.id)
"""


def test_keys_and_plans_are_the_same_in_every_process() -> None:
    """Keys, probe ids and plan ids do not depend on hash randomisation."""
    printed = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", PROGRAM]
        printed.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(printed) == 1


def test_training_makes_a_difference() -> None:
    """Batch normalisation in training mode computes the statistics of its input; the default is stated by nobody."""

    def key(*outputs: str, **attributes: int) -> str:
        constants = {name: np.ones(4, np.float32) for name in "smbv"}
        nodes = [helper.make_node("BatchNormalization", ["x", *constants], ["y", *outputs], **attributes)]
        return key_of(nodes, constants=constants)

    assert key() == key(training_mode=0) != key("mean", "variance", training_mode=1)
    assert "training_mode" not in key()
