"""Windows of neighbours: how they tile a network, and what their probes hold."""

import itertools
import math

import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import ModelProto, helper
from probe_models import run_on_onnxruntime

from harness.measure.core_caches import MOST_CACHES, most_windowed_bytes
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.reading.prepare import prepare
from harness.network.reading.read import check_model
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.neighbour_windows import FEWEST_LAYERS, MOST_LAYERS, with_neighbours
from harness.probe.probe_plan import CutNetwork, plan_probes

CACHE_BYTES = 1 << 20
LAYERS = ("Neg", "Exp", "Sin", "Add")


def chain(length: int, *, residual: bool = False) -> ModelProto:
    """Return a network of `length` element-wise layers, with an add over three of them if `residual`."""
    ops = list(itertools.islice(itertools.cycle(("Abs", "Neg", "Exp", "Sin")), length))
    nodes = [helper.make_node(op, [f"t{at}"], [f"t{at + 1}"]) for at, op in enumerate(ops)]
    if residual and length > 5:
        nodes[4] = helper.make_node("Add", ["t4", "t1"], ["t5"])
    values = [helper.make_tensor_value_info(name, 1, (1, 8, 16)) for name in ("t0", f"t{length}")]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def products(length: int) -> ModelProto:
    """Return a network of `length` products with a matrix of 64 KiB each."""
    model = chain(length)
    for at, node in enumerate(model.graph.node):
        node.op_type = "MatMul"
        node.input.append(f"w{at}")
        model.graph.initializer.append(helper.make_tensor(f"w{at}", 1, (128, 128), bytes(4 * 128 * 128), raw=True))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[2].dim_value = 128
    return model


def cut_of(model: ModelProto) -> CutNetwork:
    """Return the network cut by the default rules."""
    network = prepare(check_model("chain", model, model.SerializeToString()), {})
    return CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())


@given(st.integers(FEWEST_LAYERS, 60), st.booleans())
@settings(max_examples=25)
def test_windows_tile_the_network_and_are_at_most_a_third_of_it(length: int, residual: bool) -> None:
    """Each layer is in exactly one window; none is longer than MOST_LAYERS or a third of the network, rounded up."""
    one = cut_of(chain(length, residual=residual))
    windows = with_neighbours(one, AuxiliaryKind.AVGPOOL, CACHE_BYTES, math.inf).chains
    digests = [digest for window in windows for digest, _ in window.places]
    assert digests == [layer.key.digest for layer in one.layers]
    assert all(len(window.places) <= min(MOST_LAYERS, -(-length // 3)) for window in windows)


@pytest.mark.parametrize("residual", [False, True])
def test_a_window_holds_its_layers_and_its_null_does_not(residual: bool) -> None:
    """Both probes run; they differ by the layers, and each tensor that leaves a window has an auxiliary layer."""
    planned = with_neighbours(cut_of(chain(12, residual=residual)), AuxiliaryKind.AVGPOOL, CACHE_BYTES, math.inf)
    probes = {probe.id: probe for probe in planned.windows}
    by_digest = {layer.key.digest: layer for layer in planned.layers}
    for window in planned.chains:
        whole, null = probes[window.alone], probes[window.alone_null]
        ops = [
            [node.op_type for node in onnx.load_model_from_string(one.model.content).graph.node]
            for one in (whole, null)
        ]
        held = [node.op for digest, _ in window.places for node in by_digest[digest].graph.nodes]
        assert [op for op in ops[0] if op in LAYERS] == [op for op in held if op in LAYERS]
        assert ops[1] == [op for op in ops[1] if op in ("Abs", "Slice", "Reshape", "AveragePool")]
        assert len(run_on_onnxruntime(whole.model)) == len(whole.model.outputs)
        assert len(run_on_onnxruntime(null.model)) == len(null.model.outputs)


def test_networks_of_few_layers_or_large_weights_have_none() -> None:
    """Short networks, and networks with more weights than given, are measured layer by layer alone."""
    assert not with_neighbours(cut_of(chain(FEWEST_LAYERS - 1)), AuxiliaryKind.AVGPOOL, CACHE_BYTES, math.inf).chains
    model = chain(12)
    model.graph.node[3].op_type = "MatMul"
    model.graph.node[3].input.append("w")
    model.graph.initializer.append(helper.make_tensor("w", 1, (16, 16), bytes(4 * 16 * 16), raw=True))
    assert with_neighbours(cut_of(model), AuxiliaryKind.AVGPOOL, CACHE_BYTES, math.inf).chains
    assert not with_neighbours(cut_of(model), AuxiliaryKind.AVGPOOL, CACHE_BYTES, 4 * 16 * 16 - 1).chains


def test_a_convolution_may_precede_an_operator_without_its_first_result() -> None:
    """A GRU behind a convolution returns its last state alone."""
    model = chain(12)
    for at, op, sizes in ((3, "Conv", [(8, 8, 1)]), (11, "GRU", [(1, 48, 16), (1, 48, 16)])):
        node = model.graph.node[at]
        node.op_type = op
        for place, size in enumerate(sizes):
            weight = helper.make_tensor(f"w{at}.{place}", 1, size, bytes(4 * math.prod(size)), raw=True)
            model.graph.initializer.append(weight)
            node.input.append(weight.name)
    node.attribute.append(helper.make_attribute("hidden_size", 16))
    node.output[:] = ["", *node.output]
    assert with_neighbours(cut_of(model), AuxiliaryKind.AVGPOOL, CACHE_BYTES, math.inf).chains


@given(st.integers(FEWEST_LAYERS, 40), st.integers(5, MOST_CACHES - 2))
@settings(max_examples=15)
def test_a_batch_of_windows_touches_about_what_the_network_does(length: int, caches: int) -> None:
    """Windows overlap, but those that are visited together hold no layer twice."""
    one = cut_of(products(length))
    weight_bytes = one.network.constant_bytes(one.network.nodes)
    planned = with_neighbours(one, AuxiliaryKind.AVGPOOL, weight_bytes // caches, math.inf)
    plan = plan_probes([planned], (), AuxiliaryKind.AVGPOOL, weight_bytes // caches)
    windows = {probe.id for probe in planned.windows}
    batches = [batch for batch in plan.batches if windows.issuperset(batch.probes)]
    assert windows == {probe for batch in batches for probe in batch.probes}
    for batch in batches:
        assert sum(plan.probes[probe].model.weight_bytes for probe in batch.probes) <= weight_bytes


def test_windows_depend_on_the_weights_only_if_probes_share_the_memory_of_activations() -> None:
    """On a device whose loaded probes keep their own activations, networks of any size have windows."""
    assert most_windowed_bytes({"activation_memory": "session"}, CACHE_BYTES) == math.inf
    assert most_windowed_bytes({}, CACHE_BYTES) == MOST_CACHES * CACHE_BYTES


def test_warm_probes_and_probes_of_pools_are_apart() -> None:
    """A layer of a small and of a large network is measured in the pool; no probe is visited in both ways."""
    small, large = cut_of(chain(12)), cut_of(chain(13))
    plans = [plan_probes([small], (), AuxiliaryKind.AVGPOOL, size) for size in (CACHE_BYTES, None)]
    in_context = [{layer.in_context for layer in plan.layers} for plan in plans]
    assert in_context[0].isdisjoint(in_context[1])
    visits: dict[str, set[str]] = {}
    for batch in plan_probes([small, large], (), AuxiliaryKind.AVGPOOL, CACHE_BYTES).batches:
        for probe in batch.probes:
            visits.setdefault(probe, set()).add(batch.visits)
    assert all(len(kinds) == 1 for kinds in visits.values())
