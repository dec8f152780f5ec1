"""A prepared network as bytes: JSON, then the operators as ONNX messages and the values of constants.

This is the format in which the reader process returns a network. The process may be compromised by the file, so every
part is checked: nothing here runs code, and every size is compared with the data that arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness.network.documents import count_of, decode_document, encode, list_of, text_of, texts_of
from harness.network.network import ITEM_BYTES, Constant, FreeNode, Network, Node, TensorType, UnmeasuredNode
from harness.network.node_inference import MAX_TENSOR_BYTES
from harness.network.reading.expansion import MAX_NODES

_SPARE_PARTS = 60 * MAX_NODES
_PARTS_PER_BYTE = 4
"""A node and what only it reads take up to 60 values; a file has a node for at least every 15 of its bytes."""


def most_parts(size_bytes: int) -> int:
    """Return how many values the document of a file of this size may have."""
    return _SPARE_PARTS + _PARTS_PER_BYTE * size_bytes


def encode_network(network: Network, note: str = "") -> bytes:
    """Return a network, without its `file`, as bytes; `note` is a text about it."""
    import numpy

    parts: list[bytes] = []

    def part(content: bytes) -> int:
        parts.append(content)
        return len(content)

    def values(constant: Constant) -> int | None:
        return None if constant.value is None else part(numpy.ascontiguousarray(constant.value).tobytes())

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
            [name, constant.type.dtype, constant.type.shape, values(constant)]
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
    from google.protobuf.message import DecodeError

    document, rest = decode_document(content)
    parts = _Parts(rest)
    try:
        nodes = tuple(_node(index, row, parts) for index, row in enumerate(document["nodes"]))
        network = Network(
            name=text_of(document["name"]),
            opset=count_of(document["opset"]),
            inputs=texts_of(document["inputs"]),
            outputs=texts_of(document["outputs"]),
            nodes=nodes,
            types={text_of(name): _type(dtype, shape) for name, dtype, shape in document["types"]},
            constants=dict(_constants(document["constants"], parts)),
            free=tuple(FreeNode(*texts_of(row, 3)) for row in document["free"]),
            symbols=frozenset(texts_of(document["symbols"])),
            sha256=text_of(document["sha256"]),
            domains={text_of(domain): count_of(version) for domain, version in document["domains"]},
            unmeasured=tuple(UnmeasuredNode(*texts_of(row, 2)) for row in document["unmeasured"]),
            stored_bytes=count_of(document["stored"]),
            file_outputs={text_of(name): text_of(tensor) for name, tensor in document["file_outputs"]},
        )
    except (KeyError, TypeError, DecodeError) as error:
        raise ValueError(str(error)) from error
    _check(network)
    parts.check_end()
    return network, text_of(document.get("note"))


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


def _node(index: int, row: Any, parts: _Parts) -> Node:
    from onnx import NodeProto

    name, op, inputs, outputs, domain, size = row
    proto = NodeProto()
    proto.ParseFromString(parts.take(count_of(size)))
    return Node(index, text_of(name), text_of(op), texts_of(inputs), texts_of(outputs), proto, text_of(domain))


def _constants(rows: Any, parts: _Parts) -> Iterator[tuple[str, Constant]]:
    import numpy

    for name, dtype, shape, size in rows:
        kind = _type(dtype, shape)
        value = None
        if size is not None:
            if count_of(size) != kind.elements * ITEM_BYTES[kind.dtype]:
                raise ValueError("a constant has another size than its type")
            value = numpy.frombuffer(parts.take(size), kind.dtype).reshape(kind.shape)
        yield text_of(name), Constant(kind, value)


def _type(dtype: Any, shape: Any) -> TensorType:
    kind = TensorType(text_of(dtype), tuple(count_of(size) for size in list_of(shape)))
    if kind.dtype not in ITEM_BYTES or kind.bytes > MAX_TENSOR_BYTES:
        raise ValueError("a type cannot be")
    return kind


def _check(network: Network) -> None:
    named = [*network.inputs, *network.outputs, *network.constants]
    named += [name for node in network.nodes for name in (*node.inputs, *node.results) if name]
    if any(name not in network.types for name in named):
        raise ValueError("a tensor has no type")
    if not re.fullmatch("[0-9a-f]{64}", network.sha256):
        raise ValueError("the hash is none")
