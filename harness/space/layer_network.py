"""Configurations as one network that a device can run, each layer between its own neighbours."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from onnx import TensorProto, helper

from harness.network.layers import FEATURE_MAP, OUTSIDE, Layer
from harness.network.network import Network
from harness.space.configuration import (
    ACTIVATIONS,
    DYNAMIC,
    INT8,
    NO_ACTIVATION,
    PACKED_WEIGHTS,
    UNSIGNED,
    UNSIGNED_WEIGHTS,
    WEIGHTS,
    Configuration,
    Convolution,
    FloatLayer,
    Pooling,
    Product,
    Quantised,
    Recurrent,
    Transposed,
    padding_of,
)
from harness.space.data_movement import Elementwise, Joining, Permutation, Picking, Resizing, Rowwise
from harness.space.layer_parts import (
    IntegerActivationParts,
    IntegerParts,
    IntegerWeightParts,
    LayerParts,
    UnsignedWeightParts,
    mover_nodes,
)

_NEIGHBOUR_CHANNELS = 4
_READER_CHANNELS = 8
_OWN = "layer"
_ON_ROWS = (Permutation, Picking, Product, Recurrent, Rowwise)
"""Layers whose tensors of four axes are not maps of convolutions, such as the heads of attention."""
_PARTS = {
    INT8: IntegerParts,
    ACTIVATIONS: IntegerActivationParts,
    UNSIGNED_WEIGHTS: UnsignedWeightParts,
    WEIGHTS: IntegerWeightParts,
}
Sources = Literal["usual", "apart"]
SOURCES: tuple[Sources, ...] = ("usual", "apart")
"""Kinds of the layers that write the inputs; see `network_of`."""
_Form = Callable[[LayerParts, str, FloatLayer, Sequence[str]], list[str]]


def network_of(layers: Sequence[Configuration], name: str, sources: Sources = "usual") -> Network:
    """Return a network with a separate part for each layer, which also writes its inputs and reads its result.

    Weights have types and no values. Devices do not fuse the neighbours with the layer: maps come from a 1x1
    convolution with an activation and go to another one, matrices come from `Abs` and go to a product. OpenVINO fuses
    elementwise and rowwise layers with such a source. If `sources` is `apart`, a slice or a pool of one pixel writes
    their inputs, which in turn the emulated NPU would fuse. Neighbours of layers on integers also compute on integers.
    The result of a layer that only moves elements has two readers, and so has the source of a Transpose, Reshape or
    Slice. Otherwise some devices would fuse such a layer with its only reader, or with a writer that has no other.
    """
    parts = LayerParts()
    for index, layer in enumerate(layers):
        if not isinstance(layer, Quantised):
            _add(parts, index, layer, _layer, sources)
        elif layer.precision in _PARTS:
            _add(_PARTS[layer.precision].within(parts), index, layer.layer, _layer, sources)
        else:
            _add(parts, index, layer.layer, _FORMS[layer.precision], sources)
    return parts.network(name)


def _add(parts: LayerParts, index: int, layer: FloatLayer, added: _Form, sources: Sources) -> None:
    """Add a layer in one form, and its neighbours."""
    own = f"{index}.{_OWN}"
    shapes = enumerate(layer.inputs)
    written = [_written(parts, f"{index}.before{number}", shape, layer, sources) for number, shape in shapes]
    taken = [parts.taken(f"{own}.take{number}", source) for number, source in enumerate(written)]
    for number, result in enumerate(added(parts, own, layer, taken)):
        stored = parts.stored(f"{own}.store{number}", result)
        names = [f"{index}.after{number or ''}"]
        names += [f"{names[0]}again"] if isinstance(layer, Joining | Permutation | Recurrent) else []
        for name in names:
            _read(parts, name, stored, layer.result, on_maps=not isinstance(layer, _ON_ROWS))
    if isinstance(layer, Permutation) or (isinstance(layer, Joining) and layer.op == "Slice"):
        _read(parts, f"{index}.beside", written[0], layer.inputs[0], on_maps=_reads_map(layer, layer.inputs[0]))


def own_layers(layers: Sequence[Layer]) -> dict[int, tuple[Layer, ...]]:
    """Return the layers of a cut network that form each configuration, by its index.

    A configuration that the device fuses with a neighbour, even in part, is omitted.
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


