"""ONNX Runtime executes a layer in its context probe as in its network."""

import functools
from pathlib import Path
from typing import Any

import onnx
import pytest
from load_requests import request_of
from onnx import NodeProto
from probe_models import run_on_onnxruntime

from harness.network.assemble import AssembledModel
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe import network_probe
from harness.probe.probe_plan import CutNetwork, LayerProbes, ProbePlan, plan_probes

NETWORKS = ("resnet18", "resnet50", "mobilenetv2", "efficientnet_b0", "squeezenet")
AUXILIARY = {"AveragePool", "Unsqueeze"}
PRODUCERS = {"Abs", "Not", "Conv"}
FUSED_OUTSIDE_THE_BLOCKED_LAYOUT = {"FusedConv": "Conv"}
"""ONNX Runtime's name for a convolution with an activation in the plain layout; in its blocked layout it is Conv.

Which convolutions get the blocked layout depends on the block: 16 channels with AVX-512, 8 channels without.
"""


@functools.cache
def backend() -> Any:
    """Return a real backend, as in a worker process."""
    from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend

    return OnnxRuntimeBackend({})


def revealed(model: AssembledModel) -> bytes:
    """Return the runtime's graph of a model; writes into the current folder."""
    answer = backend().load(request_of(model, "probe", reveal=True))
    backend().unload("probe")
    content: bytes = answer.content
    return content


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ProbePlan:
    """Return the plan of a network that is cut as ONNX Runtime reports."""
    monkeypatch.chdir(tmp_path)
    return reported_plan(request.param)


@functools.cache
def reported_plan(name: str) -> ProbePlan:
    """Return the plan of a built-in network, made once in a folder that may be written to."""
    return planned(load_network(f"builtin:{name}"))


def planned(network: Network) -> ProbePlan:
    """Return the plan of a network that is cut as ONNX Runtime reports; writes into the current folder."""
    model = network_probe(network).model
    graph = read_runtime_graph(network, model.names, "onnxruntime", revealed(model))
    rules = learn_rules([(network, graph.groups)], "onnxruntime")
    return plan_probes([CutNetwork(network, cut(network, rules), graph.blocked)], rules, AuxiliaryKind.AVGPOOL)


def executed(plan: ProbePlan, probe: str) -> list[NodeProto]:
    """Return the operators that the runtime executes for a probe, by their usual names, without reorders."""
    graph = onnx.load_model_from_string(revealed(plan.probes[probe].model)).graph
    nodes = [node for node in graph.node if not node.op_type.startswith("Reorder")]
    for node in nodes:
        node.op_type = FUSED_OUTSIDE_THE_BLOCKED_LAYOUT.get(node.op_type, node.op_type)
    return nodes


def own(plan: ProbePlan, layer: LayerProbes) -> list[str]:
    """Return the operators of the context probe without producers and auxiliary layers."""
    ops = [node.op_type for node in executed(plan, layer.in_context)]
    for taken in [node.op_type for node in executed(plan, layer.null)]:
        if taken in ops:
            ops.remove(taken)
    return [op for op in ops if op not in AUXILIARY]


@pytest.mark.parametrize("plan", NETWORKS, indirect=True)
def test_convolutions_are_fused_with_what_follows_as_in_the_network(plan: ProbePlan) -> None:
    """A layer of batch norm, activation and residual add is one operator in the probe, as in the network."""
    apart = {
        f"{layer.op} {layer.key.text}": own(plan, layer)
        for layer in plan.layers
        if layer.op.startswith("Conv+") and own(plan, layer) != ["Conv"]
    }
    assert apart == {}


@pytest.mark.parametrize("plan", ["resnet18"], indirect=True)
def test_a_residual_add_is_drawn_into_its_convolution(plan: ProbePlan) -> None:
    """In a ResNet block the convolution takes the residual as its fourth operand and the activation as attribute."""
    residuals = [layer for layer in plan.layers if "+Add+Relu" in layer.op]
    assert len(residuals) == 4
    for layer in residuals:
        nodes = [node for node in executed(plan, layer.in_context) if node.op_type == "Conv"]
        (fused,) = [node for node in nodes if len([name for name in node.input if name]) == 4]
        assert {item.s for item in fused.attribute if item.name == "activation"} == {b"Relu"}


@pytest.mark.parametrize("plan", ["resnet18", "dscnn"], indirect=True)
def test_producers_are_left_standing(plan: ProbePlan) -> None:
    """The runtime keeps every producer: it is neither removed nor fused into the layer."""
    for layer in plan.layers:
        chip = sum(source != "outside" for source in layer.context.split(","))
        null = [node.op_type for node in executed(plan, layer.null)]
        producers = [op for op in null if op in PRODUCERS]
        assert len(producers) == chip
        context = [node.op_type for node in executed(plan, layer.in_context)]
        assert all(context.count(op) >= producers.count(op) for op in set(producers))


@pytest.mark.parametrize("plan", ["resnet18"], indirect=True)
def test_context_probes_run(plan: ProbePlan) -> None:
    """Each context probe returns one small result; it is the output of the network where the layer writes that."""
    for layer in plan.layers:
        (output,) = run_on_onnxruntime(plan.probes[layer.in_context].model)
        assert output.nbytes <= 4 * 1024
        assert (output.shape == (1, 1000)) == (layer.op == "Gemm")


def test_a_layer_that_the_runtime_executes_only_for_an_output_is_in_its_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime removes a random Dropout between two layers, but not one whose result the network returns."""
    monkeypatch.chdir(tmp_path)
    value = functools.partial(onnx.helper.make_tensor_value_info, elem_type=1, shape=[4, 64])
    nodes = [onnx.helper.make_node("Sin", ["x"], ["t"]), onnx.helper.make_node("Dropout", ["t", "ratio", "on"], ["y"])]
    constants = [onnx.helper.make_tensor("ratio", 1, [], [0.5]), onnx.helper.make_tensor("on", 9, [], [True])]
    graph = onnx.helper.make_graph(nodes, "dropout", [value("x")], [value("y")], constants)
    versions = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=versions, ir_version=8), tmp_path / "dropout.onnx")
    plan = planned(load_network(tmp_path / "dropout.onnx"))
    (layer,) = (one for one in plan.layers if one.op == "Dropout")
    assert own(plan, layer) == ["Dropout"]


@pytest.mark.parametrize("plan", ["bert_mini"], indirect=True)
def test_auxiliary_layers_reorder_nothing_where_the_network_does_not(plan: ProbePlan) -> None:
    """The probes of a network without blocked layouts have none, so that no reorder is charged to a layer."""
    reordered = set()
    for layer in plan.layers:
        for probe in (layer.layer, layer.in_context):
            graph = onnx.load_model_from_string(revealed(plan.probes[probe].model)).graph
            if any(node.op_type.startswith("Reorder") for node in graph.node):
                reordered.add(f"{layer.op} {layer.key.text[-40:]}")
    assert reordered == set()
