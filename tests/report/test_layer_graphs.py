"""Blocks of layers by their names, and the layout of their graph."""

import pytest
from hypothesis import given, settings, strategies as st

from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.keyed_network import keyed
from harness.network.model_references import load_network
from harness.report.networks.layer_figures import LayerBar
from harness.report.networks.network_graph import MOST_LAYERS, connections, graph_figure, graph_layout, is_drawable
from harness.report.networks.network_section import blocks_of

NAMES = st.lists(st.from_regex(r"(/?[a-c]{1,2}[./]){0,4}[a-c]{1,2}", fullmatch=True), unique=True, max_size=60)


def test_blocks_have_the_names_that_people_use() -> None:
    """The layers of a residual block belong together, in the styles of names of PyTorch's exporter and of modules."""
    exported = {"/layer1/layer1.0/conv1/Conv": "layer1.layer1", "/layer2/layer2.0/conv1/Conv": "layer2.layer2"}
    names = [*exported, "/layer1/layer1.0/conv2/Conv", "/conv1/Conv"]
    assert {name: block.split(".")[0] for name, block in blocks_of(names).items()} == {
        names[0]: "layer1",
        names[1]: "layer2",
        names[2]: "layer1",
        names[3]: "conv1",
    }
    assert blocks_of(["f.1.a", "f.1.b", "f.2.a"]) == {"f.1.a": "f.1", "f.1.b": "f.1", "f.2.a": "f.2"}
    assert blocks_of(["n1", "n2", "n3"]) == {}, "names without parts have no blocks"


@given(names=NAMES)
def test_every_layer_is_in_one_block_and_blocks_are_few(names: list[str]) -> None:
    """Either all layers have a block, of which there are at least 2 and at most 40, or none has."""
    found = blocks_of(names)
    assert set(found) in (set(), set(names))
    assert not found or 1 < len(set(found.values())) <= 40


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Return a number of vertices and edges from smaller to larger ones."""
    count = draw(st.integers(1, 25))
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda edge: edge[0] < edge[1])
    return count, draw(st.lists(ends, unique=True, max_size=40)) if count > 1 else []


@settings(max_examples=60)
@given(graph=graphs())
def test_data_flows_to_the_right_and_no_layer_hides_another(graph: tuple[int, list[tuple[int, int]]]) -> None:
    """Every edge leads to the right from its layer to its reader, and no two layers overlap."""
    count, edges = graph
    vertices, paths = graph_layout(count, edges)
    assert len(vertices) == count and len(paths) == len(edges)
    for (start, end), path in zip(edges, paths, strict=True):
        assert (path[0], path[-1]) == (vertices[start], vertices[end])
        assert path[0][0] < path[-1][0]
    for at, (x, y) in enumerate(vertices):
        for other_x, other_y in vertices[:at]:
            assert abs(x - other_x) >= 0.8 or abs(y - other_y) >= 0.5


def test_readers_of_a_real_network_are_connected() -> None:
    """In ResNet-50's graph every layer but the first reads another, and residual additions read two."""
    layers = keyed(load_network("builtin:resnet50"), DEFAULT_RULES).layers
    edges = connections(layers)
    readers = [end for _, end in edges]
    assert set(readers) == set(range(1, len(layers)))
    assert max(readers.count(at) for at in range(len(layers))) == 2


@pytest.mark.parametrize("count", [30, 300])
def test_outlines_do_not_hide_the_colours_of_a_long_network(count: int) -> None:
    """Layers have outlines only where these are far thinner than the layers."""
    bars = [LayerBar(f"conv{at}", "", 1e-6) for at in range(count)]
    drawn = graph_figure(bars, [(at - 1, at) for at in range(1, count)])
    assert ('"line_color":{"type":"value","value":null}' in drawn) == (count == 300)


def test_networks_that_take_long_to_lay_out_have_no_graph() -> None:
    """Long chains have a graph; a network has none with too many layers, or with many edges across many layers."""

    def chain(count: int) -> list[tuple[int, int]]:
        return [(at - 1, at) for at in range(1, count)]

    assert is_drawable(MOST_LAYERS, chain(MOST_LAYERS))
    assert not is_drawable(MOST_LAYERS + 1, chain(MOST_LAYERS + 1))
    assert not is_drawable(1, [])
    assert is_drawable(40, [(start, end) for end in range(40) for start in range(end)])
    assert not is_drawable(80, [(start, end) for end in range(80) for start in range(end)])
