"""Infer the types of one node's outputs, and compute its outputs if all that it reads is known.

ONNX's shape inference does this for the operators of the standard. It neither expands operators that the standard
defines by functions, nor knows most operators of other domains: those are run once on the host, with inputs of ones, to
get the shapes of their outputs. Networks repeat their nodes, so results are cached for nodes that differ only in names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import InvalidNetwork, UnresolvedDimension, UnsupportedNetwork, UnsupportedType
from harness.network.einsum import has_late_sizes
from harness.network.learnt_weights import has_current
from harness.network.network import FLOATS, ITEM_BYTES, ML_DOMAIN, PACKED, Constant, Node, TensorType
from harness.network.operand_shapes.check import check_operands
from harness.network.operator_kinds import SIZED_BY_FLOATS
from harness.network.single_runs import MAX_FORM_BYTES, CannotRun, form_of, values

if TYPE_CHECKING:
    from onnx import OperatorSetIdProto, TensorProto, TypeProto, ValueInfoProto

MAX_TENSOR_BYTES = 1 << 34
MAX_AXES = 64
"""The most axes of an array of NumPy, which makes the inputs on the host and on the device."""
MAX_RUN_BYTES = 1 << 30
"""Largest input, in bytes, of an operator that is run to find the type of its result."""
_QUANTISATIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_INDEXED = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements", "ScatterND"})
"""Operators that read indices, which must lie within an axis."""
_KEPT = 1024
"""The most nodes whose types are kept."""


@dataclass(frozen=True)
class Operands:
    """What the nodes of a network can read: the types of tensors, and the constants among them."""

    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    opsets: Mapping[str, int]
    """Versions of the operator sets by domain; `""` is ONNX."""

    def are_fixed(self, names: Iterable[str]) -> bool:
        """Return whether all inputs of a node are absent, or constants that no caller of the network may replace.

        Vectors are taken for fixed, because they may state shapes.
        """
        found = [self.constants.get(name) for name in names if name]
        return all(one is not None and not (one.replaceable and len(one.type.shape) > 1) for one in found)


def opset_imports(opsets: Mapping[str, int]) -> list[OperatorSetIdProto]:
    """Return operator sets, versions by domain, as a model imports them."""
    from onnx import helper

    return [helper.make_opsetid(domain, version) for domain, version in opsets.items()]


def output_types(node: Node, read: Operands) -> dict[str, TensorType]:
    """Return the types of a node's outputs, from the types of its inputs and the values of small constants.

    Raises UnresolvedDimension if they depend on values that are not known, InvalidNetwork and UnsupportedNetwork.
    """
    types = _types_read(node, read)
    known = _values_of_sizes(node, read)
    key = _key(node, types, known, read)
    if key is not None and key in _known_types:
        return dict(zip(node.results, _known_types[key], strict=True))
    _check(node, types, read)
    inferred = _inferred(node, types, known, read)
    is_typed = all(_is_typed(inferred.get(name)) for name in node.results)
    if not any(map(_other_kind, inferred.values())) and not is_typed and _needs_a_run(node, read):
        inferred = _run_on_ones(node, read)
    found = {name: _output_type(node, name, inferred.get(name)) for name in node.results}
    if node.op == "Reshape" and found[node.outputs[0]].elements != read.types[node.inputs[0]].elements:
        why = f"It reshapes {read.types[node.inputs[0]]} to {found[node.outputs[0]]}"
        raise InvalidNetwork(f"{_shown(node)} has impossible shapes", why=why)
    if key is not None and is_typed:
        if len(_known_types) >= _KEPT:
            _known_types.clear()
        _known_types[key] = tuple(found.values())
    return found


def operands(node: Node) -> dict[str, str]:
    """Return the node's inputs: names in the file mapped to the tensors behind aliases, without absent ones."""
    return {name: alias for name, alias in zip(node.proto.input, node.inputs, strict=True) if name}


