"""Signed pairs of QuantizeLinear and DequantizeLinear: harness rewrites what ONNX Runtime rewrites, nothing else."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from number_formats import FORMATS, NETWORKS, executed, network_in, operators
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_models import prepared

from device_agents import arrays
from harness import profile
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.fusion.fusion_rules import UNSIGNED_PAIRS, FusionRule, as_executed, with_unsigned_pairs
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.workspace import Workspace

SIGNED = "qdq-s8-per-channel"
RULES = (FusionRule(UNSIGNED_PAIRS, 1, 1, "onnxruntime"),)


def pair(zero_points: tuple[int, int] = (3, 3), readers: int = 1, zero_type: str = "int8") -> ModelProto:
    """Return a Relu, a QuantizeLinear, and DequantizeLinears that read its result."""
    zeros = [numpy_helper.from_array(np.array(value, zero_type), f"zero{at}") for at, value in enumerate(zero_points)]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("QuantizeLinear", ["r", "scale", "zero0"], ["q"], "quantise"),
        *(
            helper.make_node("DequantizeLinear", ["q", "scale", "zero1"], [f"d{at}"], f"dequantise{at}")
            for at in range(readers)
        ),
        *(helper.make_node("Abs", [f"d{at}"], [f"y{at}"], f"abs{at}") for at in range(readers)),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y0", "y1")]
    scale = numpy_helper.from_array(np.array(0.1, "float32"), "scale")
    graph = helper.make_graph(nodes, "pair", values[:1], values[1 : 1 + readers], [scale, *zeros])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: AssembledModel) -> list[np.ndarray]:
    """Return the outputs of a model that is executed as it is written."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    weights = {spec.name: onnxruntime.OrtValue.ortvalue_from_numpy(arrays.make(spec.wire())) for spec in model.weights}
    options.add_external_initializers(list(weights), list(weights.values()))
    session = onnxruntime.InferenceSession(model.content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {spec.name: arrays.make(spec.wire()) for spec in model.inputs})


def is_rewritten(network: Network) -> bool:
    """Return whether ONNX Runtime on this processor reports that it made signed pairs unsigned."""
    sent = assemble_network(network)
    graph = helper.make_model(executed(sent)).SerializeToString()
    return read_runtime_graph(network, sent.names, "onnxruntime", graph).unsigned_pairs


@pytest.mark.parametrize("name", NETWORKS)
def test_the_runtime_executes_the_rewritten_network_as_the_file(name: str) -> None:
    """Where the runtime rewrites signed pairs, it makes the same operators of the file and of the rewritten network."""
    network = prepared(network_in(name, SIGNED))
    if not is_rewritten(network):
        pytest.skip("ONNX Runtime keeps signed pairs on this processor")
    rewritten = with_unsigned_pairs(network)
    assert rewritten.types != network.types
    assert operators(executed(assemble_network(rewritten))) == operators(executed(assemble_network(network)))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_rewritten_network_computes_the_same(name: str) -> None:
    """Executed operator by operator, both networks give the same numbers."""
    network = prepared(network_in(name, SIGNED))
    for before, after in zip(
        run(assemble_network(network)), run(assemble_network(with_unsigned_pairs(network))), strict=True
    ):
        assert np.array_equal(before, after) and before.std() > 0


@pytest.mark.parametrize("number_format", [one for one in FORMATS if one != SIGNED])
@pytest.mark.parametrize("name", NETWORKS)
def test_other_formats_stay_as_they_are(name: str, number_format: str) -> None:
    """A network without signed pairs is neither reported as rewritten nor rewritten."""
    network = prepared(network_in(name, number_format))
    assert not is_rewritten(network)
    assert with_unsigned_pairs(network) == network


