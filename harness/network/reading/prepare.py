"""Prepare a checked model in one topological pass: bind dimensions, fold constants, infer all types.

Only what ONNX Runtime folds itself when it loads a file is folded, so that the network that is measured is the network
of the file. DequantizeLinear stays: a runtime that computes with integers reads the integers behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.errors import InvalidNetwork, NetworkError, UnresolvedDimension, UnsupportedNetwork, UnsupportedType
from harness.network.learnt_weights import unshared
from harness.network.network import Constant, FreeNode, Network, Node, TensorType, UnmeasuredNode
from harness.network.node_inference import Operands, checked, operands, output_types, tensor_type
from harness.network.reading.control_flow import (
    SEPARATOR,
    Repetition,
    all_nodes,
    captured,
    contradiction,
    domain_of,
    loop_of,
    renamed,
    scan_of,
    stacking,
    subgraphs,
    tensors_read,
    unknown_flow,
)
from harness.network.reading.free_nodes import free_reason
from harness.network.reading.network_ends import (
    bound_inputs,
    check_outputs,
    choice_step,
    choices_behind,
    given_choices,
    measured_outputs,
    needed_nodes,
)
from harness.network.reading.read import ModelFile
from harness.network.reading.sequences import Resolved, Sequences, undecided
from harness.network.single_runs import values

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

MAX_FOLDED_ELEMENTS = 1 << 16
MAX_UNROLLED = 20_000
"""Most nodes of the iterations of all loops."""
_SCAN_WITHOUT_BATCH = 9
"""Operator set from which a Scan has neither batch nor lengths."""
SELECTIONS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose output size depends on values but is never much larger than their input."""
RANDOM_OPS = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"})
NOT_FOLDED = RANDOM_OPS | {"DequantizeLinear"}
"""Operators that a runtime executes even if all that they read is constant."""


def prepare(file: ModelFile, dims: Mapping[str, int], most_folded: int = MAX_FOLDED_ELEMENTS) -> Network:
    """Bind dimensions, fold constants, infer the type of every tensor, and set nodes that take no time apart.

    Constants of more elements than `most_folded` have no values. Raises UnresolvedDimension, which names the tensor and
    the `--dim` to give, UnsupportedNetwork and InvalidNetwork.
    """
    return _Preparation(file, dims, most_folded).run()


