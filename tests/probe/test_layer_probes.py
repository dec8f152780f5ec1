"""Probes of layers are valid, have the layer and one edge to the auxiliary layer, and have the right sizes."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from probe_models import bytes_of, checkable, cut_network, graph_of, plan_of, run_on_onnxruntime

from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.key import canonical, layer_key
from harness.network.layers import Layer, context_of, cut
from harness.network.reading.prepare import prepare
from harness.network.reading.read import check_model
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.auxiliary import OUTPUT_CHANNELS, AuxiliaryKind
from harness.probe.probe import Probe, network_probe, reference_probe, single_probe
from harness.probe.probe_plan import CutNetwork, LayerProbes, plan_probes

NETWORKS = ("mobilenetv2", "vit_tiny", "bert_mini", "shufflenet", "dscnn")
EVERY = 7
"""Every seventh layer is run with a convolution as auxiliary layer, every second one with pooling."""

every_network = pytest.mark.parametrize("name", NETWORKS)
every_kind = pytest.mark.parametrize("kind", AuxiliaryKind)


def planned(name: str, kind: AuxiliaryKind) -> Iterator[tuple[Layer, LayerProbes, Probe]]:
    """Yield each layer of a plan with its probe of S1.1 and its context probe."""
    plan, place = plan_of(name, kind), cut_network(name)
    layers = {(layer.key, context_of(place.network, layer)): layer for layer in place.layers[::-1]}
    for probes in plan.layers:
        for probe in (probes.layer, probes.in_context):
            yield layers[probes.key, probes.context], probes, plan.probes[probe]


def test_a_view_has_the_probes_without_a_layer() -> None:
    """Layers that take no time, as the device reports, are not in any probe; all others are."""
    place = cut_network("dscnn")
    views = {node.index for node in place.network.nodes if node.op in ("Reshape", "Flatten")}
    assert views
    graph = RuntimeGraph((), frozenset(), views=frozenset(views))
    plan = plan_probes([replace(place, runtime_graph=graph)], DEFAULT_RULES, AuxiliaryKind.ROWPOOL)
    for layer in plan.layers:
        assert layer.is_view == (layer.op in ("Reshape", "Flatten"))
        within = {len(nodes_of_layer(plan.probes[name])) for name in (layer.layer, layer.in_context, *layer.stacks)}
        assert (within == {0}) == layer.is_view


def nodes_of_layer(probe: Probe) -> set[str]:
    """Return the names of the probe's nodes that belong to the layer."""
    return set(probe.model.names.nodes)


@every_network
@every_kind
def test_probes_are_valid_onnx(name: str, kind: AuxiliaryKind) -> None:
    """Every probe of a plan passes the checker with shape inference."""
    for probe in plan_of(name, kind).probes.values():
        onnx.checker.check_model(checkable(probe.model), full_check=True)


@every_network
@every_kind
def test_one_edge_leads_from_the_layer_to_the_auxiliary_layer(name: str, kind: AuxiliaryKind) -> None:
    """One operator reads one result of the layer; the others are outputs, and so is one that only the host reads."""
    for layer, probes, probe in planned(name, kind):
        graph, inside = graph_of(probe.model), nodes_of_layer(probe)
        results = {output for node in graph.node if node.name in inside for output in node.output}
        edges = [read for node in graph.node if node.name not in inside for read in node.input if read in results]
        network, first = cut_network(name).network, layer.graph.outputs[0]
        is_last = first in network.outputs and not network.readers(first) and kind != AuxiliaryKind.ROWPOOL
        assert len(edges) == (0 if is_last and probe.id == probes.in_context else 1)
        assert len(graph.output) == len(layer.graph.outputs)


@every_network
@every_kind
def test_the_probe_holds_the_same_layer(name: str, kind: AuxiliaryKind) -> None:
    """The key computed from the probe's own ONNX is the key of the layer in its network."""
    for layer, probes, probe in planned(name, kind):
        model = onnx.load_model_from_string(probe.model.content)
        read = prepare(check_model("probe", model, probe.model.content), {})
        inside = [node for node in read.nodes if node.name in nodes_of_layer(probe)]
        emitted = {original: name for name, original in probe.model.names.tensors.items()}
        outputs = [emitted[output] for output in layer.graph.outputs]
        assert layer_key(read, canonical(read, inside, outputs)) == probes.key == layer.key


