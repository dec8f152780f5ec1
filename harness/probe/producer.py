"""Producers: cheap layers in front of a layer that put it into the place it has inside a network.

A layer that reads a graph input finds its data in the runtime's plain layout and not yet computed by
anyone; inside a network it reads what a neighbour has just written, in the layout the neighbour prefers,
and a residual add is fused only where both operands come from layers. Two kinds serve:

- `convolution`: 1x1 from four channels, with a Relu, so that its result has the layout convolutions
  prefer and nothing behind it can be drawn in;
- `abs`: element-wise, plain layout, any rank (`not` for booleans).

What comes from outside the network in the network comes from outside in the probe, too.
"""

from __future__ import annotations

from typing import Literal

from harness.network.assemble import ModelBuilder, index_bound
from harness.network.layers import Layer
from harness.network.network import Network, TensorType

ProducerKind = Literal["outside", "convolution", "abs"]
PRODUCER_CHANNELS = 4


def producers_of(network: Network, layer: Layer, blocked: frozenset[str]) -> tuple[ProducerKind, ...]:
    """For each input of the layer, what stands in for the neighbour that writes it in the network.

    `blocked` names the tensors that the device keeps in a private layout.
    """
    return tuple(_producer_of(network, name, blocked) for name in layer.graph.inputs)


def _producer_of(network: Network, tensor: str, blocked: frozenset[str]) -> ProducerKind:
    kind = network.types[tensor]
    if tensor in network.inputs or index_bound(network, tensor) is not None:
        return "outside"
    return "convolution" if tensor in blocked and len(kind.shape) == 4 and kind.dtype == "float32" else "abs"


def produce(builder: ModelBuilder, kind: TensorType, producer: ProducerKind, bound: int | None = None) -> str:
    """A tensor of the given type, written by the producer from an input of the model's own."""
    if producer == "outside":
        return builder.input(kind, bound)
    if producer == "convolution":
        batch, channels, *spatial = kind.shape
        source = builder.input(TensorType(kind.dtype, (batch, PRODUCER_CHANNELS, *spatial)))
        weight = builder.weight(TensorType(kind.dtype, (channels, PRODUCER_CHANNELS, 1, 1)), PRODUCER_CHANNELS)
        return builder.operator(
            "Relu", [builder.operator("Conv", [source, weight], kind, {"kernel_shape": [1, 1]})], kind
        )
    source = builder.input(kind)
    return builder.operator("Not" if kind.dtype == "bool" else "Abs", [source], kind)
