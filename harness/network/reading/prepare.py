"""Prepare a checked model in one topological pass: bind dimensions, fold constants, infer all types.

Only what ONNX Runtime folds itself when it loads a file is folded, so that the network that is measured is the network
of the file. DequantizeLinear stays: a runtime that computes with integers reads the integers directly.
"""

import contextlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

import numpy as np
from onnx import NodeProto

from harness.errors import InvalidNetwork, NetworkError, UnresolvedDimension, UnsupportedType
from harness.network.learnt_weights import unshared
from harness.network.network import Constant, FreeNode, Network, Node, TensorType, UnmeasuredNode
from harness.network.node_inference import Operands, checked, output_types
from harness.network.operator_kinds import SCALING, WINDOWED_POOLS
from harness.network.reading.control_flow import all_nodes, domain_of, subgraphs, unknown_flow
from harness.network.reading.known_tensors import KnownTensors, constant_of
from harness.network.reading.network_boundary import (
    bound_inputs,
    check_outputs,
    choices_behind,
    given_choices,
    measured_outputs,
    needed_nodes,
)
from harness.network.reading.read import ModelFile
from harness.network.reading.sequences import Resolved, Sequences, undecided
from harness.network.reading.unrolling import Unrolling

MAX_FOLDED_ELEMENTS = 1 << 16
SELECTIONS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose output size depends on values but is never much larger than their input."""
RANDOM_OPS = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"})
NOT_FOLDED = RANDOM_OPS | {"DequantizeLinear"}
"""Operators that a runtime executes even if all that they read is constant."""


def prepare(file: ModelFile, dims: Mapping[str, int], most_folded: int = MAX_FOLDED_ELEMENTS) -> Network:
    """Bind dimensions, fold constants, infer the type of every tensor, and set nodes that take no time apart.

    Constants of more elements than `most_folded` have no values. Raises UnresolvedDimension, which names the tensor,
    UnsupportedNetwork and InvalidNetwork.
    """
    try:
        return _Preparation(file, dims, most_folded).run()
    except InvalidNetwork as error:
        if not dims:
            raise
        step = "Give the dimensions the sizes of the export: exporters may keep them as constants. Or export it again"
        raise InvalidNetwork(error.what, why=error.why, next_step=step) from error


class _Preparation:
    def __init__(self, file: ModelFile, dims: Mapping[str, int], most_folded: int) -> None:
        self._file, self._graph, self._dims = file, file.model.graph, dims
        opsets = {domain_of(entry): entry.version for entry in file.model.opset_import}
        used = {domain_of(node) for node in all_nodes(file.model.graph.node)}
        opsets = {"": opsets[""], **{domain: opsets[domain] for domain in sorted(used - {""})}}
        self._known = KnownTensors(opsets, most_folded)
        self._sequences = Sequences(self._known.types, self._known.constants, opsets[""])
        self._inputs: dict[str, TensorType] = {}
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._unmeasured: list[Node] = []

    def run(self) -> Network:
        self._known.enter(self._graph, self._file.replaceable_weights)
        inputs = [value for value in self._graph.input if value.name not in self._known.constants]
        self._inputs, symbols = bound_inputs(inputs, self._dims, self._file.name)
        self._known.types |= self._inputs
        for name, kind in self._inputs.items():
            self._known.set_empty({name: kind})
        for name, constant in given_choices(self._inputs, self._dims).items():
            self._known.set_constant(name, constant)
        for node in self._graph.node:
            self._visit(node)
        file_outputs = self._sequences.file_outputs(self._graph, self._known.aliases)
        outputs = measured_outputs(
            file_outputs.values(), self._nodes, self._unmeasured, self._known.unknown, self._known.constants
        )
        check_outputs(outputs, self._nodes, self._known.types, self._dims, self._file.name)
        nodes = needed_nodes(self._nodes, outputs)
        kept = {node.index for node in nodes}
        self._known.free += [
            FreeNode(node.name, node.op, "unused") for node in self._nodes[::-1] if node.index not in kept
        ]
        return Network(
            name=self._file.name,
            opset=self._known.opsets[""],
            inputs=tuple(name for name in self._inputs if name not in self._known.constants),
            outputs=outputs,
            file_outputs=file_outputs,
            nodes=tuple(unshared(nodes, self._known.types, outputs)),
            types=self._known.types,
            constants=self._known.constants,
            free=tuple(self._known.free),
            symbols=symbols,
            sha256=self._file.sha256,
            domains={domain: version for domain, version in self._known.opsets.items() if domain},
            unmeasured=tuple(UnmeasuredNode(node.name, node.op) for node in self._unmeasured),
            stored_bytes=self._file.stored_bytes,
        )

    def _visit(self, proto: NodeProto) -> None:
        index = len(self._nodes) + len(self._known.free) + len(self._unmeasured)
        node = Node(
            index=index,
            name=self._unique_name(index, proto),
            op=proto.op_type,
            inputs=tuple(self._known.own(name) for name in proto.input),
            outputs=tuple(proto.output),
            proto=proto,
            domain=domain_of(proto),
        )
        if node.op == "CastLike" and not node.domain:
            node = self._known.cast(node)
        unknown = next((name for name in node.inputs if name in self._known.unknown), None)
        if node.op == "Cast" and unknown in self._known.stored:
            self._known.convert(node)
        elif unknown in self._known.stored:
            raise self._known.unknown[unknown]
        elif unknown is not None:
            self._leave_out(node, self._known.unknown[unknown])
        elif any(True for _ in subgraphs(proto)):
            Unrolling(self._known, self._visit, self._leave_out_flow).replace(node)
        elif (resolved := self._sequences.resolve(node)) is not None:
            self._replace(node, resolved)
        elif node.op in ("Shape", "Size") and node.inputs[0] in self._known.types:
            self._fold_shape(node)
        elif node.op not in NOT_FOLDED and self._known.operands.are_fixed(node.inputs):
            self._fold(node)
        elif reason := free_reason(node, self._known.operands, self._known.read):
            self._known.aliases[node.outputs[0]] = node.inputs[0]
            self._known.set_free(node, reason)
        elif sequence := self._sequences.read_by(node):
            self._leave_out(node, undecided(node, sequence, self._choices(node.inputs)))
        else:
            self._measure(node)

    def _replace(self, node: Node, resolved: Resolved) -> None:
        self._known.set_free(node, "sequence")
        self._known.aliases.update(resolved.aliases)
        for name, value in resolved.constants.items():
            self._known.set_constant(name, constant_of(value))
        for proto in resolved.nodes:
            self._visit(proto)

    def _measure(self, node: Node) -> None:
        if node.op in SCALING and not node.domain:
            node = self._known.scaled(node)
        elif node.op in WINDOWED_POOLS and not node.domain:
            node = self._known.pooled(node)
        elif node.op == "Concat" and not node.domain:
            node = self._known.joined(node)
        types = self._types_of(node, flow=True)
        if types is not None and self._known.set_empty(types):
            self._known.set_free(node, "empty")
        elif types is not None:
            self._known.types.update(types)
            self._nodes.append(self._known.without_empty(node, types))

    def _types_of(self, node: Node, *, flow: bool = False) -> dict[str, TensorType] | None:
        """Return the types of a node's outputs; None if one is not known, and the node is then left out."""
        try:
            types = output_types(node, self._known.operands)
            return {name: checked(kind, name, flows=flow) for name, kind in types.items()}
        except UnresolvedDimension as error:
            choices = self._choices(node.inputs)
            step = "" if choices else error.next_step
            self._leave_out(node, UnresolvedDimension(error.what, why=error.why, next_step=step, unset=choices))
        except UnsupportedType as error:
            self._leave_out(node, error)
        return None

    def _choices(self, tensors: Iterable[str]) -> list[str]:
        given = self._known.constants
        open_inputs = {name: kind for name, kind in self._inputs.items() if name not in given}
        return choices_behind(tensors, self._nodes, open_inputs)

    def _leave_out_flow(self, node: Node) -> None:
        """Leave out control flow over a sequence; raise UnsupportedNetwork for any other that depends on the data."""
        error = unknown_flow(node, self._choices(self._known.own(name) for name in node.inputs))
        if not self._sequences.read_by(node):
            raise error
        self._leave_out(node, error)

    def _leave_out(self, node: Node, reason: NetworkError) -> None:
        read = (part for name in node.inputs for part in self._sequences.tensors_of(name))
        self._unmeasured.append(replace(node, inputs=tuple(read)))
        self._known.unknown.update((name, reason) for name in node.results)

    def _unique_name(self, index: int, proto: NodeProto) -> str:
        name = proto.name or f"{proto.op_type}_{index}"
        while name in self._names:
            name = f"{name}#{index}"
        self._names.add(name)
        return name

    def _fold(self, node: Node) -> None:
        """Make the results of a node constants: with their values if they are small, else with their types alone."""
        results = None if self._is_large(node) else self._known.values(node)
        if results is not None:
            self._known.keep(node, results)
        elif (types := self._types_of(node)) is not None:
            self._known.set_free(node, "constant")
            for name, kind in types.items():
                self._known.set_constant(name, Constant(kind))

    def _is_large(self, node: Node) -> bool:
        """Return whether a result is too large to keep its values, is sparse, or has none here, as texts."""
        if node.op == "Constant":
            return any(item.name == "sparse_value" for item in node.proto.attribute)
        try:
            return any(
                kind.elements > self._known.most_folded for kind in output_types(node, self._known.operands).values()
            )
        except UnresolvedDimension:  # its shape depends on the values it reads, which may give any size
            return node.op not in SELECTIONS
        except UnsupportedType:
            return True

    def _fold_shape(self, node: Node) -> None:
        shape = np.array(self._known.types[node.inputs[0]].shape, np.int64)
        span = {attribute.name: attribute.i for attribute in node.proto.attribute}
        part = shape[span.get("start", 0) : span.get("end")]
        value = np.array(shape.prod()) if node.op == "Size" else part
        self._known.set_free(node, "constant")
        self._known.set_constant(node.outputs[0], constant_of(value))


def free_reason(node: Node, operands: Operands, read: Set[str]) -> str:
    """Return why the node only renames its first input; an empty string if it does more.

    `read` are all tensors that the network reads or returns.
    """
    if not read.isdisjoint(name for name in node.outputs[1:] if name):
        return ""
    if node.op == "Identity":
        return "identity"
    if node.op == "Dropout" and _is_inference(node, operands):
        return "dropout at inference"
    if node.op == "Cast":
        with contextlib.suppress(UnsupportedType):
            (kind,) = output_types(node, operands).values()
            return "cast to the same type" if kind == operands.types[node.inputs[0]] else ""
    return ""


def _is_inference(node: Node, operands: Operands) -> bool:
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    mode = operands.constants.get(node.inputs[2])
    return mode is not None and mode.value is not None and mode.value.size == 1 and not mode.value.any()