def _written(parts: LayerParts, name: str, shape: Sequence[int], layer: FloatLayer, sources: Sources) -> str:
    """Add a neighbour that writes a tensor, or an input of the network."""
    context = layer.context if isinstance(layer, Convolution | Pooling | Resizing) else FEATURE_MAP
    if context == OUTSIDE:
        return parts.stored(f"{name}.store", parts.input(f"{name}.input", shape))
    if len(shape) != 4 or not _reads_map(layer, shape) or context != FEATURE_MAP:
        if sources == "apart" and isinstance(layer, Elementwise | Rowwise):
            longer = parts.input(f"{name}.input", (*shape[:-1], shape[-1] + 1))
            bounds = [
                parts.numbers(f"{name}.{key}", (at,)) for key, at in (("from", 0), ("to", shape[-1]), ("axis", -1))
            ]
            return parts.stored(f"{name}.store", parts.node("Slice", f"{name}.write", [longer, *bounds]))
        return parts.stored(f"{name}.store", parts.node("Abs", f"{name}.write", [parts.input(f"{name}.input", shape)]))
    batch, channels, *plane = shape
    source = _passed(parts, f"{name}.pass", parts.input(f"{name}.input", (batch, _NEIGHBOUR_CHANNELS, *plane)))
    weight = parts.weight(f"{name}.weight", (channels, _NEIGHBOUR_CHANNELS, 1, 1))
    result = parts.node("Relu", f"{name}.relu", [parts.node("Conv", f"{name}.write", [source, weight])])
    if sources == "apart" and isinstance(layer, Elementwise):
        result = parts.node("MaxPool", f"{name}.pool", [result], kernel_shape=(1, 1))
    return parts.stored(f"{name}.store", result)


def _reads_map(layer: FloatLayer, shape: Sequence[int]) -> bool:
    """Return whether a source of this shape with four axes is a map of a convolution; the places of pixels are not."""
    if isinstance(layer, Resizing):
        return tuple(shape) == layer.inputs[0]
    return layer.order in ("", "channels_last") if isinstance(layer, Permutation) else not isinstance(layer, _ON_ROWS)


def _read(parts: LayerParts, name: str, tensor: str, shape: Sequence[int], *, on_maps: bool) -> None:
    """Add a neighbour that reads a tensor: a convolution, if it has four axes and is `on_maps`, or a product."""
    tensor = parts.taken(f"{name}.take", tensor)
    if len(shape) == 4 and on_maps:
        weight = parts.weight(f"{name}.weight", (_READER_CHANNELS, shape[1], 1, 1))
        result, shape = parts.node("Conv", f"{name}.read", [tensor, weight]), (shape[0], _READER_CHANNELS, *shape[2:])
    else:
        weight = parts.weight(f"{name}.weight", (shape[-1], _READER_CHANNELS))
        result, shape = parts.node("MatMul", f"{name}.read", [tensor, weight]), (*shape[:-1], _READER_CHANNELS)
    result = _passed(parts, f"{name}.pass", result)
    parts.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, shape))


def _passed(parts: LayerParts, name: str, tensor: str) -> str:
    """Return a tensor as one layer writes it and another reads it."""
    return parts.taken(f"{name}.take", parts.stored(f"{name}.store", tensor))


def _layer(parts: LayerParts, name: str, layer: FloatLayer, sources: Sequence[str]) -> list[str]:
    """Add the operators of a layer in the form in which exporters write them, and return its results."""
    if isinstance(layer, Convolution):
        return [_convolution(parts, name, layer, sources)]
    if isinstance(layer, Product):
        return [_product(parts, name, layer, sources)]
    if isinstance(layer, Recurrent):
        shapes = enumerate([*layer.weights, layer.biases])
        weights = [parts.weight(f"{name}.weight{at}", shape) for at, shape in shapes]
        direction = "bidirectional" if layer.directions > 1 else "forward"
        return [parts.node(layer.op, name, [*sources, *weights], hidden_size=layer.columns, direction=direction)]
    if isinstance(layer, Transposed):
        axes, (shape,) = len(layer.size), layer.weights
        weights = [parts.weight(f"{name}.weight", shape), parts.weight(f"{name}.bias", shape[1:2])]
        window = {"kernel_shape": shape[2:], "strides": [layer.stride] * axes, "pads": [layer.padding] * 2 * axes}
        return [parts.node("ConvTranspose", name, [*sources, *weights], **window)]
    if isinstance(layer, Pooling):
        if layer.op.startswith("Global"):
            return [parts.node(layer.op, name, sources)]
        pads = [padding_of(layer.kernel[0], layer.stride[0])] * 2 * len(layer.size)
        return [parts.node(layer.op, name, sources, kernel_shape=layer.kernel, strides=layer.stride, pads=pads)]
    return mover_nodes(parts, name, layer, sources)