@every_network
@every_kind
def test_little_comes_back(name: str, kind: AuxiliaryKind) -> None:
    """The auxiliary layer returns one value per channel if it is pooling, eight per position if it is a convolution."""
    for layer, _, probe in planned(name, kind):
        if not probe.terms.auxiliaries:
            continue
        shape = cut_network(name).network.types[layer.graph.outputs[0]].shape
        positions = max(math.prod(shape[: max(2, len(shape) - 1)]), math.prod(shape[:1]) * math.prod(shape[2:]))
        allowed = math.prod(shape[:2]) if kind == AuxiliaryKind.AVGPOOL else OUTPUT_CHANNELS * positions
        assert probe.model.outputs[0].bytes <= 4 * max(allowed, 1)


@every_network
@every_kind
def test_null_probes_hold_no_layer(name: str, kind: AuxiliaryKind) -> None:
    """Null probes consist of producers and auxiliary layers, one output for each input."""
    plan = plan_of(name, kind)
    allowed = {"AveragePool", "Conv", "MatMul", "Relu", "Abs", "Add", "Not", "Unsqueeze", "Reshape", "Slice", "Cast"}
    for layer in plan.layers:
        for probe in (plan.probes[layer.null], plan.probes[layer.auxiliary]):
            graph = graph_of(probe.model)
            assert not nodes_of_layer(probe)
            assert {node.op_type for node in graph.node} <= allowed
            assert len(graph.output) == len(graph.input) == probe.terms.auxiliaries
        assert plan.probes[layer.null].terms.input_bytes == plan.probes[layer.in_context].terms.input_bytes


@every_network
@every_kind
def test_transfers_are_those_of_the_model(name: str, kind: AuxiliaryKind) -> None:
    """Input and output bytes in the terms are those of the ONNX model."""
    for probe in plan_of(name, kind).probes.values():
        graph = graph_of(probe.model)
        assert probe.terms.input_bytes == bytes_of(graph.input) == probe.model.input_bytes
        assert probe.terms.output_bytes == bytes_of(graph.output) == probe.model.output_bytes


@every_network
@every_kind
def test_a_layer_adds_nothing_but_itself(name: str, kind: AuxiliaryKind) -> None:
    """A layer's probe has the same auxiliary layer as its auxiliary probe.

    In a private layout, the cost of reading the result does not grow with its size.
    """
    plan = plan_of(name, kind)
    for layer in plan.layers:
        probe, alone = plan.probes[layer.layer], plan.probes[layer.auxiliary]
        assert probe.terms.auxiliaries == alone.terms.auxiliaries == 1
        read = (alone.terms.auxiliary_input_bytes, alone.terms.auxiliary_output_bytes)
        seen = (probe.terms.auxiliary_input_bytes, probe.terms.auxiliary_output_bytes)
        assert seen in ((read, (0, 0)) if kind == AuxiliaryKind.AVGPOOL else (read,))
        assert (probe.auxiliary, alone.auxiliary) == (kind, kind)


@every_network
@every_kind
def test_probes_run_on_onnxruntime(name: str, kind: AuxiliaryKind) -> None:
    """A sample of the probes runs, with finite results of the size in their terms."""
    plan = plan_of(name, kind)
    sample = plan.layers[:: 2 if kind == AuxiliaryKind.AVGPOOL else EVERY]
    ids = {probe for at in sample for probe in (at.layer, at.auxiliary, at.in_context, at.null)}
    for probe in sorted(ids):
        outputs = run_on_onnxruntime(plan.probes[probe].model)
        assert sum(value.nbytes for value in outputs) == plan.probes[probe].terms.output_bytes
        assert all(np.isfinite(value).all() for value in outputs)


def test_context_probes_have_a_producer_in_front_of_every_chip_input() -> None:
    """A layer that reads a neighbour's result reads a producer's result in its probe."""
    plan = plan_of("mobilenetv2", AuxiliaryKind.AVGPOOL)
    for layer in plan.layers:
        probe = plan.probes[layer.in_context]
        inside, graph = nodes_of_layer(probe), graph_of(probe.model)
        inputs = {value.name for value in graph.input}
        read = {name for node in graph.node if node.name in inside for name in node.input} & inputs
        assert len(read) == layer.context.split(",").count("outside")


