"""A super-network made of blocks: for each position, one small ONNX model for each choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.architecture_search.candidate_model import CHOICE
from harness.errors import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

Choices = Mapping[str, "ModelProto | None"]
"""The blocks of one position by the names of the choices; None passes the tensor on as it is."""


def super_network(name: str, positions: Mapping[str, Choices]) -> ModelProto:
    """Join blocks into a super-network that `SearchSpace.read` accepts; a position with one block is fixed.

    Each block is a model with one input and one output. The first position cannot be None. Raises UsageError for blocks
    that cannot be joined.
    """
    from onnx import helper

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
        from onnx import helper

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
