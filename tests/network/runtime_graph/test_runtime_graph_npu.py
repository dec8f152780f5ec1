"""The layers that the emulated NPU reports, as groups of nodes that rules can be learnt from."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx_models import random_dags
from sent_networks import CONV, SentNetwork, image_model

from harness.errors import ProtocolError
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.fusion.rule_learning import learn_rules
from harness.network.fusion.rule_matching import match_all
from harness.network.layers import cut
from harness.network.network import Network

FORMAT = "emulated-npu"


def content_of(layers: Sequence[Sequence[str]], free: Sequence[str] = (), chains: Any = ()) -> bytes:
    """Return the report that the device would send."""
    reported = [{"name": f"layer {at}", "nodes": list(nodes)} for at, nodes in enumerate(layers)]
    return json.dumps({"layers": reported, "free_nodes": list(free), "chains": list(chains)}).encode()


class SentToNpu(SentNetwork):
    """A network sent to the emulated NPU."""

    def groups(self, layers: Sequence[Sequence[str]], free: Sequence[str] = ()) -> set[frozenset[str]]:
        """Return the groups read from a report of layers and free nodes; all nodes by their names in the file."""
        return self.named(self.read(content_of([self.emit(one) for one in layers], self.emit(free))))


def sent_network(nodes: Sequence[tuple[Any, ...]], outputs: Sequence[str] = ("y",), **constants: Any) -> SentToNpu:
    """Return a sent network of nodes (operator, name, inputs, outputs, attributes) on one image `x`."""
    return SentToNpu(image_model(nodes, outputs, **constants), FORMAT)


ROWS = np.array([1, 4, 36])
MATRIX = np.ones((36, 5), np.float32)


def test_nodes_of_one_layer_are_one_group() -> None:
    """The nodes that the device executes as one layer are one group."""
    graph = sent_network([("Conv", "c", "x w", "a", CONV), ("Relu", "r", "a", "b"), ("Abs", "s", "b", "y")])
    assert graph.groups([["c", "r"], ["s"]]) == {frozenset({"c", "r"}), frozenset({"s"})}


def test_layers_that_share_a_node_are_one_group() -> None:
    """Layers that execute parts of one node form one group with all their nodes."""
    graph = sent_network([("Softmax", "m", "x", "a"), ("Relu", "r", "a", "b"), ("Abs", "s", "b", "y")])
    assert graph.groups([["m"], ["m"], ["m", "r"], [], ["s"]]) == {frozenset({"m", "r"}), frozenset({"s"})}


def test_views_join_the_layer_that_reads_them() -> None:
    """Views in front of a matrix product join the product, even if another layer wrote their input."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Reshape", "v1", "a rows", "b"),
        ("Transpose", "v2", "b", "c", {"perm": [0, 2, 1]}),
        ("Transpose", "v3", "c", "d", {"perm": [0, 2, 1]}),
        ("MatMul", "p", "d m", "y"),
    ]
    graph = sent_network(nodes, rows=ROWS, m=MATRIX)
    found = graph.groups([["r"], ["p"]], ["v1", "v2", "v3"])
    assert found == {frozenset({"r"}), frozenset({"v1", "v2", "v3", "p"})}


def test_views_of_several_readers_join_the_layer_that_writes_their_input() -> None:
    """A view that several layers read joins the layer that writes its input, if it is the only reader of that."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Reshape", "v", "a rows", "b"),
        ("Abs", "s", "b", "y"),
        ("Sigmoid", "t", "b", "z"),
    ]
    graph = sent_network(nodes, ("y", "z"), rows=ROWS)
    assert frozenset({"r", "v"}) in graph.groups([["r"], ["s"], ["t"]], ["v"])


def test_views_that_are_outputs_join_the_layer_that_writes_their_input() -> None:
    """A view at the end of the network joins the last layer."""
    graph = sent_network([("Relu", "r", "x", "a"), ("Reshape", "v", "a rows", "y")], rows=ROWS)
    assert graph.groups([["r"]], ["v"]) == {frozenset({"r", "v"})}


def test_views_that_would_give_a_group_two_results_stay_alone() -> None:
    """A view with several readers and a shared input stays alone, because no rule can describe such a group."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Reshape", "v", "a rows", "b"),
        ("Abs", "s", "b", "y"),
        ("Sigmoid", "t", "b", "z"),
        ("Neg", "n", "a", "u"),
    ]
    graph = sent_network(nodes, ("y", "z", "u"), rows=ROWS)
    assert frozenset({"v"}) in graph.groups([["r"], ["s"], ["t"], ["n"]], ["v"])


def test_concatenations_in_place_join_their_reader() -> None:
    """A concatenation written in place takes no time and joins the layer that reads it."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Abs", "s", "x", "b"),
        ("Concat", "j", "a b", "c", {"axis": 2}),
        ("Conv", "k", "c w", "y", CONV),
    ]
    assert frozenset({"j", "k"}) in sent_network(nodes).groups([["r"], ["s"], ["k"]], ["j"])


def test_a_node_of_several_results_stays_alone() -> None:
    """Views on both halves of a split join their readers; the split itself stays alone."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Split", "v", "a sizes", "b c", {"axis": 1}),
        ("Transpose", "v1", "b", "d", {"perm": [0, 1, 3, 2]}),
        ("Mul", "m", "d c", "y"),
    ]
    found = sent_network(nodes, sizes=np.array([2, 2])).groups([["r"], ["m"]], ["v", "v1"])
    assert found == {frozenset({"r"}), frozenset({"v"}), frozenset({"v1", "m"})}