def _convolution(parts: LayerParts, name: str, layer: Convolution, sources: Sequence[str]) -> str:
    operands = [sources[0], parts.weight(f"{name}.weight", layer.weight_shape)]
    if not layer.batch_norm:
        operands.append(parts.weight(f"{name}.bias", layer.weight_shape[:1]))
    result = parts.node("Conv", name, operands, **_window(layer))
    if layer.batch_norm:
        result = parts.batch_normalisation(f"{name}.bn", result, layer.channels_out)
    if layer.residual:
        result = parts.node("Add", f"{name}.add", [result, sources[1]])
    return _activated(parts, name, layer.activation, result)


def _window(layer: Convolution) -> dict[str, Any]:
    return {
        "dilations": layer.each(layer.dilation),
        "group": layer.groups,
        "kernel_shape": layer.each(layer.kernel),
        "pads": layer.each(layer.padding) * 2,
        "strides": layer.each(layer.stride),
    }


def _dynamic(parts: LayerParts, name: str, layer: FloatLayer, sources: Sequence[str], kind: int) -> list[str]:
    """Add the operators of a product whose input is quantised as it runs, and return its result."""
    if not isinstance(layer, Convolution | Product):
        raise TypeError(f"{type(layer).__name__} has no weights")  # blocks of such layers are never dynamic
    window = _window(layer) if isinstance(layer, Convolution) else {}
    result = parts.dynamic_product(name, sources[0], layer.weight_shape, kind, **window)
    return [_activated(parts, name, layer.activation, result)]


def _packed(parts: LayerParts, name: str, layer: FloatLayer, sources: Sequence[str]) -> list[str]:
    """Add a product whose weights are packed, and return its result."""
    if not isinstance(layer, Product):
        raise TypeError(f"{type(layer).__name__} is no product of matrices")  # blocks of such layers are never packed
    product = parts.packed_product(name, sources[0], layer.weight_shape)
    result = parts.node("Add", f"{name}.add", [parts.weight(f"{name}.bias", (layer.columns,)), product])
    return [_activated(parts, name, layer.activation, result)]


_FORMS: Mapping[str, _Form] = {
    DYNAMIC: functools.partial(_dynamic, kind=TensorProto.INT8),
    UNSIGNED: functools.partial(_dynamic, kind=TensorProto.UINT8),
    PACKED_WEIGHTS: _packed,
}


def _product(parts: LayerParts, name: str, layer: Product, sources: Sequence[str]) -> str:
    if layer.heads or (layer.op == "MatMul" and isinstance(parts, IntegerParts)):  # its bias is a sum of integers
        sources = sources if layer.heads else [*sources, parts.weight(f"{name}.weight", layer.weight_shape)]
        result = parts.node("MatMul", name, sources)
    else:
        shape = layer.weight_shape[::-1] if layer.op == "Gemm" else layer.weight_shape
        weight, bias = parts.weight(f"{name}.weight", shape), parts.weight(f"{name}.bias", (layer.columns,))
        if layer.op == "Gemm":
            result = parts.node("Gemm", name, [sources[0], weight, bias], alpha=1.0, beta=1.0, transB=1)
        else:
            result = parts.node("Add", f"{name}.add", [bias, parts.node("MatMul", name, [sources[0], weight])])
    return _activated(parts, name, layer.activation, result)


def _activated(parts: LayerParts, name: str, activation: str, result: str) -> str:
    return result if activation == NO_ACTIVATION else parts.activation(activation, f"{name}.activation", [result])