@every_kind
def test_null_probes_hold_no_inputs_of_the_network_beside_others(kind: AuxiliaryKind) -> None:
    """What these cost is overhead; on a device with its own memory each is moved before the layer, as in its probe."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 16)) for name in ("a", "b", "c", "y")]
    nodes = [helper.make_node("Sum", ["a", "b"], ["s"]), helper.make_node("Sum", ["s", "c", "b"], ["y"])]
    versions = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "sums", values[:3], values[3:]), opset_imports=versions)
    network = prepare(check_model("sums", model, model.SerializeToString()), {})
    plan = plan_probes([CutNetwork(network, cut(network, ()), frozenset())], (), kind)
    nulls = [[node.op_type for node in graph_of(plan.probes[one.null].model).node] for one in plan.layers]
    producers = [sum(op == "Abs" for op in ops) for ops in nulls]
    assert producers == [0, 1]
    inputs = [len(plan.probes[one.null].model.inputs) for one in plan.layers]
    assert inputs == ([2, 3] if kind.layer.device_memory else [1, 1])


@every_kind
def test_a_probe_returns_what_the_network_returns(kind: AuxiliaryKind) -> None:
    """An auxiliary layer reads beside the host only where another layer does; with its own memory, instead of it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 16, 8, 8)) for name in ("x", "both", "last")]
    nodes = [helper.make_node("Sin", ["x"], ["both"]), helper.make_node("Cos", ["both"], ["last"])]
    versions = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "ends", values[:1], values[1:]), opset_imports=versions)
    network = prepare(check_model("ends", model, model.SerializeToString()), {})
    plan = plan_probes([CutNetwork(network, cut(network, ()), frozenset())], (), kind)
    found = []
    for layer in plan.layers:
        probe = plan.probes[layer.in_context]
        whole = sum(one.shape == (1, 16, 8, 8) for one in probe.model.outputs)
        found.append((probe.terms.auxiliaries, whole, len(probe.model.outputs)))
    assert found == ([(1, 0, 1), (1, 0, 1)] if kind.layer.device_memory else [(1, 1, 2), (0, 1, 1)])


def test_a_result_that_one_network_keeps_is_not_returned() -> None:
    """A layer's probe returns its result only if every network does so in every place, whatever their order."""

    def chain(ops: tuple[str, ...], *returned: str) -> CutNetwork:
        names = ["x", *(f"{op}{at}" for at, op in enumerate(ops))]
        nodes = [helper.make_node(op, [names[at]], [names[at + 1]]) for at, op in enumerate(ops)]
        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 16, 8, 8))
            for name in ("x", names[-1], *returned)
        ]
        graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        network = prepare(check_model("chain", model, model.SerializeToString()), {})
        return CutNetwork(network, cut(network, ()), frozenset())

    def returns(*networks: CutNetwork) -> set[tuple[str, bool]]:
        plan = plan_probes(networks, (), AuxiliaryKind.AVGPOOL)
        shapes = [(layer, [one.shape for one in plan.probes[layer.in_context].model.outputs]) for layer in plan.layers]
        return {(layer.in_context, (1, 16, 8, 8) in found) for layer, found in shapes if layer.op == "Sin"}

    ops = ("Cos", "Sin", "Cos", "Sin", "Abs")
    inner, partly, always = chain(ops), chain(ops, "Sin1"), chain(ops, "Sin1", "Sin3")
    (kept,), (returned,) = returns(inner), returns(always)
    assert (kept[1], returned[1]) == (False, True)
    for others in ((partly,), (inner, partly), (partly, inner), (inner, always), (always, inner), (always, partly)):
        assert returns(*others) == {kept}


def test_a_runtime_that_merges_maps_has_producers_that_it_leaves_standing() -> None:
    """They are in front of operators that it might merge with them; convolutions have the usual ones."""
    place = cut_network("mobilenetv2")
    merging = replace(place, runtime_graph=RuntimeGraph((), place.blocked, merges_maps=True))
    for layer in place.layers:
        usual, found = (one.producers_of(layer.graph.inputs, layer.graph.nodes) for one in (place, merging))
        if not layer.op.startswith("Conv"):
            other = {"convolution": "pooled convolution", "abs": "slice"}
            assert found == {name: other[kind] for name, kind in usual.items()}
        else:
            assert found == usual


