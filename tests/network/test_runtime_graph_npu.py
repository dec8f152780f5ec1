"""What the emulated NPU tells of its layers, as groups of nodes that rules can be learnt from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper
from onnx_models import IMAGE, WEIGHT, model_of, prepared, random_dags

from harness.errors import ProtocolError
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.fusion_rules import FusionRule, learn_rules, match_all
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph

FORMAT = "emulated-npu"


def content_of(layers: Sequence[Sequence[str]], free: Sequence[str] = (), chains: Any = ()) -> bytes:
    """What the device would send."""
    told = [{"name": f"layer {at}", "nodes": list(nodes)} for at, nodes in enumerate(layers)]
    return json.dumps({"layers": told, "free_nodes": list(free), "chains": list(chains)}).encode()


class Asked:
    """A network with the model that was sent of it."""

    def __init__(self, model: ModelProto) -> None:
        self.network: Network = prepared(model)
        self.sent: AssembledModel = assemble_network(self.network)
        self.emitted = {index: name for name, index in self.sent.names.nodes.items()}

    def read(self, content: bytes) -> RuntimeGraph:
        """What harness makes of the answer."""
        return read_runtime_graph(self.network, self.sent.names, FORMAT, content)

    def groups(self, layers: Sequence[Sequence[str]], free: Sequence[str] = ()) -> set[frozenset[str]]:
        """The groups, by names of the file, where the device tells these layers by names of the file."""
        sent = {node.name: self.emitted[node.index] for node in self.network.nodes}
        told = self.read(content_of([[sent[name] for name in one] for one in layers], [sent[name] for name in free]))
        names = {node.index: node.name for node in self.network.nodes}
        return {frozenset(names[index] for index in group) for group in told.groups}


def asked(nodes: Sequence[tuple[Any, ...]], outputs: Sequence[str] = ("y",), **constants: Any) -> Asked:
    """A network of nodes (operator, name, inputs, outputs, attributes) on one image `x`."""
    protos = [
        helper.make_node(op, reads.split(), writes.split(), name, **(extra[0] if extra else {}))
        for op, name, reads, writes, *extra in nodes
    ]
    return Asked(model_of(protos, {"x": IMAGE}, outputs, {"w": WEIGHT, **constants}))


CONV: Mapping[str, Any] = {"pads": [1, 1, 1, 1]}
ROWS = np.array([1, 4, 36])
MATRIX = np.ones((36, 5), np.float32)


def test_nodes_of_one_layer_are_one_group() -> None:
    """m:n folding: what the device executes as one layer is one group."""
    graph = asked([("Conv", "c", "x w", "a", CONV), ("Relu", "r", "a", "b"), ("Abs", "s", "b", "y")])
    assert graph.groups([["c", "r"], ["s"]]) == {frozenset({"c", "r"}), frozenset({"s"})}


def test_layers_that_share_a_node_are_one_group() -> None:
    """A node that took several layers, one of which holds another node as well, makes one group of all."""
    graph = asked([("Softmax", "m", "x", "a"), ("Relu", "r", "a", "b"), ("Abs", "s", "b", "y")])
    assert graph.groups([["m"], ["m"], ["m", "r"], [], ["s"]]) == {frozenset({"m", "r"}), frozenset({"s"})}


def test_views_join_the_layer_that_reads_them() -> None:
    """A chain of views in front of a matrix product is part of the product, also where another layer made it."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Reshape", "v1", "a rows", "b"),
        ("Transpose", "v2", "b", "c", {"perm": [0, 2, 1]}),
        ("Transpose", "v3", "c", "d", {"perm": [0, 2, 1]}),
        ("MatMul", "p", "d m", "y"),
    ]
    graph = asked(nodes, rows=ROWS, m=MATRIX)
    found = graph.groups([["r"], ["p"]], ["v1", "v2", "v3"])
    assert found == {frozenset({"r"}), frozenset({"v1", "v2", "v3", "p"})}


def test_views_of_several_readers_join_the_layer_that_makes_them() -> None:
    """A view that several layers read belongs to what it is a view of, where nobody else reads that."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Reshape", "v", "a rows", "b"),
        ("Abs", "s", "b", "y"),
        ("Sigmoid", "t", "b", "z"),
    ]
    graph = asked(nodes, ("y", "z"), rows=ROWS)
    assert frozenset({"r", "v"}) in graph.groups([["r"], ["s"], ["t"]], ["v"])


def test_views_handed_back_join_the_layer_that_makes_them() -> None:
    """A view at the end of the network belongs to the last layer."""
    graph = asked([("Relu", "r", "x", "a"), ("Reshape", "v", "a rows", "y")], rows=ROWS)
    assert graph.groups([["r"]], ["v"]) == {frozenset({"r", "v"})}


def test_views_that_would_give_a_group_two_results_stay_alone() -> None:
    """Neither several readers nor a shared source take a view in, as no rule could be written for that."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Reshape", "v", "a rows", "b"),
        ("Abs", "s", "b", "y"),
        ("Sigmoid", "t", "b", "z"),
        ("Neg", "n", "a", "u"),
    ]
    graph = asked(nodes, ("y", "z", "u"), rows=ROWS)
    assert frozenset({"v"}) in graph.groups([["r"], ["s"], ["t"], ["n"]], ["v"])


