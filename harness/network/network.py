"""A prepared network: every tensor has a type, and constants are marked."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.network.operator_kinds import ACTIVATIONS, CONVOLUTIONS

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

    from harness.array_types import Array  # numpy is a third of the start of a command

PACKED = {"int4": 2, "uint4": 2}
"""Types of which a byte holds several elements, and how many."""
ITEM_BYTES = {
    **dict.fromkeys(("int8", "uint8", "bool", *PACKED), 1),
    **dict.fromkeys(("float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
ML_DOMAIN = "ai.onnx.ml"
"""The domain of ONNX's operators for trees, scalers, and labels."""
FLOATS = ("float32", "float64", "float16")
BYTES = ("int8", "uint8")
"""Types of quantised numbers and of pixels."""
_WRITING_MAPS = CONVOLUTIONS | {"MaxPool", "AveragePool"}
_KEEPING_MAPS = {
    *("GlobalAveragePool", "GlobalMaxPool", "BatchNormalization"),
    *(set(ACTIVATIONS) - {"PRelu"}),
    *("Add", "Sum", "Mul", "Dropout", "Resize", "QuantizeLinear", "DequantizeLinear"),
}
"""Operators whose result is a feature map if all inputs are. PRelu would change the contexts of tables."""
_MAP_AXES = 4
PARTIAL_READS = frozenset({"Gather", "Slice", "GatherElements", "GatherND"})
"""Operators that read no more of their first input than they return."""
_PICKING = PARTIAL_READS | {"Split", "Resize", "Shape"}
"""Operators of which a layer may read only a part of its input."""
_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})


def resolved(name: str, alias: Mapping[str, str]) -> str:
    """Return the tensor that a name stands for, by the names that others stand for."""
    while name in alias:
        name = alias[name]
    return name


