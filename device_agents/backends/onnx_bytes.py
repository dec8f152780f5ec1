"""Read and write the parts of an ONNX file that a device needs, without the onnx package.

An ONNX model is a protobuf message: fields with a number and a value; values of type 2 have a length. The field
numbers are those of onnx.proto, version 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MODEL_IR_VERSION, _MODEL_GRAPH, _MODEL_OPSET = 1, 7, 8
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 2, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP = 1, 2, 3, 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 1, 2, 8, 9, 13, 14
_VALUE_NAME, _VALUE_TYPE = 1, 2
_FLOAT32 = 1
_IR_VERSION, _OPSET = 8, 13
_ONE = b"\x00\x00\x80\x3f"


@dataclass(frozen=True)
class GraphNode:
    """One operator of a model, with the names of its inputs and outputs; `""` is an absent input."""

    name: str
    op: str
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]


def read_nodes(model: bytes) -> List[GraphNode]:
    """Return the operators of a model's graph in file order; raises ValueError if `model` is not a model."""
    nodes = []
    for number, value, _ in fields(_graph(model)):
        if number == _GRAPH_NODE:
            words: Dict[int, List[str]] = {}
            for part, content, _ in fields(value):
                if part in (_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP):
                    words.setdefault(part, []).append(bytes(content).decode())
            name, op = (words.get(part, [""])[-1] for part in (_NODE_NAME, _NODE_OP))
            nodes.append(GraphNode(name, op, tuple(words.get(_NODE_INPUT, ())), tuple(words.get(_NODE_OUTPUT, ()))))
    return nodes


def with_weights(model: bytes, weights: Mapping[str, Any]) -> bytes:
    """Return the model with the arrays of `weights` stored in its external initializers of these names.

    Raises ValueError if `model` is not a model.
    """
    parts: List[Any] = []
    for number, value, whole in fields(memoryview(model)):
        parts.extend(_delimited(number, _filled_graph(value, weights)) if number == _MODEL_GRAPH else (whole,))
    return b"".join(parts)


def with_packed(model: bytes, weights: Mapping[str, Any]) -> Tuple[bytes, Dict[str, Any]]:
    """Store the arrays of packed types in the model; return it and the other arrays, which a runtime takes."""
    packed = {name: values for name, values in weights.items() if values.dtype.kind == "V"}
    others = {name: values for name, values in weights.items() if name not in packed}
    return with_weights(model, packed) if packed else model, others


def chain_model(length: int) -> bytes:
    """Return a model of `length` nearly empty operators in a chain, each with three inputs like a convolution."""
    shape = b"".join(_bytes(1, _number(1, 1)) for _ in range(4))
    kind = _bytes(1, _number(1, _FLOAT32) + _bytes(2, shape))
    one = b"".join(_number(_TENSOR_DIMS, 1) for _ in range(4)) + _number(_TENSOR_TYPE, _FLOAT32)
    graph = [_bytes(_GRAPH_NAME, b"chain")]
    for at in range(length):
        read = [_bytes(_NODE_INPUT, name.encode()) for name in (f"t{at}", "a", "b")]
        written = [_bytes(_NODE_OUTPUT, b"t%d" % (at + 1)), _bytes(_NODE_NAME, b"n%d" % at), _bytes(_NODE_OP, b"Max")]
        graph.append(_bytes(_GRAPH_NODE, b"".join(read + written)))
    for name in (b"a", b"b"):
        graph.append(_bytes(_GRAPH_INITIALIZER, one + _bytes(_TENSOR_NAME, name) + _bytes(_TENSOR_RAW, _ONE)))
    for number, name in ((_GRAPH_INPUT, b"t0"), (_GRAPH_OUTPUT, b"t%d" % length)):
        graph.append(_bytes(number, _bytes(_VALUE_NAME, name) + _bytes(_VALUE_TYPE, kind)))
    opset = _bytes(_MODEL_OPSET, _number(2, _OPSET))
    return _number(_MODEL_IR_VERSION, _IR_VERSION) + _bytes(_MODEL_GRAPH, b"".join(graph)) + opset


def _filled_graph(graph: memoryview, weights: Mapping[str, Any]) -> List[Any]:
    parts: List[Any] = []
    for number, value, whole in fields(graph):
        name = _tensor_name(value) if number == _GRAPH_INITIALIZER else ""
        if name in weights:
            parts.extend(_delimited(_GRAPH_INITIALIZER, _filled_tensor(value, weights[name])))
        else:
            parts.append(whole)
    return parts


def _filled_tensor(tensor: memoryview, values: Any) -> List[Any]:
    kept = [whole for number, _, whole in fields(tensor) if number not in (_TENSOR_EXTERNAL, _TENSOR_LOCATION)]
    content = memoryview(values.reshape(-1).view("uint8"))
    return [*kept, *_delimited(_TENSOR_RAW, [content])]


def _tensor_name(tensor: memoryview) -> str:
    return "".join(bytes(value).decode() for number, value, _ in fields(tensor) if number == _TENSOR_NAME)


def _graph(model: bytes) -> memoryview:
    for number, value, _ in fields(memoryview(model)):
        if number == _MODEL_GRAPH:
            return value
    raise ValueError("the model has no graph")


def fields(message: memoryview) -> Iterator[Tuple[int, memoryview, memoryview]]:
    """Yield number, content and whole encoding of each field; the content of an integer is its encoding."""
    at = 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        kind, first = key & 7, at
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _LENGTH:
            length, first = _varint(message, at)
            at = first + length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has type {kind}, which ONNX does not use")
        if at > len(message):
            raise ValueError("the model ends in the middle of a field")
        yield key >> 3, message[first:at], message[start:at]


def _varint(message: memoryview, at: int) -> Tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("the model ends in the middle of a number")


def _encoded(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)


def _number(field: int, value: int) -> bytes:
    return _encoded(field << 3 | _VARINT) + _encoded(value)


def _bytes(field: int, content: bytes) -> bytes:
    return b"".join(_delimited(field, [content]))


def _delimited(field: int, parts: Sequence[Any]) -> List[Any]:
    """Return a field as parts that are joined once at the end, so that weights are copied once."""
    return [_encoded(field << 3 | _LENGTH) + _encoded(sum(map(len, parts))), *parts]
