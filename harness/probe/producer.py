"""Producers: cheap layers before a layer, so that its inputs arrive as they do inside a network.

The data of a graph input is in the runtime's plain layout. Inside a network a layer reads data that a neighbour has
just written, in the layout that the neighbour prefers. A residual add is fused only if layers write both operands.
`convolution` is a 1x1 convolution and a Relu: its result has the layout that convolutions prefer, and no following
operator can be fused into it. For a picture of 8-bit integers it is a quantised convolution. `abs` is element-wise, for
any rank in the plain layout (`Not` for booleans). `signed convolution` has a LeakyRelu instead of the Relu: values of
both signs, for layers that branch on the sign of each value; `difference` is that in the plain layout.

A device with its own memory loads the input of a producer while the layer computes, so that a large input hides
the layer. There `narrow convolution` reads one channel, and `sum` adds a column, its input, and a row of constants.
Inputs of the network stay inputs of the probe.

OpenVINO executes element-wise operators together with a producer that is element-wise, or that ends in a convolution
and its activation. There `slice` leaves out the end of its input, and `pooled convolution` ends in a MaxPool of one
pixel.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from harness.network.assemble import ModelBuilder
from harness.network.input_integers import integer_range
from harness.network.learnt_weights import INTEGER_RANGE
from harness.network.network import FLOATS, Network, Node, TensorType
from harness.probe.auxiliary import (
    INTEGER_POOLING,
    dequantised,
    dequantised_weight,
    is_quantised_picture,
    near_zero,
    quantised,
    slice_leading,
)

ProducerKind = Literal[
    "outside",
    "convolution",
    "narrow convolution",
    "signed convolution",
    "pooled convolution",
    "abs",
    "difference",
    "slice",
    "sum",
]
PRODUCER_CHANNELS = 4
_BRANCHING = "PRelu"
"""ONNX Runtime takes up to ten times as long for values whose signs a processor cannot predict."""
_SIGNED: Mapping[ProducerKind, ProducerKind] = {"convolution": "signed convolution", "abs": "difference"}
"""Producers of values of both signs, in the layout of each that writes one sign."""
_ELEMENTWISE = ("abs", "difference")
_MEAN_INPUT = 0.55
"""The middle of the values of an input."""


def producers_of(
    network: Network, tensors: Iterable[str], nodes: Iterable[Node], blocked: frozenset[str]
) -> tuple[ProducerKind, ...]:
    """Return the producers of the tensors that nodes read; `blocked` are those in a private layout of the device."""
    names = tuple(tensors)
    found = tuple(producer_of(network, name, blocked) for name in names)
    if all(node.op != _BRANCHING for node in nodes):
        return found
    pairs = zip(names, found, strict=True)
    return tuple(_SIGNED.get(kind, kind) if network.types[name].dtype in FLOATS else kind for name, kind in pairs)


def producer_of(network: Network, tensor: str, blocked: frozenset[str] | None = None) -> ProducerKind:
    """Return the producer that replaces the neighbour that writes a tensor; without `blocked`, pictures are blocked."""
    if tensor in network.inputs or integer_range(network, tensor) is not None:
        return "outside"
    kind = network.types[tensor]
    if blocked is None:
        return "convolution" if kind.dtype == "float32" and len(kind.shape) == 4 else "abs"
    is_picture = is_quantised_picture(kind) or (kind.dtype in ("float32", "float16") and len(kind.shape) == 4)
    return "convolution" if is_picture and tensor in blocked else "abs"


def reading_little(producer: ProducerKind, kind: TensorType) -> ProducerKind:
    """Return the producer of such a tensor on a device with its own memory."""
    if producer == "convolution":
        return "narrow convolution"
    is_matrix = kind.dtype in ("float32", "float16") and len(kind.shape) > 1
    return "sum" if producer in _ELEMENTWISE and is_matrix else producer


def left_standing(producer: ProducerKind, kind: TensorType) -> ProducerKind:
    """Return the producer of such a tensor that is never executed together with an element-wise operator after it."""
    if producer in _ELEMENTWISE and kind.shape:
        return "slice"
    return "pooled convolution" if producer == "convolution" else producer


def produce_as(producer: ProducerKind, builder: ModelBuilder, network: Network, tensor: str) -> str:
    """Append the producer of a tensor of the network; return the name of the tensor's copy."""
    return produce(builder, network.types[tensor], producer, integer_range(network, tensor))


def produce(
    builder: ModelBuilder, kind: TensorType, producer: ProducerKind, integers: tuple[int, int] | None = None
) -> str:
    """Append a producer with its own input; return the tensor that it writes."""
    if producer == "outside":
        return builder.input(kind, integers)
    if producer == "sum":
        read = kind.resized(-1, 1)
        row = builder.weight(TensorType(kind.dtype, kind.shape[-1:]), 1)
        return builder.operator("Abs", [builder.operator("Add", [builder.input(read), row], kind)], kind)
    if producer == "abs":
        return builder.operator("Not" if kind.dtype == "bool" else "Abs", [builder.input(kind)], kind)
    if producer == "difference":
        return builder.operator("Sub", [builder.input(kind), builder.scalar(_MEAN_INPUT, kind.dtype)], kind)
    if producer == "slice":
        axis = next((at for at, size in enumerate(kind.shape) if size > 1), 0)
        return slice_leading(builder, builder.input(kind.resized(axis, kind.shape[axis] + 1)), kind.shape)
    if producer == "pooled convolution":
        convolved = produce(builder, kind, "convolution")
        is_pooled = builder.opset >= INTEGER_POOLING or not is_quantised_picture(kind)
        return builder.operator("MaxPool", [convolved], kind, kernel_shape=[1, 1]) if is_pooled else convolved
    channels = 1 if producer == "narrow convolution" else PRODUCER_CHANNELS
    source = kind.resized(1, channels)
    if is_quantised_picture(kind):
        return _quantised_convolution(builder, builder.input(source, near_zero(kind.dtype)), kind)
    activation = "LeakyRelu" if producer == "signed convolution" else "Relu"
    return builder.operator(activation, [builder.convolution(builder.input(source), kind.shape[1], [1, 1])], kind)


def _quantised_convolution(builder: ModelBuilder, source: str, kind: TensorType) -> str:
    """Append a 1x1 convolution between DequantizeLinear and QuantizeLinear, which runtimes execute on integers.

    Its results spread over the range of the type, as those of calibrated networks do.
    """
    shape = (kind.shape[1], builder.type_of(source).shape[1], 1, 1)
    weight = builder.integers(TensorType("int8", shape), *INTEGER_RANGE["int8"])
    read = [dequantised(builder, source), dequantised_weight(builder, weight)]
    result = builder.operator("Conv", read, TensorType("float32", kind.shape), kernel_shape=[1, 1])
    return quantised(builder, result, kind.dtype)
