"""Types of a part of a network after its inputs change their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.network.assemble import copy_node
from harness.network.network import Network, Node, TensorType
from harness.network.prepare import value_info


def retyped(network: Network, nodes: Sequence[Node], changes: Mapping[str, TensorType]) -> dict[str, TensorType] | None:
    """Return the types of `changes` and of all tensors that the nodes, given in topological order, then write.

    Returns None if an operator does not accept these shapes.
    """
    import onnx
    from onnx import helper, numpy_helper

    written = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
    values, initializers = [], []
    for name in read:
        constant = network.constants.get(name)
        if constant is not None and constant.value is not None and name not in changes:
            initializers.append(numpy_helper.from_array(constant.value, name))
        else:
            values.append(value_info(name, changes.get(name, network.types[name])))
    results = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.results]
    copies = [copy_node(node, node.name, node.inputs, node.outputs) for node in nodes]
    graph = helper.make_graph(copies, "retyped", values, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", network.opset)])
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    types = dict(changes)
    for value in inferred.graph.output:
        sizes = value.type.tensor_type.shape.dim
        if not value.type.tensor_type.HasField("shape") or any(size.dim_value <= 0 for size in sizes):
            return None
        types[value.name] = TensorType(network.types[value.name].dtype, tuple(size.dim_value for size in sizes))
    known = {**network.types, **types}
    # Shape inference does not check a constant shape against the number of elements.
    views = (node for node in nodes if node.op == "Reshape")
    fits = all(known[node.inputs[0]].elements == known[node.outputs[0]].elements for node in views)
    return types if fits else None
