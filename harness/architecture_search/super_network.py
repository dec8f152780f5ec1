"""A super-network made of blocks: for each position, one small ONNX model for each choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from harness.arguments import TEXT, Rule, checked
from harness.errors import InvalidNetwork, UsageError
from harness.network.model_references import ModelReference, model_path
from harness.network.network import resolved

Choices = Mapping[str, "ModelProto | None"]
"""The blocks of one position by the names of the choices; None passes the tensor on as it is."""
CHOICE = "choice:"
"""The beginning of the name of a node that chooses one of its inputs."""


def _is_model(block: Any) -> bool:
    return hasattr(block, "graph") and hasattr(block, "opset_import")


def _blocks(positions: Any) -> dict[str, dict[str, Any]]:
    """Return blocks by position and choice; raises TypeError and ValueError for anything else."""
    found = {str(position): dict(choices) for position, choices in dict(positions).items()}
    models = [block for choices in found.values() for block in choices.values() if block is not None]
    names = [str(name) for choices in found.values() for name in choices]
    if not all(found.values()) or any("," in name for name in names) or not all(map(_is_model, models)):
        raise ValueError
    return found


@checked(
    name=TEXT,
    positions=Rule("{position: {choice: an onnx.ModelProto or None}}, without commas in names of choices", _blocks),
)
def super_network(name: str, positions: Mapping[str, Choices]) -> ModelProto:
    """Join blocks into a super-network that `SearchSpace.read` accepts; a position with one block is fixed.

    Each block is a model with one input and one output. The first position cannot be None. Raises UsageError for blocks
    that cannot be joined.
    """
    joined = _Joined()
    blocks = [(at, choice, block) for at, choices in positions.items() for choice, block in choices.items() if block]
    if not blocks:
        raise UsageError(f"{name[:80]} has no block", next_step="Give at least one position with one block")
    opsets = {tuple(sorted((one.domain, one.version) for one in block.opset_import)) for _, _, block in blocks}
    if len(opsets) > 1:
        raise UsageError("The blocks use several versions of ONNX operators", next_step="Export all with one opset")
    first, last = blocks[0][2], blocks[-1][2]
    tensor = read = "input"
    for position, choices in positions.items():
        results = [joined.add(f"{position}/{choice}/", block, tensor) for choice, block in choices.items()]
        tensor = results[0] if len(results) == 1 else joined.choose(position, tuple(choices), results)
    ends: list[ValueInfoProto] = []
    for end, kind in ((read, first.graph.input[0]), (tensor, last.graph.output[0])):
        value = type(kind)()
        value.CopyFrom(kind)
        value.name = end
        ends.append(value)
    graph = helper.make_graph(joined.nodes, name, ends[:1], ends[1:], joined.weights)
    version = max(block.ir_version for _, _, block in blocks)
    return helper.make_model(graph, opset_imports=first.opset_import, ir_version=version)


class _Joined:
    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def choose(self, position: str, names: Sequence[str], results: Sequence[str]) -> str:
        result = f"{position}/chosen"
        chosen = helper.make_node("Sum", list(results), [result], f"{CHOICE}{position}", doc_string=",".join(names))
        self.nodes.append(chosen)
        return result

    def add(self, prefix: str, block: ModelProto | None, read: str) -> str:
        """Append a copy of a block to a tensor, with a prefix before all names; return its result."""
        if block is None:
            return read
        _check(prefix, block)
        names = {"": "", block.graph.input[0].name: read}
        for tensor in block.graph.initializer:
            self.weights.append(type(tensor)())
            self.weights[-1].CopyFrom(tensor)
            self.weights[-1].name = names[tensor.name] = prefix + tensor.name
        for number, node in enumerate(block.graph.node):
            names.update((name, prefix + name) for name in node.output if name)
            self.nodes.append(type(node)())
            copy = self.nodes[-1]
            copy.CopyFrom(node)
            copy.name = prefix + (node.name or f"{node.op_type}_{number}")
            copy.input[:] = [names[name] for name in node.input]
            copy.output[:] = [names[name] for name in node.output]
        return names[block.graph.output[0].name]


def _check(prefix: str, block: ModelProto) -> None:
    shown, graph = prefix.rstrip("/"), block.graph
    weights = {tensor.name for tensor in graph.initializer}
    if [len(graph.input), len(graph.output)] != [1, 1] or graph.input[0].name in weights:
        raise UsageError(
            f"Block {shown} does not have one input and one output", next_step="Export it with one of each"
        )
    if block.functions or any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        raise UsageError(f"Block {shown} has functions or subgraphs", next_step="Export it without them")
    known = {"", graph.input[0].name, *weights}
    for node in graph.node:
        if not known.issuperset(node.input):
            raise UsageError(f"Block {shown} reads a tensor that it does not have", next_step="Export it again")
        known.update(node.output)
    if graph.output[0].name not in known:
        raise UsageError(f"Block {shown} does not write its output", next_step="Export it again")


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
    with model_path(reference) as path:
        model = onnx.load(path)
    graph = model.graph
    choices = [node for node in graph.node if is_choice(node)]
    if len(choices) != len(candidate):
        raise InvalidNetwork(f"{graph.name[:80]} has choices without an effect", next_step="Remove unused nodes")
    alias = {node.output[0]: node.input[at] for node, at in zip(choices, candidate, strict=True)}
    kept: list[NodeProto] = []
    needed = {resolved(one.name, alias) for one in graph.output}
    for node in reversed([node for node in graph.node if not is_choice(node)]):
        if not needed.isdisjoint(node.output):
            node.input[:] = [resolved(name, alias) for name in node.input]
            needed.update(node.input)
            kept.append(node)
    results = [
        onnx.helper.make_node("Identity", [resolved(one.name, alias)], [one.name], f"result:{one.name}")
        for one in graph.output
        if resolved(one.name, alias) != one.name
    ]
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    unused = {tensor.name for tensor in graph.initializer} - needed
    # Some exporters list weights among the inputs; without its weight, such an input would be one of the network.
    inputs = [value for value in graph.input if value.name not in unused]
    content = onnx.helper.make_graph([*reversed(kept), *results], graph.name, inputs, graph.output, weights)
    model.graph.CopyFrom(content)
    return model
