"""Prepare a checked model in one topological pass: bind dimensions, fold constants, infer all types.

Only what ONNX Runtime folds itself when it loads a file is folded, so that the network that is measured is the network
of the file. DequantizeLinear stays: a runtime that computes with integers reads the integers behind it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.errors import InvalidNetwork, UnresolvedDimension, UnsupportedNetwork
from harness.network.learnt_weights import reads_weights, unshared
from harness.network.network import Constant, FreeNode, Network, Node, TensorType, UnmeasuredNode
from harness.network.node_inference import Operands, checked, operands, output_types, tensor_type
from harness.network.reading.control_flow import all_nodes, captured, domain_of, renamed, subgraphs, tensors_read
from harness.network.reading.read import ModelFile
from harness.network.single_runs import values

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

MAX_FOLDED_ELEMENTS = 1 << 16
SELECTIONS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose output size depends on values but is never much larger than their input."""
RANDOM_OPS = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"})
NOT_FOLDED = RANDOM_OPS | {"DequantizeLinear"}
"""Operators that a runtime executes even if all that they read is constant."""


def prepare(file: ModelFile, dims: Mapping[str, int]) -> Network:
    """Bind dimensions, fold constants, infer the type of every tensor, and set nodes that take no time apart.

    Raises UnresolvedDimension, which names the tensor and the `--dim` to give, UnsupportedNetwork and InvalidNetwork.
    """
    return _Preparation(file, dims).run()


