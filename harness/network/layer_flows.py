"""What the layers of a network pass to each other: sizes in bytes, and places of layers in place of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.network.layers import Layer
from harness.network.network import Network


@dataclass(frozen=True)
class ReadTensor:
    """A tensor that a layer reads, and the place of the layer that writes it; None for an input of the network."""

    bytes: int
    writer: int | None


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor that a layer returns, the places of the layers that read it, and whether the network returns it."""

    bytes: int
    readers: tuple[int, ...]
    is_output: bool


@dataclass(frozen=True)
class LayerFlow:
    """What a layer reads and writes; `weight_bytes` is the size of its constants."""

    read: tuple[ReadTensor, ...]
    written: tuple[WrittenTensor, ...]
    weight_bytes: int


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
