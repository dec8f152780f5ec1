"""Signed pairs of QuantizeLinear and DequantizeLinear, which ONNX Runtime makes unsigned on x86 processors.

Its kernels compute with unsigned activations there, so it turns `int8` between the two operators into `uint8` and adds
128 to the zero point, which changes no result. It does so only where one DequantizeLinear reads the tensor: a tensor
with more readers, such as a residual, stays signed, and the operators around it compute on floats, so that its
conversions are executed alone. A layer alone in a probe is not between its neighbours, so the network is rewritten
before it is cut into layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.network.network import Constant, Network, Node, TensorType

if TYPE_CHECKING:
    import numpy as np

_SHIFT = 128


def with_unsigned_pairs(network: Network) -> Network:
    """Return the network with `uint8` between the pairs that ONNX Runtime rewrites; nodes keep their indices.

    The conversions of other signed tensors are executed alone.
    """
    nodes, types, constants = list(network.nodes), dict(network.types), dict(network.constants)
    for writer, reader, zero in _pairs(network):
        tensor, zero_point = writer.outputs[0], f"{writer.outputs[0]}#zero"
        types[tensor] = replace(types[tensor], dtype="uint8")
        types[zero_point] = TensorType("uint8", zero.shape)
        constants[zero_point] = Constant(types[zero_point], (zero.astype("int16") + _SHIFT).astype("uint8"))
        for node in (writer, reader):
            nodes[node.index] = replace(node, inputs=(*node.inputs[:2], zero_point))
    alone = frozenset(node.index for node in nodes if _converts_signed(network, types, node))
    return replace(network, nodes=tuple(nodes), types=types, constants=constants, alone=alone)


def _converts_signed(network: Network, types: Mapping[str, TensorType], node: Node) -> bool:
    """Return whether an operator writes a tensor of signed bytes, or reads one, that depends on the inputs."""
    integers = {"QuantizeLinear": node.outputs, "DequantizeLinear": node.inputs}.get(node.op, ())[:1]
    return any(types[name].dtype == "int8" for name in integers) and not network.is_fixed(node)


def _pairs(network: Network) -> Iterator[tuple[Node, Node, np.ndarray[tuple[int, ...], np.dtype[np.int8]]]]:
    """Yield the operators that write and read each tensor that becomes unsigned, and its zero point."""
    for writer in network.nodes:
        if writer.op != "QuantizeLinear" or writer.outputs[0] in network.outputs:
            continue
        readers, zero = network.readers(writer.outputs[0]), _signed_zero(network, writer)
        if zero is None or len(readers) != 1 or readers[0].op != "DequantizeLinear":
            continue
        if readers[0].inputs[0] == writer.outputs[0] and _signed_zero(network, readers[0]) == zero:
            yield writer, readers[0], zero


def _signed_zero(network: Network, node: Node) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]] | None:
    """Return the zero point of one of the two operators; None if it is not one known `int8`, or is given as a type."""
    constant = network.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    if constant is None or constant.value is None or (constant.type.dtype, constant.type.elements) != ("int8", 1):
        return None
    return None if any(item.name == "output_dtype" and item.i for item in node.proto.attribute) else constant.value
