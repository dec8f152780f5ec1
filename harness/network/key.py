"""Canonical signatures of layers: operators, attributes, shapes, types and connections, never names."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.network.network import FLOATS, Network, Node, TensorType
from harness.network.operator_kinds import SIZED_BY_FLOATS, SORTED_IN_KEYS, WINDOWED, weight_slot

if TYPE_CHECKING:
    from onnx import AttributeProto

KEY_VERSION = "k1"
_NO_EFFECT = frozenset({"epsilon", "momentum", "spatial", "consumed_inputs", "is_test", "seed"})
_INFERENCE = ("training_mode", 0)
_AXIS_CHANGED_AT_13 = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
_FLOATS_COUNT = SIZED_BY_FLOATS | {"Pow"}
"""Operators of which a key has the values of floats."""
_MAX_VALUES_IN_KEY = 64
_MOST_LISTED = 256
"""The maximum number of elements of an attribute in a key; the trees of a forest have thousands."""


@dataclass(frozen=True, order=True)
class LayerKey:
    """The signature of a layer: layers of equal `text` take the same time on the same device."""

    text: str

    @functools.cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that represent the text in tables."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return self.digest


@dataclass(frozen=True)
class Subgraph:
    """Nodes in canonical order with the activations that they read from outside and return."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def canonical(network: Network, nodes: Sequence[Node], outputs: Sequence[str]) -> Subgraph:
    """Return the nodes ordered depth first from the outputs, independent of the exporter's order.

    Nodes before them that do not depend on the network's inputs are part of the subgraph.
    """
    writer = {tensor: node for node in nodes for tensor in node.outputs if tensor}
    ordered: list[Node] = []
    inputs: list[str] = []
    stack: list[tuple[str, bool]] = [(name, False) for name in reversed(outputs)]
    done: set[int] = set()
    while stack:
        tensor, expanded = stack.pop()
        node = network.producers.get(tensor) if tensor in network.fixed else writer.get(tensor)
        if node is None:
            if tensor and tensor not in network.constants and tensor not in inputs:
                inputs.append(tensor)
        elif node.index not in done and expanded:
            done.add(node.index)
            ordered.append(node)
        elif node.index not in done:
            stack.append((tensor, True))
            stack.extend((name, False) for name in reversed(node.inputs))
    return Subgraph(tuple(ordered), tuple(inputs), tuple(outputs))


def layer_key(network: Network, graph: Subgraph) -> LayerKey:
    """Return the signature of a subgraph of the network."""
    labels = {name: f"x{index}" for index, name in enumerate(graph.inputs)}
    parts = [KEY_VERSION, *(f"{labels[name]}:{network.types[name]}" for name in graph.inputs)]
    for position, node in enumerate(graph.nodes):
        for slot, name in enumerate(node.outputs):
            labels[name] = f"t{position}" if slot == 0 else f"t{position}.{slot}"
        inputs = node.inputs[:1] if _takes_axes(node.op) else node.inputs
        arguments = [_argument(network, labels, node.op, name) for name in inputs]
        arguments = sorted(arguments) if node.op in SORTED_IN_KEYS else arguments
        # The axis of softmax has another meaning before opset 13. All other operators kept their meaning.
        operator = f"{node.op}-12" if node.op in _AXIS_CHANGED_AT_13 and network.opset < 13 else node.op
        operator = f"{node.domain}.{operator}" if node.domain else operator
        values = ";".join(f"{name}={_text(value)}" for name, value in sorted(attributes(network, node).items()))
        parts.append(f"{operator}({','.join(arguments)}){{{values}}}")
    parts.append("->" + ",".join(f"{labels[name]}:{network.types[name]}" for name in graph.outputs))
    return LayerKey("|".join(parts))


def _argument(network: Network, labels: dict[str, str], op: str, name: str) -> str:
    if not name:
        return "_"
    if name in labels:
        return labels[name]
    kind, value = network.constants[name].type, network.constants[name].value
    if kind.dtype in FLOATS and not kind.elements:  # a Resize without a region may name an empty one
        return "_"
    text = f"c:{kind}?" if network.constants[name].replaceable else f"c:{kind}"
    if value is None or kind.elements > _MAX_VALUES_IN_KEY or not _counts_by_value(op, kind):
        return text
    return f"{text}=" + ",".join(f"{number:.6g}" for number in value.ravel().tolist())


def _counts_by_value(op: str, kind: TensorType) -> bool:
    """Return whether a constant's values change the work of the operator, not only its result."""
    if kind.dtype in FLOATS:
        return op in _FLOATS_COUNT
    return "Linear" not in op and "Integer" not in op  # zero points are learnt as well


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        texts = ",".join(map(_text, value))
        if len(value) <= _MOST_LISTED:
            return texts
        return f"{len(value)} of {hashlib.sha256(texts.encode()).hexdigest()[:16]}"
    # Control characters of an attribute's text must not reach tables.
    return f"{value:.6g}" if isinstance(value, float) else str(value).encode("unicode_escape").decode()


