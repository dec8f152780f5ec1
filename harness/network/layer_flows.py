"""The data that layers of a network pass to each other, and that a layer of a chain exchanges with other chains.

Sizes are in bytes, and layers are identified by their places.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.network.layers import Layer
from harness.network.network import Network
from harness.strict_model import Count


@dataclass(frozen=True)
class ReadTensor:
    """A tensor that a layer reads, and the place of the layer that writes it; None for an input of the network."""

    bytes: Count
    writer: Count | None


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor that a layer returns, the places of the layers that read it, and whether the network returns it."""

    bytes: Count
    readers: tuple[Count, ...]
    is_output: bool


@dataclass(frozen=True)
class LayerFlow:
    """What a layer reads and writes; `weight_bytes` is the size of its constants."""

    read: tuple[ReadTensor, ...]
    written: tuple[WrittenTensor, ...]
    weight_bytes: Count


def layer_flows(network: Network, layers: Sequence[Layer]) -> tuple[LayerFlow, ...]:
    """Return the flow of each layer, in their order; nodes that are in no layer read and write nothing."""
    owner = {node.index: place for place, layer in enumerate(layers) for node in layer.graph.nodes}

    def read(name: str) -> ReadTensor:
        producer = network.producers.get(name)
        return ReadTensor(network.types[name].bytes, None if producer is None else owner.get(producer.index))

    def written(name: str) -> WrittenTensor:
        readers = sorted({owner[node.index] for node in network.readers(name) if node.index in owner})
        return WrittenTensor(network.types[name].bytes, tuple(readers), name in network.outputs)

    return tuple(
        LayerFlow(
            tuple(map(read, layer.graph.inputs)),
            tuple(map(written, layer.graph.outputs)),
            network.constant_bytes(layer.graph.nodes),
        )
        for layer in layers
    )


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
    """The layers of a network, of which the `views` take no time on the device.

    A tensor passes through views from the layer before them to the layers after them.
    """

    def __init__(self, flows: Sequence[LayerFlow], views: Collection[int]) -> None:
        """`views` are places of layers."""
        self._flows, self.views = flows, frozenset(views)

    def borders(self, group: Collection[int]) -> tuple[LayerBorders, ...]:
        """Return the borders of each layer of a chain, given by places, in order."""
        inside = frozenset(group)
        return tuple(self._borders(place, inside) for place in group)

    def result_bytes(self, place: int) -> int:
        """Return the size of all results of a layer."""
        return sum(one.bytes for one in self._flows[place].written)

    def weight_bytes(self, place: int) -> int:
        """Return the size of the constants of a layer."""
        return self._flows[place].weight_bytes

    def reads(self, place: int, other: int) -> bool:
        """Return whether a layer reads a result of another one, directly or through views."""
        return any(self._computed_by(one.writer) == other for one in self._flows[place].read)

    def _borders(self, place: int, group: frozenset[int]) -> LayerBorders:
        flow = self._flows[place]
        return LayerBorders(
            tuple(one.bytes for one in flow.read if self._computed_by(one.writer) not in group),
            tuple(one.bytes for one in flow.written if self._is_read_beyond(one, group)),
        )

    def _computed_by(self, writer: int | None) -> int | None:
        """Return the layer that computes what a layer writes, before views; None for an input of the network."""
        while writer is not None and writer in self.views:
            read = self._flows[writer].read
            writer = read[0].writer if read else None
        return writer

    def _is_read_beyond(self, tensor: WrittenTensor, group: frozenset[int]) -> bool:
        places = frozenset(tensor.readers)
        through = (result for place in places & self.views for result in self._flows[place].written)
        beyond = tensor.is_output or not places <= self.views | group
        return beyond or any(self._is_read_beyond(result, group) for result in through)
