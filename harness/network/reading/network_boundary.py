"""Both ends of a network: the types of its inputs, and the outputs and nodes of the part that is measured."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from onnx import ValueInfoProto

from harness.errors import InvalidNetwork, NetworkError, UnresolvedDimension, UnsupportedNetwork
from harness.network.learnt_weights import reads_weights
from harness.network.network import Constant, Node, TensorType
from harness.network.node_inference import tensor_type

_ANY_SIZE = -1
"""The size that some exporters write for an unknown size."""
_CHOICES = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
"""Types of inputs of one element that may decide what a network computes."""


def bound_inputs(
    inputs: Iterable[ValueInfoProto], dims: Mapping[str, int], network: str
) -> tuple[dict[str, TensorType], frozenset[str]]:
    """Return the types of inputs with values for their dimensions, and the names that `dims` can give values to.

    Raises UnresolvedDimension, which names the input, and UnsupportedNetwork.
    """
    types: dict[str, TensorType] = {}
    known: set[str] = set()
    for value in inputs:
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            why = "It is not a tensor of known rank"
            raise UnsupportedNetwork(f"Input {value.name[:80]!r} cannot be measured", why=why)
        shape = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value != _ANY_SIZE:
                shape.append(dim.dim_value)
                continue
            names = [name for name in (dim.dim_param, f"{value.name}.{axis}") if name]
            known.update(names)
            bound = next((name for name in names if name in dims), None)
            if bound is None:
                label = f"Dimension {dim.dim_param[:80]!r}" if dim.dim_param else "A dimension"
                what = f"{label} of input {value.name[:80]!r} (axis {axis}) of {network} has no value"
                unused = ", ".join(sorted(set(dims) - known))
                why = f"It has no dimension {unused[:80]}" if unused else ""
                raise UnresolvedDimension(what, why=why, unset=names[:1])
            shape.append(dims[bound])
        kind = tensor_type(value.type.tensor_type.elem_type, tuple(shape), value.name, flows=True)
        known.update((value.name,) if is_choice(kind) else ())
        types[value.name] = kind
    return types, frozenset(known)


def is_choice(kind: TensorType) -> bool:
    """Return whether an input is a whole number or a Boolean, so that its value can be given as a dimension's is."""
    return kind.elements == 1 and kind.dtype in _CHOICES


def given_choices(types: Mapping[str, TensorType], dims: Mapping[str, int]) -> dict[str, Constant]:
    """Return the inputs of one element whose values are given, as constants.

    Raises UnsupportedNetwork for a value that the type of its input cannot hold.
    """
    found = {}
    for name, kind in types.items():
        if name not in dims or not is_choice(kind):
            continue
        value = np.full(kind.shape, dims[name]).astype(kind.dtype)
        if value.item() != dims[name]:
            why = f"{dims[name]} is not a valid {kind.dtype} value"
            most = 1 if kind.dtype == "bool" else np.iinfo(kind.dtype).max
            what = f"Input {name[:80]!r} cannot have the value {dims[name]}"
            raise UnsupportedNetwork(what, why=why, next_step=f"Give it a value from 0 to {most}")
        found[name] = Constant(kind, value)
    return found


def choices_behind(tensors: Iterable[str], nodes: Iterable[Node], inputs: Mapping[str, TensorType]) -> list[str]:
    """Return the inputs that some tensors depend on and whose values can be given."""
    writers = {result: node for node in nodes for result in node.results}
    waiting = list(tensors)
    found = set(waiting)
    while waiting:
        node = writers.get(waiting.pop())
        fresh = [] if node is None else [one for one in node.inputs if one and one not in found]
        found.update(fresh)
        waiting += fresh
    return [name for name, kind in inputs.items() if name in found and is_choice(kind)]


def measured_outputs(
    ends: Iterable[str],
    nodes: Iterable[Node],
    unmeasured: Sequence[Node],
    unknown: Mapping[str, NetworkError],
    constants: Mapping[str, Constant],
) -> tuple[str, ...]:
    """Return the outputs of the part that is measured: known ends, and what the rest reads of that part.

    Raises the reason of the first operator with weights in the rest: then it is not only post-processing.
    """
    outputs = tuple(dict.fromkeys(ends))
    if not unmeasured:
        return outputs
    nodes = list(nodes)
    integers = [node for node in nodes if node.op == "DequantizeLinear" and node.inputs[0] in constants]
    weights = {**constants, **{node.outputs[0]: constants[node.inputs[0]] for node in integers}}
    for node in unmeasured:
        if reads_weights(node, weights):
            raise unknown[node.results[0]]
    written = {name for node in nodes for name in node.results}
    read = [name for node in unmeasured for name in node.inputs if name in written]
    kept = tuple(dict.fromkeys((*(name for name in outputs if name not in unknown), *read)))
    if written.isdisjoint(kept):
        raise unknown[unmeasured[0].results[0]]
    return kept


def check_outputs(
    outputs: Sequence[str],
    nodes: Iterable[Node],
    types: Mapping[str, TensorType],
    dims: Mapping[str, int],
    network: str,
) -> None:
    """Raise InvalidNetwork for an output that no node writes, UnsupportedNetwork if no node takes time."""
    for name in outputs:
        if name not in types:
            raise InvalidNetwork(f"Output {name[:80]!r} is written by no node")
    if {name for node in nodes for name in node.outputs}.isdisjoint(outputs):
        why = "Its outputs are inputs, constants or empty: no node takes time"
        zero = next((name for name, size in dims.items() if not size), None)
        step = "Give a network with an operator that computes its outputs"
        if zero is not None:
            step = f"Give {zero[:80]!r} a size above 0: without elements, nothing is computed"
        raise UnsupportedNetwork(f"{network} has nothing to measure", why=why, next_step=step)


def needed_nodes(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """Return the nodes that the outputs depend on, in order."""
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(name for name in node.inputs if name)
            kept.append(node)
    return kept[::-1]
