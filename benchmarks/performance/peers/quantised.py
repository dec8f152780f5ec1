"""An ONNX network as an int8 TensorFlow Lite file of the same topology.

Batch norms and activations are fused into convolutions. Weights are those of the network, with one scale for each
tensor; scales of activations come from one run with random inputs. Biases are zero, and border pixels lie as
TensorFlow's `SAME` puts them, so the file has the work of the network, not its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from harness.errors import UnsupportedNetwork

Ints = Sequence[int]
INT32, INT8 = 2, 9
SAME, VALID = 0, 1
NONE, RELU, RELU6 = 0, 1, 3
"""Codes of the schema for types, padding and fused activations."""
_VERSION = 3
_FUSED = {"Relu": RELU, "Clip": RELU6}
_SOFTMAX_SCALE, _SOFTMAX_ZERO = 1 / 256, -128
Array = NDArray[Any]


def quantised(model: ModelProto) -> bytes:
    """Return the file; raises UnsupportedNetwork, which names the operator, for one that has no counterpart here."""
    model = onnx.shape_inference.infer_shapes(model)
    return _Conversion(model, _activations(model)).file()


def _activations(model: ModelProto) -> dict[str, Array]:
    """Return all tensors of a run with random inputs, by name."""
    watched = ModelProto()
    watched.CopyFrom(model)
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    inputs = {one.name: random.standard_normal(one.shape, np.float32) for one in session.get_inputs()}
    return inputs | dict(zip(names, session.run(list(names), inputs), strict=True))


@dataclass
class _Conversion:
    model: ModelProto
    values: Mapping[str, Array]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.constants = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        made = [node for node in graph.node if node.op_type == "Constant"]
        self.constants |= {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in made}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.fused: set[str] = set()

    def file(self) -> bytes:
        graph = self.model.graph
        read = next(one.name for one in graph.input if one.name not in self.constants)
        self._activation(read)
        for node in graph.node:
            if node.output[0] not in self.fused | self.constants.keys():
                self._convert(node)
        numbers = {name: number for number, name in enumerate(self.tensors)}
        written = self.operators[-1].outputs[0]
        return tflite_file(list(self.tensors.values()), self.operators, [numbers[read]], [numbers[written]])

    def _convert(self, node: NodeProto) -> None:
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        match node.op_type:
            case "Conv":
                self._convolution(node, attributes)
            case "MaxPool" | "AveragePool":
                self._pool(node, attributes["kernel_shape"], attributes.get("strides", [1, 1]))
            case "GlobalAveragePool":
                self._pool(node, self.values[node.input[0]].shape[2:], [1, 1])
            case "Add":
                result, activation = self._with_fused(node)
                self._add(ADD, node.input, result, {0: ("Int8", activation)})
            case "Flatten" | "Reshape":
                shape = self._activation(node.output[0], like=node.input[0]).shape
                self._add(RESHAPE, node.input[:1], node.output[0], {0: ("UOffsetTRelative", shape)})
            case "Gemm":
                self._product(node, attributes)
            case "Softmax":
                shape = self.values[node.output[0]].shape
                self.tensors[node.output[0]] = Tensor(node.output[0], shape, _SOFTMAX_SCALE, _SOFTMAX_ZERO)
                self._add(SOFTMAX, node.input, node.output[0], {0: ("Float32", 1.0)})
            case "Dropout" | "Identity":
                self.tensors[node.output[0]] = self.tensors[node.input[0]]
            case other:
                raise UnsupportedNetwork(f"The operator {other} has no counterpart in int8 files written here")

    def _convolution(self, node: NodeProto, attributes: Mapping[str, Any]) -> None:
        weights = self.constants[node.input[1]]
        result, activation = self._with_fused(node)
        strides = attributes.get("strides", [1, 1])
        padding = ("Int8", self._padding(node, strides))
        width, height = ("Int32", strides[1]), ("Int32", strides[0])
        if attributes.get("group", 1) == 1:
            options = {0: padding, 1: width, 2: height, 3: ("Int8", activation), 4: ("Int32", 1), 5: ("Int32", 1)}
            kind, laid_out = CONV, weights.transpose(0, 2, 3, 1)
        else:
            options = {0: padding, 1: width, 2: height, 3: ("Int32", 1), 4: ("Int8", activation)}
            options |= {5: ("Int32", 1), 6: ("Int32", 1)}
            kind, laid_out = DEPTHWISE, weights.transpose(1, 2, 3, 0)
            if weights.shape[1] != 1 or weights.shape[0] != self.values[node.input[0]].shape[1]:
                raise UnsupportedNetwork(f"The convolution {node.name} has groups of several channels")
        constants = self._constants(node.input[0], node.input[1], laid_out, weights.shape[0])
        self._add(kind, (node.input[0], *constants), result, options)

    def _product(self, node: NodeProto, attributes: Mapping[str, Any]) -> None:
        weights = self.constants[node.input[1]]
        laid_out = weights if attributes.get("transB", 0) else weights.T
        constants = self._constants(node.input[0], node.input[1], laid_out, laid_out.shape[0])
        result, activation = self._with_fused(node)
        self._add(FULLY_CONNECTED, (node.input[0], *constants), result, {0: ("Int8", activation)})

    def _pool(self, node: NodeProto, kernel: Any, strides: Any) -> None:
        kind = MAX_POOL if node.op_type == "MaxPool" else AVERAGE_POOL
        self._activation(node.output[0], like=node.input[0])
        options = {
            0: ("Int8", self._padding(node, strides, kernel)),
            1: ("Int32", strides[1]),
            2: ("Int32", strides[0]),
        }
        options |= {3: ("Int32", kernel[1]), 4: ("Int32", kernel[0]), 5: ("Int8", NONE)}
        self._add(kind, node.input, node.output[0], options)

    def _padding(self, node: NodeProto, strides: Any, kernel: Any = None) -> int:
        """Return the padding with which the result has its size; raises UnsupportedNetwork if there is none."""
        kernel = self.constants[node.input[1]].shape[2:] if kernel is None else kernel
        before, after = (self.values[name].shape[2:] for name in (node.input[0], node.output[0]))
        axes = list(zip(before, after, strides, kernel, strict=True))
        if all(there == -(-(size - taps + 1) // step) for size, there, step, taps in axes):
            return VALID
        if all(there == -(-size // step) for size, there, step, _ in axes):
            return SAME
        raise UnsupportedNetwork(f"{node.name} pads otherwise than TensorFlow", why=f"from {before} to {after}")

    def _with_fused(self, node: NodeProto) -> tuple[str, int]:
        """Return the last of the tensors that batch norm and activation behind a node make, and its activation."""
        name, activation = node.output[0], NONE
        for follower in self._followers(name):
            name = follower.output[0]
            self.fused.add(name)
            activation = _FUSED.get(follower.op_type, NONE)
        self._activation(name)
        return name, activation

    def _followers(self, name: str) -> Iterator[NodeProto]:
        readers = self.readers.get(name, [])
        if len(readers) == 1 and readers[0].op_type in ("BatchNormalization", *_FUSED):
            yield readers[0]
            if readers[0].op_type == "BatchNormalization":
                yield from self._followers(readers[0].output[0])

    def _activation(self, name: str, like: str | None = None) -> Tensor:
        """Add an activation with the channels last, with the scale of its values or of another tensor."""
        value = self.values[name]
        shape = (value.shape[0], *value.shape[2:], value.shape[1]) if value.ndim == 4 else value.shape
        peak = float(np.abs(value).max()) or 1.0
        self.tensors[name] = Tensor(name, shape, self.tensors[like].scale if like else peak / 127)
        return self.tensors[name]

    def _constants(self, read: str, name: str, weights: Array, channels: int) -> tuple[str, str]:
        """Add weights and a bias of zeros; return their names."""
        scale = (float(np.abs(weights).max()) or 1.0) / 127
        rounded = np.rint(weights / scale).astype(np.int8)
        self.tensors[name] = Tensor(name, weights.shape, scale, values=rounded)
        bias, shape = f"{name}.bias", (channels,)
        scale *= self.tensors[read].scale
        self.tensors[bias] = Tensor(bias, shape, scale, type=INT32, values=np.zeros(channels, np.int32))
        return name, bias

    def _add(self, kind: Kind, inputs: Any, result: str, options: Mapping[int, tuple[str, Any]]) -> None:
        named = tuple(self.tensors[name].name for name in inputs)
        self.operators.append(Operator(kind, named, (result,), options))


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
            3: ("UOffsetTRelative", _offsets(builder, calls)),
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
