"""Sequences and optional values whose tensors are known before a network runs: operators on them become plain ones.

Lists of exporters, such as results that a loop appends, are sequences of a fixed number of tensors. To choose among
them takes no time; to divide a tensor, or to join tensors, is a Split or a Concat.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from harness.array_types import Array
from harness.errors import UnsupportedNetwork
from harness.network.network import Constant, Node, TensorType
from harness.network.reading.control_flow import AXES_AS_INPUT, SEPARATOR, stacking
from harness.text import unused_name

MOST_TENSORS = 4096
"""The most tensors of a sequence: each change of a sequence lists them again."""
_POSITIONS = {"SequenceInsert": 2, "SequenceErase": 1, "SequenceAt": 1}
"""The places of positions in a sequence."""


@dataclass(frozen=True)
class Resolved:
    """The replacement of an operator on a sequence: other names of tensors, constants, and nodes that read them."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    nodes: tuple[NodeProto, ...] = ()


class Sequences:
    """The tensors of each sequence of a network; `types` and `constants` are those of all tensors known so far."""

    def __init__(self, types: Mapping[str, TensorType], constants: Mapping[str, Constant], opset: int) -> None:
        self._types, self._constants, self._opset = types, constants, opset
        self._parts: dict[str, tuple[str, ...]] = {}

    def tensors_of(self, name: str) -> tuple[str, ...]:
        """Return the tensors of a sequence; any other name alone."""
        return self._parts.get(name, (name,))

    def file_outputs(self, graph: GraphProto, aliases: Mapping[str, str]) -> dict[str, str]:
        """Return the tensor that each output of a graph is; a sequence has NAME/0, NAME/1, and so on.

        A tensor of a sequence whose name another output has gets `'` at its end.
        """
        found: dict[str, str] = {}
        taken = {value.name for value in graph.output}
        for value in graph.output:
            name = aliases.get(value.name, value.name)
            if name not in self._parts:
                found[value.name] = name
                continue
            for at, part in enumerate(self._parts[name]):
                found[unused_name(f"{value.name}{SEPARATOR}{at}", taken)] = part
        return found

    def read_by(self, node: Node) -> str:
        """Return the first known sequence that a node reads; an empty text if it reads none."""
        return next((name for name in node.inputs if name in self._parts), "")

    def resolve(self, node: Node) -> Resolved | None:
        """Return the replacement of a node; None if it works on no known sequence, or on tensors that are not known."""
        handler = None if node.domain else _HANDLERS.get(node.op)
        return None if handler is None else handler(self, node)

    def _changed(self, node: Node) -> Resolved | None:
        """Replace SequenceInsert, SequenceErase and SequenceAt."""
        parts, place = self._parts.get(node.inputs[0]), _POSITIONS[node.op]
        if parts is None:
            return None
        is_new = node.op == "SequenceInsert"
        at = len(parts) - (not is_new)
        if len(node.inputs) > place and node.inputs[place]:
            value = self._value(node.inputs[place])
            if value is None or value.size != 1:
                return None
            at = int(value.item())
        if not -len(parts) <= at < len(parts) + is_new:
            return None
        at += len(parts) if at < 0 else 0
        if node.op == "SequenceAt":
            return Resolved({node.outputs[0]: parts[at]})
        return self._made(node, (*parts[:at], *node.inputs[1 : 1 + is_new], *parts[at + (not is_new) :]))

    def _length(self, node: Node) -> Resolved | None:
        parts = self._parts.get(node.inputs[0])
        return None if parts is None else Resolved(constants={node.outputs[0]: np.array(len(parts), "int64")})

    def _optional(self, node: Node) -> Resolved | None:
        """Replace Optional and OptionalGetElement of a value that is there."""
        known = node.inputs and (node.inputs[0] in self._types or node.inputs[0] in self._parts)
        return Resolved({node.outputs[0]: node.inputs[0]}) if known else None

    def _presence(self, node: Node) -> Resolved | None:
        return None if self._optional(node) is None else Resolved(constants={node.outputs[0]: np.array(True)})

    def _divided(self, node: Node) -> Resolved | None:
        """Replace SplitToSequence by a Split, and Squeezes if the parts lose the axis."""
        kind, (axis, keeps) = self._types.get(node.inputs[0]), _integers(node, axis=0, keepdims=1)
        given, result = node.inputs[1] if len(node.inputs) > 1 else "", node.outputs[0]
        value = self._value(given) if given else np.array(1)
        if kind is None or value is None or not -len(kind.shape) <= axis < len(kind.shape) or value.min(initial=1) < 1:
            return None
        size = kind.shape[axis]
        if (value.size if value.ndim else -(-size // int(value))) > MOST_TENSORS:
            return None
        sizes = value if value.ndim else [min(int(value), size - low) for low in range(0, size, int(value))]
        parts = [f"{result}{SEPARATOR}{at}" for at in range(len(sizes))]
        whole = parts if keeps or given else [f"{part}{SEPARATOR}whole" for part in parts]
        constants = {f"{result}{SEPARATOR}sizes": np.array(sizes, "int64")}
        nodes = [self._reading("Split", node.inputs[0], whole, "split", constants, axis=axis)]
        if whole is not parts:
            axes = {f"{result}{SEPARATOR}axes": np.array([axis], "int64")}
            pairs = zip(whole, parts, strict=True)
            nodes += [self._reading("Squeeze", source, [part], "axes", axes) for source, part in pairs]
            constants |= axes
        self._parts[node.outputs[0]] = tuple(parts)
        return Resolved(constants=constants, nodes=tuple(nodes))

    def _reading(
        self, op: str, source: str, results: Sequence[str], what: str, integers: Mapping[str, Any], **attributes: Any
    ) -> NodeProto:
        """Return a node that reads integers: as an input, in older operator sets as an attribute."""
        ((name, values),) = integers.items()
        if self._opset >= AXES_AS_INPUT:
            return helper.make_node(op, [source, name], results, **attributes)
        attributes[what] = values.tolist()
        return helper.make_node(op, [source], results, **attributes)

    def _joined(self, node: Node) -> Resolved | None:
        """Replace ConcatFromSequence by a Concat, of tensors with a further axis if they are stacked."""
        parts, (axis, is_new) = self._parts.get(node.inputs[0]), _integers(node, axis=0, new_axis=0)
        if not parts:
            return None
        if not is_new:
            return Resolved(nodes=(helper.make_node("Concat", parts, node.outputs, axis=axis),))
        axes = f"{node.outputs[0]}{SEPARATOR}axes"
        nodes = tuple(stacking(parts, node.outputs[0], axes, axis, self._opset))
        return Resolved(constants={axes: np.array([axis])}, nodes=nodes)

    def _made(self, node: Node, parts: Sequence[str]) -> Resolved | None:
        if len(parts) > MOST_TENSORS:
            return None
        self._parts[node.outputs[0]] = tuple(parts)
        return Resolved()

    def _value(self, name: str) -> Array | None:
        held = self._constants.get(name)
        return None if held is None else held.value


def undecided(node: Node, sequence: str, choices: Sequence[str]) -> UnsupportedNetwork:
    """Return the error of a node that does not resolve; `choices` are the inputs whose values can be given."""
    why = f"Which tensors of the sequence {sequence[:80]!r} it reads is not known before it runs"
    what = f"Node {node.name[:80]!r} ({node.op}) cannot be measured"
    return UnsupportedNetwork(what, why=why, unset=choices)


def _integers(node: Node, **defaults: int) -> list[int]:
    """Return attributes of a node, with their defaults."""
    given = {item.name: int(item.i) for item in node.proto.attribute}
    return [given.get(name, default) for name, default in defaults.items()]


_HANDLERS: Mapping[str, Callable[[Sequences, Node], Resolved | None]] = {
    "SequenceEmpty": lambda self, node: self._made(node, ()),
    "SequenceConstruct": lambda self, node: self._made(node, node.inputs),
    "SequenceInsert": Sequences._changed,
    "SequenceErase": Sequences._changed,
    "SequenceAt": Sequences._changed,
    "SequenceLength": Sequences._length,
    "SplitToSequence": Sequences._divided,
    "ConcatFromSequence": Sequences._joined,
    "Optional": Sequences._optional,
    "OptionalGetElement": Sequences._optional,
    "OptionalHasElement": Sequences._presence,
}
