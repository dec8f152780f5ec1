"""Transposes that a runtime moves and cancels, as exports of networks with channels last are full of.

Such an export has a Transpose before each convolution and one after it, and element-wise operators in between:

    Conv -> Transpose(0, 2, 3, 1) -> Relu -> Transpose(0, 3, 1, 2) -> Conv

ONNX Runtime computes the Relu on the result of the convolution as it is, and leaves both Transposes out. In a probe of
one layer nothing cancels them, so the network is rewritten before it is cut into layers. For each permutation, an
*entry* is a Transpose with it and an *exit* one that undoes it. The *region* is the largest set of operators between
entries and exits that can compute on the tensors as they are before the entries. In it, attributes and constants that
depend on the layout are rewritten; entries that nothing reads any more and exits behind the region are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.network.network import Constant, Network, Node, TensorType, resolved

if TYPE_CHECKING:
    from onnx import NodeProto

Permutation = tuple[int, ...]

_UNARY = (
    *("Abs", "Cast", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
    *("Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign"),
    *("Sqrt", "Tanh", "ThresholdedRelu"),
)
_BROADCAST = (
    *("Add", "And", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"),
    *("Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor"),
)
_AXIS_CHANGED_AT = 13
"""From this opset, Softmax has one axis; before, it joins all axes after it."""


def with_moved_transposes(network: Network) -> Network:
    """Return the network without Transposes that cancel each other; nodes keep their indices.

    A removed Transpose has no inputs any more, and nothing reads it.
    """
    for permutation in dict.fromkeys(_permutation(network, node) for node in network.nodes if node.op == "Transpose"):
        if permutation is not None:
            network = _moved(network, permutation)
    return network


@dataclass(frozen=True)
class _Rewrite:
    """A node as it computes on permuted tensors: its attributes and constants; a sink writes a result as it was."""

    proto: NodeProto
    constants: Mapping[str, Constant]
    is_sink: bool = False


def _moved(network: Network, permutation: Permutation) -> Network:
    """Return the network without entries and exits of this permutation, where a region lies between them."""
    back = tuple(permutation.index(axis) for axis in range(len(permutation)))
    entries = {node.outputs[0]: node.inputs[0] for node in network.nodes if _permutation(network, node) == permutation}
    exits = {
        node.index
        for node in network.nodes
        if _permutation(network, node) == back and node.outputs[0] not in network.outputs
    }
    region = _region(network, entries, exits, back)
    permuted = {name for index, one in region.items() if not one.is_sink for name in network.nodes[index].results}
    removed = {
        index
        for index in exits
        if network.nodes[index].inputs[0] in permuted or network.nodes[index].inputs[0] in entries
    }
    if not removed:
        return network
    network = _rewritten(network, region, entries, back)
    types = {**network.types, **{name: _permuted(network.types[name], back) for name in permuted}}
    return _without_transposes(replace(network, types=types), removed, entries)


def _rewritten(
    network: Network, region: Mapping[int, _Rewrite], entries: Mapping[str, str], back: Permutation
) -> Network:
    """Return the network whose nodes of the region read what the entries read, with constants in that layout."""
    nodes, types, constants = list(network.nodes), dict(network.types), dict(network.constants)
    for index, one in region.items():
        renamed = {name: f"{name}#{''.join(map(str, back))}.{index}" for name in one.constants}
        constants.update((renamed[name], constant) for name, constant in one.constants.items())
        types.update((renamed[name], constant.type) for name, constant in one.constants.items())
        inputs = (renamed.get(name, entries.get(name, name)) for name in nodes[index].inputs)
        nodes[index] = replace(nodes[index], inputs=tuple(inputs), proto=one.proto)
    return replace(network, nodes=tuple(nodes), types=types, constants=constants)


def _without_transposes(network: Network, exits: Set[int], entries: Mapping[str, str]) -> Network:
    """Return the network without these exits, and without entries that nothing reads; nodes keep their indices."""
    nodes = list(network.nodes)
    alias = {}
    for index in exits:
        read = nodes[index].inputs[0]
        alias[nodes[index].outputs[0]] = entries.get(read, read)
        nodes[index] = replace(nodes[index], inputs=())
    nodes = [replace(node, inputs=tuple(resolved(name, alias) for name in node.inputs)) for node in nodes]
    read_names = {name for node in nodes for name in node.inputs} | set(network.outputs)
    unread = {network.producers[name].index for name in entries if name not in read_names}
    nodes = [replace(node, inputs=()) if node.index in unread else node for node in nodes]
    return replace(network, nodes=tuple(nodes))


def _region(network: Network, entries: Mapping[str, str], exits: Set[int], back: Permutation) -> dict[int, _Rewrite]:
    """Return the region: of the nodes after entries, those left when all that reach out of it have been removed."""
    inside = _reached(network, entries, back)
    waiting = list(inside)
    while waiting:
        index = waiting.pop()
        if index not in inside:
            continue
        node = network.nodes[index]
        read = [name for name in network.activations(node) if name not in entries]
        writers = [network.producers.get(name) for name in read]
        readers = [reader for name in node.results for reader in network.readers(name)]
        is_fed = all(one is not None and one.index in inside and not inside[one.index].is_sink for one in writers)
        is_read = bool(readers) and all(one.index in inside or one.index in exits for one in readers)
        is_output = not set(node.results).isdisjoint(network.outputs)
        if not is_fed or not (inside[index].is_sink or (is_read and not is_output)):
            del inside[index]
            waiting += [one.index for one in (*writers, *readers) if one is not None and one.index in inside]
    return inside


def _reached(network: Network, entries: Mapping[str, str], back: Permutation) -> dict[int, _Rewrite]:
    """Return the nodes after entries that can compute on permuted tensors, each judged by itself."""
    found: dict[int, _Rewrite] = {}
    waiting = [reader for name in entries for reader in network.readers(name)]
    while waiting:
        node = waiting.pop()
        one = None if node.index in found else _rewrite(network, node, back)
        if one is not None:
            found[node.index] = one
            waiting += [reader for name in node.results if not one.is_sink for reader in network.readers(name)]
    return found


def _rewrite(network: Network, node: Node, back: Permutation) -> _Rewrite | None:
    """Return the node as it computes on tensors permuted by `back`; None if its result depends on the layout."""
    read = network.activations(node)
    if node.domain or not read or any(len(network.types[name].shape) != len(back) for name in read):
        return None
    if node.op in _UNARY:
        return _Rewrite(node.proto, {})
    if node.op in _BROADCAST:
        return _broadcast(network, node, back)
    return _SPECIAL[node.op](network, node, back) if node.op in _SPECIAL else None


def _broadcast(network: Network, node: Node, back: Permutation) -> _Rewrite | None:
    changed = {}
    for name in node.inputs:
        if name in network.fixed:
            return None
        constant = network.constants.get(name)
        if constant is not None and constant.type.elements > 1:
            shape = (1,) * (len(back) - len(constant.type.shape)) + constant.type.shape
            kind = _permuted(TensorType(constant.type.dtype, shape), back)
            value = None if constant.value is None else constant.value.reshape(shape).transpose(back)
            changed[name] = Constant(kind, value)
    return _Rewrite(node.proto, changed)


def _quantised(network: Network, node: Node, _back: Permutation) -> _Rewrite | None:
    per_tensor = all(network.types[name].elements == 1 for name in node.inputs[1:] if name)
    return _Rewrite(node.proto, {}) if per_tensor else None


def _along_axis(network: Network, node: Node, back: Permutation) -> _Rewrite | None:
    if "Softmax" in node.op and network.opset < _AXIS_CHANGED_AT:
        return None
    if node.op == "Concat" and len(network.activations(node)) != len(node.inputs):
        return None
    axis = next((item.i for item in node.proto.attribute if item.name == "axis"), 0 if node.op == "Split" else -1)
    return _Rewrite(_with_attribute(node.proto, "axis", back.index(axis % len(back))), {})


def _padded(network: Network, node: Node, back: Permutation) -> _Rewrite | None:
    pads = network.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if pads is None or pads.value is None or len(node.inputs) > 3:
        return None
    order = [*back, *(len(back) + axis for axis in back)]
    return _Rewrite(node.proto, {node.inputs[1]: Constant(pads.type, pads.value.ravel()[order])})


def _reduced(network: Network, node: Node, back: Permutation) -> _Rewrite | None:
    given = {item.name: item for item in node.proto.attribute}
    listed = network.constants.get(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    if "axes" in given:
        axes = [axis % len(back) for axis in given["axes"].ints]
    elif listed is not None and listed.value is not None:
        axes = [int(axis) % len(back) for axis in listed.value.ravel()]
    else:
        return None
    moved = sorted(back.index(axis) for axis in axes)
    drops = "keepdims" in given and given["keepdims"].i == 0
    left = [axis for axis in back if axis not in axes]
    if drops and left != sorted(left):
        return None
    if "axes" in given:
        return _Rewrite(_with_attribute(node.proto, "axes", moved), {}, drops)
    return _Rewrite(node.proto, {node.inputs[1]: _integers(moved)}, drops)


def _integers(values: Sequence[int]) -> Constant:
    array = np.array(values, np.int64)
    return Constant(TensorType("int64", array.shape), array)


_SPECIAL: Mapping[str, Callable[[Network, Node, Permutation], _Rewrite | None]] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantised),
    **dict.fromkeys(("Concat", "Softmax", "LogSoftmax", "Split"), _along_axis),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), _reduced),
    "Pad": _padded,
}


def _with_attribute(proto: NodeProto, name: str, value: int | list[int]) -> NodeProto:
    from onnx import NodeProto, helper

    changed = NodeProto()
    changed.CopyFrom(proto)
    del changed.attribute[:]
    changed.attribute.extend(item for item in proto.attribute if item.name != name)
    changed.attribute.append(helper.make_attribute(name, value))
    return changed


def _permutation(network: Network, node: Node) -> Permutation | None:
    """Return the permutation of a Transpose of something that depends on the inputs; None for other nodes."""
    if node.op != "Transpose" or node.domain or not network.activations(node):
        return None
    rank = len(network.types[node.inputs[0]].shape)
    given = next((tuple(item.ints) for item in node.proto.attribute if item.name == "perm"), None)
    return given or tuple(reversed(range(rank)))


def _permuted(kind: TensorType, order: Permutation) -> TensorType:
    return TensorType(kind.dtype, tuple(kind.shape[axis] for axis in order))
