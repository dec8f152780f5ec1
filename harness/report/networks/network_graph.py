"""The graph of a network: layers in ranks from left to right (Sugiyama, Tagawa, Toda 1981), coloured by latency."""

from collections.abc import Sequence
from typing import Any

from bokeh import plotting
from bokeh.models import BasicTickFormatter, LinearColorMapper
from bokeh.models.annotations import ColorBar
from bokeh.palettes import YlOrRd9
from bokeh.transform import transform
from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout, VertexViewer

from harness.network.keyed_network import KeyedLayer
from harness.report.figures import TEXT, WARNING, base_figure, draw, figure_json
from harness.report.networks.layer_figures import LayerBar
from harness.report.page_values import Unit, unit_for

Point = tuple[float, float]
_ROUNDS = 4
"""Sweeps over the ranks that reduce crossings."""
_APART = 1.5
"""The distance between parts of the graph that are not connected."""
MOST_LAYERS, MOST_RANKS = 1500, 20_000
"""A network beyond these limits has no graph: it would be unreadable, and its layout slow.

MOST_RANKS limits the sum of the ranks that each edge crosses, because the layout has a vertex in each of them. The sum
is large where layers read all layers before them.
"""
_PIXELS_A_ROW = 34
_MOST_OUTLINED = 100
"""Layers in a row whose outlines leave room for their colours."""


class _Path:
    """Receives the path of an edge from the library."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def setpath(self, points: Sequence[Point]) -> None:
        self.points = list(points)


def graph_layout(count: int, edges: Sequence[tuple[int, int]]) -> tuple[list[Point], list[list[Point]]]:
    """Place `count` vertices that are connected by `edges`; no edge is given twice, and there is no cycle.

    Return the places of the vertices, and the path of each edge; a rank is 1 wide.
    """
    vertices = [Vertex(at) for at in range(count)]
    for vertex in vertices:
        vertex.view = VertexViewer(0.5, 0.5)
    connections = [Edge(vertices[start], vertices[end]) for start, end in edges]
    for connection in connections:
        connection.view = _Path()
    lowest = 0.0
    placed: dict[int, Point] = {}
    offset_of: dict[int, Point] = {}
    for part in Graph(vertices, connections).C:
        own = [int(vertex.data) for vertex in part.sV]
        sugiyama = SugiyamaLayout(part)
        sugiyama.xspace = sugiyama.yspace = 0.5
        sugiyama.init_all(roots=[vertex for vertex in part.sV if not vertex.e_in()])
        sugiyama.draw(_ROUNDS)
        places = {at: _turned(vertices[at].view.xy) for at in own}
        left, bottom = (min(point[axis] for point in places.values()) for axis in (0, 1))
        offset = (-left, lowest - bottom)
        placed |= {at: _moved(point, offset) for at, point in places.items()}
        offset_of |= dict.fromkeys(own, offset)
        lowest = max(placed[at][1] for at in own) + _APART
    paths = []
    for (start, end), connection in zip(edges, connections, strict=True):
        inner = (_moved(_turned(point), offset_of[start]) for point in connection.view.points[1:-1])
        paths.append([placed[start], *inner, placed[end]])
    return [placed[at] for at in range(count)], paths


def _turned(point: Point) -> Point:
    """Return a place of the library, whose ranks go down, with ranks to the right."""
    return float(point[1]), float(point[0])


def _moved(point: Point, offset: Point) -> Point:
    return point[0] + offset[0], point[1] + offset[1]


def connections(layers: Sequence[KeyedLayer]) -> tuple[tuple[int, int], ...]:
    """Return which layers read results of which, as pairs of numbers, each once."""
    pairs = {(tensor.writer, at) for at, layer in enumerate(layers) for tensor in layer.flow.read}
    return tuple(sorted((writer, at) for writer, at in pairs if writer is not None and writer != at))


def is_drawable(count: int, edges: Sequence[tuple[int, int]]) -> bool:
    """Return whether `count` layers with these edges are within the limits of a graph; a single layer has none."""
    rank = [0] * count
    for writer, reader in sorted(edges, key=lambda edge: edge[1]):
        rank[reader] = max(rank[reader], rank[writer] + 1)
    crossed = sum(abs(rank[reader] - rank[writer]) for writer, reader in edges)
    return 1 < count <= MOST_LAYERS and crossed <= MOST_RANKS


def graph_figure(bars: Sequence[LayerBar], edges: Sequence[tuple[int, int]]) -> str:
    """Draw the layers, each with the text of its tooltip, and the edges between them."""
    vertices, paths = graph_layout(len(bars), edges)
    ys = [y for path in (vertices, *paths) for _, y in path]
    low, high = min(ys) - 0.7, max(ys) + 0.7
    last = max(x for x, _ in vertices)
    height = int(min(700, 110 + _PIXELS_A_ROW * (high - low)))
    unit = unit_for(bar.latency_s or 0.0 for bar in bars)
    plot = base_figure(height, ("layers, as data flows", ""), ("linear", "linear"), (-0.7, last + 0.7), (low, high))
    plot.yaxis.visible = plot.xaxis.visible = False
    plot.grid.visible = False
    xs = [[x for x, _ in path] for path in paths]
    plot.multi_line(xs, [[y for _, y in path] for path in paths], line_color=TEXT, line_alpha=0.55)
    for known in (True, False):
        chosen = [at for at, bar in enumerate(bars) if (bar.latency_s is not None) == known]
        if chosen:
            _draw(plot, [bars[at] for at in chosen], chosen, [vertices[at] for at in chosen], unit)
    return figure_json(plot)


def _draw(
    plot: plotting.figure,
    bars: Sequence[LayerBar],
    numbers: Sequence[int],
    places: Sequence[tuple[float, float]],
    unit: Unit,
) -> None:
    """Draw layers that are all known, with a colour bar, or all unknown."""
    values = [(bar.latency_s or 0.0) / unit.seconds for bar in bars]
    columns = {
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "value": values,
        "name": [f"{at + 1}: {bar.name}" for at, bar in zip(numbers, bars, strict=True)],
        "text": [bar.text for bar in bars],
    }
    look: dict[str, Any] = {"x": "x", "y": "y", "width": 0.8, "height": 0.5}
    look["line_color"] = TEXT if max(x for x, _ in places) < _MOST_OUTLINED else None
    if bars[0].latency_s is None:
        look |= {"fill_color": WARNING, "fill_alpha": 0.3}
    else:
        colours = LinearColorMapper(palette=list(reversed(YlOrRd9)), low=0.0, high=max(*values, 1e-9))
        look["fill_color"] = transform("value", colours)
        formatter = BasicTickFormatter(use_scientific=False)
        bar = ColorBar(
            color_mapper=colours, title=unit.symbol, width=10, formatter=formatter, background_fill_color=None
        )
        bar.major_label_text_color = bar.title_text_color = TEXT
        plot.add_layout(bar, "right")
    draw(plot, "rect", columns, **look)
