"""Windows: neighbouring layers of a network, their borders where the device has them inside the network.

A device with a memory on chip runs chains of layers that hand over there, and keeps in its other memory what goes
from one chain to the next. Where a border lies decides: what comes from outside the model, and what is handed back,
is moved from and to the host, and what a producer wrote on chip a chain goes on with. A Gather whose indices come
from outside can only read what lies in that other memory, so no chain holds both the writer of a tensor and
a Gather on it. Producer and Gather in front of a window, and a Gather behind it, put its borders there; a Gather in
between would part the window's own chains and is never there. Layers that the device executes for nothing are no
borders: they go with their readers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.network.assemble import ModelBuilder, index_bound
from harness.network.layers import Layer
from harness.network.network import Network, TensorType
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe, finish
from harness.probe.producer import ProducerKind, produce

FEWEST_ELEMENTS = 64
"""Smaller tensors lie wherever they like: moving them takes no time that counts."""


def materialise(builder: ModelBuilder, tensor: str) -> str:
    """A Gather of one slice at an index from outside, which reads the tensor where it lies between two chains.

    It takes a row of a picture, a step of a sequence, or along the longest axis where that one has size 1: what it
    reads is little. The tensor has at least one dimension.
    """
    kind = builder.type_of(tensor)
    rank = len(kind.shape)
    axis = 2 if rank >= 4 else min(1, rank - 1)
    if kind.shape[axis] == 1:
        axis = kind.shape.index(max(kind.shape))
    index = builder.input(TensorType("int64", (1,)), kind.shape[axis])
    picked = TensorType(kind.dtype, (*kind.shape[:axis], 1, *kind.shape[axis + 1 :]))
    return builder.operator("Gather", [tensor, index], picked, {"axis": axis})


def window_probe(network: Network, layers: Sequence[Layer], members: Collection[int], views: Collection[int]) -> Probe:
    """Producers and materialisers of the inputs, the layers at the places `members`, materialisers of the results.

    `views` are the places of layers that the device executes for nothing: those that members read go along.
    What the materialisers in front take is also in `window_null`; those behind read one slice of each result, as
    little as the start of the next chain, and stay in the window.
    """
    held = _with_views(layers, members, views)
    builder = ModelBuilder(network.opset)
    inputs = _inputs(layers, held)
    names = {
        name: produce(builder, network.types[name], _producer_of(network, name), index_bound(network, name))
        for name in inputs
    }
    results = [materialise(builder, names[name]) for name in inputs if _producer_of(network, name) != "outside"]
    for place in held:
        names = builder.subgraph(network, layers[place].graph.nodes, names)
    read_behind = {name for place, layer in enumerate(layers) if place not in held for name in layer.graph.inputs}
    for place in held:
        for name in layers[place].graph.outputs if place not in views else ():
            if name in network.outputs or name in read_behind:
                plain = name in network.outputs or not _is_large(network.types[name])
                results.append(names[name] if plain else materialise(builder, names[name]))
    label = " .. ".join(dict.fromkeys((layers[min(members)].name, layers[max(members)].name)))
    return finish("window", label, builder.build(results), OverheadTerms(), None)


def window_null(
    network: Network, layers: Sequence[Layer], members: Collection[int], views: Collection[int]
) -> Probe | None:
    """The same without the layers; None where all that the window reads comes from outside."""
    inputs = _inputs(layers, _with_views(layers, members, views))
    kinds = [(network.types[name], _producer_of(network, name)) for name in inputs]
    produced = [(kind, producer) for kind, producer in kinds if producer != "outside"]
    if not produced:
        return None
    builder = ModelBuilder(network.opset)
    tensors = [produce(builder, kind, producer) for kind, producer in produced]
    label = " ".join(f"{producer} {kind}" for kind, producer in produced)
    model = builder.build([materialise(builder, tensor) for tensor in tensors])
    return finish("window-null", label, model, OverheadTerms(), None)


def _with_views(layers: Sequence[Layer], members: Collection[int], views: Collection[int]) -> tuple[int, ...]:
    """The members and all views in front of them that only views part from them, in order."""
    maker = {name: place for place in views for name in layers[place].graph.outputs}
    held, waiting = set(members), list(members)
    while waiting:
        for name in layers[waiting.pop()].graph.inputs:
            if name in maker and maker[name] not in held:
                held.add(maker[name])
                waiting.append(maker[name])
    return tuple(sorted(held))


def _inputs(layers: Sequence[Layer], held: Sequence[int]) -> tuple[str, ...]:
    made = {name for place in held for name in layers[place].graph.outputs}
    read = (name for place in held for name in layers[place].graph.inputs)
    return tuple(dict.fromkeys(name for name in read if name not in made))


def _producer_of(network: Network, tensor: str) -> ProducerKind:
    kind = network.types[tensor]
    if tensor in network.inputs or index_bound(network, tensor) is not None or not _is_large(kind):
        return "outside"
    return "convolution" if len(kind.shape) == 4 and kind.dtype == "float32" else "abs"


def _is_large(kind: TensorType) -> bool:
    return kind.dtype.startswith("float") and kind.elements >= FEWEST_ELEMENTS
