"""The graph of a network: its layers from left to right, coloured by latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.report.figures import TEXT, WARNING, base_figure, draw, figure_json
from harness.report.networks.graph_layout import graph_layout
from harness.report.networks.layer_figures import LayerBar
from harness.report.units import Unit, unit_for

if TYPE_CHECKING:
    from bokeh import plotting

    from harness.network.keyed_network import KeyedLayer

MOST_LAYERS, MOST_RANKS = 1500, 20_000
"""A network beyond these limits has no graph: it would be unreadable, and its layout slow.

MOST_RANKS limits the sum of the ranks that each edge crosses, because the layout has a vertex in each of them. The sum
is large where layers read all layers before them.
"""
_PIXELS_A_ROW = 34


def connections(layers: Sequence[KeyedLayer]) -> tuple[tuple[int, int], ...]:
    """Return which layers read results of which, as pairs of numbers, each once."""
    pairs = {(tensor.writer, at) for at, layer in enumerate(layers) for tensor in layer.flow.read}
    return tuple(sorted((writer, at) for writer, at in pairs if writer is not None and writer != at))


def is_drawable(count: int, edges: Sequence[tuple[int, int]]) -> bool:
    """Return whether `count` layers with these edges are within the limits of a graph; one layer alone has none."""
    rank = [0] * count
    for writer, reader in sorted(edges, key=lambda edge: edge[1]):
        rank[reader] = max(rank[reader], rank[writer] + 1)
    crossed = sum(abs(rank[reader] - rank[writer]) for writer, reader in edges)
    return 1 < count <= MOST_LAYERS and crossed <= MOST_RANKS


def graph_figure(bars: Sequence[LayerBar], edges: Sequence[tuple[int, int]]) -> str:
    """Draw the layers, each with the text of its tooltip, and the edges between them."""
    placed = graph_layout(len(bars), edges)
    ys = [y for _, y in placed.vertices] + [y for path in placed.edges for _, y in path]
    low, high = min(ys) - 0.7, max(ys) + 0.7
    last = max(x for x, _ in placed.vertices)
    height = int(min(700, 110 + _PIXELS_A_ROW * (high - low)))
    unit = unit_for(bar.latency_s or 0.0 for bar in bars)
    plot = base_figure(height, ("layers, as data flows", ""), ("linear", "linear"), (-0.7, last + 0.7), (low, high))
    plot.yaxis.visible = plot.xaxis.visible = False
    plot.grid.visible = False
    xs = [[x for x, _ in path] for path in placed.edges]
    plot.multi_line(xs, [[y for _, y in path] for path in placed.edges], line_color=TEXT, line_alpha=0.55)
    for known in (True, False):
        chosen = [at for at, bar in enumerate(bars) if (bar.latency_s is not None) == known]
        if chosen:
            _draw(plot, [bars[at] for at in chosen], chosen, [placed.vertices[at] for at in chosen], unit)
    return figure_json(plot)


def _draw(
    plot: plotting.figure,
    bars: Sequence[LayerBar],
    numbers: Sequence[int],
    places: Sequence[tuple[float, float]],
    unit: Unit,
) -> None:
    """Draw layers that are all known, with a colour bar, or all unknown."""
    from bokeh.models import BasicTickFormatter, LinearColorMapper
    from bokeh.models.annotations import ColorBar
    from bokeh.palettes import YlOrRd9
    from bokeh.transform import transform

    values = [(bar.latency_s or 0.0) / unit.seconds for bar in bars]
    columns = {
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "value": values,
        "name": [f"{at + 1}: {bar.name}" for at, bar in zip(numbers, bars, strict=True)],
        "text": [bar.text for bar in bars],
    }
    look: dict[str, Any] = {"x": "x", "y": "y", "width": 0.8, "height": 0.5, "line_color": TEXT}
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
