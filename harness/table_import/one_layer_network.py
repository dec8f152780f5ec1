"""A network of one layer, as exporters write it, from which the layer's key is made as for any network."""

import functools
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import defs, helper

from harness.errors import NetworkError
from harness.network.fusion.fusion_patterns import pattern_of
from harness.network.fusion.fusion_rules import FusionRule, structure_of
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.operator_kinds import WINDOWED_POOLS
from harness.network.zoo.network_parts import IR_VERSION, NetworkParts
from harness.table_import.cells import BadRow, Shape
from harness.table_import.layer_spec import LayerSpec

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PRODUCTS = ("MatMul", "Gemm")
_PAIRS = ("Add", "Sub", "Mul", "Div", "Pow")
_ONE_NODE = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "HardSigmoid", "Elu", "Selu", "Softplus", "Mish")
ACTIVATIONS = ("none", *_ONE_NODE, "Relu6", "Swish", "Gelu")
_CALLED = {"silu": "swish", "identity": "none", "linear": "none", "": "none"}
"""Other names of activations."""
_AXIS_OF_ROWS = ("Softmax", "LogSoftmax", "LayerNormalization")


@dataclass(frozen=True)
class PlacedLayer:
    """A layer with its key, its context inside a network, and the pattern of its operators if it has several."""

    key: str
    op: str
    context: str
    pattern: str = ""


@functools.lru_cache(maxsize=1 << 15)
def keyed_layer(spec: LayerSpec, opset: int) -> PlacedLayer:
    """Return the layer as `profile` would cut it from a network in which one kernel executes it; raises BadRow."""
    try:
        network = _network(spec, opset)
    except BadRow:
        raise
    except NetworkError as error:
        raise BadRow(f"{error.what}: {error.why}" if error.why else error.what) from error
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        raise BadRow(f"{spec.op} is not valid: {str(error).strip().splitlines()[0][:200]}") from error
    if not network.nodes:
        raise BadRow(f"{spec.op} takes no time")
    several = len(network.nodes) > 1
    group = " ".join(str(node.index) for node in network.nodes)
    rules = [FusionRule(f"network {structure_of(network)}: {group}", 1, 1, "import")] if several else []
    (layer,) = cut(network, rules)
    context = ",".join("chip" for _ in layer.graph.inputs)
    return PlacedLayer(layer.key.text, layer.op, context, pattern_of(network, network.nodes) if several else "")


def _network(spec: LayerSpec, opset: int) -> Network:
    if not defs.has(spec.op, opset):
        raise BadRow(f"op is {spec.op[:60]!r}, which opset {opset} of ONNX does not have")
    graph = NetworkParts(dtype=spec.dtype, opset=opset)
    result = _operator(graph, spec)
    if spec.batch_norm:
        result = graph.batch_normalisation("norm", result, _channels_written(spec))
    if spec.residual:
        written = _written(graph)
        result = graph.node("Add", "add", [result, graph.input("residual", written)])
    result = _activated(graph, spec.activation, result)
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = IR_VERSION, {"": opset}
    for node in graph.nodes:
        onnx.checker.check_node(node, context)
    return _network_to(graph, result)


def _network_to(graph: NetworkParts, result: str) -> Network:
    graph.outputs = [helper.make_tensor_value_info(result, graph.element, None)]
    return graph.network("layer")


def _operator(graph: NetworkParts, spec: LayerSpec) -> str:
    if spec.op in _CONVOLUTIONS:
        return _convolution(graph, spec)
    if spec.op in _PRODUCTS:
        return _product(graph, spec)
    shapes = spec.inputs * 2 if spec.op in _PAIRS and len(spec.inputs) == 1 and not spec.weights else spec.inputs
    operands = [graph.input(f"x{at}", shape) for at, shape in enumerate(shapes)]
    weights = spec.weights
    attributes: dict[str, Any] = dict(spec.attributes)
    if spec.op in WINDOWED_POOLS:
        attributes = {**_window_attributes(spec), **attributes}
    if spec.op in _AXIS_OF_ROWS:
        attributes.setdefault("axis", -1)
    if spec.op == "LayerNormalization" and not weights:
        axis = attributes["axis"]
        weights = (spec.inputs[0][axis:],) * 2 if isinstance(axis, int) else ()
    if spec.op == "BatchNormalization" and not weights:
        weights = ((_axis_1(spec),),) * 4
    operands += [graph.weight(f"w{at}", shape) for at, shape in enumerate(weights)]
    integers = [graph.numbers(f"i{at}", values) for at, values in enumerate(spec.integers)]
    operands += ["", "", *integers] if spec.op == "Resize" else integers
    return graph.node(spec.op, "layer", operands, **_lists(attributes))