class _Preparation:
    def __init__(self, file: ModelFile, dims: Mapping[str, int], most_folded: int) -> None:
        self._file, self._most_folded = file, most_folded
        self._graph = file.model.graph
        self._dims = dims
        opsets = {domain_of(entry): entry.version for entry in file.model.opset_import}
        used = {domain_of(node) for node in all_nodes(file.model.graph.node)}
        # ONNX Runtime's own domains have one version; files need not state it.
        self._opsets = {"": opsets[""], **{domain: opsets.get(domain, 1) for domain in sorted(used - {""})}}
        self._types: dict[str, TensorType] = {}
        self._inputs: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._operands = Operands(self._types, self._constants, self._opsets)
        self._sequences = Sequences(self._types, self._constants, self._opsets[""])
        self._aliases: dict[str, str] = {}
        self._free: list[FreeNode] = []
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._read = set(tensors_read(self._graph))
        self._unmeasured: list[Node] = []
        self._unrolled = 0
        self._unknown: dict[str, NetworkError] = {}
        """Tensors whose shape depends on the data or that are not numeric, and what depends on them, and why."""

    def run(self) -> Network:
        self._take_initializers(self._graph)
        inputs = [value for value in self._graph.input if value.name not in self._constants]
        self._inputs, symbols = bound_inputs(inputs, self._dims, self._file.name)
        self._types |= self._inputs
        for name, constant in given_choices(self._inputs, self._dims).items():
            self._set_constant(name, constant)
        for node in self._graph.node:
            self._visit(node)
        file_outputs = self._sequences.file_outputs(self._graph, self._aliases)
        outputs = measured_outputs(file_outputs.values(), self._nodes, self._unmeasured, self._unknown, self._constants)
        check_outputs(outputs, self._nodes, self._types, self._file.name)
        nodes = needed_nodes(self._nodes, outputs)
        kept = {node.index for node in nodes}
        self._free += [FreeNode(node.name, node.op, "unused") for node in self._nodes[::-1] if node.index not in kept]
        return Network(
            name=self._file.name,
            opset=self._opsets[""],
            inputs=tuple(name for name in self._inputs if name not in self._constants),
            outputs=outputs,
            file_outputs=file_outputs,
            nodes=tuple(unshared(nodes, self._types, outputs)),
            types=self._types,
            constants=self._constants,
            free=tuple(self._free),
            symbols=symbols,
            sha256=self._file.sha256,
            domains={domain: version for domain, version in self._opsets.items() if domain},
            unmeasured=tuple(UnmeasuredNode(node.name, node.op) for node in self._unmeasured),
            stored_bytes=self._file.stored_bytes,
        )

    def _take_initializers(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self._take_initializer(tensor)
        for sparse in graph.sparse_initializer:  # runtimes make them dense when they load a file
            kind = tensor_type(sparse.values.data_type, tuple(sparse.dims), sparse.values.name)
            self._set_constant(sparse.values.name, Constant(kind))

    def _take_initializer(self, tensor: TensorProto) -> None:
        from onnx import TensorProto, numpy_helper

        try:
            kind = tensor_type(tensor.data_type, tuple(tensor.dims), tensor.name)
        except UnsupportedType as error:
            if tensor.data_type != TensorProto.STRING:  # what reads labels may be left out, but no product
                raise
            self._unknown[tensor.name] = error
            return
        value = None
        if kind.elements <= self._most_folded and tensor.data_location != TensorProto.EXTERNAL:
            try:
                value = numpy_helper.to_array(tensor)
            except ValueError as error:
                raise InvalidNetwork(f"Tensor {tensor.name[:80]!r} is damaged", why=str(error)[:200]) from error
        self._set_constant(tensor.name, Constant(kind, value))

    def _set_constant(self, name: str, constant: Constant) -> None:
        self._constants[name] = constant
        self._types[name] = constant.type

    def _visit(self, proto: NodeProto) -> None:
        index = len(self._nodes) + len(self._free) + len(self._unmeasured)
        node = Node(
            index=index,
            name=self._unique_name(index, proto),
            op=proto.op_type,
            inputs=tuple(self._aliases.get(name, name) for name in proto.input),
            outputs=tuple(proto.output),
            proto=proto,
            domain=domain_of(proto),
        )
        unknown = next((name for name in node.inputs if name in self._unknown), None)
        if unknown is not None:
            self._leave_out(node, self._unknown[unknown])
        elif any(True for _ in subgraphs(proto)):
            self._visit_control_flow(node)
        elif (resolved := self._sequences.resolve(node)) is not None:
            self._replace(node, resolved)
        elif node.op in ("Shape", "Size") and node.inputs[0] in self._types:
            self._fold_shape(node)
        elif all(not name or name in self._constants for name in node.inputs) and node.op not in NOT_FOLDED:
            self._fold(node)
        elif reason := free_reason(node, self._operands, self._read):
            self._aliases[node.outputs[0]] = node.inputs[0]
            self._free.append(FreeNode(node.name, node.op, reason))
        elif sequence := self._sequences.read_by(node):
            self._leave_out(node, undecided(node, sequence, self._choices(node.inputs)))
        else:
            self._measure(node)

    def _replace(self, node: Node, resolved: Resolved) -> None:
        self._free.append(FreeNode(node.name, node.op, "sequence"))
        self._aliases.update(resolved.aliases)
        for name, value in resolved.constants.items():
            self._set_constant(name, _constant(value))
        for proto in resolved.nodes:
            self._visit(proto)

    def _measure(self, node: Node) -> None:
        types = self._types_of(node, flow=True)
        if types is not None:
            self._types.update(types)
            self._nodes.append(node)

    def _types_of(self, node: Node, *, flow: bool = False) -> dict[str, TensorType] | None:
        """Return the types of a node's outputs; None if one is not known, and the node is then left out."""
        try:
            types = output_types(node, self._operands)
            return {name: checked(kind, name, flows=flow) for name, kind in types.items()}
        except UnresolvedDimension as error:
            step = choice_step(self._choices(node.inputs)) or error.next_step
            self._leave_out(node, UnresolvedDimension(error.what, why=error.why, next_step=step))
        except UnsupportedType as error:
            self._leave_out(node, error)
        return None

    def _choices(self, tensors: Iterable[str]) -> list[str]:
        given = self._constants
        open_inputs = {name: kind for name, kind in self._inputs.items() if name not in given}
        return choices_behind(tensors, self._nodes, open_inputs)

    def _leave_out_flow(self, node: Node) -> None:
        """Leave out control flow over a sequence; raise UnsupportedNetwork for any other that depends on the data."""
        error = unknown_flow(node, self._choices(self._aliases.get(name, name) for name in node.inputs))
        if not self._sequences.read_by(node):
            raise error
        self._leave_out(node, error)

    def _leave_out(self, node: Node, reason: NetworkError) -> None:
        read = (part for name in node.inputs for part in self._sequences.tensors_of(name))
        self._unmeasured.append(replace(node, inputs=tuple(read)))
        self._unknown.update((name, reason) for name in node.results)

    def _visit_control_flow(self, node: Node) -> None:
        """Replace an If of known condition by its branch, a Loop or Scan of known length by its iterations.

        Over constants, both become their results. `_leave_out_flow` treats others.
        """
        condition = self._number(node.inputs[0]) if node.op == "If" else None
        if condition is not None:
            chosen = "then_branch" if condition else "else_branch"
            branch = next(item.g for item in node.proto.attribute if item.name == chosen)
            self._free.append(FreeNode(node.name, node.op, "constant"))
            self._name_results(node.outputs, self._visit_graph(renamed(branch, node.name, results=node.outputs)))
            return
        outside = captured(node.proto)
        read = [self._aliases.get(name, name) for name in (*node.proto.input, *outside) if name]
        if node.op != "If" and all(name in self._constants for name in read):
            results = self._values(node, outside)
            if results is not None:
                self._keep(node, results)
                return
        if node.op == "Loop":
            self._unroll(node, loop_of(node.proto, node.inputs))
        elif node.op == "Scan" and self._opsets[""] >= _SCAN_WITHOUT_BATCH:
            self._unroll(node, self._scan(node))
        else:
            self._leave_out_flow(node)

    def _scan(self, node: Node) -> Repetition:
        import numpy

        try:
            shapes = [self._types[name].shape for name in node.inputs]
            found, steps = scan_of(node.proto, node.inputs, shapes, node.name)
        except (KeyError, IndexError, ValueError) as error:
            raise contradiction(node) from error
        self._aliases.update((f"{node.name}{SEPARATOR}scanned{at}", name) for at, name in enumerate(node.inputs))
        self._set_constant(found.times, _constant(numpy.array(steps)))
        self._set_constant(f"{node.name}{SEPARATOR}backwards", _constant(numpy.arange(steps)[::-1].copy()))
        return found

    def _unroll(self, node: Node, loop: Repetition) -> None:
        """Replace a loop by its iterations, or do as `_leave_out_flow` if the inputs decide how many there are."""
        body, carried = loop.body, list(loop.carried)
        if len(body.input) != len(carried) + 2 or len(body.output) != len(carried) + 1 + len(loop.stacks):
            raise contradiction(node)
        last = self._number(loop.times) if loop.times else math.inf
        goes_on = self._number(loop.going) if loop.going else 1
        rows: list[Sequence[str]] = []
        while last is not None and goes_on and len(rows) < last:
            self._unrolled += 1 + len(body.node)
            if self._unrolled > MAX_UNROLLED:
                why = f"The iterations of all loops have more than {MAX_UNROLLED:,} nodes"
                raise UnsupportedNetwork(f"Node {node.name[:80]!r} ({node.op}) cannot be measured", why=why)
            iteration = renamed(body, f"{node.name}{SEPARATOR}{len(rows)}", weights=node.name)
            number, condition, *states = iteration.input
            self._set_number(number, len(rows))
            self._set_number(condition, True)
            self._aliases.update((state.name, name) for state, name in zip(states, carried, strict=True))
            again, *results = self._visit_graph(iteration)
            goes_on, carried = self._number(again), results[: len(carried)]
            rows.append(results[len(carried) :])
        if last is None or (goes_on is None and len(rows) < last):
            self._leave_out_flow(node)
            return
        self._free.append(FreeNode(node.name, node.op, "unrolled"))
        self._name_results(node.outputs, carried)
        self._stack(node, node.outputs[len(carried) :], rows, loop.stacks)

    def _stack(
        self, node: Node, outputs: Sequence[str], rows: Sequence[Sequence[str]], stacks: Sequence[tuple[int, bool]]
    ) -> None:
        """Join what each iteration of a loop adds to its last outputs."""
        import numpy

        wanted = [(at, name) for at, name in enumerate(outputs) if name in self._read]
        if not wanted:
            return
        if not rows:
            why = "The loop runs zero times, so one of its results is empty"
            raise UnsupportedNetwork(f"Node {node.name[:80]!r} ({node.op}) cannot be measured", why=why)
        for at, name in wanted:
            axis, is_turned = stacks[at]
            axes = f"{node.name}{SEPARATOR}axis{axis}"
            self._set_constant(axes, _constant(numpy.array([axis])))
            parts = [row[at] for row in rows]
            for proto in stacking(parts[::-1] if is_turned else parts, name, axes, axis, self._opsets[""]):
                self._visit(proto)

    def _visit_graph(self, graph: GraphProto) -> list[str]:
        """Visit the nodes of a branch or body, and return its results."""
        self._read.update(tensors_read(graph))
        self._take_initializers(graph)
        for inner in graph.node:
            self._visit(inner)
        return [self._aliases.get(value.name, value.name) for value in graph.output]

    def _name_results(self, outputs: Sequence[str], written: Sequence[str]) -> None:
        for result, name in zip(outputs, written, strict=False):
            self._aliases[result] = name
            if name in self._unknown:
                self._unknown[result] = self._unknown[name]

    def _number(self, name: str) -> int | None:
        """Return a constant of one element as a number; None if it is not known."""
        held = self._constants.get(name)
        return None if held is None or held.value is None or held.value.size != 1 else int(held.value.item())

    def _set_number(self, value: ValueInfoProto, number: int) -> None:
        """Make an input of a body a constant of the rank and type that it states."""
        import numpy

        shape = (1,) * len(value.type.tensor_type.shape.dim)
        self._set_constant(value.name, _constant(numpy.full(shape, number)))

    def _unique_name(self, index: int, proto: NodeProto) -> str:
        name = proto.name or f"{proto.op_type}_{index}"
        while name in self._names:
            name = f"{name}#{index}"
        self._names.add(name)
        return name

    def _fold(self, node: Node) -> None:
        """Make the results of a node constants: with their values if they are small, else with their types alone."""
        results = None if self._is_large(node) else self._values(node)
        if results is not None:
            self._keep(node, results)
        elif (types := self._types_of(node)) is not None:
            self._free.append(FreeNode(node.name, node.op, "constant"))
            for name, kind in types.items():
                self._set_constant(name, Constant(kind))

    def _values(self, node: Node, outside: Iterable[str] = ()) -> dict[str, Any] | None:
        """Return the results of a node that reads constants; None if one of them is not known.

        `outside` are the tensors that its subgraphs read.
        """
        wanted = {**operands(node), **{name: self._aliases.get(name, name) for name in outside}}
        constants = {name: self._constants[alias].value for name, alias in wanted.items()}
        if any(value is None for value in constants.values()):
            return None
        return values(node, constants, self._opsets)

    def _keep(self, node: Node, results: Mapping[str, Any]) -> None:
        self._free.append(FreeNode(node.name, node.op, "constant"))
        for name, value in results.items():
            constant = _constant(value)
            checked(constant.type, name)
            self._set_constant(name, constant)

    def _is_large(self, node: Node) -> bool:
        """Return whether a result is too large to keep its values, is sparse, or has none here, as texts."""
        if node.op == "Constant":
            return any(item.name == "sparse_value" for item in node.proto.attribute)
        try:
            return any(kind.elements > self._most_folded for kind in output_types(node, self._operands).values())
        except UnresolvedDimension:  # its shape depends on the values it reads, which may give any size
            return node.op not in SELECTIONS
        except UnsupportedType:
            return True

    def _fold_shape(self, node: Node) -> None:
        import numpy

        shape = numpy.array(self._types[node.inputs[0]].shape, numpy.int64)
        span = {attribute.name: attribute.i for attribute in node.proto.attribute}
        part = shape[span.get("start", 0) : span.get("end")]
        value = numpy.array(shape.prod()) if node.op == "Size" else part
        self._free.append(FreeNode(node.name, node.op, "constant"))
        self._set_constant(node.outputs[0], _constant(value))


def _constant(value: Any) -> Constant:
    return Constant(TensorType(str(value.dtype), value.shape), value)
