"""The copy of a model that the ONNX checker reads: its weights are inputs, so that no gigabytes are copied."""

from collections import Counter
from typing import TypeVar

from google.protobuf.message import Message
from onnx import ModelProto, TensorProto, helper

from harness.network.reading.external_data import tensor_bytes

IR_WITHOUT_INPUTS = 4
"""From this version of the format on, initializers need not be inputs."""
_LARGE_BYTES = 1 << 16


def without_weights(model: ModelProto) -> ModelProto:
    """Return a copy in which weights are inputs, so that the checker opens no file and copies no gigabytes.

    Weights are external tensors, and large ones of which the checker would find nothing else than their type.
    """
    initializers, inputs = model.graph.initializer, {value.name for value in model.graph.input}
    names = Counter(tensor.name for tensor in initializers)
    names.update(tensor.values.name for tensor in model.graph.sparse_initializer)

    def is_weight(tensor: TensorProto) -> bool:
        if tensor.data_location == TensorProto.EXTERNAL:
            return True
        return bool(tensor.name) and names[tensor.name] == 1 and _is_large(tensor)

    weights = [is_weight(tensor) for tensor in initializers]
    if not any(weights):
        return model
    copy, graph = _copied(model, "graph"), _copied(model.graph, "initializer")
    for tensor, is_left_out in zip(initializers, weights, strict=True):
        if not is_left_out:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    copy.graph.CopyFrom(graph)
    return copy


def _is_large(tensor: TensorProto) -> bool:
    """Return whether a tensor is large and its values are exactly as many bytes as its type takes."""
    size = len(tensor.raw_data)  # a copy, as every reading of bytes is
    if size < _LARGE_BYTES:
        return False
    others = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    if any(others) or tensor.string_data or tensor.external_data or tensor.HasField("segment"):
        return False
    try:
        return min(tensor.dims, default=0) > 0 and size == tensor_bytes(tensor)
    except (KeyError, ValueError, TypeError):
        return False


_Copied = TypeVar("_Copied", bound="Message")


def _copied(message: _Copied, left_out: str) -> _Copied:
    """Return a copy without one field, which may be large."""
    copy: _Copied = type(message)()
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        elif field.type == field.TYPE_MESSAGE:
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
    return copy