def _lists(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}


def _convolution(graph: NetworkParts, spec: LayerSpec) -> str:
    channels = _axis_1(spec)
    groups = channels if spec.groups is None else spec.groups
    out = _channels_written(spec)
    if channels % groups or out % groups:
        raise BadRow(f"{groups} groups do not divide {channels} input and {out} output channels")
    kernel = _per_axis("kernel", spec.kernel, len(spec.inputs[0]) - 2)
    first = (out, channels // groups) if spec.op == "Conv" else (channels, out // groups)
    operands = [graph.input("x0", spec.inputs[0]), graph.weight("weight", (*first, *kernel))]
    if spec.bias:
        operands.append(graph.weight("bias", (out,)))
    attributes = {"group": groups, **_window_attributes(spec), **dict(spec.attributes)}
    return graph.node(spec.op, "layer", operands, **_lists(attributes))


def _channels_written(spec: LayerSpec) -> int:
    if spec.op in _CONVOLUTIONS:
        if spec.channels_out is None and spec.groups is not None:
            raise BadRow(f"{spec.op} has no channels_out")
        return _axis_1(spec) if spec.channels_out is None else spec.channels_out
    return spec.columns if spec.columns is not None else _axis_1(spec)


def _axis_1(spec: LayerSpec) -> int:
    if not spec.inputs or len(spec.inputs[0]) < 2 or (spec.op in _CONVOLUTIONS and len(spec.inputs[0]) < 3):
        raise BadRow(f"the input of {spec.op} has too few axes")
    return spec.inputs[0][1]


def _window_attributes(spec: LayerSpec) -> dict[str, Any]:
    spatial = len(spec.inputs[0]) - 2
    if spatial < 1:
        raise BadRow(f"the input of {spec.op} has too few axes")
    kernel = _per_axis("kernel", spec.kernel, spatial)
    dilation = _per_axis("dilation", spec.dilation, spatial)
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": _per_axis("stride", spec.stride, spatial)}
    if set(dilation) != {1} or spec.op in _CONVOLUTIONS:
        found["dilations"] = dilation
    if spec.padding == "same":
        return {**found, "auto_pad": "SAME_UPPER"}
    if spec.padding == "half":
        return {**found, "pads": [size // 2 for size in kernel] * 2}
    given = (0,) if isinstance(spec.padding, str) else spec.padding
    return {**found, "pads": given if len(given) == 2 * spatial else _per_axis("padding", given, spatial) * 2}


def _per_axis(name: str, sizes: Shape, spatial: int) -> Shape:
    if len(sizes) not in (1, spatial):
        raise BadRow(f"{name} has {len(sizes)} numbers for {spatial} axes")
    return sizes * spatial if len(sizes) == 1 else sizes


def _product(graph: NetworkParts, spec: LayerSpec) -> str:
    operands = [graph.input(f"x{at}", shape) for at, shape in enumerate(spec.inputs)]
    attributes = _lists(dict(spec.attributes))
    if len(operands) > 1:
        return graph.node(spec.op, "layer", operands, **attributes)
    if spec.columns is None:
        raise BadRow(f"{spec.op} of one input has no columns")
    depth = spec.inputs[0][-1]
    shape = (spec.columns, depth) if spec.op == "Gemm" else (depth, spec.columns)
    operands.append(graph.weight("weight", shape))
    bias = graph.weight("bias", (spec.columns,)) if spec.bias else ""
    if spec.op == "Gemm":
        given = {"alpha": 1.0, "beta": 1.0, "transB": 1, **attributes}
        return graph.node("Gemm", "layer", [*operands, bias] if bias else operands, **given)
    result = graph.node("MatMul", "layer", operands, **attributes)
    return graph.node("Add", "bias", [bias, result]) if bias else result


def _written(graph: NetworkParts) -> Shape:
    """Return the shape of the result so far."""
    network = _network_to(graph, graph.nodes[-1].output[0])
    return network.types[network.outputs[0]].shape


def _activated(graph: NetworkParts, activation: str, tensor: str) -> str:
    wanted = _CALLED.get(activation.lower(), activation.lower())
    name = next((known for known in ACTIVATIONS if known.lower() == wanted), None)
    if name is None:
        raise BadRow(f"activation is {activation[:40]!r}, not one of {', '.join(ACTIVATIONS)}")
    return tensor if name == "none" else graph.activation(name, "activation", [tensor])