def test_single_probes_hold_the_layer_alone() -> None:
    """The probe of a single layer has the layer's operators and returns all its results."""
    place = cut_network("dscnn")
    for layer in place.layers:
        probe = single_probe(place.network, layer)
        graph = graph_of(probe.model)
        assert [node.op_type for node in graph.node] == [node.op for node in layer.graph.nodes]
        assert len(graph.output) == len(layer.graph.outputs)
        run_on_onnxruntime(probe.model)


def test_the_reference_probe_and_the_network_probe_run() -> None:
    """The reference probe and the probe of a whole network run, with outputs of the stated size."""
    for probe in (reference_probe(), network_probe(cut_network("dscnn").network)):
        outputs = run_on_onnxruntime(probe.model)
        assert sum(value.nbytes for value in outputs) == probe.terms.output_bytes
        assert probe.terms.input_bytes == probe.model.input_bytes


def secretive() -> CutNetwork:
    """Return a small network in which every name is a secret."""
    kernel = np.ones((4, 4, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["SECRETx", "SECRETw"], ["SECRETa"], "SECRETconv", pads=[1] * 4),
        helper.make_node("Add", ["SECRETa", "SECRETx"], ["SECRETb"], "SECRETadd"),
        helper.make_node("Softmax", ["SECRETb"], ["SECRETy"], "SECRETsoftmax", doc_string="SECRET"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4, 8, 8)) for name in ("SECRETx", "SECRETy")]
    graph = helper.make_graph(nodes, "SECRET", values[:1], values[1:], [numpy_helper.from_array(kernel, "SECRETw")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="SECRET")
    network = prepare(check_model("SECRET", model, model.SerializeToString()), {})
    return CutNetwork(network, cut(network, DEFAULT_RULES), frozenset(network.types))


@every_kind
def test_no_name_of_the_file_reaches_a_probe(kind: AuxiliaryKind) -> None:
    """Neither a model's bytes nor its descriptions of weights and inputs have a name of the file."""
    place = secretive()
    plan = plan_probes([place], (), kind)
    alone = [single_probe(place.network, layer) for layer in place.layers]
    probes = [*plan.probes.values(), network_probe(place.network), *alone]
    for probe in probes:
        assert b"SECRET" not in probe.model.content
        assert "SECRET" not in f"{probe.id} {probe.model.weights} {probe.model.inputs}"


@every_kind
def test_plans_cover_every_layer_and_load_every_probe_once(kind: AuxiliaryKind) -> None:
    """Each layer in each context has four probes; each probe is in one batch, the reference probe in none."""
    places = [cut_network("dscnn"), cut_network("mobilenetv2")]
    plan = plan_probes(places, DEFAULT_RULES, kind)
    wanted = {(layer.key, context_of(place.network, layer)) for place in places for layer in place.layers}
    assert {(layer.key, layer.context) for layer in plan.layers} == wanted
    assert len(plan.layers) == len(wanted)
    loaded = [probe for batch in plan.batches for probe in batch.loads]
    assert len(loaded) == len(set(loaded))
    assert {*loaded, plan.reference} == set(plan.probes)
    assert plan.reference not in loaded
    assert all(probe.id == key for key, probe in plan.probes.items())


def test_equal_plans_have_one_id() -> None:
    """Equal networks give equal plan ids; another auxiliary layer gives another id."""
    plans = [
        plan_probes([cut_network("dscnn")], DEFAULT_RULES, kind)
        for kind in (AuxiliaryKind.AVGPOOL, AuxiliaryKind.AVGPOOL, AuxiliaryKind.CONV1X1)
    ]
    assert plans[0].id == plans[1].id != plans[2].id


def test_a_network_planned_twice_adds_nothing() -> None:
    """Layers that two networks share are probed once."""
    once, twice = (
        plan_probes([cut_network("dscnn")] * count, DEFAULT_RULES, AuxiliaryKind.AVGPOOL) for count in (1, 2)
    )
    assert once.probes.keys() == twice.probes.keys()
    assert once.batches == twice.batches