def test_evidence_is_a_pair_that_the_runtime_rewrote() -> None:
    """Packed weights are no evidence, and a picture of unsigned integers in front of signed pairs hides none."""
    weights = numpy_helper.from_array(np.ones((64, 64), "int8"), "w")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wf"]),
        helper.make_node("MatMul", ["x", "wf"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 64]) for name in ("x", "y")]
    scale = numpy_helper.from_array(np.array(0.1, "float32"), "scale")
    graph = helper.make_graph(nodes, "packed", values[:1], values[1:], [weights, scale])
    packed = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert not is_rewritten(prepared(packed))
    mixed = ModelProto()
    mixed.CopyFrom(network_in("residual", SIGNED))
    signed = is_rewritten(prepared(mixed))
    picture = mixed.graph.input[0]
    cast = helper.make_node("Cast", ["bytes"], [picture.name], to=TensorProto.FLOAT)
    mixed.graph.node.insert(0, cast)
    picture.name = "bytes"
    picture.type.tensor_type.elem_type = TensorProto.UINT8
    assert is_rewritten(prepared(mixed)) == signed


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (pair(), "uint8"),
        (pair(readers=2), "int8"),
        (pair(zero_points=(3, 4)), "int8"),
        (pair(zero_points=(130, 130), zero_type="uint8"), "uint8"),
    ],
    ids=["pair", "two readers", "other zero point", "unsigned"],
)
def test_only_a_pair_of_one_reader_and_one_zero_point_is_rewritten(model: ModelProto, dtype: str) -> None:
    """A tensor with two readers, or whose operators differ in the zero point, keeps its type."""
    assert with_unsigned_pairs(prepared(model)).types["q"].dtype == dtype


def test_a_rule_decides_whether_layers_are_unsigned() -> None:
    """Layers of a network are those of the rewritten one if the rules say so, also of a network rewritten before."""
    network = prepared(pair())
    read = ["int8" in layer.key.text for layer in cut(network, ())]
    assert any(read)
    layers = cut(network, RULES)
    assert not any("int8" in layer.key.text.replace("uint8", "") for layer in layers)
    assert [layer.key for layer in cut(as_executed(network, RULES), RULES)] == [layer.key for layer in layers]


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize("number_format", ["float32", SIGNED])
def test_layers_are_measured_as_they_are_looked_up(number_format: str, tmp_path: Path) -> None:
    """A campaign holds each layer into which its rules cut the file; they cover signed pairs even if it has none."""
    path = tmp_path / "network.onnx"
    path.write_bytes(network_in("residual", number_format).SerializeToString())
    place = Workspace(tmp_path)
    number = profile(path, device="cpu01", workspace=place, policy=RepeatPolicy(runs=3)).campaign
    network = load_network(str(path))
    with Journal(place.journal) as journal:
        rules, measured = journal.campaign(number).rules, {layer.key for layer in journal.layers(number)}
    signed = prepared(network_in("residual", SIGNED))
    assert (UNSIGNED_PAIRS in {rule.pattern for rule in rules}) == is_rewritten(signed)
    assert {layer.key for layer in cut(network, rules)} == measured


@pytest.mark.parametrize("readers", [1, 2])
def test_conversions_of_tensors_that_stay_signed_are_layers(readers: int) -> None:
    """Where pairs are made unsigned, nothing is fused with the conversions of a tensor that two operators read."""
    network = prepared(pair(readers=readers))
    rules = (*RULES, FusionRule("Relu(x0);QuantizeLinear(0)", 1, 1, "onnxruntime"))
    first = cut(network, rules)[0]
    assert first.op == ("Relu+QuantizeLinear" if readers == 1 else "Relu")
    assert cut(network, rules[1:])[0].op == "Relu+QuantizeLinear"


@pytest.mark.parametrize("zero", [0, 128])
def test_a_relu_is_fused_where_integers_are_not_negative(zero: int) -> None:
    """A rule that fuses a Relu into a convolution on integers holds where the Relu changes none of these."""
    seen, asked = (prepared(convolution_and_relu(point)) for point in (0, zero))
    sent = assemble_network(seen)
    graph = read_runtime_graph(seen, sent.names, "onnxruntime", helper.make_model(executed(sent)).SerializeToString())
    rules = learn_rules([(seen, graph.groups)], "onnxruntime")
    convolution = next(layer for layer in cut(asked, rules) if "Conv" in layer.op)
    assert ("QuantizeLinear" in convolution.op) == (zero == 0)


def convolution_and_relu(zero: int) -> ModelProto:
    """Return a convolution and a Relu between DequantizeLinear and QuantizeLinear with this zero point."""
    constants = {
        "scale": np.array(0.1, "float32"),
        "zero": np.array(zero, "uint8"),
        "weights": np.ones((16, 16, 3, 3), "int8"),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], "q0"),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"], "d0"),
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["wd"], "d1"),
        helper.make_node("Conv", ["xd", "wd"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["yq"], "q1"),
        helper.make_node("DequantizeLinear", ["yq", "scale", "zero"], ["y"], "d2"),
    ]
    values = [helper.make_tensor_value_info(*one) for one in (("x", 1, [1, 16, 9, 9]), ("y", 1, [1, 16, 7, 7]))]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "one", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
