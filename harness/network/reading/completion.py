"""State what an ONNX file leaves out or states in another way, and what checkers, inference and inlining need."""

from onnx import ModelProto, TensorProto, defs, helper

from harness.network.learnt_weights import RUNTIME_DOMAINS
from harness.network.network import ML_DOMAIN
from harness.network.reading.checked_copy import IR_WITHOUT_INPUTS
from harness.network.reading.control_flow import all_nodes, domain_of, subgraphs

_DEFAULT_OPSET = 17
_WIDENED = frozenset(
    {"Constant", "ConstantOfShape", "Flatten", "Identity", "Reshape", "Shape", "Size"}
    | {"Squeeze", "Transpose", "Unsqueeze"}
)
_WIDENED_FROM = 16
"""From this opset on, new versions of these operators only accept more element types."""
_INFERRED_OTHERWISE = {"STFT": ("onesided", 1)}


def align_functions(model: ModelProto) -> None:
    """State the network's operator sets in functions where their operators are the same: only those are inlined."""
    stated = {domain_of(entry): entry.version for entry in model.opset_import}

    def since(op: str, version: int, domain: str) -> int:
        return int(defs.get_schema(op, version, domain).since_version) if defs.has(op, version, domain) else 0

    for function in model.functions:
        for entry in function.opset_import:
            domain = domain_of(entry)
            version = stated.get(domain, entry.version)
            used = {node.op_type for node in all_nodes(function.node) if domain_of(node) == domain}
            if not domain and min(version, entry.version) >= _WIDENED_FROM:
                used -= _WIDENED
            if all(since(op, version, domain) == since(op, entry.version, domain) for op in used):
                entry.version = version


def complete(model: ModelProto) -> None:
    """Complete domains, inputs, names of graphs, types of outputs and attributes, in place."""
    _complete_domains(model)
    _complete_inputs(model)
    _complete_names(model)
    _complete_outputs(model)
    _complete_attributes(model)


def _complete_domains(model: ModelProto) -> None:
    """Give ONNX's domain one name, and state an opset of it if no operator needs one, and those that runtimes know."""
    nodes, imports = list(all_nodes(model.graph.node)), model.opset_import
    for message in (*imports, *nodes):
        if message.domain != domain_of(message):
            message.domain = ""
    if imports and all(entry.domain for entry in (*imports, *nodes)):
        imports.add(version=_DEFAULT_OPSET)
    known = {**dict.fromkeys(RUNTIME_DOMAINS, 1), ML_DOMAIN: defs.onnx_ml_opset_version()}
    for domain in sorted({node.domain for node in nodes} & (known.keys() - {entry.domain for entry in imports})):
        imports.add(domain=domain, version=known[domain])


def _complete_inputs(model: ModelProto) -> None:
    """Omit inputs of text that nothing reads, and list weights where the version of the format demands it."""
    read = {name for node in all_nodes(model.graph.node) for name in node.input}
    read.update(value.name for value in model.graph.output)
    for value in [*model.graph.input]:
        if value.type.tensor_type.elem_type == TensorProto.STRING and value.name not in read:
            model.graph.input.remove(value)
    if model.ir_version < IR_WITHOUT_INPUTS:
        listed = {value.name for value in model.graph.input}
        for one in model.graph.initializer:
            if one.name and one.name not in listed:
                model.graph.input.append(helper.make_tensor_value_info(one.name, one.data_type, one.dims))


def _complete_names(model: ModelProto) -> None:
    """Name the graphs that have no name: the checker demands one, and runtimes do not read it."""
    inner = (graph for node in all_nodes(model.graph.node) for graph in subgraphs(node))
    for graph in (model.graph, *inner):
        graph.name = graph.name or "graph"


def _complete_outputs(model: ModelProto) -> None:
    """Give outputs without type or shape what the checker demands. Nothing reads it: all types are inferred."""
    for value in model.graph.output:
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            kind = value.type.tensor_type
            kind.elem_type = kind.elem_type or TensorProto.FLOAT
            kind.shape.SetInParent()


def _complete_attributes(model: ModelProto) -> None:
    """State the attributes that ONNX's shape inference reads with another default than the operator has."""
    for node in all_nodes(model.graph.node):
        name, value = _INFERRED_OTHERWISE.get(node.op_type, ("", 0))
        if name and not any(attribute.name == name for attribute in node.attribute):
            node.attribute.append(helper.make_attribute(name, value))
