"""What is known of the tensors of a model while its nodes are visited in their order."""

import contextlib
import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, helper, numpy_helper

from harness.errors import InvalidNetwork, NetworkError, UnsupportedType
from harness.network.network import Constant, FreeNode, Node, TensorType
from harness.network.node_inference import Operands, checked, onnx_dtype, operands, tensor_type
from harness.network.reading.control_flow import SEPARATOR, tensors_read
from harness.network.single_runs import CannotRun, values

_WITH_REGION = 11
"""From this opset on, a Resize reads a region before its scales."""


class KnownTensors:
    """Tensors by name: `types`, `constants`, `aliases` of tensors with another name, and the `unknown`.

    Unknown are those whose shape depends on the data or that are not numeric, and what depends on them, with the
    reason. `stored` are initializers of types that no layer reads, which are of use only if a Cast converts them.
    `read` are all that a node or an output reads, `free` the nodes that take no time, and `unrolled` is the
    number of nodes of all iterations. Constants of more elements than `most_folded` have no values.
    """

    def __init__(self, opsets: Mapping[str, int], most_folded: int) -> None:
        self.opsets, self.most_folded = opsets, most_folded
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Constant] = {}
        self.aliases: dict[str, str] = {}
        self.unknown: dict[str, NetworkError] = {}
        self.stored: dict[str, TensorProto] = {}
        self.read: set[str] = set()
        self.free: list[FreeNode] = []
        self.unrolled = 0
        self.operands = Operands(self.types, self.constants, opsets)

    def own(self, name: str) -> str:
        """Return the name under which a tensor is known."""
        return self.aliases.get(name, name)

    def enter(self, graph: GraphProto, replaceable: Set[str] = frozenset()) -> None:
        """Take over what the nodes of a graph read, and its initializers, some of which a caller may replace."""
        self.read.update(tensors_read(graph))
        for tensor in graph.initializer:
            self._take_initializer(tensor, tensor.name in replaceable)
        for sparse in graph.sparse_initializer:  # runtimes make them dense when they load a file
            kind = tensor_type(sparse.values.data_type, tuple(sparse.dims), sparse.values.name)
            self.set_constant(sparse.values.name, Constant(kind))

    def _take_initializer(self, tensor: TensorProto, is_replaceable: bool) -> None:
        try:
            kind = tensor_type(tensor.data_type, tuple(tensor.dims), tensor.name)
        except UnsupportedType as error:
            self.unknown[tensor.name] = error
            if tensor.data_type != TensorProto.STRING:  # what reads labels may be left out, but no product
                self.stored[tensor.name] = tensor
            return
        self.set_constant(tensor.name, Constant(kind, self._value(tensor, kind), is_replaceable))

    def _value(self, tensor: TensorProto, kind: TensorType) -> Any | None:
        """Return the values of an initializer, None if it is large or in another file."""
        if kind.elements > self.most_folded or tensor.data_location == TensorProto.EXTERNAL:
            return None
        try:
            return numpy_helper.to_array(tensor)
        except ValueError as error:
            raise InvalidNetwork(f"Tensor {tensor.name[:80]!r} is damaged", why=str(error)[:200]) from error

    def convert(self, node: Node) -> None:
        """Make the result of a Cast of a stored initializer a constant: runtimes convert it when they load a file."""
        tensor = self.stored[node.inputs[0]]
        to = next(attribute.i for attribute in node.proto.attribute if attribute.name == "to")
        kind = tensor_type(to, tuple(tensor.dims), node.outputs[0])
        value = self._value(tensor, kind)
        self.set_free(node, "constant")
        self.set_constant(node.outputs[0], Constant(kind, None if value is None else value.astype(kind.dtype)))

    def scaled(self, node: Node) -> Node:
        """Return a Resize or Upsample with scales by which shape inference finds the sizes of runtimes.

        The product of a size and a scale is a float32 in runtimes, but exact in shape inference: 20 * 0.65 is 13 in one
        and just below in the other. The next larger scale gives 13 in both.
        """
        place = 2 if node.op == "Resize" and self.opsets[""] >= _WITH_REGION else 1
        name = node.inputs[place] if len(node.inputs) > place else ""
        held, kind = self.constants.get(name), self.types.get(node.inputs[0])
        if held is None or held.value is None or held.value.dtype.kind != "f" or kind is None:
            return node
        scales, listed = held.value, [list(item.ints) for item in node.proto.attribute if item.name == "axes"]
        axes = listed[0] if listed else range(len(kind.shape))
        if scales.shape != (len(axes),) or not all(-len(kind.shape) <= axis < len(kind.shape) for axis in axes):
            return node  # the checks of its operands say what is wrong
        sizes = np.array([kind.shape[axis] for axis in axes], scales.dtype)
        with np.errstate(all="ignore"):
            is_below = np.floor(sizes.astype(float) * scales) < np.floor(sizes * scales)
            larger = np.where(is_below, np.nextafter(scales, scales.dtype.type(np.inf)), scales)
        if not is_below.any():
            return node
        own = f"{node.name}{SEPARATOR}scales"
        self.set_constant(own, constant_of(larger))
        return replace(node, inputs=(*node.inputs[:place], own, *node.inputs[place + 1 :]))

    def pooled(self, node: Node) -> Node:
        """Return a pool without ceil_mode, and with the padding that its windows reach, if a window is behind the map.

        With ceil_mode, runtimes drop a last window that starts behind the map, and ONNX's shape inference counts it.
        """
        given = {item.name: helper.get_attribute_value(item) for item in node.proto.attribute}
        kernel, kind = given.get("kernel_shape", ()), self.types.get(node.inputs[0])
        axes, ones = len(kernel), [1] * len(kernel)
        strides, dilations = given.get("strides", ones), given.get("dilations", ones)
        pads = list(given.get("pads", [0] * 2 * axes))
        is_stated = given.get("ceil_mode") == 1 and given.get("auto_pad", b"NOTSET") == b"NOTSET"
        lengths = {axes, len(strides), len(dilations), len(pads) / 2, len(kind.shape) - 2 if kind else 0}
        if not is_stated or kind is None or len(lengths) > 1 or min((*strides, *pads), default=0) < 0 or 0 in strides:
            return node  # the checks of its operands say what is wrong
        found, drops = list(pads), False
        for axis, (size, step) in enumerate(zip(kind.shape[2:], strides, strict=True)):
            before, window = size + pads[axis], (kernel[axis] - 1) * dilations[axis] + 1
            last = -(-(before + pads[axes + axis] - window) // step)
            drops |= last * step >= before
            found[axes + axis] = max(0, (last - (last * step >= before)) * step + window - before)
        counts_more = any(new > old for new, old in zip(found, pads, strict=True)) and given.get("count_include_pad")
        if not drops or counts_more:
            return node
        proto = copy.deepcopy(node.proto)
        kept = [item for item in node.proto.attribute if item.name not in ("pads", "ceil_mode")]
        del proto.attribute[:]
        proto.attribute.extend([*kept, helper.make_attribute("pads", found)])
        return replace(node, proto=proto)

    def cast(self, node: Node) -> Node:
        """Return a CastLike as a Cast to the type of its second input, as runtimes do."""
        kind = self.types.get(node.inputs[1])
        if kind is None:
            return node
        read, written = node.proto.input[:1], node.proto.output
        proto = helper.make_node("Cast", read, written, node.proto.name, to=onnx_dtype(kind.dtype))
        proto.attribute.extend(node.proto.attribute)
        return replace(node, op="Cast", inputs=node.inputs[:1], proto=proto)

    def joined(self, node: Node) -> Node:
        """Return a Concat without its empty operands, such as the past of a decoder at its first step."""
        kept = [slot for slot, name in enumerate(node.inputs) if name not in self.types or self.types[name].elements]
        if not kept or len(kept) == len(node.inputs):
            return node
        proto = copy.deepcopy(node.proto)
        proto.input[:] = [node.proto.input[slot] for slot in kept]
        return replace(node, inputs=tuple(node.inputs[slot] for slot in kept), proto=proto)

    def set_empty(self, kinds: Mapping[str, TensorType]) -> bool:
        """Make tensors constants if all of them are empty; return whether they are."""
        if not kinds or any(kind.elements for kind in kinds.values()):
            return False
        for name, kind in kinds.items():
            self.set_constant(name, Constant(kind, np.empty(kind.shape, kind.dtype)))
        return True

    def without_empty(self, node: Node, kinds: Mapping[str, TensorType]) -> Node:
        """Return a node that has both kinds of results with empty ones that nothing reads: those read are constants."""
        empty = {name: kind for name, kind in kinds.items() if not kind.elements}
        if not self.set_empty(empty):
            return node
        unread = {name: f"{name}{SEPARATOR}empty" for name in empty}
        self.types |= {unread[name]: kind for name, kind in empty.items()}
        outputs = tuple(unread.get(name, name) for name in node.outputs)
        proto = copy.deepcopy(node.proto)
        proto.output[:] = outputs
        return replace(node, outputs=outputs, proto=proto)

    def set_constant(self, name: str, constant: Constant) -> None:
        """Make a tensor a constant."""
        self.constants[name] = constant
        self.types[name] = constant.type

    def set_number(self, value: ValueInfoProto, number: int) -> None:
        """Make an input of a body a constant of the rank and type that it states."""
        shape = (1,) * len(value.type.tensor_type.shape.dim)
        self.set_constant(value.name, constant_of(np.full(shape, number)))

    def number(self, name: str) -> int | None:
        """Return a constant of one element as a number; None if it is not known."""
        held = self.constants.get(name)
        return None if held is None or held.value is None or held.value.size != 1 else int(held.value.item())

    def name_results(self, outputs: Sequence[str], written: Sequence[str]) -> None:
        """Give tensors the names of a node's outputs."""
        for result, name in zip(outputs, written, strict=False):
            self.aliases[result] = name
            if name in self.unknown:
                self.unknown[result] = self.unknown[name]

    def values(self, node: Node, outside: Iterable[str] = ()) -> dict[str, Any] | None:
        """Return the results of a node that reads constants; None if one of them is not known.

        `outside` are the tensors that its subgraphs read.
        """
        wanted = {**operands(node), **{name: self.own(name) for name in outside}}
        constants = {name: self.constants[alias].value for name, alias in wanted.items()}
        if any(value is None for value in constants.values()):
            return None
        with contextlib.suppress(CannotRun):
            return values(node, constants, self.opsets)
        return None

    def keep(self, node: Node, results: Mapping[str, Any]) -> None:
        """Make the results of a node constants; it takes no time."""
        self.set_free(node, "constant")
        for name, value in results.items():
            constant = constant_of(value)
            checked(constant.type, name)
            self.set_constant(name, constant)

    def set_free(self, node: Node, reason: str) -> None:
        """Note that a node takes no time."""
        self.free.append(FreeNode(node.name, node.op, reason))


def constant_of(value: Any) -> Constant:
    """Return an array as a constant."""
    return Constant(TensorType(str(value.dtype), value.shape), value)
