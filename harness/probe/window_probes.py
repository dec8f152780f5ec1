"""Probes of windows: some layers of a network with producers before them, and what puts their borders into memory.

In a network, data between two chains lies in external memory. A window sent by itself has other borders: its inputs and
outputs move from and to the host, and a chain continues on data that a producer wrote on chip. A Gather with an index
from outside reads only from external memory, so no chain has both the writer of a tensor and a Gather on it. A producer
and a Gather in front of a window, and a Gather after it, put its borders into external memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from harness.network.assemble import ModelBuilder
from harness.network.layers import Layer
from harness.network.network import Network, Node, TensorType
from harness.probe.probe import Probe, finish
from harness.probe.producer import ProducerKind, produce_as, producer_of

FEWEST_ELEMENTS = 64
"""Size from which the memory of a tensor matters: moving smaller ones takes negligible time."""


def materialise(builder: ModelBuilder, tensor: str) -> str:
    """Append a Gather of one slice, at an index from outside, that forces the tensor into external memory.

    The slice is small: a row of a picture, a step of a sequence, or, if that axis has size 1, one element along the
    longest axis. The tensor has at least one dimension.
    """
    kind = builder.type_of(tensor)
    rank = len(kind.shape)
    axis = 2 if rank >= 4 else min(1, rank - 1)
    if kind.shape[axis] == 1:
        axis = kind.shape.index(max(kind.shape))
    index = builder.input(TensorType("int64", (1,)), (0, kind.shape[axis]))
    return builder.operator("Gather", [tensor, index], kind.resized(axis, 1), axis=axis)


def window_probes(
    network: Network, layers: Sequence[Layer], members: Collection[int], views: Collection[int]
) -> tuple[Probe, Probe | None]:
    """Return the probe of a window, and the same without its layers; None if all its inputs come from outside.

    The probe has producers of the inputs, the layers, and Gathers on inputs and results. `members` are the places of
    the layers. `views` are the places of layers that take no time on the device; views that members read belong to the
    window. The Gathers after it read one slice of each result, as little as the start of the next chain, and their
    time stays in the window.
    """
    held = _with_views(layers, members, views)
    written = {name for place in held for name in layers[place].graph.outputs}
    read = (name for place in held for name in layers[place].graph.inputs)
    producers = {name: _producer_of(network, name) for name in read if name not in written}
    builder, names, results = _produced(network, producers)
    names = builder.subgraph(network, _in_order([node for place in held for node in layers[place].graph.nodes]), names)
    read_behind = {name for place, layer in enumerate(layers) if place not in held for name in layer.graph.inputs}
    for place in held:
        for name in layers[place].graph.outputs if place not in views else ():
            if name in network.outputs or name in read_behind:
                plain = name in network.outputs or not _is_large(network.types[name])
                results.append(names[name] if plain else materialise(builder, names[name]))
    label = " .. ".join(dict.fromkeys((layers[min(members)].name, layers[max(members)].name)))
    whole = finish("window", label, builder.build(results))
    inside = {name: producer for name, producer in producers.items() if producer != "outside"}
    builder, _, results = _produced(network, inside)
    label = " ".join(f"{producer} {network.types[name]}" for name, producer in inside.items())
    return whole, finish("window-null", label, builder.build(results)) if inside else None


def _in_order(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return nodes, layer by layer as given, so that each follows what it reads.

    Where a device reports layers of which each reads a result of the other, that is the order of the network.
    """
    place: dict[str, int] = {}
    for at, node in enumerate(nodes):  # constants that several layers compute are among them several times
        place.update((name, at) for name in node.results if name not in place)
    if all(place.get(name, -1) < at for at, node in enumerate(nodes) for name in node.inputs):
        return nodes
    return sorted({node.index: node for node in nodes}.values(), key=lambda node: node.index)


def _produced(
    network: Network, producers: Mapping[str, ProducerKind]
) -> tuple[ModelBuilder, dict[str, str], list[str]]:
    """Return a model of the producers of tensors, the tensors by name, and Gathers on those from inside the network."""
    builder = ModelBuilder(network.opset)
    names = {name: produce_as(producer, builder, network, name) for name, producer in producers.items()}
    return builder, names, [materialise(builder, names[name]) for name in names if producers[name] != "outside"]


def _with_views(layers: Sequence[Layer], members: Collection[int], views: Collection[int]) -> tuple[int, ...]:
    """Return the members and all views that they read, directly or through views, in order."""
    writers = {name: place for place in views for name in layers[place].graph.outputs}
    held, waiting = set(members), list(members)
    while waiting:
        for name in layers[waiting.pop()].graph.inputs:
            if name in writers and writers[name] not in held:
                held.add(writers[name])
                waiting.append(writers[name])
    return tuple(sorted(held))


def _producer_of(network: Network, tensor: str) -> ProducerKind:
    return producer_of(network, tensor) if _is_large(network.types[tensor]) else "outside"


def _is_large(kind: TensorType) -> bool:
    return kind.dtype.startswith("float") and kind.elements >= FEWEST_ELEMENTS
