"""Shapes and element types of tensors: of a whole model by ONNX's shape inference, then node by node.

Inference of a whole model propagates values through few operators. Node by node, every small constant that a shape
depends on is computed first, so all shapes are found that do not depend on the network's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, checker, defs, helper, numpy_helper, shape_inference

from device_agents.emulated_npu.compiler.graph.reading.parsed_model import RUNTIME, ValueType
from device_agents.emulated_npu.emulator_errors import InvalidModel
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import DataType

SMALL_ELEMENTS = 1024
"""The size up to which shapes may depend on initializers; of larger ones, shape inference sees only the types."""
DATA_TYPES = {int(helper.np_dtype_to_tensor_dtype(dtype)): kind for kind, dtype in NUMPY_TYPES.items()}
"""The element types of the compiler by ONNX's numbers."""
_NUMBERS = {kind: number for number, kind in DATA_TYPES.items()}
CONSTANT_TYPES = {**DATA_TYPES, int(TensorProto.INT4): DataType.INT8, int(TensorProto.UINT4): DataType.UINT8}
"""The same for constants: those of four bits take a byte each in the machine."""
_NOT_INFERRED = frozenset(
    {("", "GroupNormalization"), ("", "MeanVarianceNormalization"), ("harness", "PiecewiseLinear")}
)
"""Operators, by domain, whose results have the type of the first input; onnx infers none, or not without attributes."""
_OF_RUNTIME = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "Gelu", "Swish"})
"""The same, of ONNX Runtime in all opsets, or in decompositions of its operators; ONNX has them from later opsets."""
_LEAST_OPSETS = {("", "QuantizeLinear"): 21, ("", "DequantizeLinear"): 21}
"""Opsets of operators that ONNX Runtime's domain also has with integers of 16 bits, as ONNX does from these opsets."""
_DEFAULTS = {"STFT": ("onesided", 1)}
"""Attributes, by operator, that onnx's inference reads with another default than the operator has."""


@dataclass
class TensorTypes:
    """The types of all tensors with a fixed shape, and the names of unsupported element types, by tensor."""

    known: dict[str, ValueType] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    def add(self, tensor: str, found: TypeProto) -> None:
        """Add what is known about a tensor."""
        kind = found.tensor_type
        if kind.elem_type and kind.elem_type not in DATA_TYPES:
            self.others[tensor] = TensorProto.DataType.Name(kind.elem_type).lower()
        elif kind.elem_type and kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            shape = tuple(dim.dim_value for dim in kind.shape.dim)
            self.known[tensor] = ValueType(shape, DATA_TYPES[kind.elem_type])


def type_proto(kind: ValueType) -> TypeProto:
    """Return the type as ONNX writes it."""
    return helper.make_tensor_type_proto(_NUMBERS[kind.dtype], kind.shape)


def model_types(proto: ModelProto) -> TensorTypes:
    """Return the types that ONNX's shape inference finds in a model; raises InvalidModel if the model is not valid."""
    try:
        inferred = shape_inference.infer_shapes(_without_weights(proto), strict_mode=True, data_prop=True).graph
    except (shape_inference.InferenceError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0][:300]
        raise InvalidModel("The model is not valid ONNX", why) from error
    types = TensorTypes()
    for tensor in proto.graph.initializer:
        if tensor.data_type not in CONSTANT_TYPES:
            types.others[tensor.name] = TensorProto.DataType.Name(tensor.data_type).lower()
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        types.add(value.name, value.type)
    return types


def add_node_types(node: NodeProto, opsets: Mapping[str, int], types: TensorTypes, values: Mapping[str, Array]) -> None:
    """Add the types of the outputs of a node that have none yet; `values` are those of its small constant inputs.

    Adds nothing where a type depends on what the network computes, or the node is not valid.
    """
    missing = [name for name in node.output if name and name not in types.known and name not in types.others]
    schema = schema_of(node, opsets) if missing else None
    if schema is None and _is_of_runtime(node) and node.input[0] in types.known:
        types.known.update((name, types.known[node.input[0]]) for name in node.output[:1] if name in missing)
    if schema is None or any(name and name not in types.known for name in node.input):
        return
    kinds = {name: type_proto(types.known[name]) for name in node.input if name}
    data = {name: numpy_helper.from_array(array, name) for name, array in values.items()}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    stated = NodeProto()
    stated.CopyFrom(node)
    _state_default(stated)
    try:
        found = shape_inference.infer_node_outputs(schema, stated, kinds, data, opset_imports=imports)
    except (shape_inference.InferenceError, checker.ValidationError, ValueError, RuntimeError):
        return
    for name in missing:
        if name in found:
            types.add(name, found[name])


def schema_of(node: NodeProto, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """Return the definition of a node's operator in the opset of the model; None for an unknown operator."""
    domain = _domain(node)
    if domain not in opsets:
        return None
    try:
        return defs.get_schema(node.op_type, max(opsets[domain], _LEAST_OPSETS.get((domain, node.op_type), 0)), domain)
    except defs.SchemaError:
        return None


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of each domain; a model without the default domain gets its newest version."""
    found = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}
    return found if not found else {"": defs.onnx_opset_version(), **found}


def _is_of_runtime(node: NodeProto) -> bool:
    return node.op_type in _OF_RUNTIME and _domain(node) in ("", RUNTIME)


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _state_default(node: NodeProto) -> None:
    """Add an attribute with its default to a node, if inference takes another one."""
    if node.op_type in _DEFAULTS:
        name, value = _DEFAULTS[node.op_type]
        if all(item.name != name for item in node.attribute):
            node.attribute.append(helper.make_attribute(name, value))


def _without_weights(proto: ModelProto) -> ModelProto:
    """Return the model without the data of large initializers, because shape inference copies the whole model.

    It has no functions of its own either: inference would enter them once for each call, however deep they are.
    """
    light = ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    graph = light.graph
    graph.name = proto.graph.name or "network"
    for field_name in ("node", "input", "output", "value_info"):
        getattr(graph, field_name).extend(getattr(proto.graph, field_name))
    opsets = opsets_of(proto.opset_import)
    for node in graph.node:
        if (_domain(node), node.op_type) in _NOT_INFERRED or (_is_of_runtime(node) and schema_of(node, opsets) is None):
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1]))
        _state_default(node)
    for tensor in proto.graph.initializer:
        if np.prod(tensor.dims, dtype=np.int64) <= SMALL_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            stub = TensorProto(name=tensor.name, data_type=tensor.data_type, data_location=TensorProto.EXTERNAL)
            stub.dims.extend(tensor.dims)
            stub.external_data.add(key="location", value="weights")
            graph.initializer.append(stub)
    return light
