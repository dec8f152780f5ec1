"""A prepared network as bytes: JSON, then the operators as ONNX messages and the values of constants.

This is the format in which the reader process returns a network. The process may be compromised by the file, so every
part is checked: nothing here runs code, and every size is compared with the data that arrived.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from google.protobuf.message import DecodeError
from onnx import NodeProto
from pydantic import Field, TypeAdapter

from harness.network.documents import encode, split_document
from harness.network.network import ITEM_BYTES, Constant, FreeNode, Network, Node, TensorType, UnmeasuredNode
from harness.network.node_inference import MAX_TENSOR_BYTES
from harness.network.reading.expansion import MAX_NODES
from harness.strict_model import Count

_SPARE_PARTS = 60 * MAX_NODES
_PARTS_PER_BYTE = 4
"""A node and what only it reads take up to 60 values; a file has a node for at least every 15 of its bytes."""
_Names = tuple[str, ...]
_Shape = tuple[Count, ...]
_NodeRow = tuple[str, str, _Names, _Names, str, Count]
"""Name, operator, inputs, outputs, domain, and the size of the ONNX message."""
_ConstantRow = tuple[str, str, _Shape, Count | None, bool]
"""Name, type, shape, the size of the value if it is known, and whether a runtime may be given another one."""


@dataclass(frozen=True)
class _Document:
    """The JSON of a network; see `Network` for the fields. Parts of bytes follow it in the order of the rows."""

    note: str
    name: str
    opset: Count
    inputs: _Names
    outputs: _Names
    nodes: tuple[_NodeRow, ...]
    types: tuple[tuple[str, str, _Shape], ...]
    constants: tuple[_ConstantRow, ...]
    free: tuple[tuple[str, str, str], ...]
    symbols: _Names
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    domains: tuple[tuple[str, Count], ...]
    unmeasured: tuple[tuple[str, str], ...]
    stored: Count
    file_outputs: tuple[tuple[str, str], ...]


def most_parts(size_bytes: int) -> int:
    """Return how many values the document of a file of this size may have."""
    return _SPARE_PARTS + _PARTS_PER_BYTE * size_bytes


def encode_network(network: Network, note: str = "") -> bytes:
    """Return a network, without its `file`, as bytes; `note` is a text about it."""
    parts: list[bytes] = []

    def part(content: bytes) -> int:
        parts.append(content)
        return len(content)

    def values(constant: Constant) -> int | None:
        return None if constant.value is None else part(np.ascontiguousarray(constant.value).tobytes())

    nodes = [
        [node.name, node.op, node.inputs, node.outputs, node.domain, part(node.proto.SerializeToString())]
        for node in network.nodes
    ]
    document = {
        "note": note,
        "name": network.name,
        "opset": network.opset,
        "inputs": network.inputs,
        "outputs": network.outputs,
        "nodes": nodes,
        "types": [[name, kind.dtype, kind.shape] for name, kind in network.types.items()],
        "constants": [
            [name, constant.type.dtype, constant.type.shape, values(constant), constant.replaceable]
            for name, constant in network.constants.items()
        ],
        "free": [[node.name, node.op, node.reason] for node in network.free],
        "symbols": sorted(network.symbols),
        "sha256": network.sha256,
        "domains": [[domain, version] for domain, version in network.domains.items()],
        "unmeasured": [[node.name, node.op] for node in network.unmeasured],
        "stored": network.stored_bytes,
        "file_outputs": list(network.file_outputs.items()),
    }
    return encode(document, parts)


def decode_network(content: bytes) -> tuple[Network, str]:
    """Return the network that `encode_network` was given, and the note; raises ValueError for anything else."""
    header, rest = split_document(content)
    found = _documents().validate_json(header, strict=True)
    parts = _Parts(rest)
    try:
        nodes = tuple(_node(index, row, parts) for index, row in enumerate(found.nodes))
    except DecodeError as error:
        raise ValueError(str(error)) from error
    network = Network(
        name=found.name,
        opset=found.opset,
        inputs=found.inputs,
        outputs=found.outputs,
        nodes=nodes,
        types={name: _type(dtype, shape) for name, dtype, shape in found.types},
        constants=dict(_constants(found.constants, parts)),
        free=tuple(FreeNode(*row) for row in found.free),
        symbols=frozenset(found.symbols),
        sha256=found.sha256,
        domains=dict(found.domains),
        unmeasured=tuple(UnmeasuredNode(*row) for row in found.unmeasured),
        stored_bytes=found.stored,
        file_outputs=dict(found.file_outputs),
    )
    parts.check_end()
    named = [*network.inputs, *network.outputs, *network.constants]
    named += [name for node in network.nodes for name in (*node.inputs, *node.results) if name]
    if any(name not in network.types for name in named):
        raise ValueError("a tensor has no type")
    return network, found.note


@functools.cache
def _documents() -> TypeAdapter[_Document]:
    return TypeAdapter(_Document)


class _Parts:
    """What follows the document, taken in order."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        taken = bytes(self._content[self._at : self._at + size])
        if len(taken) != size:
            raise ValueError("a part is missing")
        self._at += size
        return taken

    def check_end(self) -> None:
        if self._at != len(self._content):
            raise ValueError("parts are left over")


def _node(index: int, row: _NodeRow, parts: _Parts) -> Node:
    name, op, inputs, outputs, domain, size = row
    proto = NodeProto()
    proto.ParseFromString(parts.take(size))
    return Node(index, name, op, inputs, outputs, proto, domain)


def _constants(rows: tuple[_ConstantRow, ...], parts: _Parts) -> Iterator[tuple[str, Constant]]:
    for name, dtype, shape, size, replaceable in rows:
        kind = _type(dtype, shape)
        value = None
        if size is not None:
            if size != kind.elements * ITEM_BYTES[kind.dtype]:
                raise ValueError("a constant has another size than its type")
            value = np.frombuffer(parts.take(size), kind.dtype).reshape(kind.shape)
        yield name, Constant(kind, value, replaceable)


def _type(dtype: str, shape: _Shape) -> TensorType:
    kind = TensorType(dtype, shape)
    if kind.dtype not in ITEM_BYTES or kind.bytes > MAX_TENSOR_BYTES:
        raise ValueError("a type cannot be")
    return kind
