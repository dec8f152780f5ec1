"""Which constants of a network are learnt weights: a device makes its own, because their values take no time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.network.network import FLOATS, Constant, Node, TensorType
from harness.network.runtime_operators import RUNTIME_DOMAINS

if TYPE_CHECKING:
    from onnx import NodeProto

_LEARNT_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "Einsum", "LSTM", "GRU", "RNN"})
"""Operators whose constants are all learnt."""
_LEARNT_SLOTS: Mapping[str, tuple[int, ...]] = {
    "ConvInteger": (1,),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeMatMul": (1,),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (3,),
    "QGemm": (3, 6),
    "QAttention": (1, 2),
    "MatMulNBits": (1,),
    "DequantizeLinear": (0,),
    "QuantizeLinear": (0,),
}
"""Operators on integers, whose scales and zero points are not weights, and the inputs that are."""
WEIGHT_OPS = _LEARNT_OPS | _LEARNT_SLOTS.keys()
INTEGER_RANGE = {"int8": (-127, 128), "uint8": (0, 256), "int32": (-1000, 1000), "int4": (-8, 8), "uint4": (0, 16)}
"""Values of quantised weights and biases by type: the minimum, and the bound above."""


def is_weight(readers: Iterable[Node], name: str, kind: TensorType) -> bool:
    """Return whether all readers use a constant as learnt weights."""
    return all(_is_weight_of(reader, name, kind) for reader in readers)


def reads_weights(node: Node, constants: Mapping[str, Constant]) -> bool:
    """Return whether a node multiplies by weights."""
    read = (name for name in node.inputs if name in constants and len(constants[name].type.shape) > 1)
    multiplies = node.op in WEIGHT_OPS - {"Gather"} or node.domain in RUNTIME_DOMAINS
    return multiplies and any(is_weight([node], name, constants[name].type) for name in read)


def is_quantised(op: str) -> bool:
    """Return whether an operator is made for integers that represent real numbers."""
    return op.startswith("QLinear") or op.endswith(("QuantizeLinear", "DequantizeLinear")) or "Integer" in op


def needs_values(reader: Node) -> bool:
    """Return whether a node needs real values, such as variances or scales, to give finite results."""
    quantised = is_quantised(reader.op) or reader.op in _LEARNT_SLOTS
    return quantised or "Normalization" in reader.op or reader.op in ("Resize", "Upsample", "Range")


def _is_weight_of(reader: Node, name: str, kind: TensorType) -> bool:
    if reader.op in _LEARNT_SLOTS:
        return all(slot in _LEARNT_SLOTS[reader.op] for slot, read in enumerate(reader.inputs) if read == name)
    # Of operators that only ONNX Runtime knows, matrices of numbers are learnt.
    return reader.op in _LEARNT_OPS or (bool(reader.domain) and kind.dtype in FLOATS and len(kind.shape) > 1)


def unshared(nodes: Iterable[Node], types: dict[str, TensorType], outputs: Iterable[str]) -> Iterator[Node]:
    """Yield the nodes, in order, with one DequantizeLinear for each reader of its result.

    A runtime that computes with integers merges a DequantizeLinear into the operator that reads it, once for each.
    The types of the results that this adds are added to `types`. Nodes are numbered again.
    """
    kept = list(nodes)
    shared = {node.outputs[0]: node for node in kept if node.op == "DequantizeLinear" and node.inputs}
    taken = set(outputs)
    placed: list[Node] = []
    for node in kept:
        inputs = list(node.inputs)
        for slot, name in enumerate(node.inputs):
            if name not in shared:
                continue
            if name in taken:
                copy = f"{name}#{len(placed)}.{slot}"
                types[copy] = types[name]
                source = shared[name]
                proto = _rewired(source.proto, source.proto.input, [copy])
                placed.append(replace(source, name=f"{source.name}#{len(placed)}.{slot}", outputs=(copy,), proto=proto))
                inputs[slot] = copy
            taken.add(name)
        if inputs != list(node.inputs):
            node = replace(node, inputs=tuple(inputs), proto=_rewired(node.proto, inputs, node.proto.output))
        placed.append(node)
    for index, node in enumerate(placed):
        yield replace(node, index=index)


def _rewired(proto: NodeProto, inputs: Iterable[str], outputs: Iterable[str]) -> NodeProto:
    copy = type(proto)()
    copy.CopyFrom(proto)
    copy.input[:] = inputs
    copy.output[:] = outputs
    return copy
