"""The layout of a network's layers in ranks (Sugiyama, Tagawa and Toda 1981): data flows from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
_ROUNDS = 4
"""Sweeps over the ranks that reduce crossings."""
_APART = 1.5
"""The distance between parts of the graph that are not connected."""


@dataclass(frozen=True)
class GraphLayout:
    """The places of vertices, and the path of each edge in the order of the edges; a rank is 1 wide."""

    vertices: tuple[Point, ...]
    edges: tuple[tuple[Point, ...], ...]


class _Path:
    """Receives the path of an edge from the library."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def setpath(self, points: Sequence[Point]) -> None:
        self.points = list(points)


def graph_layout(count: int, edges: Sequence[tuple[int, int]]) -> GraphLayout:
    """Place `count` vertices that are connected by `edges`; no edge is given twice, and there is no cycle."""
    from grandalf.graphs import Edge, Graph, Vertex
    from grandalf.layouts import SugiyamaLayout, VertexViewer

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
    paths = tuple(
        (
            placed[start],
            *(_moved(_turned(point), offset_of[start]) for point in connection.view.points[1:-1]),
            placed[end],
        )
        for (start, end), connection in zip(edges, connections, strict=True)
    )
    return GraphLayout(tuple(placed[at] for at in range(count)), paths)


def _turned(point: Point) -> Point:
    """Return a place of the library, whose ranks go down, with ranks to the right."""
    return float(point[1]), float(point[0])


def _moved(point: Point, offset: Point) -> Point:
    return point[0] + offset[0], point[1] + offset[1]
