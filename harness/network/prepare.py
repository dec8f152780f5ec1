"""Prepare a checked model in one topological pass: bind dimensions, fold constants, infer all types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.errors import InvalidNetwork, UnresolvedDimension, UnsupportedNetwork
from harness.network.network import FLOATS, ITEM_BYTES, Constant, FreeNode, Network, Node, TensorType
from harness.network.read import ModelFile

if TYPE_CHECKING:
    import numpy as np
    from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto

    Array = np.ndarray[Any, Any]

MAX_TENSOR_BYTES = 1 << 34
MAX_FOLDED_ELEMENTS = 1 << 16
MAX_RUN_BYTES = 1 << 30
"""Largest input, in bytes, of an operator that is run to find the type of its result."""
SELECTIONS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose output size depends on values but is never much larger than their input."""
RANDOM_OPS = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"})


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
        self._opset = next(entry.version for entry in file.model.opset_import if entry.domain in ("", "ai.onnx"))
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._aliases: dict[str, str] = {}
        self._free: list[FreeNode] = []
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._symbols: frozenset[str] = frozenset()
        self._read = {tensor for node in self._graph.node for tensor in node.input}
        self._read |= {value.name for value in self._graph.output}

    def run(self) -> Network:
        for tensor in self._graph.initializer:
            self._take_initializer(tensor)
        inputs = [value for value in self._graph.input if value.name not in self._constants]
        self._bind(inputs)
        for index, node in enumerate(self._graph.node):
            self._visit(index, node)
        outputs = tuple(dict.fromkeys(self._aliases.get(value.name, value.name) for value in self._graph.output))
        self._check_outputs(outputs)
        self._drop_unused(outputs)
        return Network(
            name=self._file.name,
            opset=self._opset,
            inputs=tuple(value.name for value in inputs),
            outputs=outputs,
            nodes=tuple(self._nodes),
            types=self._types,
            constants=self._constants,
            free=tuple(self._free),
            symbols=self._symbols,
            sha256=self._file.sha256,
        )

    def _take_initializer(self, tensor: TensorProto) -> None:
        from onnx import TensorProto, numpy_helper

        kind = _tensor_type(tensor.data_type, tuple(tensor.dims), tensor.name)
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
                    raise UnresolvedDimension(what, why=why, next_step=f"Give one, for example --dim {names[0][:80]}=1")
                shape.append(self._dims[bound])
            self._types[value.name] = _tensor_type(value.type.tensor_type.elem_type, tuple(shape), value.name, fewest=1)
        self._symbols = frozenset(known)

    def _visit(self, index: int, proto: NodeProto) -> None:
        node = Node(
            index=index,
            name=self._unique_name(index, proto),
            op=proto.op_type,
            inputs=tuple(self._aliases.get(name, name) for name in proto.input),
            outputs=tuple(proto.output),
            proto=proto,
        )
        if all(not name or name in self._constants for name in node.inputs) and node.op not in RANDOM_OPS:
            self._fold(node)
        elif node.op in ("Shape", "Size"):
            self._fold_shape(node)
        elif reason := self._free_reason(node):
            self._aliases[node.outputs[0]] = node.inputs[0]
            self._free.append(FreeNode(node.name, node.op, reason))
        else:
            self._types.update(self._infer(node))
            self._nodes.append(node)

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
            (kind,) = self._infer(node).values()
            return "cast to the same type" if kind == self._types[node.inputs[0]] else ""
        return ""

    def _is_inference(self, node: Node) -> bool:
        if len(node.inputs) < 3 or not node.inputs[2]:
            return True
        mode = self._constants.get(node.inputs[2])
        return mode is not None and mode.value is not None and not bool(mode.value)

    def _fold(self, node: Node) -> None:
        """Make the results of a node constants: with their values if they are small, else with their types alone."""
        self._free.append(FreeNode(node.name, node.op, "constant"))
        read = [self._constants[name] for name in node.inputs if name]
        known = all(constant.value is not None for constant in read)
        results = None
        if known and not self._is_large(node):
            results = self._run_alone(node, {name: self._constants[at].value for name, at in _operands(node).items()})
        if results is None:
            for name, kind in self._infer(node).items():
                self._set_constant(name, Constant(kind))
        else:
            for name, value in results.items():
                kind = TensorType(str(value.dtype), value.shape)
                self._set_constant(name, Constant(_checked(kind, name), value))

    def _is_large(self, node: Node) -> bool:
        """Return whether a result is too large to keep its values."""
        if node.op == "Constant":
            return False
        try:
            return any(kind.elements > MAX_FOLDED_ELEMENTS for kind in self._infer(node).values())
        except UnresolvedDimension:  # its shape depends on the values it reads, which may give any size
            return node.op not in SELECTIONS

    def _run_on_ones(self, node: Node) -> dict[str, TypeProto]:
        """Run an operator that the standard defines by other operators, which shape inference does not expand."""
        import numpy
        from onnx import helper

        if sum(self._types[alias].bytes for alias in node.inputs if alias) > MAX_RUN_BYTES:
            return {}
        feeds: dict[str, Any] = {}
        for name, alias in _operands(node).items():
            kind, constant = self._types[alias], self._constants.get(alias)
            if constant is None and kind.dtype not in FLOATS:
                return {}  # the result's shape may depend on these values
            value = constant.value if constant else None
            feeds[name] = numpy.ones(kind.shape, kind.dtype) if value is None else value
        return {
            name: helper.make_tensor_type_proto(onnx_dtype(str(value.dtype)), value.shape)
            for name, value in (self._run_alone(node, feeds) or {}).items()
        }

    def _run_alone(self, node: Node, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """Return a node's results by ONNX Runtime on the host, which measures nothing; None if it cannot run it."""
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # must be set before import; otherwise the wheel sends telemetry
        import numpy
        import onnxruntime
        from onnx import helper

        values = [value_info(name, self._types[alias]) for name, alias in _operands(node).items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.results]
        graph = helper.make_graph([node.proto], "node", values, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            results = session.run(list(node.results), dict(feeds))
        except Exception:  # the runtime's exceptions have no narrower common base
            return None
        return {name: numpy.asarray(value) for name, value in zip(node.results, results, strict=True)}

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

    def _infer(self, node: Node) -> dict[str, TensorType]:
        """Return the types of the node's outputs, from the types of its inputs and the values of small constants."""
        import onnx
        from onnx import defs, helper, numpy_helper, shape_inference

        types: dict[str, TypeProto] = {}
        data: dict[str, TensorProto] = {}
        for name, alias in _operands(node).items():
            if alias not in self._types:
                raise InvalidNetwork(f"Node {node.name[:80]!r} reads {name[:80]!r}, which nothing writes")
            types[name] = value_info(name, self._types[alias]).type
            constant = self._constants.get(alias)
            if constant is not None and constant.value is not None:
                data[name] = numpy_helper.from_array(constant.value)
        imports = [helper.make_opsetid("", self._opset)]
        invalid = (shape_inference.InferenceError, onnx.checker.ValidationError)
        try:
            schema = defs.get_schema(node.op, self._opset, "")
            inferred = shape_inference.infer_node_outputs(schema, node.proto, types, data, opset_imports=imports)
            is_function = schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]
            if is_function and not all(_is_typed(inferred.get(name)) for name in node.results):
                inferred = self._run_on_ones(node)
        except (*invalid, ValueError, TypeError, RuntimeError) as error:
            why = str(error).strip().splitlines()[0][:300]
            raise InvalidNetwork(f"Node {node.name[:80]!r} ({node.op}) has impossible shapes", why=why) from error
        found = {name: self._output_type(node, name, inferred.get(name)) for name in node.results}
        if node.op == "Reshape" and found[node.outputs[0]].elements != self._types[node.inputs[0]].elements:
            why = f"It reshapes {self._types[node.inputs[0]]} to {found[node.outputs[0]]}"
            raise InvalidNetwork(f"Node {node.name[:80]!r} ({node.op}) has impossible shapes", why=why)
        return found

    def _output_type(self, node: Node, name: str, found: TypeProto | None) -> TensorType:
        if found is None or not _is_typed(found):
            what = f"The shape of tensor {name[:80]!r}, written by node {node.name[:80]!r} ({node.op}), is unknown"
            why = "It depends on the values of the network's inputs"
            raise UnresolvedDimension(what, why=why, next_step="Export the network with fixed shapes")
        shape = tuple(dim.dim_value for dim in found.tensor_type.shape.dim)
        return _tensor_type(found.tensor_type.elem_type, shape, name, fewest=1)

    def _check_outputs(self, outputs: tuple[str, ...]) -> None:
        for name in outputs:
            if name not in self._types:
                raise InvalidNetwork(f"Output {name[:80]!r} is written by no node")
        if not any(name in node.outputs for name in outputs for node in self._nodes):
            why = "Its outputs do not depend on its inputs"
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


def _tensor_type(elem_type: int, shape: tuple[int, ...], name: str, fewest: int = 0) -> TensorType:
    """Return the type of an ONNX tensor of at least `fewest` elements; raises as `_checked` does."""
    from onnx import helper

    try:
        dtype = str(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        dtype = f"type {elem_type}"
    return _checked(TensorType(dtype, shape), name, fewest)


def _checked(kind: TensorType, name: str, fewest: int = 0) -> TensorType:
    """Return the type; raises UnsupportedNetwork or InvalidNetwork for one that cannot be measured."""
    what = f"Tensor {name[:80]!r} cannot be measured"
    if kind.dtype not in ITEM_BYTES:
        raise UnsupportedNetwork(what, why=f"Its element type is {kind.dtype}")
    if any(size < 0 for size in kind.shape):
        raise InvalidNetwork(what, why=f"Its shape {list(kind.shape)} has a negative dimension")
    if kind.bytes > MAX_TENSOR_BYTES:
        why = f"Its shape {list(kind.shape)} takes {kind.bytes:,} bytes; the limit is {MAX_TENSOR_BYTES:,}"
        raise UnsupportedNetwork(what, why=why)
    if kind.elements < fewest:
        raise InvalidNetwork(what, why=f"Its shape {list(kind.shape)} has a dimension of zero")
    return kind


def _is_typed(found: TypeProto | None) -> bool:
    if found is None or not found.HasField("tensor_type") or not found.tensor_type.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in found.tensor_type.shape.dim)


def _operands(node: Node) -> dict[str, str]:
    """Return the node's inputs: names in the file mapped to the tensors behind aliases, without absent ones."""
    return {name: alias for name, alias in zip(node.proto.input, node.inputs, strict=True) if name}


def value_info(name: str, kind: TensorType) -> ValueInfoProto:
    """Return the declaration of an input or output of an ONNX graph."""
    from onnx import helper

    return helper.make_tensor_value_info(name, onnx_dtype(kind.dtype), kind.shape)


def onnx_dtype(dtype: str) -> int:
    """Return ONNX's number for an element type."""
    import numpy
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype)))