def attributes(network: Network, node: Node) -> dict[str, Any]:
    """Return the attributes that affect latency, with defaults, automatic padding and kernel sizes resolved."""
    given = {item.name: attribute_value(item) for item in node.proto.attribute}
    # Before a later opset added an attribute, operators behaved as with its default.
    version = network.domains.get(node.domain, network.opset)
    values = {**_defaults(node.op, node.domain, 0), **_defaults(node.op, node.domain, version), **given}
    values = {name: value for name, value in values.items() if name not in _NO_EFFECT and (name, value) != _INFERENCE}
    if node.op in WINDOWED:
        _resolve_window(network, node, values)
    _resolve_axes(network, node, values)
    return values


def _takes_axes(op: str) -> bool:
    """Return whether the operator's axes are an attribute in older opsets and an input in newer ones."""
    return op.startswith("Reduce") or op in ("Squeeze", "Unsqueeze")


def _resolve_axes(network: Network, node: Node, values: dict[str, Any]) -> None:
    """Replace missing and negative axes by explicit, non-negative ones."""
    rank = len(network.types[node.inputs[0]].shape) if node.inputs else 0
    if node.op == "Transpose":
        values.setdefault("perm", list(range(rank))[::-1])
    if _takes_axes(node.op):
        axes = values.get("axes", [])
        if len(node.inputs) > 1 and node.inputs[1] in network.constants:
            given = network.constants[node.inputs[1]].value
            axes = [] if given is None else given.ravel().tolist()
        if node.op == "Unsqueeze":
            rank = len(network.types[node.outputs[0]].shape)
        every = node.op.startswith("Reduce") and not values.get("noop_with_empty_axes", 0)
        values["axes"] = sorted({axis % rank for axis in axes} or set(range(rank if every else 0)))
    if isinstance(values.get("axis"), int) and rank:
        values["axis"] %= rank + (node.op == "Flatten")


def attribute_value(attribute: AttributeProto) -> Any:
    """Return an attribute as a Python value; a tensor becomes a text of its shape and values."""
    from onnx import AttributeProto, helper, numpy_helper

    if attribute.type == AttributeProto.TENSOR:
        array = numpy_helper.to_array(attribute.t)
        return f"{array.dtype}{list(array.shape)}{array.ravel().tolist()[:_MAX_VALUES_IN_KEY]}"
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, (int, float, str)) else list(value)


@functools.cache
def _defaults(op: str, domain: str, opset: int) -> dict[str, Any]:
    """Return the defaults of an operator's attributes in an opset, or in the newest one for 0; none if unknown."""
    from onnx import AttributeProto, defs

    version = opset or (defs.onnx_ml_opset_version() if domain else defs.onnx_opset_version())
    if not defs.has(op, version, domain):
        return {}
    known = defs.get_schema(op, version, domain).attributes.items()
    filled = {name: item.default_value for name, item in known if item.default_value.type != AttributeProto.UNDEFINED}
    return {name: attribute_value(value) for name, value in filled.items()}


def _resolve_window(network: Network, node: Node, values: dict[str, Any]) -> None:
    """Replace defaults and `auto_pad` by explicit kernel, strides, dilations and pads."""
    read = network.types[node.inputs[0]]
    spatial = len(read.shape) - 2
    if "kernel_shape" not in values:
        weight = node.inputs[weight_slot(node.op)]
        values["kernel_shape"] = list(network.types[weight].shape[2:])
    values.setdefault("strides", [1] * spatial)
    values.setdefault("dilations", [1] * spatial)
    if node.op == "ConvTranspose":
        values.setdefault("output_padding", [0] * spatial)
    mode = values.pop("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER") and node.op != "ConvTranspose":
        values["pads"] = _same_pads(read, network.types[node.outputs[0]], values, mode == "SAME_UPPER")
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        values["auto_pad"] = mode
    else:
        values.setdefault("pads", [0] * (2 * spatial))


def _same_pads(read: TensorType, written: TensorType, values: dict[str, Any], upper: bool) -> list[int]:
    begins, ends = [], []
    steps = zip(values["kernel_shape"], values["strides"], values["dilations"], strict=True)
    for size, count, (kernel, stride, dilation) in zip(read.shape[2:], written.shape[2:], steps, strict=True):
        total = max(0, (count - 1) * stride + (kernel - 1) * dilation + 1 - size)
        begins.append(total // 2 if upper else total - total // 2)
        ends.append(total - begins[-1])
    return begins + ends