def bytes_of(dtype: str, elements: int) -> int:
    """Return the size of elements, densely packed."""
    return -(-elements * ITEM_BYTES[dtype] // PACKED.get(dtype, 1))


@dataclass(frozen=True)
class TensorType:
    """Element type (numpy's name) and shape of a tensor; every dimension is a positive integer."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, densely packed."""
        return bytes_of(self.dtype, self.elements)

    def resized(self, axis: int, size: int) -> TensorType:
        """Return the type with another size along one axis."""
        shape = list(self.shape)
        shape[axis] = size
        return TensorType(self.dtype, tuple(shape))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the network's inputs; `value` is None if only its type is kept.

    A `replaceable` one is also an input of the file: a runtime may be given other values, so it neither folds nor packs
    it.
    """

    type: TensorType
    value: Array | None = None
    replaceable: bool = False


@dataclass(frozen=True)
class Node:
    """One operator of the file; `name` is unique within the network, `""` marks an absent optional input.

    `domain` is `""` for the operators of ONNX.
    """

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: NodeProto
    domain: str = ""

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs that are not absent."""
        return tuple(name for name in self.outputs if name)

    def attribute(self, name: str) -> AttributeProto | None:
        """Return an attribute; None if the node does not state it."""
        return next((item for item in self.proto.attribute if item.name == name), None)


UNROLLED = "unrolled"
"""The reason of a loop that is replaced by its iterations."""


@dataclass(frozen=True)
class FreeNode:
    """A node of the file that takes no time when the network runs, and the reason."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True)
class UnmeasuredNode:
    """A node left out: what it reads or writes has a size that depends on the data, or is not numeric."""

    name: str
    op: str


@dataclass(frozen=True)
class Network:
    """A network that can be cut into layers.

    `nodes` are in topological order. Constant, identity and unused nodes are not among them but in `free`. `types`
    has every tensor that a node reads or writes. `symbols` are the names that symbolic dimensions of the inputs have.
    `file` is the reference that the network was read from, as messages show it.
    `domains` are the versions of operator sets other than ONNX. The `unmeasured` nodes follow the outputs.
    `stored_bytes` is the size of the file and of its external data. `file_outputs` maps the outputs of the file to the
    tensors that they are, which may be inputs or constants; those of a sequence are NAME/0, NAME/1, and so on.
    `unfused` are nodes, by their indices, that a device is known to execute as layers of their own.
    """

    name: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    free: tuple[FreeNode, ...]
    symbols: frozenset[str]
    sha256: str
    file: str = ""
    domains: Mapping[str, int] = field(default_factory=dict)
    unmeasured: tuple[UnmeasuredNode, ...] = ()
    stored_bytes: int = 0
    file_outputs: Mapping[str, str] = field(default_factory=dict)
    unfused: frozenset[int] = frozenset()

    @property
    def opsets(self) -> dict[str, int]:
        """Versions of all operator sets by domain; `""` is ONNX."""
        return {"": self.opset, **self.domains}

    @functools.cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each tensor, in topological order."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for tensor in dict.fromkeys(node.inputs):
                readers.setdefault(tensor, []).append(node)
        return readers

    @functools.cached_property
    def producers(self) -> dict[str, Node]:
        """The node that writes each tensor."""
        return {tensor: node for node in self.nodes for tensor in node.outputs if tensor}

    def readers(self, tensor: str) -> Sequence[Node]:
        """Return the nodes that read a tensor, in topological order."""
        return self.consumers.get(tensor, ())

    def is_read_outside(self, tensor: str, nodes: Collection[int]) -> bool:
        """Return whether a tensor is an output of the network or read by a node that is not among `nodes`."""
        return tensor in self.outputs or any(reader.index not in nodes for reader in self.readers(tensor))

    @functools.cached_property
    def fixed(self) -> frozenset[str]:
        """The tensors that nodes write and that do not depend on the inputs, such as dequantised weights."""
        found: set[str] = set()
        for node in self.nodes:
            if all(not name or name in self.constants or name in found for name in node.inputs):
                found.update(node.results)
        return frozenset(found)

    @functools.cached_property
    def feature_maps(self) -> frozenset[str]:
        """The tensors that convolutions and pools write, directly or through operators that keep their layout.

        Runtimes store those of four axes in blocks of channels. Any other operator that reads one waits for its
        conversion, and writes the usual layout. So does one that combines a map with a value for each channel, or with
        a tensor that is not a map, as a Gelu does: its Erf keeps no layout. Nothing here depends on the device: what a
        layer that reads feature maps takes is measured.
        """
        found: set[str] = set()
        for node in self.nodes:
            read = self.activations(node)
            if read and len(self.types[read[0]].shape) == _MAP_AXES:
                joins = node.op == "Concat" and (axis := node.attribute("axis")) is not None and axis.i == 1
                alike = len({self.types[name].shape for name in read}) == 1
                keeps = (joins or (alike and node.op in _KEEPING_MAPS)) and found.issuperset(read)
                found.update(node.results if keeps or node.op in _WRITING_MAPS else ())
        return frozenset(found)

    def is_fixed(self, node: Node) -> bool:
        """Return whether the results of a node do not depend on the inputs."""
        return all(name in self.fixed for name in node.results)

    def activations(self, node: Node) -> list[str]:
        """Return the inputs of a node that depend on the inputs of the network."""
        return [name for name in node.inputs if name and name not in self.constants and name not in self.fixed]

    def constant_bytes(self, nodes: Iterable[Node]) -> int:
        """Return the bytes that these nodes read of constants, each counted once; a Gather reads what it returns."""
        read: dict[str, int] = {}
        for node in nodes:
            for slot, name in enumerate(node.inputs):
                if name in self.constants:
                    read[name] = max(read.get(name, 0), self._read_bytes(node, slot))
        return sum(read.values())

    def _read_bytes(self, node: Node, slot: int) -> int:
        whole = self.constants[node.inputs[slot]].type.bytes
        if slot or node.op not in PARTIAL_READS:
            return whole
        return min(whole, sum(self.types[name].bytes for name in node.outputs if name))

    def runs_from_caches(self, cache_bytes: int) -> bool:
        """Return whether the network finds its weights in a core's own cache, of this size, each time it runs.

        It reads them in the same order each time. If they do not fit, this cache loses each before it is read again,
        and the next cache or memory supplies it.
        """
        return self.constant_bytes(self.nodes) <= cache_bytes

    @property
    def input_bytes(self) -> int:
        """Size of all inputs in bytes."""
        return sum(self.input_sizes)

    @property
    def output_bytes(self) -> int:
        """Size of all outputs in bytes."""
        return sum(self.output_sizes)

    @property
    def input_sizes(self) -> tuple[int, ...]:
        """Size of each input in bytes."""
        return tuple(self.types[name].bytes for name in self.inputs)

    @functools.cached_property
    def whole_input_bytes(self) -> int:
        """Bytes of the inputs of which each reader reads all: no reader picks a part of one or strides over pixels."""
        return sum(self.types[name].bytes for name in self.inputs if self._is_read_whole(name))

    def _is_read_whole(self, tensor: str) -> bool:
        readers = self.readers(tensor)
        return bool(readers) and all(
            reader.op not in _PICKING
            and not _strides_over_pixels(reader)
            and (reader.op not in _RESHAPING or self._is_read_whole(reader.outputs[0]))
            for reader in readers
        )

    @property
    def output_sizes(self) -> tuple[int, ...]:
        """Size of each output in bytes."""
        return tuple(self.types[name].bytes for name in self.outputs)


def _strides_over_pixels(node: Node) -> bool:
    """Return whether a convolution or pool moves its window further than the window is wide."""
    strides, kernel = node.attribute("strides"), node.attribute("kernel_shape")
    steps = () if strides is None else strides.ints
    wide = [1] * len(steps) if kernel is None else kernel.ints
    return any(step > taps for step, taps in zip(steps, wide, strict=False))
