"""TensorFlow Lite files of int8 networks: tables of the schema as flatbuffers, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from numpy.typing import NDArray

Ints = Sequence[int]
INT32, INT8 = 2, 9
SAME, VALID = 0, 1
NONE, RELU, RELU6 = 0, 1, 3
"""Codes of the schema for types, padding and fused activations."""
_VERSION = 3


@dataclass(frozen=True)
class Kind:
    """An operator of the schema: its code, and the code of its options."""

    code: int
    options: int


ADD, AVERAGE_POOL, CONV, DEPTHWISE = Kind(0, 11), Kind(1, 5), Kind(3, 1), Kind(4, 2)
FULLY_CONNECTED, MAX_POOL, RESHAPE, SOFTMAX = Kind(9, 8), Kind(17, 5), Kind(22, 17), Kind(25, 9)


@dataclass(frozen=True)
class Tensor:
    """A tensor with one scale; `values` is None unless it is a constant."""

    name: str
    shape: tuple[int, ...]
    scale: float
    zero_point: int = 0
    type: int = INT8
    values: NDArray[Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Operator:
    """An operator between named tensors; `options` are the fields of its options by slot, each with its kind."""

    kind: Kind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[int, tuple[str, Any]]


def tflite_file(tensors: Sequence[Tensor], operators: Sequence[Operator], inputs: Ints, outputs: Ints) -> bytes:
    """Return a file with one graph; `inputs` and `outputs` are numbers of tensors."""
    builder = flatbuffers.Builder(1 << 20)
    constants = [tensor for tensor in tensors if tensor.values is not None]
    buffer_of = {tensor.name: number for number, tensor in enumerate(constants, start=1)}
    number_of = {tensor.name: number for number, tensor in enumerate(tensors)}
    kinds = list(dict.fromkeys(operator.kind for operator in operators))
    buffers = [_table(builder, 1, {})]
    for tensor in constants:
        content = builder.CreateByteVector(np.ascontiguousarray(tensor.values).tobytes())
        buffers.append(_table(builder, 1, {0: ("UOffsetTRelative", content)}))
    written = [_tensor(builder, tensor, buffer_of.get(tensor.name, 0)) for tensor in tensors]
    calls = [_operator(builder, operator, kinds, number_of) for operator in operators]
    graph = _table(
        builder,
        5,
        {
            0: ("UOffsetTRelative", _offsets(builder, written)),
            1: ("UOffsetTRelative", _ints(builder, inputs)),
            2: ("UOffsetTRelative", _ints(builder, outputs)),
            3: (
                "UOffsetTRelative",
                _offsets(builder, calls),
            ),
            4: ("UOffsetTRelative", builder.CreateString("main")),
        },
    )
    codes = [_table(builder, 4, {0: ("Int8", kind.code), 2: ("Int32", 1), 3: ("Int32", kind.code)}) for kind in kinds]
    model = {
        0: ("Uint32", _VERSION),
        1: ("UOffsetTRelative", _offsets(builder, codes)),
        2: ("UOffsetTRelative", _offsets(builder, [graph])),
        3: ("UOffsetTRelative", builder.CreateString("harness")),
        4: ("UOffsetTRelative", _offsets(builder, buffers)),
    }
    builder.Finish(_table(builder, 5, model), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _tensor(builder: flatbuffers.Builder, tensor: Tensor, buffer: int) -> int:
    scale = builder.CreateNumpyVector(np.array([tensor.scale], np.float32))
    zero = builder.CreateNumpyVector(np.array([tensor.zero_point], np.int64))
    quantisation = _table(builder, 7, {2: ("UOffsetTRelative", scale), 3: ("UOffsetTRelative", zero)})
    fields = {
        0: ("UOffsetTRelative", _ints(builder, tensor.shape)),
        1: ("Int8", tensor.type),
        2: ("Uint32", buffer),
        3: ("UOffsetTRelative", builder.CreateString(tensor.name)),
        4: ("UOffsetTRelative", quantisation),
    }
    return _table(builder, 5, fields)


def _operator(
    builder: flatbuffers.Builder, operator: Operator, kinds: Sequence[Kind], number_of: Mapping[str, int]
) -> int:
    options = {
        slot: (kind, _ints(builder, value)) if kind == "UOffsetTRelative" else (kind, value)
        for slot, (kind, value) in operator.options.items()
    }
    fields = {
        0: ("Uint32", kinds.index(operator.kind)),
        1: ("UOffsetTRelative", _ints(builder, [number_of[name] for name in operator.inputs])),
        2: ("UOffsetTRelative", _ints(builder, [number_of[name] for name in operator.outputs])),
        3: ("Uint8", operator.kind.options),
        4: ("UOffsetTRelative", _table(builder, 1 + max(options, default=0), options)),
    }
    return _table(builder, 5, fields)


def _table(builder: flatbuffers.Builder, slots: int, fields: Mapping[int, tuple[str, Any]]) -> int:
    """Write a table; each field is the kind of its slot and its value or offset."""
    builder.StartObject(slots)
    for slot, (kind, value) in fields.items():
        getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
    return int(builder.EndObject())


def _ints(builder: flatbuffers.Builder, values: Ints) -> int:
    return int(builder.CreateNumpyVector(np.array(values, np.int32)))


def _offsets(builder: flatbuffers.Builder, offsets: Ints) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
