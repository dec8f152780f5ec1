"""Producers: cheap layers in front of a layer that give it the surroundings it has inside a network.

The data of a graph input is in the runtime's plain layout. Inside a network a layer reads data that a neighbour has
just written, in the layout that the neighbour prefers, and a residual add is fused only if layers write both operands.
`convolution` is a 1x1 convolution and a Relu: its result has the layout that convolutions prefer, and no following
operator can be fused into it. For a picture of 8-bit integers it is a quantised convolution. `abs` is element-wise,
for any rank in the plain layout (`Not` for booleans). `signed convolution` has a LeakyRelu instead of the Relu: values
of both signs, for layers that branch on the sign of each value.
Inputs of the network stay inputs of the probe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from harness.network.assemble import ModelBuilder, index_bound
from harness.network.learnt_weights import INTEGER_RANGE
from harness.network.network import Network, Node, TensorType
from harness.probe.auxiliary import dequantised, dequantised_weight, is_quantised_picture, quantised

ProducerKind = Literal["outside", "convolution", "signed convolution", "abs"]
PRODUCER_CHANNELS = 4
_BRANCHING = "PRelu"
"""ONNX Runtime takes up to ten times as long for values whose signs a processor cannot predict."""


def producers_of(
    network: Network, tensors: Iterable[str], nodes: Iterable[Node], blocked: frozenset[str]
) -> tuple[ProducerKind, ...]:
    """Return the producers of the tensors that nodes read; `blocked` are those in a private layout of the device."""
    found = tuple(producer_of(network, name, blocked) for name in tensors)
    if all(node.op != _BRANCHING for node in nodes):
        return found
    return tuple("signed convolution" if kind == "convolution" else kind for kind in found)


def producer_of(network: Network, tensor: str, blocked: frozenset[str] | None = None) -> ProducerKind:
    """Return the producer that replaces the neighbour that writes a tensor; without `blocked`, pictures are blocked."""
    if tensor in network.inputs or index_bound(network, tensor) is not None:
        return "outside"
    kind = network.types[tensor]
    if blocked is None:
        return "convolution" if kind.dtype == "float32" and len(kind.shape) == 4 else "abs"
    is_picture = is_quantised_picture(kind) or (kind.dtype in ("float32", "float16") and len(kind.shape) == 4)
    return "convolution" if is_picture and tensor in blocked else "abs"


def produce_as(producer: ProducerKind, builder: ModelBuilder, network: Network, tensor: str) -> str:
    """Append the producer of a tensor of the network; return the name of the tensor's copy."""
    return produce(builder, network.types[tensor], producer, index_bound(network, tensor))


def produce(builder: ModelBuilder, kind: TensorType, producer: ProducerKind, bound: int | None = None) -> str:
    """Append a producer with an input of its own; return the tensor that it writes."""
    if producer == "outside":
        return builder.input(kind, bound)
    if producer in ("convolution", "signed convolution"):
        source = builder.input(kind.resized(1, PRODUCER_CHANNELS))
        if is_quantised_picture(kind):
            return _quantised_convolution(builder, source, kind)
        activation = "Relu" if producer == "convolution" else "LeakyRelu"
        return builder.operator(activation, [builder.convolution(source, kind.shape[1], [1, 1])], kind)
    return builder.operator("Not" if kind.dtype == "bool" else "Abs", [builder.input(kind)], kind)


def _quantised_convolution(builder: ModelBuilder, source: str, kind: TensorType) -> str:
    """Append a 1x1 convolution between DequantizeLinear and QuantizeLinear, which runtimes execute on integers."""
    weight = builder.integers(TensorType("int8", (kind.shape[1], PRODUCER_CHANNELS, 1, 1)), *INTEGER_RANGE["int8"])
    read = [dequantised(builder, source), dequantised_weight(builder, weight)]
    result = builder.operator("Conv", read, TensorType("float32", kind.shape), kernel_shape=[1, 1])
    return quantised(builder, result, kind.dtype)
