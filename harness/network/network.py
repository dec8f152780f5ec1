"""A network after preparation: every tensor has a type, every constant is known as one."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from onnx import NodeProto

ITEM_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = ("float32", "float64", "float16", "bfloat16")


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
        return self.elements * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the network's inputs; `value` is None where only its type is kept."""

    type: TensorType
    value: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Node:
    """One operator of the file; `name` is unique within the network, `""` marks an absent optional input."""

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: NodeProto


@dataclass(frozen=True)
class FreeNode:
    """A node of the file that costs nothing when the network runs, and why."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True)
class Network:
    """A network that can be cut into layers.

    `nodes` are in topological order and have no constant-only, identity or unused node left among them:
    these are listed in `free`. `types` covers every tensor that a node reads or writes. `symbols` are the
    names by which dimensions of the inputs could be bound.
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

    @functools.cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """For each tensor the nodes that read it, in topological order."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for tensor in dict.fromkeys(node.inputs):
                readers.setdefault(tensor, []).append(node)
        return readers

    @functools.cached_property
    def producers(self) -> dict[str, Node]:
        """For each tensor the node that writes it."""
        return {tensor: node for node in self.nodes for tensor in node.outputs if tensor}

    @property
    def input_bytes(self) -> int:
        """Bytes handed over per run."""
        return sum(self.types[name].bytes for name in self.inputs)

    @property
    def output_bytes(self) -> int:
        """Bytes handed back per run."""
        return sum(self.types[name].bytes for name in self.outputs)
