"""Which constants of a network are learnt weights: a device makes its own, because their values take no time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.network.network import FLOATS, Constant, Node, TensorType
from harness.network.operator_kinds import GATES, LEARNT_SLOTS, SIZED_BY_FLOATS

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_LEARNT_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "Einsum", *GATES})
"""Operators whose constants are all learnt."""
WEIGHT_OPS = _LEARNT_OPS | LEARNT_SLOTS.keys()
INTEGER_RANGE = {"int8": (-127, 128), "uint8": (0, 256), "int32": (-1000, 1000), "int4": (-8, 8), "uint4": (0, 16)}
"""Values of quantised weights and biases by type: the minimum, and the bound above."""
_RUNTIME_DOMAIN = "com.microsoft"
RUNTIME_DOMAINS = frozenset({_RUNTIME_DOMAIN, "com.microsoft.nchwc"})
"""Domains of ONNX Runtime: quantised operators, and those of files that it has optimised."""
_IN_ONNX_DOMAIN = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "GroupNormalization"})
"""Operators that the runtime has in ONNX's domain also in opsets without them: its optimizers write them into files.

It also executes the GroupNormalization of opsets 18 to 20, which ONNX calls deprecated.
"""


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
    quantised = is_quantised(reader.op) or reader.op in LEARNT_SLOTS
    return quantised or "Normalization" in reader.op or reader.op in SIZED_BY_FLOATS


def _is_weight_of(reader: Node, name: str, kind: TensorType) -> bool:
    if reader.op in LEARNT_SLOTS:
        return all(slot in LEARNT_SLOTS[reader.op] for slot, read in enumerate(reader.inputs) if read == name)
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


def defined(op: str, version: int, domain: str) -> bool:
    """Return whether ONNX or ONNX Runtime defines an operator."""
    from onnx import defs

    return domain in RUNTIME_DOMAINS or defs.has(op, version, domain) or (not domain and op in _IN_ONNX_DOMAIN)


def has_current(op: str, version: int, domain: str) -> bool:
    """Return whether ONNX has an operator in an opset, and does not call it deprecated there."""
    from onnx import defs

    return bool(defs.has(op, version, domain)) and not defs.get_schema(op, version, domain).deprecated


@contextlib.contextmanager
def checkable(model: ModelProto, nodes: Iterable[NodeProto]) -> Iterator[None]:
    """Move all operators of the runtime to its own domain for a while: there, ONNX's checker lets them pass."""
    version = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    moved = [node for node in nodes if node.op_type in _IN_ONNX_DOMAIN and not node.domain]
    moved = [node for node in moved if not has_current(node.op_type, version, "")]
    is_stated = any(entry.domain == _RUNTIME_DOMAIN for entry in model.opset_import)
    for node in moved:
        node.domain = _RUNTIME_DOMAIN
    if moved and not is_stated:
        model.opset_import.add(domain=_RUNTIME_DOMAIN, version=1)
    try:
        yield
    finally:
        for node in moved:
            node.domain = ""
        if moved and not is_stated:
            model.opset_import.pop()
