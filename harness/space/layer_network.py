"""Configurations as one network that a device can run, each layer between neighbours of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from harness.network.layers import Layer
from harness.network.network import Network
from harness.network.prepare import prepare
from harness.network.read import ModelFile
from harness.space.configuration import (
    NO_ACTIVATION,
    Configuration,
    Convolution,
    Elementwise,
    Pooling,
    Product,
    padding_of,
)

_OPSET = 17
_IR_VERSION = 8
_NEIGHBOUR_CHANNELS = 4
_READER_CHANNELS = 8
_OWN = "layer"


def network_of(layers: Sequence[Configuration], name: str) -> Network:
    """Return a network with a separate part for each layer, which also writes its inputs and reads its result.

    Weights have types and no values. Devices do not fuse the neighbours with the layer: maps come from a 1x1
    convolution with an activation and go to another one, matrices come from `Abs` and go to a product.
    """
    parts = _Parts()
    for index, layer in enumerate(layers):
        shapes = enumerate(_input_shapes(layer))
        sources = [_written(parts, f"{index}.before{number}", shape) for number, shape in shapes]
        _read(parts, f"{index}.after", _layer(parts, f"{index}.{_OWN}", layer, sources), layer)
    graph = helper.make_graph(parts.nodes, name, parts.inputs, parts.outputs, parts.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    return prepare(ModelFile(name, model, digest), {})


def own_layers(layers: Sequence[Layer]) -> dict[int, tuple[Layer, ...]]:
    """Return the layers of a cut network that form each configuration, by its index.

    A configuration that the device fuses with a neighbour, even in part, is left out.
    """
    found: dict[int, list[Layer]] = {}
    mixed: set[int] = set()
    for layer in layers:
        places = {tuple(node.name.split(".")[:2]) for node in layer.graph.nodes}
        own = {int(index) for index, part in places if part == _OWN}
        for index in own:
            found.setdefault(index, []).append(layer)
        if len(places) > 1:
            mixed |= own
    return {index: tuple(parts) for index, parts in sorted(found.items()) if index not in mixed}


@dataclass
class _Parts:
    """The parts of a graph under construction; each name starts with the index of its configuration."""

    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def input(self, name: str, shape: Sequence[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a weight without values."""
        self.weights.append(
            TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        )
        return name

    def scalar(self, name: str, value: float) -> str:
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}.output"], name, **attributes))
        return f"{name}.output"


def _input_shapes(layer: Configuration) -> list[tuple[int, ...]]:
    if isinstance(layer, Convolution):
        features = layer.features
        residual = [(layer.batch, layer.channels_out, *features.out_size)] if layer.residual else []
        return [(layer.batch, layer.channels_in, *layer.size), *residual]
    if isinstance(layer, Product):
        if layer.heads:
            return [(layer.heads, layer.rows, layer.depth), (layer.heads, layer.depth, layer.columns)]
        return [(layer.rows, layer.depth) if layer.op == "Gemm" else (1, layer.rows, layer.depth)]
    if isinstance(layer, Pooling):
        return [(layer.batch, layer.channels, *layer.size)]
    if isinstance(layer, Elementwise):
        return [(layer.batch, layer.channels, *layer.size)] * layer.operands
    return [(1, layer.rows, layer.columns)]


def _written(parts: _Parts, name: str, shape: Sequence[int]) -> str:
    """Add a neighbour that writes a tensor."""
    if len(shape) != 4:
        return parts.node("Abs", f"{name}.write", [parts.input(f"{name}.input", shape)])
    batch, channels, *plane = shape
    source = parts.input(f"{name}.input", (batch, _NEIGHBOUR_CHANNELS, *plane))
    weight = parts.weight(f"{name}.weight", (channels, _NEIGHBOUR_CHANNELS, 1, 1))
    return parts.node("Relu", f"{name}.relu", [parts.node("Conv", f"{name}.write", [source, weight])])


