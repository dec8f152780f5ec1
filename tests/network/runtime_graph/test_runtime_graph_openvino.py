"""The layers that OpenVINO reports, as groups of nodes that rules can be learnt from."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from load_requests import request_of
from onnx import ModelProto
from onnx_models import random_dags
from sent_networks import CONV, SentNetwork, image_model

from harness.errors import ProtocolError
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.runtime_graph.reported import RuntimeGraph

FORMAT = "openvino"
STATISTICS = {name: np.ones(4, np.float32) for name in ("scale", "shift", "mean", "variance")}


class SentToOpenVino(SentNetwork):
    """A network sent to OpenVINO."""

    def __init__(self, nodes: Sequence[tuple[Any, ...]], outputs: Sequence[str] = ("y",), **constants: Any) -> None:
        super().__init__(image_model(nodes, outputs, **constants), FORMAT)

    def graph(self, layers: Sequence[tuple[Sequence[str], str]]) -> RuntimeGraph:
        """Return the graph read from a report of layers, given by names of the file, with their layouts."""
        reported = [
            {"name": f"layer {at}", "nodes": self.emit(nodes), "layout": layout}
            for at, (nodes, layout) in enumerate(layers)
        ]
        return self.read({"layers": reported})


NORMALISED = [
    ("Conv", "c", "x w", "a", CONV),
    ("BatchNormalization", "b", "a scale shift mean variance", "d"),
    ("Relu", "r", "d", "e"),
    ("Abs", "s", "e", "y"),
]


def test_folded_nodes_join_their_readers() -> None:
    """A convolution folded into its normalisation is reported only by the latter's name, and joins its group."""
    sent = SentToOpenVino(NORMALISED, **STATISTICS)
    graph = sent.graph([(["b", "r"], "acdb"), (["s"], "abcd")])
    assert sent.named(graph) == {frozenset({"c", "b", "r"}), frozenset({"s"})}
    assert graph.blocked == {"e"}


def test_folded_chains_join_from_behind() -> None:
    """A folded node that another folded node reads joins the group too, even if it is read twice within it."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Abs", "f1", "a", "b"),
        ("Neg", "f2", "b", "d"),
        ("Mul", "m", "b d", "y"),
    ]
    sent = SentToOpenVino(nodes)
    assert sent.named(sent.graph([(["r"], "abcd"), (["m"], "abcd")])) == {
        frozenset({"r"}),
        frozenset({"f1", "f2", "m"}),
    }


def test_folded_nodes_of_several_readers_or_none_stay_alone() -> None:
    """A folded node that several groups read, or that writes an output, is a group of its own."""
    nodes = [
        ("Relu", "r", "x", "a"),
        ("Abs", "f1", "a", "b"),
        ("Sigmoid", "s", "b", "d"),
        ("Neg", "n", "b", "z"),
        ("Exp", "f2", "d", "y"),
    ]
    sent = SentToOpenVino(nodes, ("y", "z"))
    graph = sent.graph([(["r"], "abcd"), (["s"], "abcd"), (["n"], "abcd")])
    assert sent.named(graph) == {frozenset({name}) for name in ("r", "f1", "s", "n", "f2")}


def test_layers_that_share_a_node_are_one_group() -> None:
    """Layers that share a node form one group."""
    sent = SentToOpenVino(NORMALISED, **STATISTICS)
    graph = sent.graph([(["c"], "abcd"), (["c", "b"], "abcd"), (["r"], "abcd"), (["s"], "abcd")])
    assert sent.named(graph) == {frozenset({"c", "b"}), frozenset({"r"}), frozenset({"s"})}
    assert graph.blocked == frozenset()


@pytest.mark.parametrize("layout", ["acdb", "aBcd16b", "acb"])
def test_other_orders_and_blocks_are_no_plain_layouts(layout: str) -> None:
    """Results of layers with channels last or in blocks are blocked; tensors inside a layer are not."""
    sent = SentToOpenVino(NORMALISED, **STATISTICS)
    assert sent.graph([(["c", "b", "r"], layout), (["s"], "abcd")]).blocked == {"e"}
    assert sent.graph([(["c", "b", "r"], "abcd"), (["s"], layout)]).blocked == {"y"}


@given(random_dags(), st.data())
def test_every_node_is_in_one_group(model: ModelProto, data: st.DataObject) -> None:
    """For any report, groups cover the network without overlap, and rules learnt from them cut it."""
    sent = SentNetwork(model, FORMAT)
    network = sent.network
    names = st.lists(st.sampled_from(sorted(sent.sent.names.nodes)), min_size=1, max_size=3)
    layers = data.draw(st.lists(names, max_size=5))
    graph = sent.read({"layers": [{"name": "", "nodes": nodes, "layout": "acdb"} for nodes in layers]})
    assert sorted(index for group in graph.groups for index in group) == [node.index for node in network.nodes]
    assert graph.blocked <= set(network.types)
    assert cut(network, learn_rules([(network, graph.groups)], FORMAT))


LAYER: dict[str, Any] = {"name": "a", "nodes": ["n0"], "layout": "abcd"}
WRONG_FIELDS: tuple[dict[str, Any], ...] = (
    {"nodes": []},
    {"nodes": [0]},
    {"nodes": ["n99"]},
    {"layout": "a\x1b"},
    {"layout": 3},
    {"more": 1},
)
MALFORMED = (b"", b"[]", b"\xff", b'{"layers": 1}', b"[" * 100_000, b'{"layers": [], "more": 1}')


@pytest.mark.parametrize(
    "content", [*MALFORMED, *(json.dumps({"layers": [{**LAYER, **wrong}]}).encode() for wrong in WRONG_FIELDS)]
)
def test_malformed_content_is_refused(content: bytes) -> None:
    """A report in another format, or of nodes that were not sent, raises ProtocolError."""
    sent = SentToOpenVino(NORMALISED, **STATISTICS)
    with pytest.raises(ProtocolError):
        sent.read(content)


def test_openvino_reports_its_own_fusion() -> None:
    """Real OpenVINO folds normalisation and activation into the convolution and keeps its result blocked."""
    from device_agents.backends.openvino.openvino_backend import OpenVinoBackend

    sent = SentToOpenVino([*NORMALISED[:3], ("GlobalAveragePool", "p", "e", "y")], **STATISTICS)
    revealed = OpenVinoBackend({}).load(request_of(sent.sent, reveal=True))
    assert revealed is not None and revealed.format == FORMAT
    graph = sent.read(revealed.content)
    assert sent.named(graph) == {frozenset({"c", "b", "r"}), frozenset({"p"})}
    assert len(revealed.content) < len(sent.sent.content)
