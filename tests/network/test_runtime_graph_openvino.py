"""What OpenVINO tells of the nodes it executes, as groups of nodes that rules can be learnt from."""

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

from device_agents.backends import LoadRequest
from harness.errors import ProtocolError
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.fusion_rules import learn_rules
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph

FORMAT = "openvino"
CONV: Mapping[str, Any] = {"pads": [1, 1, 1, 1]}
STATISTICS = {name: np.ones(4, np.float32) for name in ("scale", "shift", "mean", "variance")}


class Asked:
    """A network with the model that was sent of it."""

    def __init__(self, nodes: Sequence[tuple[Any, ...]], outputs: Sequence[str] = ("y",), **constants: Any) -> None:
        protos = [
            helper.make_node(op, reads.split(), writes.split(), name, **(extra[0] if extra else {}))
            for op, name, reads, writes, *extra in nodes
        ]
        model: ModelProto = model_of(protos, {"x": IMAGE}, outputs, {"w": WEIGHT, **constants})
        self.network: Network = prepared(model)
        self.sent: AssembledModel = assemble_network(self.network)

    def read(self, layers: Sequence[tuple[Sequence[str], str]]) -> RuntimeGraph:
        """What harness makes of layers, told by names of the file with their layouts."""
        index = {node.name: node.index for node in self.network.nodes}
        sent = {index: name for name, index in self.sent.names.nodes.items()}
        told = [
            {"name": f"layer {at}", "nodes": [sent[index[name]] for name in nodes], "layout": layout}
            for at, (nodes, layout) in enumerate(layers)
        ]
        return read_runtime_graph(self.network, self.sent.names, FORMAT, json.dumps({"layers": told}).encode())

    def named(self, told: RuntimeGraph) -> set[frozenset[str]]:
        """Its groups by names of the file."""
        names = {node.index: node.name for node in self.network.nodes}
        return {frozenset(names[index] for index in group) for group in told.groups}


NORMALISED = [
    ("Conv", "c", "x w", "a", CONV),
    ("BatchNormalization", "b", "a scale shift mean variance", "d"),
    ("Relu", "r", "d", "e"),
    ("Abs", "s", "e", "y"),
]


def test_folded_nodes_join_what_reads_them() -> None:
    """A convolution folded into its normalisation is told by the latter's name alone, and is in its group."""
    asked = Asked(NORMALISED, **STATISTICS)
    told = asked.read([(["b", "r"], "acdb"), (["s"], "abcd")])
    assert asked.named(told) == {frozenset({"c", "b", "r"}), frozenset({"s"})}
    assert told.blocked == {"e"}


def test_folded_chains_join_from_behind() -> None:
    """What is folded behind what is folded is in the group as well, also where it is read twice within it."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Abs", "f1", "a", "b"),
        ("Neg", "f2", "b", "d"),
        ("Mul", "m", "b d", "y"),
    ]
    asked = Asked(nodes)
    assert asked.named(asked.read([(["r"], "abcd"), (["m"], "abcd")])) == {
        frozenset({"r"}),
        frozenset({"f1", "f2", "m"}),
    }


def test_folded_nodes_of_several_readers_or_none_stay_alone() -> None:
    """What several groups read, and what the network hands back, is in none of them."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Abs", "f1", "a", "b"),
        ("Sigmoid", "s", "b", "d"),
        ("Neg", "n", "b", "z"),
        ("Exp", "f2", "d", "y"),
    ]
    asked = Asked(nodes, ("y", "z"))
    told = asked.read([(["r"], "abcd"), (["s"], "abcd"), (["n"], "abcd")])
    assert asked.named(told) == {frozenset({name}) for name in ("r", "f1", "s", "n", "f2")}


def test_layers_that_share_a_node_are_one_group() -> None:
    """A node that takes several steps of the runtime makes one group of them."""
    asked = Asked(NORMALISED, **STATISTICS)
    told = asked.read([(["c"], "abcd"), (["c", "b"], "abcd"), (["r"], "abcd"), (["s"], "abcd")])
    assert asked.named(told) == {frozenset({"c", "b"}), frozenset({"r"}), frozenset({"s"})}
    assert told.blocked == frozenset()


@pytest.mark.parametrize("layout", ["acdb", "aBcd16b", "acb"])
def test_other_orders_and_blocks_are_no_plain_layouts(layout: str) -> None:
    """Results of layers with channels last or in blocks are blocked, what stays inside of a layer is not."""
    asked = Asked(NORMALISED, **STATISTICS)
    assert asked.read([(["c", "b", "r"], layout), (["s"], "abcd")]).blocked == {"e"}
    assert asked.read([(["c", "b", "r"], "abcd"), (["s"], layout)]).blocked == {"y"}


@given(random_dags(), st.data())
def test_every_node_is_in_one_group(model: ModelProto, data: st.DataObject) -> None:
    """Whatever is told of a network, groups cover it without overlap, and rules learnt from them cut it."""
    network = prepared(model)
    sent = assemble_network(network)
    names = st.lists(st.sampled_from(sorted(sent.names.nodes)), min_size=1, max_size=3)
    layers = data.draw(st.lists(names, max_size=5))
    told = [{"name": "", "nodes": nodes, "layout": "acdb"} for nodes in layers]
    graph = read_runtime_graph(network, sent.names, FORMAT, json.dumps({"layers": told}).encode())
    assert sorted(index for group in graph.groups for index in group) == [node.index for node in network.nodes]
    assert graph.blocked <= set(network.types)
    assert cut(network, learn_rules([(network, graph.groups)], FORMAT))


LAYER: dict[str, Any] = {"name": "a", "nodes": ["n0"], "layout": "abcd"}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"\xff", b'{"layers": 1}', b"[" * 100_000, b'{"layers": [], "more": 1}',
        *(json.dumps({"layers": [{**LAYER, **wrong}]}).encode() for wrong in (
            {"nodes": []}, {"nodes": [0]}, {"nodes": ["n99"]}, {"layout": "a\x1b"}, {"layout": 3}, {"more": 1},
        )),
    ],
)  # fmt: skip
def test_malformed_content_is_refused(content: bytes) -> None:
    """Nothing but the format of this version about nodes of the model is believed."""
    asked = Asked(NORMALISED, **STATISTICS)
    with pytest.raises(ProtocolError):
        read_runtime_graph(asked.network, asked.sent.names, FORMAT, content)


def test_openvino_tells_its_own_fusion() -> None:
    """Real OpenVINO folds normalisation and activation into the convolution, and keeps its result blocked."""
    from device_agents.backends.openvino.openvino_backend import OpenVinoBackend

    asked = Asked([*NORMALISED[:3], ("GlobalAveragePool", "p", "e", "y")], **STATISTICS)
    weights, inputs = ([spec.wire() for spec in specs] for specs in (asked.sent.weights, asked.sent.inputs))
    backend = OpenVinoBackend({})
    revealed = backend.load(LoadRequest("p", asked.sent.content, weights, inputs, asked.sent.output_bytes, reveal=True))
    assert revealed is not None and revealed.format == FORMAT
    told = read_runtime_graph(asked.network, asked.sent.names, revealed.format, revealed.content)
    assert asked.named(told) == {frozenset({"c", "b", "r"}), frozenset({"p"})}
    assert len(revealed.content) < len(asked.sent.content)