def _read(parts: _Parts, name: str, tensor: str, layer: Configuration) -> None:
    """Add a neighbour that reads the result of the layer."""
    features = layer.features
    if isinstance(layer, (Convolution, Pooling, Elementwise)):
        weight = parts.weight(f"{name}.weight", (_READER_CHANNELS, features.out_channels, 1, 1))
        result = parts.node("Conv", f"{name}.read", [tensor, weight])
        shape: tuple[int, ...] = (features.batch, _READER_CHANNELS, *features.out_size)
    else:
        weight = parts.weight(f"{name}.weight", (layer.columns, _READER_CHANNELS))
        result = parts.node("MatMul", f"{name}.read", [tensor, weight])
        shape = (*_input_shapes(layer)[0][:-1], _READER_CHANNELS)
    parts.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, shape))


def _layer(parts: _Parts, name: str, layer: Configuration, sources: Sequence[str]) -> str:
    """Add the operators of a layer in the form in which exporters write them."""
    if isinstance(layer, Convolution):
        return _convolution(parts, name, layer, sources)
    if isinstance(layer, Product):
        return _product(parts, name, layer, sources)
    if isinstance(layer, Pooling):
        if layer.op.startswith("Global"):
            return parts.node(layer.op, name, sources)
        pads = [padding_of(layer.kernel[0], layer.stride[0])] * 4
        return parts.node(layer.op, name, sources, kernel_shape=layer.kernel, strides=layer.stride, pads=pads)
    if isinstance(layer, Elementwise):
        return _activated(parts, name, layer.op, sources)
    normalises = layer.op == "LayerNormalization"
    weights = [parts.weight(f"{name}.{part}", (layer.columns,)) for part in ("weight", "bias")] if normalises else []
    return parts.node(layer.op, name, [*sources, *weights], axis=-1)


def _convolution(parts: _Parts, name: str, layer: Convolution, sources: Sequence[str]) -> str:
    shape = (layer.channels_out, layer.channels_in // layer.groups, layer.kernel, layer.kernel)
    operands = [sources[0], parts.weight(f"{name}.weight", shape)]
    if not layer.batch_norm:
        operands.append(parts.weight(f"{name}.bias", shape[:1]))
    result = parts.node(
        "Conv",
        name,
        operands,
        dilations=[1, 1],
        group=layer.groups,
        kernel_shape=[layer.kernel] * 2,
        pads=[padding_of(layer.kernel, layer.stride)] * 4,
        strides=[layer.stride] * 2,
    )
    if layer.batch_norm:
        scales = [parts.weight(f"{name}.bn.{part}", shape[:1]) for part in ("weight", "bias", "mean", "variance")]
        result = parts.node("BatchNormalization", f"{name}.bn", [result, *scales])
    if layer.residual:
        result = parts.node("Add", f"{name}.add", [result, sources[1]])
    return _activated(parts, f"{name}.activation", layer.activation, [result])


def _product(parts: _Parts, name: str, layer: Product, sources: Sequence[str]) -> str:
    if layer.heads:
        result = parts.node("MatMul", name, sources)
    else:
        shape = (layer.columns, layer.depth) if layer.op == "Gemm" else (layer.depth, layer.columns)
        weight, bias = parts.weight(f"{name}.weight", shape), parts.weight(f"{name}.bias", (layer.columns,))
        if layer.op == "Gemm":
            result = parts.node("Gemm", name, [sources[0], weight, bias], alpha=1.0, beta=1.0, transB=1)
        else:
            result = parts.node("Add", f"{name}.add", [bias, parts.node("MatMul", name, [sources[0], weight])])
    return _activated(parts, f"{name}.activation", layer.activation, [result])


def _activated(parts: _Parts, name: str, activation: str, sources: Sequence[str]) -> str:
    if activation == NO_ACTIVATION:
        return sources[0]
    if activation == "Relu6":
        bounds = [parts.scalar(f"{name}.min", 0.0), parts.scalar(f"{name}.max", 6.0)]
        return parts.node("Clip", name, [*sources, *bounds])
    if activation == "Swish":
        return parts.node("Mul", f"{name}.mul", [sources[0], parts.node("Sigmoid", name, sources)])
    return parts.node(activation, name, sources)
