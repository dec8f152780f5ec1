"""Keys of chains: chains with equal keys differ only in names and constants, and take the same time.

Networks repeat their blocks, so that the search has seen most chains before. Where a chain reads or writes a part of a
value, the place of the part does not matter, but the distances between parts do: steps of a sequence are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, LazyConstant, View
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.search.possible_chains import PossibleChains
from device_agents.emulated_npu.unit_settings import UNQUANTISED, Settings


class ChainKeys:
    """Computes keys for the chains of a graph; `externals` has the places of values outside their chain.

    `number` numbers the parts of keys: equal parts have equal numbers.
    """

    def __init__(
        self, graph: Graph, externals: Externals, chains: PossibleChains, number: Callable[[object], int]
    ) -> None:
        self._graph, self._chains, self._number = graph, chains, number
        self._layers = [self._number(_layer_key(layer)) for layer in graph.layers]
        self._values = {
            name: self._number((value.shape, value.dtype, value.order, value.kind, _places(name, graph, externals)))
            for name, value in graph.values.items()
        }
        self._sent = frozenset(name for name, several in externals.sends.items() if several)
        self._known: dict[tuple[int, int], object] = {}
        self._first_use: dict[str, int] = {}
        self._last_use: dict[str, int] = {}
        for place, layer in enumerate(graph.layers):
            for view in (*layer.reads, layer.output):
                self._first_use.setdefault(view.value, place)
                self._last_use[view.value] = place

    def key(self, start: int, end: int) -> object:
        """Return the key of the chain of layers [start, end)."""
        if (start, end) not in self._known:
            self._known[start, end] = self._number(self._key(start, end))
        return self._known[start, end]

    def _key(self, start: int, end: int) -> object:
        seen: dict[str, int] = {}
        origins: dict[str, tuple[int, ...]] = {}
        parts: list[object] = []
        for place, layer in enumerate(self._graph.layers[start:end], start):
            parts.append(self._layers[place])
            for view in (*layer.reads, layer.output):
                name = view.value
                outside = self._first_use[name] < start or self._last_use[name] >= end
                # What is sent away is a region of the value.
                origin = origins.setdefault(name, (0,) * len(view.start) if name in self._sent else view.start)
                parts.extend((seen.setdefault(name, len(seen)), self._values[name], outside, _distance(view, origin)))
        written = dict.fromkeys(layer.output.value for layer in self._graph.layers[start:end])
        parts.extend(self._chains.is_stored(name, start, end) for name in written)
        return tuple(parts)

    def exact(self, start: int, end: int) -> object:
        """Return a key that also has where parts of values lie."""
        views = (view for layer in self._graph.layers[start:end] for view in (*layer.reads, layer.output))
        return self.key(start, end), tuple([view.start for view in views])


def _places(name: str, graph: Graph, externals: Externals) -> object:
    """Return the memories that a value goes to, and whether other cores write some of it."""
    own = externals.values.get(name)
    sends = [(len(one.cores), one.buffer, one.region) for one in externals.sends.get(name, ())]
    return own and own.space, name in graph.foreign, tuple(sends)


def _timed_settings(settings: Settings) -> object:
    """Return the settings without scales, zero points and numbers of functions: their values take no time."""
    codes = (settings.quantised_target, settings.quantised_first, settings.quantised_second, settings.quantised_third)
    plain = replace(
        settings,
        alpha=0.0,
        beta=0.0,
        gamma=0.0,
        quantised_target=UNQUANTISED,
        quantised_first=UNQUANTISED,
        quantised_second=UNQUANTISED,
        quantised_third=UNQUANTISED,
    )
    return plain, tuple(code.scale > 0 for code in codes)


def _layer_key(layer: HardwareLayer) -> object:
    return (
        layer.function,
        tuple(view.axes for view in layer.reads),
        layer.output.axes,
        _timed_settings(layer.settings),
        constant_key(layer.weights),
        constant_key(layer.scale_shift),
        layer.groups,
        layer.matrix,
        layer.residual is not None,
    )


def _distance(view: View, origin: tuple[int, ...]) -> tuple[int, ...]:
    """Return how far a view begins from another view of the value; empty if both begin at the same element."""
    if view.start == origin:
        return ()
    return tuple(own - first for own, first in zip(view.start, origin, strict=True))


def constant_key(constant: LazyConstant | None) -> object:
    """Return a key of a constant: its shape and type."""
    return None if constant is None else (constant.shape, constant.dtype)