class _Preparation:
    def __init__(self, file: ModelFile, dims: Mapping[str, int]) -> None:
        self._file = file
        self._graph = file.model.graph
        self._dims = dims
        opsets = {domain_of(entry): entry.version for entry in file.model.opset_import}
        used = {domain_of(node) for node in all_nodes(file.model.graph.node)}
        # ONNX Runtime's own domains have one version; files need not state it.
        self._opsets = {"": opsets[""], **{domain: opsets.get(domain, 1) for domain in sorted(used - {""})}}
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._operands = Operands(self._types, self._constants, self._opsets)
        self._aliases: dict[str, str] = {}
        self._free: list[FreeNode] = []
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._symbols: frozenset[str] = frozenset()
        self._read = set(tensors_read(self._graph))
        self._unmeasured: list[Node] = []
        self._unknown: dict[str, UnresolvedDimension] = {}
        """Tensors whose shape depends on the data, or which depend on such a tensor, with the first reason."""

    def run(self) -> Network:
        for tensor in self._graph.initializer:
            self._take_initializer(tensor)
        inputs = [value for value in self._graph.input if value.name not in self._constants]
        self._bind(inputs)
        for node in self._graph.node:
            self._visit(node)
        outputs = tuple(dict.fromkeys(self._aliases.get(value.name, value.name) for value in self._graph.output))
        outputs = self._without_unknown(outputs)
        self._check_outputs(outputs)
        self._drop_unused(outputs)
        self._nodes = list(unshared(self._nodes, self._types, outputs))
        return Network(
            name=self._file.name,
            opset=self._opsets[""],
            inputs=tuple(value.name for value in inputs),
            outputs=outputs,
            nodes=tuple(self._nodes),
            types=self._types,
            constants=self._constants,
            free=tuple(self._free),
            symbols=self._symbols,
            sha256=self._file.sha256,
            domains={domain: version for domain, version in self._opsets.items() if domain},
            unmeasured=tuple(UnmeasuredNode(node.name, node.op) for node in self._unmeasured),
            stored_bytes=self._file.stored_bytes,
        )

    def _take_initializer(self, tensor: TensorProto) -> None:
        from onnx import TensorProto, numpy_helper

        kind = tensor_type(tensor.data_type, tuple(tensor.dims), tensor.name)
        value = None
        if kind.elements <= MAX_FOLDED_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL:
            try:
                value = numpy_helper.to_array(tensor)
            except ValueError as error:
                raise InvalidNetwork(f"Tensor {tensor.name[:80]!r} is damaged", why=str(error)[:200]) from error
        self._set_constant(tensor.name, Constant(kind, value))

    def _set_constant(self, name: str, constant: Constant) -> None:
        self._constants[name] = constant
        self._types[name] = constant.type

    def _bind(self, inputs: list[ValueInfoProto]) -> None:
        known: set[str] = set()
        for value in inputs:
            if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
                why = "It is not a tensor of known rank"
                raise UnsupportedNetwork(f"Input {value.name[:80]!r} cannot be measured", why=why)
            shape = []
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.HasField("dim_value"):
                    shape.append(dim.dim_value)
                    continue
                names = [name for name in (dim.dim_param, f"{value.name}.{axis}") if name]
                known.update(names)
                bound = next((name for name in names if name in self._dims), None)
                if bound is None:
                    label = f"Dimension {dim.dim_param[:80]!r}" if dim.dim_param else "A dimension"
                    what = f"{label} of input {value.name[:80]!r} (axis {axis}) of {self._file.name} has no value"
                    unused = ", ".join(sorted(set(self._dims) - known))
                    why = f"It has no dimension {unused[:80]}" if unused else ""
                    step = f"Give one, for example --dim {shlex.quote(f'{names[0][:80]}=1')}"
                    raise UnresolvedDimension(what, why=why, next_step=step)
                shape.append(self._dims[bound])
            self._types[value.name] = tensor_type(value.type.tensor_type.elem_type, tuple(shape), value.name, fewest=1)
        self._symbols = frozenset(known)

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
        elif node.op in ("Shape", "Size") and node.inputs[0] in self._types:
            self._fold_shape(node)
        elif all(not name or name in self._constants for name in node.inputs) and node.op not in NOT_FOLDED:
            self._fold(node)
        elif reason := self._free_reason(node):
            self._aliases[node.outputs[0]] = node.inputs[0]
            self._free.append(FreeNode(node.name, node.op, reason))
        else:
            self._measure(node)

    def _measure(self, node: Node) -> None:
        types = self._types_of(node)
        if types is not None:
            self._types.update((name, checked(kind, name, fewest=1)) for name, kind in types.items())
            self._nodes.append(node)

    def _types_of(self, node: Node) -> dict[str, TensorType] | None:
        """Return the types of a node's outputs; None if they depend on the data, and the node is then left out."""
        try:
            return output_types(node, self._operands)
        except UnresolvedDimension as error:
            self._leave_out(node, error)
            return None

    def _leave_out(self, node: Node, reason: UnresolvedDimension) -> None:
        self._unmeasured.append(node)
        self._unknown.update((name, reason) for name in node.results)

    def _visit_control_flow(self, node: Node) -> None:
        """Replace an If of known condition by its branch, and a Loop or Scan over constants by its results.

        Raises UnsupportedNetwork for others.
        """
        condition = self._constants.get(node.inputs[0]) if node.op == "If" else None
        if condition is not None and condition.value is not None:
            chosen = "then_branch" if condition.value.all() else "else_branch"
            branch = next(item.g for item in node.proto.attribute if item.name == chosen)
            self._free.append(FreeNode(node.name, node.op, "constant"))
            self._inline(renamed(branch, node.name), node)
            return
        outside = captured(node.proto)
        read = [self._aliases.get(name, name) for name in (*node.proto.input, *outside) if name]
        if node.op != "If" and all(name in self._constants for name in read):
            results = self._values(node, outside)
            if results is not None:
                self._keep(node, results)
                return
        why = "It holds a subgraph, and the latency of control flow depends on the data"
        step = "Export the network without If, Loop and Scan"
        raise UnsupportedNetwork(f"Node {node.name[:80]!r} ({node.op}) cannot be measured", why=why, next_step=step)

    def _inline(self, branch: GraphProto, node: Node) -> None:
        self._read.update(tensors_read(branch))
        for tensor in branch.initializer:
            self._take_initializer(tensor)
        for inner in branch.node:
            self._visit(inner)
        for result, value in zip(node.outputs, branch.output, strict=False):
            written = self._aliases.get(value.name, value.name)
            self._aliases[result] = written
            if written in self._unknown:
                self._unknown[result] = self._unknown[written]

    def _unique_name(self, index: int, proto: NodeProto) -> str:
        name = proto.name or f"{proto.op_type}_{index}"
        while name in self._names:
            name = f"{name}#{index}"
        self._names.add(name)
        return name

    def _free_reason(self, node: Node) -> str:
        """Return why the node only renames its first input; an empty string if it does more."""
        if not self._read.isdisjoint(name for name in node.outputs[1:] if name):
            return ""
        if node.op == "Identity":
            return "identity"
        if node.op == "Dropout" and self._is_inference(node):
            return "dropout at inference"
        if node.op == "Cast":
            (kind,) = output_types(node, self._operands).values()
            return "cast to the same type" if kind == self._types[node.inputs[0]] else ""
        return ""

    def _is_inference(self, node: Node) -> bool:
        if len(node.inputs) < 3 or not node.inputs[2]:
            return True
        mode = self._constants.get(node.inputs[2])
        return mode is not None and mode.value is not None and mode.value.size == 1 and not mode.value.any()

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
            self._set_constant(name, Constant(checked(TensorType(str(value.dtype), value.shape), name), value))

    def _is_large(self, node: Node) -> bool:
        """Return whether a result is too large to keep its values."""
        if node.op == "Constant":
            return False
        try:
            return any(kind.elements > MAX_FOLDED_ELEMENTS for kind in output_types(node, self._operands).values())
        except UnresolvedDimension:  # its shape depends on the values it reads, which may give any size
            return node.op not in SELECTIONS

    def _fold_shape(self, node: Node) -> None:
        import numpy

        shape = numpy.array(self._types[node.inputs[0]].shape, numpy.int64)
        if node.op == "Size":
            value = numpy.array(shape.prod(), numpy.int64)
        else:
            span = {attribute.name: attribute.i for attribute in node.proto.attribute}
            value = shape[span.get("start", 0) : span.get("end")]
        self._free.append(FreeNode(node.name, node.op, "constant"))
        self._set_constant(node.outputs[0], Constant(TensorType("int64", value.shape), value))

    def _without_unknown(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the outputs of the part that is measured: known ones, and what the rest reads of that part.

        Raises UnresolvedDimension if the rest has operators with weights: then it is no mere post-processing.
        """
        if not self._unmeasured:
            return outputs
        reason = next(iter(self._unknown.values()))
        if any(reads_weights(node, self._constants) for node in self._unmeasured):
            raise reason
        written = {name for node in self._nodes for name in node.results}
        read = [name for node in self._unmeasured for name in node.inputs if name in written]
        kept = tuple(dict.fromkeys((*(name for name in outputs if name not in self._unknown), *read)))
        if written.isdisjoint(kept):
            raise reason
        return kept

    def _check_outputs(self, outputs: tuple[str, ...]) -> None:
        for name in outputs:
            if name not in self._types:
                raise InvalidNetwork(f"Output {name[:80]!r} is written by no node")
        if not any(name in node.outputs for name in outputs for node in self._nodes):
            why = "Its outputs are inputs or constants: no node takes time"
            raise UnsupportedNetwork(f"{self._file.name} has nothing to measure", why=why)

    def _drop_unused(self, outputs: tuple[str, ...]) -> None:
        needed = set(outputs)
        kept: list[Node] = []
        for node in reversed(self._nodes):
            if needed.isdisjoint(node.outputs):
                self._free.append(FreeNode(node.name, node.op, "unused"))
            else:
                needed.update(name for name in node.inputs if name)
                kept.append(node)
        self._nodes = kept[::-1]
