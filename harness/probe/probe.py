"""Probes: small networks built to be timed."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import HarnessError
from harness.network.assemble import AssembledModel, ModelBuilder, assemble_network
from harness.network.layers import Layer
from harness.network.network import Network, TensorType
from harness.probe.auxiliary import AuxiliaryKind, Layout, attach, attach_all
from harness.probe.overhead_terms import NO_TERMS, OverheadTerms, transfers
from harness.probe.producer import ProducerKind, produce, produce_as

_BARRIERS, _BARRIER_CHANNELS = 40, 16
"""The layers of the barrier probe and their channels."""

LayerRole = Literal["layer", "auxiliary", "context", "null", "stack", "single"]
Role = LayerRole | Literal["window", "window-null", "calibration", "pair", "reference", "network"]
"""The purpose of a probe:

- `layer`: a layer and an auxiliary layer (S1.1);
- `auxiliary`: the auxiliary layer by itself, on the layer's output (S1.7);
- `context`: producers, a layer and an auxiliary layer; `null`: the same without the layer;
- `stack`: a producer, copies of a layer and an auxiliary layer;
- `single`: a layer by itself;
- `window`: neighbouring layers and what puts their inputs in place; `window-null`: the same without the layers;
- `calibration`: a null probe for the overhead regression;
- `pair`: one of the probes that show whether two neighbours are fused;
- `network`: a whole network;
- `reference`: the probe that tracks drift.
"""


@dataclass(frozen=True)
class Probe:
    """A small network to be timed; its id is a hash of its model, role, auxiliary layer and terms."""

    id: str
    role: Role
    label: str
    model: AssembledModel
    terms: OverheadTerms
    auxiliary: AuxiliaryKind | None = None


def finish(
    role: Role,
    label: str,
    model: AssembledModel,
    terms: OverheadTerms = NO_TERMS,
    auxiliary: AuxiliaryKind | None = None,
) -> Probe:
    """Return a probe with its id, and with the transfers of its model added to its terms.

    Tensors count beside an auxiliary layer on a processor. A device with a memory of its own waits for each tensor,
    which is part of the layers. What has no auxiliary layer is a window on such a device, or is timed as a whole:
    nothing subtracts its tensors, and estimates of whole networks count their own.
    """
    moved = transfers([one.bytes for one in model.inputs], [one.bytes for one in model.outputs])
    if auxiliary is None or auxiliary.layer.device_memory:
        moved = replace(moved, further_inputs=0, further_outputs=0, input_pairs=0)
    whole = terms + moved
    # The same model in two roles is two probes, because roles are visited differently.
    text = f"{role} {auxiliary} {model.digest} {whole.identity}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Probe(digest, role, label, model, whole, auxiliary)


def visited_warm(probe: Probe) -> Probe:
    """Return the probe under a different id: its samples must not mix with those of the same probe in a pool."""
    return replace(probe, id=hashlib.sha256(f"warm {probe.id}".encode()).hexdigest()[:16])


def layer_probe(
    network: Network,
    layer: Layer,
    producers: Sequence[ProducerKind],
    auxiliary: AuxiliaryKind,
    role: Role,
    layout: Layout = "outside",
    returned: Collection[str] = (),
) -> Probe:
    """Return a probe of [producers +] layer + auxiliary layer, which reads the layer's first result.

    It also returns the layer's further results, and the first one if that is among the `returned` outputs of the
    network; see `left_by`. `layout` is the layout in which the device keeps that result. Ensures that the model passes
    the ONNX checker, has the layer's operators in their order, and has at most one edge from the layer to the auxiliary
    layer.
    """
    builder = ModelBuilder(network.opset)
    bound = {
        name: produce_as(kind, builder, network, name) for name, kind in zip(layer.graph.inputs, producers, strict=True)
    }
    names = builder.subgraph(network, layer.graph.nodes, bound)
    first, *further = layer.graph.outputs
    read, left = [first], list[str]()
    if first in returned:
        read, left = left_by(network, [first], {node.index for node in layer.graph.nodes}, auxiliary)
    results, terms = attach_all(builder, ((names[name], layout) for name in read), auxiliary)
    others = [names[name] for name in (*left, *further)]
    model = builder.build([*results, *others])
    _check_probe(model, layer, names[first], len(read), len(others))
    return finish(role, layer.name, model, terms, auxiliary)


def left_by(
    network: Network, tensors: Sequence[str], nodes: Collection[int], auxiliary: AuxiliaryKind
) -> tuple[list[str], list[str]]:
    """Return which results of nodes an auxiliary layer reads in their probe, and which the probe returns itself.

    It returns what the network returns: a runtime may have to convert its layout for the host, and cannot remove the
    operator that writes it. OpenVINO copies a tensor that is both read and returned, so such a tensor has an auxiliary
    layer only if other nodes read it in the network. On a device with its own memory the transfer would hide the layer.
    """
    returned = [] if auxiliary.layer.device_memory else [name for name in tensors if name in network.outputs]
    read_outside = (name for name in returned if any(one.index not in nodes for one in network.readers(name)))
    unread = {*returned} - {*read_outside}
    return [name for name in tensors if name not in unread], returned


def can_stack(network: Network, layer: Layer) -> bool:
    """Return whether the layer can follow a copy of itself: one input and one result of the same type."""
    graph = layer.graph
    exchanged = [network.types[name] for name in (*graph.inputs, *graph.outputs)]
    return len(graph.inputs) == len(graph.outputs) == 1 and exchanged[0] == exchanged[1]


def stack_probe(
    network: Network,
    layer: Layer,
    producer: ProducerKind,
    auxiliary: AuxiliaryKind,
    copies: int,
    layout: Layout = "outside",
) -> Probe:
    """Return a probe of [producer +] copies of a layer, each with its own weights, + auxiliary layer.

    Requires `can_stack`.
    """
    builder = ModelBuilder(network.opset)
    (read,), (written,) = layer.graph.inputs, layer.graph.outputs
    tensor = produce_as(producer, builder, network, read)
    for _ in range(copies):
        builder.renew_weights()
        tensor = builder.subgraph(network, layer.graph.nodes, {read: tensor})[written]
    result, terms = attach(builder, tensor, auxiliary, layout)
    return finish("stack", f"{layer.name} x{copies}", builder.build([result]), terms, auxiliary)


def null_probe(
    kinds: Sequence[TensorType],
    producers: Sequence[ProducerKind],
    auxiliary: AuxiliaryKind,
    opset: int,
    role: Role,
    integers: Sequence[tuple[int, int] | None] | None = None,
    layouts: Sequence[Layout] | None = None,
) -> Probe:
    """Return a probe as `layer_probe` without the layer: an auxiliary layer after every producer or input."""
    builder = ModelBuilder(opset)
    limits, kept = integers or [None] * len(kinds), layouts or ["outside"] * len(kinds)
    given = zip(kinds, producers, limits, kept, strict=True)
    produced = ((produce(builder, kind, producer, bound), layout) for kind, producer, bound, layout in given)
    results, terms = attach_all(builder, produced, auxiliary)
    label = " ".join(f"{producer} {kind}" for kind, producer in zip(kinds, producers, strict=True))
    return finish(role, label, builder.build(results), terms, auxiliary)


def single_probe(network: Network, layer: Layer) -> Probe:
    """Return a probe of a layer by itself, as layers are timed without the method of auxiliary layers."""
    builder = ModelBuilder(network.opset)
    bound = {name: produce_as("outside", builder, network, name) for name in layer.graph.inputs}
    names = builder.subgraph(network, layer.graph.nodes, bound)
    return finish("single", layer.name, builder.build([names[name] for name in layer.graph.outputs]))


def network_probe(network: Network) -> Probe:
    """Return a probe of a whole network."""
    return finish("network", network.name, assemble_network(network))


def reference_probe() -> Probe:
    """Return a probe that tracks drift: a convolution of about 100 µs on a desktop core, visited between others."""
    builder = ModelBuilder(13)
    source = builder.input(TensorType("float32", (1, 64, 28, 28)))
    result, terms = attach(builder, builder.convolution(source, 64, [3, 3], pads=[1] * 4), AuxiliaryKind.AVGPOOL)
    return finish("reference", "reference", builder.build([result]), terms)


def barrier_probe() -> Probe:
    """Return a probe whose threads wait for each other most of the time: a chain of small depthwise convolutions."""
    builder = ModelBuilder(13)
    image = TensorType("float32", (1, _BARRIER_CHANNELS, 28, 28))
    weight = TensorType("float32", (_BARRIER_CHANNELS, 1, 3, 3))
    last = builder.input(image)
    for _ in range(_BARRIERS):
        inputs = [last, builder.weight(weight, 9)]
        last = builder.operator("Conv", inputs, image, kernel_shape=[3, 3], pads=[1] * 4, group=_BARRIER_CHANNELS)
    return finish("reference", "barrier", builder.build([last]))


def _check_probe(model: AssembledModel, layer: Layer, joint: str, edges: int, others: int) -> None:
    import onnx

    graph = onnx.load_model_from_string(model.content).graph
    ops = [node.op_type for node in graph.node]
    expected = [node.op for node in layer.graph.nodes]
    holds_layer = any(ops[at : at + len(expected)] == expected for at in range(len(ops)))
    readers = sum(list(node.input).count(joint) > 0 for node in graph.node)
    inner = sum(layer.graph.outputs[0] in node.inputs for node in layer.graph.nodes)
    if not holds_layer or readers - inner != edges or len(graph.output) != edges + others:
        why = f"operators {ops}, edges to the auxiliary layer {readers - inner}"
        raise HarnessError(f"The probe of layer {layer.name!r} is not the layer and its auxiliary layer", why=why)
