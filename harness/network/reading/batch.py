"""Another batch for a network with fixed shapes: its types, and the constants that hold the old batch.

Exporters write the batch into inputs, and also into targets of Reshape, Expand and Resize, initial states and class
tokens. The batch is followed through the network from the leading axes of its inputs: every tensor has at most one axis
that grows with it. If a constant contains the old batch on that axis, a separate constant replaces it. Whether rows
stay independent of each other only a run shows: see `batch_check`.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto

from harness.array_types import Array
from harness.errors import InvalidNetwork, UnresolvedDimension, UnsupportedNetwork, UsageError
from harness.network.network import Constant, Network, Node, TensorType
from harness.network.node_inference import Operands, output_types
from harness.network.operator_kinds import GATES

_SHAPE_OPERANDS = {"Reshape": 1, "Expand": 1, "Resize": 3}
"""Operators with a shape as a constant operand, and its position."""
_SCALED = frozenset({"DynamicQuantizeLinear"})
"""Operators whose results, but for the first, are one scale and one zero point for all rows."""
_STATE_AXES = {4: 0, 5: 1, 6: 1}
"""Operands of recurrent operators that hold the batch, sequence lengths and initial states, and their batch axes."""
_NEXT = "Export it with a symbolic batch dimension and give --dim, or omit --batch"


@dataclass(frozen=True)
class Rebatched:
    """A network with another batch.

    `axes` is the axis of each tensor that grows with the batch; `tiled` are constants that repeat another one along an
    axis, by name.
    """

    network: Network
    before: int
    batch: int
    axes: Mapping[str, int]
    tiled: Mapping[str, tuple[str, int]]


def leading_dims(model: ModelProto, dims: Mapping[str, int], batch: int) -> dict[str, int]:
    """Return `dims` with the batch for each symbolic leading dimension of an input; raises UsageError for another."""
    bound = dict(dims)
    initializers = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        if value.name in initializers or not axes or axes[0].HasField("dim_value"):
            continue
        name = axes[0].dim_param or f"{value.name}.0"
        if bound.setdefault(name, batch) != batch:
            why = f"It is the leading dimension of input {value.name[:80]!r}"
            what = f"--batch {batch} and --dim {name[:80]}={bound[name]} contradict each other"
            raise UsageError(what, why=why, next_step="Omit one of them")
    return bound


def rebatch(network: Network, batch: int) -> Rebatched:
    """Return the network with another leading dimension of all its inputs; raises UnsupportedNetwork."""
    leading = {name: network.types[name].shape[0] for name in network.inputs if network.types[name].shape}
    sizes = set(leading.values())
    if not sizes:
        raise refusal(batch, "None of its inputs has an axis")
    if len(sizes) > 1:
        listed = ", ".join(f"{name[:40]!r} has {size}" for name, size in list(leading.items())[:4])
        raise refusal(batch, f"Its inputs have different leading dimensions: {listed}")
    (before,) = sizes
    if before == batch:
        return Rebatched(network, before, batch, dict.fromkeys(leading, 0), {})
    return _Batching(network, before, batch).run(leading)


@dataclass
class _Batching:
    """One pass over the nodes: new types, the axis of the batch in each tensor, and constants made on the way."""

    network: Network
    before: int
    batch: int
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    tiled: dict[str, tuple[str, int]] = field(default_factory=dict)
    visited: dict[str, Node] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, int]) -> Rebatched:
        self.types, self.constants = dict(self.network.types), dict(self.network.constants)
        for name in inputs:
            self._grow(name, 0)
        for node in self.network.nodes:
            self.visited[node.name] = self._visit(node)
        nodes = tuple(self.visited.values())
        for name in self.network.outputs:
            if name not in self.axes and name not in self.constants:
                raise refusal(self.batch, f"Output {name[:80]!r} has no axis that grows with the batch")
        digest = hashlib.sha256(f"{self.network.sha256} batch={self.batch}".encode()).hexdigest()
        found = replace(self.network, nodes=nodes, types=self.types, constants=self.constants, sha256=digest)
        return Rebatched(found, self.before, self.batch, self.axes, self.tiled)

    def _visit(self, node: Node) -> Node:
        if not any(name in self.axes for name in node.inputs):
            return node
        node = self._with_shape(self._with_states(node) if node.op in GATES else node)
        found = self._infer(node)
        if found is None or None in found.values():
            held = len(self.tiled)
            wider = self._with_constants(node)
            known = None if len(self.tiled) == held else self._infer(wider)
            if known is not None and (found is None or None not in known.values()):
                node, found = wider, known
        if found is None:
            raise self._refuse(node, "does not accept the batch")
        for name in node.results[:1] if node.op in _SCALED else node.results:
            self._follow(node, name, found[name])
        return node

    def _follow(self, node: Node, name: str, found: TensorType | None) -> None:
        """Record the new type of a result, which differs from the old one along the axis of the batch."""
        old = self.network.types[name]
        if found is None:  # shape inference does not know the operator; a run checks the guess
            axis = next((self.axes[one] for one in node.inputs if one in self.axes), 0)
            if axis >= len(old.shape):
                raise self._refuse(node, "has a result without the batch's axis")
            if old.shape[axis] * self.batch % self.before:
                raise self._refuse(node, f"divides the batch: it gives {old}")
            self._grow(name, axis)
            return
        if len(found.shape) != len(old.shape):
            raise self._refuse(node, f"gives {found} instead of {old}")
        changed = [at for at, sizes in enumerate(zip(old.shape, found.shape, strict=True)) if sizes[0] != sizes[1]]
        if not changed:
            raise self._refuse(node, f"gives {found} for any batch, so it mixes or drops rows")
        if len(changed) > 1 or found.shape[changed[0]] * self.before != old.shape[changed[0]] * self.batch:
            raise self._refuse(node, f"mixes the batch into other axes: it gives {found} instead of {old}")
        self.types[name], self.axes[name] = found, changed[0]

    def _grow(self, name: str, axis: int) -> None:
        old = self.network.types[name]
        self.types[name] = old.resized(axis, old.shape[axis] * self.batch // self.before)
        self.axes[name] = axis

    def _with_states(self, node: Node) -> Node:
        """Widen constant states; raises for states that are inputs, and for time as the leading axis."""
        layout = next((item.i for item in node.proto.attribute if item.name == "layout"), 0)
        if layout == 0 and self.axes.get(node.inputs[0]) != 1:
            raise self._refuse(node, "reads time, not the batch, along the leading axis")
        for at, axis in _STATE_AXES.items():
            name = node.inputs[at] if at < len(node.inputs) else ""
            if name in self.constants:
                axis = 0 if layout else axis
                if self.constants[name].type.shape[axis] == self.before:
                    node = self._replaced(node, at, self._tile(name, axis))
            elif name and self.axes.get(name) != (0 if layout else axis):
                raise self._refuse(node, f"reads a state, {name[:80]!r}, whose leading axis is not the batch")
        return node

    def _with_shape(self, node: Node) -> Node:
        """Give a node that reads a shape a separate constant with the new batch."""
        at = _SHAPE_OPERANDS.get(node.op, len(node.inputs))
        if at >= len(node.inputs) or node.inputs[0] not in self.axes or node.inputs[at] not in self.constants:
            return node
        read, old = self.network.types[node.inputs[0]], self.network.types[node.outputs[0]]
        axis = self.axes[node.inputs[0]]
        if node.op == "Reshape":
            found = self._reshaped_axis(read.shape, axis, old.shape)
            if found is None:
                raise self._refuse(node, f"mixes the batch into other axes: it makes {old} of {read}")
            axis = found
        else:
            axis += len(old.shape) - len(read.shape)
        size = old.shape[axis] * self.batch
        if size % self.before:
            raise self._refuse(node, f"divides the batch: it makes {old} of {read}")
        name = f"{node.outputs[0]} shape for batch {self.batch}"
        self._add_constant(name, np.array(old.resized(axis, size // self.before).shape, np.int64))
        return self._replaced(node, at, name)

    def _reshaped_axis(self, read: Sequence[int], axis: int, made: Sequence[int]) -> int | None:
        """Return the axis of a reshaped tensor that begins with the batch; None if no axis does."""
        before = math.prod(read[:axis])
        fits = [at for at in range(len(made)) if math.prod(made[:at]) == before]
        holds = [at for at in fits if made[at] * self.batch % self.before == 0]
        return axis if axis in holds else next(iter(holds), None)

    def _with_constants(self, node: Node) -> Node:
        """Widen the constants that a node reads together with a batch, such as a class token or a mask of windows."""
        batched = next(name for name in node.inputs if name in self.axes)
        axis, old = self.axes[batched], self.network.types[batched].shape
        for at, name in enumerate(node.inputs):
            source = self._dequantised(name)
            held = self.constants.get(source.inputs[0] if source else name)
            if held is None or len(held.type.shape) != len(old) or held.type.shape[axis] != old[axis]:
                continue
            if source:
                self.visited[source.name] = self._replaced(source, 0, self._tile(source.inputs[0], axis))
                self._grow(name, axis)
            else:
                node = self._replaced(node, at, self._tile(name, axis))
        return node

    def _dequantised(self, name: str) -> Node | None:
        """Return the node that makes a float of a quantised constant, with one scale and for one reader alone."""
        source = self.network.producers.get(name)
        if source is None or source.op != "DequantizeLinear" or name in self.axes:
            return None
        alone = len(self.network.readers(name)) == 1 and self.types[source.inputs[1]].elements == 1
        return source if alone and source.inputs[0] in self.constants else None

    def _tile(self, name: str, axis: int) -> str:
        """Return the name of a constant that repeats another one along an axis as often as the batch grows."""
        held, made = self.constants[name], f"{name} for batch {self.batch} along {axis}"
        size = held.type.shape[axis] * self.batch // self.before
        value = None if held.value is None else tiled(held.value, axis, size)
        self._add_constant(made, value, held.type.resized(axis, size))
        self.tiled[made] = (name, axis)
        return made

    def _add_constant(self, name: str, value: Array | None, kind: TensorType | None = None) -> None:
        kind = kind or (TensorType(str(value.dtype), value.shape) if value is not None else None)
        assert kind is not None  # noqa: S101 - a constant has a value or a type
        self.constants[name], self.types[name] = Constant(kind, value), kind

    def _replaced(self, node: Node, at: int, name: str) -> Node:
        return replace(node, inputs=(*node.inputs[:at], name, *node.inputs[at + 1 :]))

    def _infer(self, node: Node) -> Mapping[str, TensorType | None] | None:
        """Return the types of a node's results, None for each that is unknown; None if its inputs do not fit."""
        opsets = {"": self.network.opset, **self.network.domains}
        try:
            return output_types(node, Operands(self.types, self.constants, opsets))
        except UnresolvedDimension:
            return dict.fromkeys(node.results)
        except (InvalidNetwork, UnsupportedNetwork):
            return None

    def _refuse(self, node: Node, why: str) -> UnsupportedNetwork:
        return refusal(self.batch, f"Node {node.name[:80]!r} ({node.op}) {why}")


def tiled(value: Array, axis: int, size: int) -> Array:
    """Return an array repeated along one axis up to a size."""
    made: Array = np.take(value, np.arange(size) % value.shape[axis], axis)
    return made


def refusal(batch: int, why: str) -> UnsupportedNetwork:
    """Return the error for a batch that a network cannot have."""
    return UnsupportedNetwork(f"A batch of {batch} cannot be set", why=why, next_step=_NEXT)
