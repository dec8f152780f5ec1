"""Keys of chains: two with equal keys differ in names and constants alone, and take the same time.

Networks repeat their blocks, so that most chains which are considered have been seen before.
"""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.command import Space
from device_agents.emulated_npu.compiler.layers import Constant, Graph, Layer, View


class ChainKeys:
    """Makes keys for the chains of a graph; `spaces` tell where a value lies when it leaves its chain."""

    def __init__(self, graph: Graph, spaces: Mapping[str, Space]) -> None:
        self._graph = graph
        self._numbers: dict[object, int] = {}
        self._layers = [self._number(_layer_key(layer)) for layer in graph.layers]
        self._values = {
            name: self._number((value.shape, value.dtype, value.order, value.kind, spaces[name]))
            for name, value in graph.values.items()
        }
        self._first_use: dict[str, int] = {}
        self._last_use: dict[str, int] = {}
        for place, layer in enumerate(graph.layers):
            for view in (*layer.reads, layer.output):
                self._first_use.setdefault(view.value, place)
                self._last_use[view.value] = place

    def key(self, start: int, end: int) -> object:
        """The key of the chain of layers [start, end)."""
        seen: dict[str, int] = {}
        parts: list[int] = []
        for place in range(start, end):
            layer = self._graph.layers[place]
            parts.append(self._layers[place])
            for view in (*layer.reads, layer.output):
                name = view.value
                known = seen.setdefault(name, len(seen))
                outside = self._first_use[name] < start or self._last_use[name] >= end
                parts.extend((known, self._values[name], outside or self._graph.values[name].is_output))
        return tuple(parts)

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _layer_key(layer: Layer) -> object:
    return (
        layer.function,
        tuple(_view_key(view) for view in layer.reads),
        _view_key(layer.output),
        layer.settings,
        _constant_key(layer.weights),
        _constant_key(layer.scale_shift),
        layer.groups,
        layer.matrix,
        layer.residual is not None,
    )


def _view_key(view: View) -> object:
    return view.start, view.axes


def _constant_key(constant: Constant | None) -> object:
    return None if constant is None else (constant.shape, constant.dtype)