def test_the_branch_that_a_sum_is_fused_into_is_learnt() -> None:
    """If both summands are convolutions, rules find the one that the sum is fused into and leave the other."""
    nodes = [("Relu", "r", "x", "t0")]
    for at, other in enumerate(("x", "t0")):  # one summand is no convolution
        nodes += [("Conv", f"c{at}", f"t{at} w", f"a{at}", CONV), ("Add", f"s{at}", f"a{at} {other}", f"t{at + 1}")]
    nodes += [("Conv", "m", "t2 w", "b", CONV), ("Conv", "k", "t2 w", "d", CONV), ("Add", "j", "b d", "y")]
    graph = sent_network(nodes)
    reported = [["r"], ["c0", "s0"], ["c1", "s1"], ["m"], ["k", "j"]]
    assert graph.groups(reported) == {frozenset(one) for one in reported}
    groups = graph.read(content_of([graph.emit(one) for one in reported])).groups
    layers = cut(graph.network, learn_rules([(graph.network, groups)], FORMAT))
    assert {frozenset(node.index for node in layer.graph.nodes) for layer in layers} == set(groups)


FUSED = [FusionRule(text) for text in ("Conv(x0);Relu(0)", "Add(x0,x1);Sigmoid(0)", "Sigmoid(x0);Mul(x0,0)")]


@st.composite
def reports(draw: st.DrawFn) -> tuple[SentToNpu, list[frozenset[int]], list[int]]:
    """Draw a network, disjoint layers of it, and nodes that take no time."""
    graph = SentToNpu(draw(random_dags()), FORMAT)
    groups = [frozenset(node.index for node in group) for group in match_all(graph.network, FUSED)]
    fused = frozenset().union(*groups)
    rest = [node.index for node in graph.network.nodes if node.index not in fused]
    free = [index for index in rest if draw(st.booleans())]
    return graph, [*groups, *(frozenset({index}) for index in rest if index not in free)], free


@given(reports())
def test_groups_hold_the_layers_and_every_node_once(case: tuple[SentToNpu, list[frozenset[int]], list[int]]) -> None:
    """For any free nodes, groups are disjoint and cover the network, and each has at most one whole layer."""
    graph, layers, free = case
    sent = [[graph.emitted[index] for index in layer] for layer in layers]
    groups = graph.read(content_of(sent, [graph.emitted[index] for index in free])).groups
    members = [index for group in groups for index in group]
    assert sorted(members) == [node.index for node in graph.network.nodes]
    for layer in layers:
        assert sum(layer <= group for group in groups) == 1
    assert all(sum(layer <= group for layer in layers) <= 1 for group in groups)


@given(reports())
def test_layers_that_rules_are_learnt_from_have_one_result(
    case: tuple[SentToNpu, list[frozenset[int]], list[int]],
) -> None:
    """A layer of one result still has one after free nodes join it, so that rules can cut the network."""
    graph, layers, free = case
    sent = [[graph.emitted[index] for index in layer] for layer in layers]
    groups = graph.read(content_of(sent, [graph.emitted[index] for index in free])).groups
    results = {layer: len(_results(graph.network, layer)) for layer in layers}
    for group in groups:
        inside = [layer for layer in layers if layer <= group]
        if inside and results[inside[0]] == 1:
            assert len(_results(graph.network, group)) == 1
    cut(graph.network, learn_rules([(graph.network, groups)], FORMAT))


def _results(network: Network, group: frozenset[int]) -> set[str]:
    """Return the tensors that leave a group."""
    return {
        tensor
        for node in network.nodes
        if node.index in group
        for tensor in node.outputs
        if tensor in network.outputs or any(reader.index not in group for reader in network.consumers.get(tensor, []))
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"layers": [], "free_nodes": [], "chains": []}',
        content_of([["n0"]]),
        content_of([["n0"], ["n1"], ["n7"]]),
        content_of([["n0"], ["n1"]], ["n1"]),
        content_of([["n0"], ["n1"]], ["elsewhere"]),
        content_of([["n0"], ["n1"]], chains=[[0, 2]]),
        content_of([["n0"], ["n1"]], chains=[[-1]]),
        content_of([["n0"], ["n1"]], chains=[[0], [0, 1]]),
        content_of([["n0"], ["n1"]], chains=[["0"]]),
        content_of([["n0"], ["n1"]])[:-1] + b', "more": 1}',
        content_of([["n0"], ["n1"]]).replace(b'"n1"', b"1"),
        content_of([["n0"], ["n1"]]).replace(b'"layer 0"', b"null"),
        b"[" * 100_000,
    ],
)
def test_malformed_reports_are_refused(content: bytes) -> None:
    """Malformed text, unknown nodes, missing nodes, and nodes both executed and free raise ProtocolError."""
    graph = sent_network([("Conv", "c", "x w", "a", CONV), ("Relu", "r", "a", "y")])
    with pytest.raises(ProtocolError, match="cannot be read"):
        graph.read(content)


def test_a_proper_report_is_read() -> None:
    """The report from which the malformed ones are derived is accepted."""
    graph = sent_network([("Conv", "c", "x w", "a", CONV), ("Relu", "r", "a", "y")])
    reported = graph.read(content_of([["n0"], ["n1"]], chains=[[0, 1]]))
    assert (len(reported.groups), reported.blocked) == (2, frozenset({"x", "w", "a", "y"}))
