"""What each layer of a chain exchanges with layers of other chains: tensors in a device's external memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.network.layers import Layer
from harness.network.network import Network


@dataclass(frozen=True)
class LayerBorders:
    """Sizes in bytes of the tensors that a layer reads from other chains, and of those that it writes for them."""

    read: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes that the layer reads from external memory, without its weights."""
        return sum(self.read)

    @property
    def written_bytes(self) -> int:
        """Bytes that the layer writes to external memory."""
        return sum(self.written)


class Chained:
    """A network cut into layers, of which the `views` take no time on the device.

    A tensor passes through views from the layer in front of them to the layers behind them.
    """

    def __init__(self, network: Network, layers: Sequence[Layer], views: Collection[int]) -> None:
        """`views` are places of layers."""
        self._network, self._layers, self.views = network, layers, frozenset(views)
        self._owner = {node.index: place for place, layer in enumerate(layers) for node in layer.graph.nodes}

    def borders(self, group: Collection[int]) -> tuple[LayerBorders, ...]:
        """Return the borders of each layer of a chain, given by places, in order."""
        inside = frozenset(group)
        return tuple(self._borders(place, inside) for place in group)

    def result_bytes(self, place: int) -> int:
        """Return the size of all results of a layer."""
        return sum(self._network.types[name].bytes for name in self._layers[place].graph.outputs)

    def weight_bytes(self, place: int) -> int:
        """Return the size of the constants of a layer."""
        return self._network.constant_bytes(self._layers[place].graph.nodes)

    def reads(self, place: int, other: int) -> bool:
        """Return whether a layer reads a result of another one, directly or through views."""
        return any(self._writer(name) == other for name in self._layers[place].graph.inputs)

    def _borders(self, place: int, group: frozenset[int]) -> LayerBorders:
        types, graph = self._network.types, self._layers[place].graph
        return LayerBorders(
            tuple(types[name].bytes for name in graph.inputs if self._writer(name) not in group),
            tuple(types[name].bytes for name in graph.outputs if self._is_read_beyond(name, group)),
        )

    def _writer(self, name: str) -> int | None:
        """Return the layer that computes a tensor; None for an input of the network."""
        if name not in self._network.producers:
            return None
        place = self._owner[self._network.producers[name].index]
        if place not in self.views:
            return place
        read = self._layers[place].graph.inputs
        return self._writer(read[0]) if read else None

    def _is_read_beyond(self, name: str, group: frozenset[int]) -> bool:
        places = {self._owner[node.index] for node in self._network.readers(name)}
        through = (result for place in places & self.views for result in self._layers[place].graph.outputs)
        beyond = name in self._network.outputs or not places <= self.views | group
        return beyond or any(self._is_read_beyond(result, group) for result in through)
