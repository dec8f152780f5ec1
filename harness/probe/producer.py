"""Producers: cheap layers in front of a layer that put it into the place it has inside a network.

A layer that reads a graph input finds its data in the runtime's plain layout and not yet computed by
anyone; inside a network it reads what a neighbour has just written, in the layout the neighbour prefers,
and a residual add is fused only where both operands come from layers. Three kinds serve all cases:

- `conv1x1`: a convolution from four channels, whose result has the layout that convolutions prefer;
- `maxpool`: a 1x1 pooling, the same layout, but no runtime fuses it with what follows;
- `abs`: element-wise, plain layout, any rank (`not` for booleans).
"""

from __future__ import annotations

from typing import Literal

from harness.network.assemble import ModelBuilder, index_bound
from harness.network.graph import Network, TensorType
from harness.network.layers import Layer

ProducerKind = Literal["outside", "conv1x1", "maxpool", "abs"]
PRODUCER_CHANNELS = 4
_NEVER_FUSED_INTO_CONVOLUTION = frozenset(
    {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Concat", "LRN",
     "Transpose", "Reshape", "Flatten", "Resize", "Upsample", "Softmax", "ReduceMean", "Slice", "Split"}
)  # fmt: skip


def producers_of(network: Network, layer: Layer, blocked: frozenset[str]) -> tuple[ProducerKind, ...]:
    """For each input of the layer, what stands in for the neighbour that writes it in the network.

    `blocked` names the tensors that the device keeps in a private layout.
    """
    return tuple(_producer_of(network, layer, name, blocked) for name in layer.graph.inputs)


def _producer_of(network: Network, layer: Layer, tensor: str, blocked: frozenset[str]) -> ProducerKind:
    kind = network.types[tensor]
    if tensor in network.inputs or index_bound(network, tensor) is not None:
        return "outside"
    if tensor not in blocked or len(kind.shape) != 4 or kind.dtype != "float32":
        return "abs"
    readers = {node.op for node in layer.graph.nodes if tensor in node.inputs}
    alone = len(layer.graph.inputs) == 1 or readers == {"Concat"}
    return "conv1x1" if alone and readers <= _NEVER_FUSED_INTO_CONVOLUTION else "maxpool"


def produce(builder: ModelBuilder, kind: TensorType, producer: ProducerKind, bound: int | None = None) -> str:
    """A tensor of the given type, written by the producer from an input of the model's own."""
    if producer == "outside":
        return builder.input(kind, bound)
    if producer == "conv1x1":
        batch, channels, *spatial = kind.shape
        source = builder.input(TensorType(kind.dtype, (batch, PRODUCER_CHANNELS, *spatial)))
        weight = builder.weight(TensorType(kind.dtype, (channels, PRODUCER_CHANNELS, 1, 1)), PRODUCER_CHANNELS)
        return builder.operator("Conv", [source, weight], kind, {"kernel_shape": [1, 1]})
    source = builder.input(kind)
    if producer == "maxpool":
        return builder.operator("MaxPool", [source], kind, {"kernel_shape": [1, 1]})
    return builder.operator("Not" if kind.dtype == "bool" else "Abs", [source], kind)
