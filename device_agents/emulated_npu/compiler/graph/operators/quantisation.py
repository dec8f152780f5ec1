"""QuantizeLinear and DequantizeLinear: conversion between numbers and the integers that represent them.

With one constant scale they are copies that convert, which folding makes settings of other layers. Several scales, or
computed ones, are spelled out in arithmetic on numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import CONVERTED, converted
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.matrix import matmul
from device_agents.emulated_npu.compiler.graph.operators.spatial.convolution import convolution
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Quantisation, Settings

_WHOLE = Quantisation(1.0, 0)


def _quantize(build: Builder, node: OnnxNode) -> None:
    """Add a QuantizeLinear; it is a view if it reverses the DequantizeLinear before it."""
    source, kind = build.view(node.inputs[0]), build.type(node.outputs[0])
    code = _of_whole_tensor(build, node)
    if code is None:
        _quantize_by_parts(build, node, source)
        return
    integers = build.integers_of(source, code)
    if integers is not None and build.dtype(integers) == kind.dtype and node.outputs[0] not in build.source.outputs:
        build.bind(node.outputs[0], integers)
        return
    build.layer(Function.COPY, [source], build.result(), Settings(quantised_target=code))


def _dequantize(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    code = _of_whole_tensor(build, node)
    if code is None:
        _dequantize_by_parts(build, node, source)
        return
    output = build.result()
    build.layer(Function.COPY, [source], output, Settings(quantised_first=code))
    if build.dtype(output) is DataType.FLOAT32:
        build.note_integers(output.value, source, code)


def _of_whole_tensor(build: Builder, node: OnnxNode) -> Quantisation | None:
    """Return the quantisation of all elements; None if elements have different ones, or the network computes it.

    Raises UnsupportedOperator for element types that no unit converts, and for a scale that is not positive.
    """
    integers = build.type(node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]).dtype
    if integers not in CONVERTED and (integers, node.op) != (DataType.INT32, "DequantizeLinear"):
        raise unsupported(node, f"It converts {integers.name.lower()}; only integers of 8 and 16 bits are supported")
    if node.attribute("block_size", 0):
        raise unsupported(node, "It has a scale for each block of an axis")
    if not node.input(1):
        raise unsupported(node, "It has no scale")
    given = [build.known(name) for name in node.inputs[1:3] if name]
    if any(values is None or values.size != 1 for values in given):
        return None
    scale, *zero = (values.item() for values in given if values is not None)
    if not 0 < scale < float("inf"):
        raise unsupported(node, f"Its scale is {scale}, not a positive number")
    ends = np.iinfo(NUMPY_TYPES[integers])
    if zero and not ends.min <= zero[0] <= ends.max:
        raise unsupported(node, f"Its zero point {zero[0]} is not a valid {integers.name.lower()} value")
    return Quantisation(float(scale), int(zero[0]) if zero else 0)


def _parameter(build: Builder, node: OnnxNode, place: int, like: View) -> View:
    """Return scales or zero points as float32, expanded to the tensor along the axis of the node."""
    name, shape = node.inputs[place], like.shape
    kind, constant = build.type(name), build.constant(name)
    if constant is not None:
        view = build.constant_view(converted(constant, DataType.FLOAT32))
    elif kind.dtype is DataType.FLOAT32:
        view = build.view(name)
    else:
        view = build.temporary(f"parameter{place}", kind.shape, DataType.FLOAT32)
        build.copy(build.view(name), view)
    count = kind.shape
    if all(size == 1 for size in count):
        return views.expanded(build.divided(view, (1,) * len(shape)), shape)
    axis = node.attribute("axis", 1)
    if len(count) != 1 or not -len(shape) <= axis < len(shape) or count[0] != shape[axis]:
        raise unsupported(node, f"Scales of shape {list(count)} do not fit a tensor of shape {list(shape)}")
    own = tuple(size if place == axis % len(shape) else 1 for place, size in enumerate(shape))
    return views.expanded(build.divided(view, own), shape)


def _quantize_by_parts(build: Builder, node: OnnxNode, source: View) -> None:
    """Add a division, rounding, and the addition of zero points; the last copy saturates."""
    scaled = build.combined("scaled", Binary.DIVIDE, _as_float(build, source), _parameter(build, node, 1, source))
    rounded = build.mapped("rounded", scaled, Activation.ROUND)
    if node.input(2):
        rounded = build.combined("moved", Binary.ADD, rounded, _parameter(build, node, 2, source))
    build.layer(Function.COPY, [rounded], build.result(), Settings(quantised_target=_WHOLE))


def _dequantize_by_parts(build: Builder, node: OnnxNode, source: View) -> None:
    """Add a conversion, the subtraction of zero points, and the product with the scales."""
    centred = _as_float(build, source)
    if node.input(2):
        centred = build.combined("centred", Binary.SUBTRACT, centred, _parameter(build, node, 2, source))
    scale, output = _parameter(build, node, 1, source), build.result()
    if build.dtype(output) is DataType.FLOAT32:
        build.binary(Binary.MULTIPLY, centred, scale, output)
    else:
        build.copy(build.combined("product", Binary.MULTIPLY, centred, scale), output)


def _product_of_integers(build: Builder, node: OnnxNode) -> None:
    """Add a ConvInteger or MatMulInteger of constant zero points: its output has the sums in 32 bits."""
    codes = [_zero_point(build, node, place) for place in (2, 3)]
    if node.op == "ConvInteger":
        build.parameter(node.inputs[1], "weight")
    source = build.view(node.inputs[0])
    _PRODUCTS[node.op](build, replace(node, inputs=node.inputs[:2]))
    draft = build.drafts[-1]
    if not draft.layer.function.multiplies or draft.layer.inputs[0].value != source.value:
        raise unsupported(node, "Its windows lie outside of its input")
    settings = replace(draft.layer.settings, quantised_first=codes[0], quantised_second=codes[1])
    draft.layer = replace(draft.layer, settings=settings)


def _zero_point(build: Builder, node: OnnxNode, place: int) -> Quantisation:
    if not node.input(place):
        return _WHOLE
    return Quantisation(1.0, int(build.number(node.inputs[place], "zero point")))


def _as_float(build: Builder, source: View) -> View:
    if build.dtype(source) is DataType.FLOAT32:
        return source
    numbers = build.temporary("numbers", source.shape, DataType.FLOAT32)
    build.copy(source, numbers)
    return numbers


_PRODUCTS: Mapping[str, Handler] = {"ConvInteger": convolution, "MatMulInteger": matmul}
HANDLERS: Mapping[str, Handler] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    **dict.fromkeys(_PRODUCTS, _product_of_integers),
}
