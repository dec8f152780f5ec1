"""The ONNX model of one candidate: the super-network with only the chosen branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import InvalidNetwork
from harness.network.model_references import ModelReference, model_path

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

CHOICE = "choice:"
"""The beginning of the name of a node that chooses one of its inputs."""


def is_choice(node: NodeProto) -> bool:
    """Return whether a node is a position of a search space."""
    return bool(node.op_type == "Sum" and node.name.startswith(CHOICE))


def position_name(node: NodeProto) -> str:
    """Return the name of the position."""
    return str(node.name).removeprefix(CHOICE)


def choice_names(node: NodeProto) -> tuple[str, ...]:
    """Return the names of the choices, which are numbers if the node lists none."""
    return tuple(node.doc_string.split(",")) if node.doc_string else tuple(map(str, range(len(node.input))))


def candidate_model(reference: ModelReference, candidate: Sequence[int]) -> ModelProto:
    """Return the model of a checked candidate of the super-network that a reference names; weights are included."""
    import onnx

    with model_path(reference) as path:
        model = onnx.load(path)
    graph = model.graph
    choices = [node for node in graph.node if is_choice(node)]
    if len(choices) != len(candidate):
        raise InvalidNetwork(f"{graph.name[:80]} has choices without an effect", next_step="Remove unused nodes")
    alias = {node.output[0]: node.input[at] for node, at in zip(choices, candidate, strict=True)}

    def resolved(name: str) -> str:
        while name in alias:
            name = alias[name]
        return name

    kept: list[NodeProto] = []
    needed = {resolved(one.name) for one in graph.output}
    for node in reversed([node for node in graph.node if not is_choice(node)]):
        if not needed.isdisjoint(node.output):
            node.input[:] = [resolved(name) for name in node.input]
            needed.update(node.input)
            kept.append(node)
    results = [
        onnx.helper.make_node("Identity", [resolved(one.name)], [one.name], f"result:{one.name}")
        for one in graph.output
        if resolved(one.name) != one.name
    ]
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    unused = {tensor.name for tensor in graph.initializer} - needed
    # Some exporters list weights among the inputs; without its weight, such an input would be one of the network.
    inputs = [value for value in graph.input if value.name not in unused]
    content = onnx.helper.make_graph([*reversed(kept), *results], graph.name, inputs, graph.output, weights)
    model.graph.CopyFrom(content)
    return model