def tensor_type(elem_type: int, shape: tuple[int, ...], name: str, *, flows: bool = False) -> TensorType:
    """Return the type of an ONNX tensor; raises as `checked` does."""
    from onnx import TensorProto, helper

    try:
        dtype = str(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        dtype = f"type {elem_type}"
    if dtype not in ITEM_BYTES and elem_type in TensorProto.DataType.values():
        dtype = TensorProto.DataType.Name(elem_type).lower()
    return checked(TensorType(dtype, shape), name, flows=flows)


def checked(kind: TensorType, name: str, *, flows: bool = False) -> TensorType:
    """Return the type; raises UnsupportedType, UnsupportedNetwork or InvalidNetwork if it cannot be measured.

    A tensor that `flows` is not a constant; its elements must take whole bytes.
    """
    what = f"Tensor {name[:80]!r} cannot be measured"
    if kind.dtype not in ITEM_BYTES or (flows and kind.dtype in PACKED):
        step = "Export the network with another type, such as float32, or without this tensor"
        raise UnsupportedType(what, why=f"Its element type is {kind.dtype}", next_step=step)
    if any(size < 0 for size in kind.shape):
        raise InvalidNetwork(what, why=f"Its shape {list(kind.shape)} has a negative dimension")
    if len(kind.shape) > MAX_AXES:
        raise UnsupportedNetwork(what, why=f"It has {len(kind.shape)} axes; the limit is {MAX_AXES}")
    if kind.bytes > MAX_TENSOR_BYTES:
        why = f"Its shape {list(kind.shape)} takes {kind.bytes:,} bytes; the limit is {MAX_TENSOR_BYTES:,}"
        raise UnsupportedNetwork(what, why=why)
    return kind


def value_info(name: str, kind: TensorType) -> ValueInfoProto:
    """Return the declaration of an input or output of an ONNX graph."""
    from onnx import helper

    return helper.make_tensor_value_info(name, onnx_dtype(kind.dtype), kind.shape)


def onnx_dtype(dtype: str) -> int:
    """Return ONNX's number for an element type."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


_Key = tuple[bytes, tuple[tuple[str, int], ...], tuple[TensorType, ...], tuple[bytes | None, ...]]
_known_types: dict[_Key, tuple[TensorType, ...]] = {}
"""The types of results that shape inference found, which depend on nothing but the key."""


def _types_read(node: Node, read: Operands) -> dict[str, TensorType]:
    """Return the types of the tensors that a node reads, by their names in the file."""
    try:
        return {name: read.types[alias] for name, alias in operands(node).items()}
    except KeyError:
        name = next(name for name, alias in operands(node).items() if alias not in read.types)
        raise InvalidNetwork(f"{_shown(node)} reads {name[:80]!r}, which nothing writes") from None


def _values_of_sizes(node: Node, read: Operands) -> dict[str, Any]:
    """Return the constants whose values count: lists of integers, for some operators of floats, and indices."""
    found: dict[str, Any] = {}
    for name, alias in operands(node).items():
        constant = read.constants.get(alias)
        if constant is None or constant.value is None:
            continue
        if len(constant.type.shape) > 1 and node.op not in _INDEXED:
            continue
        if constant.type.dtype not in FLOATS or node.op in SIZED_BY_FLOATS:
            found[name] = constant.value
    return found


def _check(node: Node, types: Mapping[str, TensorType], read: Operands) -> None:
    kinds = [types.get(name) for name in node.proto.input]
    constants = {place: read.constants.get(alias) for place, alias in enumerate(node.inputs) if alias}
    held = {place: found.value for place, found in constants.items() if found and found.value is not None}
    check_operands(node, kinds, held, read.opsets[""])
    equations = [one.s.decode(errors="replace") for one in node.proto.attribute if one.name == "equation"]
    shapes = [kind.shape for kind in kinds if kind is not None]
    if node.op == "Einsum" and any(has_late_sizes(equation, shapes) for equation in equations):
        why = "A label has 1 element in one operand and more in a later one: ONNX's shape inference finds 1"
        step = "Export it with an ellipsis, such as '...ij,...jk->...ik', or expand the first operand"
        raise UnsupportedNetwork(f"{_shown(node)} cannot be measured", why=why, next_step=step)


def _key(node: Node, types: Mapping[str, TensorType], known: Mapping[str, Any], read: Operands) -> _Key | None:
    form = form_of(node) if sum(value.nbytes for value in known.values()) <= MAX_FORM_BYTES else None
    if form is None:
        return None
    names = [name for name in node.proto.input if name]
    held = tuple(known[name].tobytes() if name in known else None for name in names)
    return form, tuple(read.opsets.items()), tuple(types[name] for name in names), held


def _inferred(
    node: Node, types: Mapping[str, TensorType], known: Mapping[str, Any], read: Operands
) -> Mapping[str, TypeProto]:
    """Return what ONNX's shape inference finds, nothing for an operator that it does not know."""
    import onnx
    from onnx import defs, numpy_helper, shape_inference

    domain, version = node.domain, read.opsets[node.domain]
    if domain and node.op in _QUANTISATIONS:  # ONNX Runtime's are those of the newest ONNX
        domain, version = "", defs.onnx_opset_version()
    if not has_current(node.op, version, domain):
        return {}
    inputs = {name: value_info(name, kind).type for name, kind in types.items()}
    data: dict[str, TensorProto] = {name: numpy_helper.from_array(value) for name, value in known.items()}
    invalid = (shape_inference.InferenceError, onnx.checker.ValidationError)
    try:
        schema = defs.get_schema(node.op, version, domain)
        found: Mapping[str, TypeProto] = shape_inference.infer_node_outputs(
            schema, node.proto, inputs, data, opset_imports=opset_imports(read.opsets)
        )
    except (*invalid, ValueError, TypeError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0][:300]
        if "Expected:int64" in why:
            step = "Export it with integers of int64, which runtimes need there too"
            raise UnsupportedNetwork(f"{_shown(node)} cannot be measured", why=why, next_step=step) from error
        raise InvalidNetwork(f"{_shown(node)} has impossible shapes", why=why) from error
    return found


def _needs_a_run(node: Node, read: Operands) -> bool:
    """Return whether shape inference cannot know the operator's shapes, but a run of it shows them."""
    from onnx import defs

    # ONNX infers no shape for a GatherND that picks one element.
    if node.domain or node.op == "GatherND" or not has_current(node.op, read.opsets[""], ""):
        return True
    schema = defs.get_schema(node.op, read.opsets[""], "")
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _run_on_ones(node: Node, read: Operands) -> dict[str, TypeProto]:
    """Return the types that a run on ones shows; none if runs with other integers show others.

    The runs on ones and zeros must both succeed. One on twos may fail, which shows nothing: a table of two rows has no
    row for it. Raises UnsupportedNetwork if ONNX Runtime cannot run the operator, whatever the integers are.
    """
    from onnx import helper

    if sum(read.types[alias].bytes for alias in node.inputs if alias) > MAX_RUN_BYTES:
        return {}
    feeds: dict[str, Any] = {}
    varied: dict[str, TensorType] = {}
    for name, alias in operands(node).items():
        kind, constant = read.types[alias], read.constants.get(alias)
        value = constant.value if constant else None
        feeds[name] = np.ones(kind.shape, kind.dtype) if value is None else value
        if constant is None and _may_be_a_size(node, kind):
            varied[name] = kind
    try:
        found = _types_of_run(node, feeds, read)
    except CannotRun as error:
        if varied:
            return {}
        step = "Use a version of ONNX Runtime that has it, or export the network without it"
        why = f"ONNX Runtime cannot run it on this machine: {str(error)[:200]}"
        raise UnsupportedNetwork(f"{_shown(node)} cannot be measured", why=why, next_step=step) from error
    for integer in (0, 2) if varied else ():
        others = {name: np.full(kind.shape, integer, kind.dtype) for name, kind in varied.items()}
        try:
            again = _types_of_run(node, feeds | others, read)
        except CannotRun:
            if integer == 0:
                return {}
            continue
        if again != found:
            return {}
    return {name: helper.make_tensor_type_proto(onnx_dtype(kind.dtype), kind.shape) for name, kind in found.items()}


def _types_of_run(node: Node, feeds: Mapping[str, Any], read: Operands) -> dict[str, TensorType]:
    results = values(node, feeds, read.opsets)
    return {name: TensorType(str(value.dtype), value.shape) for name, value in results.items()}


def _may_be_a_size(node: Node, kind: TensorType) -> bool:
    """Return whether the shape of a result may depend on values of this type."""
    if kind.dtype in FLOATS or node.domain == ML_DOMAIN:
        return False
    return not node.domain or kind.dtype in ("int64", "int32")


def _output_type(node: Node, name: str, found: TypeProto | None) -> TensorType:
    if found is not None and (kind := _other_kind(found)):
        raise UnsupportedType(f"{_shown(node)} cannot be measured", why=f"Its result is of type {kind}, not a tensor")
    if found is None or not _is_typed(found):
        what = f"The shape of tensor {name[:80]!r}, written by {_shown(node)}, is unknown"
        why = "It depends on the values of the network's inputs"
        raise UnresolvedDimension(what, why=why, next_step="Export the network with fixed shapes")
    shape = tuple(dim.dim_value for dim in found.tensor_type.shape.dim)
    return tensor_type(found.tensor_type.elem_type, shape, name)


def _other_kind(found: TypeProto) -> str:
    """Return what a type is if it is not that of a tensor, such as sequence."""
    kind = found.WhichOneof("value") or "tensor_type"
    return "" if kind == "tensor_type" else kind.removesuffix("_type").replace("_", " ")


def _is_typed(found: TypeProto | None) -> bool:
    if found is None or not found.HasField("tensor_type") or not found.tensor_type.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in found.tensor_type.shape.dim)


def _shown(node: Node) -> str:
    return f"Node {node.name[:80]!r} ({node.op})"
