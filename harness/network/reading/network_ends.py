"""Both ends of a network: the types of its inputs, and the outputs and nodes of the part that is measured."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.errors import InvalidNetwork, NetworkError, UnresolvedDimension, UnsupportedNetwork
from harness.network.learnt_weights import reads_weights
from harness.network.network import Constant, Node, TensorType
from harness.network.node_inference import tensor_type

if TYPE_CHECKING:
    from onnx import ValueInfoProto


_ANY_SIZE = -1
"""What some exporters write for a size that is not known."""


def bound_inputs(
    inputs: Iterable[ValueInfoProto], dims: Mapping[str, int], network: str
) -> tuple[dict[str, TensorType], frozenset[str]]:
    """Return the types of inputs with values for their dimensions, and the names that a dimension can be given by.

    Raises UnresolvedDimension, which names the input and the `--dim` to give, and UnsupportedNetwork.
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
                step = f"Give one, for example --dim {shlex.quote(f'{names[0][:80]}=1')}"
                raise UnresolvedDimension(what, why=why, next_step=step)
            shape.append(dims[bound])
        types[value.name] = tensor_type(value.type.tensor_type.elem_type, tuple(shape), value.name, flows=True)
    return types, frozenset(known)


def measured_outputs(
    outputs: tuple[str, ...],
    nodes: Iterable[Node],
    unmeasured: Sequence[Node],
    unknown: Mapping[str, NetworkError],
    constants: Mapping[str, Constant],
) -> tuple[str, ...]:
    """Return the outputs of the part that is measured: known ones, and what the rest reads of that part.

    Raises the reason of the first operator with weights in the rest: then it is no mere post-processing.
    """
    if not unmeasured:
        return outputs
    for node in unmeasured:
        if reads_weights(node, constants):
            raise unknown[node.results[0]]
    written = {name for node in nodes for name in node.results}
    read = [name for node in unmeasured for name in node.inputs if name in written]
    kept = tuple(dict.fromkeys((*(name for name in outputs if name not in unknown), *read)))
    if written.isdisjoint(kept):
        raise unknown[unmeasured[0].results[0]]
    return kept


def check_outputs(outputs: Sequence[str], nodes: Iterable[Node], types: Mapping[str, TensorType], network: str) -> None:
    """Raise InvalidNetwork for an output that no node writes, UnsupportedNetwork if no node takes time."""
    for name in outputs:
        if name not in types:
            raise InvalidNetwork(f"Output {name[:80]!r} is written by no node")
    if {name for node in nodes for name in node.outputs}.isdisjoint(outputs):
        why = "Its outputs are inputs or constants: no node takes time"
        raise UnsupportedNetwork(f"{network} has nothing to measure", why=why)


def needed_nodes(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """Return the nodes that the outputs depend on, in order."""
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(name for name in node.inputs if name)
            kept.append(node)
    return kept[::-1]