def test_joining_in_place_of_copying_joins_its_reader() -> None:
    """A concatenation that is written in place costs nothing and is part of the layer that reads it."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Abs", "s", "x", "b"),
        ("Concat", "j", "a b", "c", {"axis": 2}),
        ("Conv", "k", "c w", "y", CONV),
    ]
    assert frozenset({"j", "k"}) in asked(nodes).groups([["r"], ["s"], ["k"]], ["j"])


def test_a_node_of_several_results_stays_alone() -> None:
    """Views on both halves of a split join their readers; the split, which no pattern can hold, spoils no group."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Split", "v", "a sizes", "b c", {"axis": 1}),
        ("Transpose", "v1", "b", "d", {"perm": [0, 1, 3, 2]}),
        ("Mul", "m", "d c", "y"),
    ]
    found = asked(nodes, sizes=np.array([2, 2])).groups([["r"], ["m"]], ["v", "v1"])
    assert found == {frozenset({"r"}), frozenset({"v"}), frozenset({"v1", "m"})}


def test_the_branch_that_a_sum_is_drawn_into_is_learnt() -> None:
    """Where both summands are convolutions, rules find the one that the device takes, and leave the other whole."""
    nodes = [("Relu", "r", "x", "t0")]
    for at, other in enumerate(("x", "t0")):  # one summand is no convolution
        nodes += [("Conv", f"c{at}", f"t{at} w", f"a{at}", CONV), ("Add", f"s{at}", f"a{at} {other}", f"t{at + 1}")]
    nodes += [("Conv", "m", "t2 w", "b", CONV), ("Conv", "k", "t2 w", "d", CONV), ("Add", "j", "b d", "y")]
    graph = asked(nodes)
    told = [["r"], ["c0", "s0"], ["c1", "s1"], ["m"], ["k", "j"]]
    assert graph.groups(told) == {frozenset(one) for one in told}
    sent = {node.name: graph.emitted[node.index] for node in graph.network.nodes}
    groups = graph.read(content_of([[sent[name] for name in one] for one in told])).groups
    layers = cut(graph.network, learn_rules([(graph.network, groups)], FORMAT))
    assert {frozenset(node.index for node in layer.graph.nodes) for layer in layers} == set(groups)


FUSED = [FusionRule(text) for text in ("Conv(x0);Relu(0)", "Add(x0,x1);Sigmoid(0)", "Sigmoid(x0);Mul(x0,0)")]


@st.composite
def tellings(draw: st.DrawFn) -> tuple[Asked, list[frozenset[int]], list[int]]:
    """A random network, disjoint layers of it, and nodes that cost nothing."""
    graph = Asked(draw(random_dags()))
    groups = [frozenset(node.index for node in group) for group in match_all(graph.network, FUSED)]
    fused = frozenset().union(*groups)
    rest = [node.index for node in graph.network.nodes if node.index not in fused]
    free = [index for index in rest if draw(st.booleans())]
    return graph, [*groups, *(frozenset({index}) for index in rest if index not in free)], free


@given(tellings())
def test_groups_hold_the_layers_and_every_node_once(case: tuple[Asked, list[frozenset[int]], list[int]]) -> None:
    """Whatever is free, groups are disjoint, cover the network, and no layer is torn or joined with another."""
    graph, layers, free = case
    sent = [[graph.emitted[index] for index in layer] for layer in layers]
    groups = graph.read(content_of(sent, [graph.emitted[index] for index in free])).groups
    members = [index for group in groups for index in group]
    assert sorted(members) == [node.index for node in graph.network.nodes]
    for layer in layers:
        assert sum(layer <= group for group in groups) == 1
    assert all(sum(layer <= group for layer in layers) <= 1 for group in groups)


@given(tellings())
def test_layers_that_rules_are_learnt_from_have_one_result(
    case: tuple[Asked, list[frozenset[int]], list[int]],
) -> None:
    """Taking free nodes in leaves every group with one result where the layer in it had one, so cutting works."""
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
    """Tensors that leave a group."""
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
def test_answers_that_contradict_themselves_are_refused(content: bytes) -> None:
    """Malformed text, unknown nodes, nodes left out, and nodes both executed and free are no graph."""
    graph = asked([("Conv", "c", "x w", "a", CONV), ("Relu", "r", "a", "y")])
    with pytest.raises(ProtocolError, match="cannot be read"):
        graph.read(content)


def test_proper_answer_is_read() -> None:
    """The answer that the malformed ones were made from is good."""
    graph = asked([("Conv", "c", "x w", "a", CONV), ("Relu", "r", "a", "y")])
    told = graph.read(content_of([["n0"], ["n1"]], chains=[[0, 1]]))
    assert (len(told.groups), told.blocked) == (2, frozenset({"x", "w", "a", "y"}))
