"""Operators on quantised tensors: each is decomposed into DequantizeLinear, the operator on numbers, and
QuantizeLinear.

Folding then makes one layer of these nodes, as it does for networks that store them one by one (quantised_layers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from device_agents.emulated_npu.compiler.graph import constants
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant
from device_agents.emulated_npu.compiler.graph.reading.decomposition import (
    DEQUANTIZE,
    QUANTIZE,
    Decompose,
    Decomposition,
)
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import RUNTIME, ValueType
from device_agents.emulated_npu.emulator_errors import InvalidModel
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import DataType

_INTEGER_PRODUCTS = ("ConvInteger", "MatMulInteger")


def standard(node: NodeProto) -> NodeProto:
    """Return a node with an operator of ONNX in the domain ""; some of ONNX Runtime's have its name and meaning."""
    same_meaning = node.domain == RUNTIME and node.op_type in (DEQUANTIZE, QUANTIZE, "Trilu")
    if node.domain != "ai.onnx" and not same_meaning:
        return node
    same = NodeProto()
    same.CopyFrom(node)
    same.domain = ""
    return same


def with_origin(constant: LazyConstant, node: NodeProto, parents: Sequence[LazyConstant]) -> LazyConstant:
    """Return the result of a node of constants; that of a DequantizeLinear knows its integers."""
    attributes = {item.name: item.i for item in node.attribute}
    if node.op_type != DEQUANTIZE or attributes.get("block_size", 0) or not 2 <= len(parents) <= 3:
        return constant
    integers, scale, *zero = parents
    return constants.with_integers(constant, integers, scale, zero[0] if zero else None, attributes.get("axis", 1))


def evaluated(node: NodeProto, dtype: DataType) -> Callable[..., Array] | None:
    """Return the function that converts constants as a node does, to a type; None for any other node."""
    attributes = {item.name: item.i for item in node.attribute}
    if node.op_type not in (DEQUANTIZE, QUANTIZE):
        return None
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)

    def parts(tensor: Array, scale: Array, zero_point: Array | None) -> tuple[Array, Array]:
        zeros = np.zeros((), np.int32) if zero_point is None else zero_point.astype(np.int32)
        if block:
            size = range(tensor.shape[axis])
            given = (scale.astype(np.float32), zeros if zeros.ndim else np.zeros(scale.shape, np.int32))
            factor, offset = (np.take(np.repeat(each, block, axis), size, axis) for each in given)
            return factor, offset
        shape = [1] * tensor.ndim
        if max(scale.size, zeros.size) > 1:
            shape[axis] = -1
        return scale.astype(np.float32).reshape(shape), zeros.reshape(shape)

    def to_numbers(tensor: Array, scale: Array, zero_point: Array | None = None) -> Array:
        factor, zeros = parts(tensor, scale, zero_point)
        return np.asarray((tensor.astype(np.int32) - zeros).astype(np.float32) * factor)

    def to_integers(tensor: Array, scale: Array, zero_point: Array | None = None) -> Array:
        factor, zeros = parts(tensor, scale, zero_point)
        ends = np.iinfo(NUMPY_TYPES[dtype])
        return np.asarray(np.clip(np.rint(tensor.astype(np.float32) / factor) + zeros, ends.min, ends.max))

    function = to_numbers if node.op_type == DEQUANTIZE else to_integers

    def compute(*operands: Array) -> Array:
        try:
            with np.errstate(all="ignore"):
                return function(*operands)
        except (IndexError, TypeError, ValueError) as error:
            what = f"Node {node.name[:80]!r} ({node.op_type}) of constants cannot be computed"
            raise InvalidModel(what, str(error)[:200], "Export the network with constants that fit") from error

    return compute


def has_computed_zero(node: NodeProto, constants: Collection[str], types: Mapping[str, ValueType]) -> bool:
    """Return whether a node multiplies integers by constant ones, and the network computes their one zero point.

    Products of vectors whose zero points have more axes than the result are left out.
    """
    zero = node.input[2] if node.op_type in _INTEGER_PRODUCTS and len(node.input) > 2 else ""
    if zero not in types or zero in constants or node.input[1] not in constants:
        return False
    if node.input[0] not in types or math.prod(types[zero].shape) != 1:
        return False
    first, second = (len(types[name].shape) for name in node.input[:2])
    rank = max(first, second) - (first == 1) - (second == 1) if node.op_type == "MatMulInteger" else first
    return all(len(types[name].shape) <= rank for name in node.input[2:] if name in types)


def moved_product(found: Decomposition) -> None:
    """Decompose a product whose first zero point is computed.

    They subtract the product of the zero point by the second factor from the product of the integers. Zero points of
    the columns of a matrix are subtracted in the same way, times the sums of rows.
    """
    node, types = found.node, found.types
    first, second, zeros = found.required(0), found.required(1), found.input(3)
    kind = types[first]
    is_matrix = node.op_type == "MatMulInteger"
    of_columns = is_matrix and zeros in types and math.prod(types[zeros].shape) > 1
    one = (1,) * len(kind.shape[:-1][-1:])  # a row of a matrix; a vector stays one, as its products have no rows
    ones = np.ones((*one, kind.shape[-1]) if is_matrix else (1, *kind.shape[1:]), NUMPY_TYPES[kind.dtype])
    attributes = found.attributes()
    product = found.compute(node.op_type, [first, second, "", "" if of_columns else zeros], attributes)
    sums = found.compute(node.op_type, [found.constant(ones), second, "", zeros], attributes)
    moves = [(sums, found.required(2))]
    if of_columns:
        moves.append((found.compute(node.op_type, [first, found.constant(ones.reshape(-1, 1))], {}), zeros))
    for factor, zero in moves:
        whole = found.compute("Cast", [zero], {"to": TensorProto.INT32})
        product = found.compute("Sub", [product, found.compute("Mul", [factor, whole], {})], {})
    found.bound(product)


def _convolution(found: Decomposition) -> None:
    """Decompose QLinearConv; its bias has the scale of the products."""
    operands = [found.operand(0), found.operand(3, axis=0)]
    if found.input(8):
        scale = found.compute("Mul", [found.input(1), found.input(4)], {})
        operands.append(found.numbers(8, scale, "", axis=0))
    found.result(found.compute("Conv", operands, found.attributes()), 6)


def _product(found: Decomposition) -> None:
    """Decompose QLinearMatMul; several scales are those of rows and of columns."""
    operands = [found.operand(0, axis=-2), found.operand(3, axis=-1)]
    found.result(found.compute("MatMul", operands, {}), 6)


def _gemm(found: Decomposition) -> None:
    """Decompose QGemm, whose product may stay numbers."""
    attributes = found.attributes()
    operands = [found.operand(0), found.operand(3, axis=0 if attributes.get("transB") else 1)]
    if found.input(6):
        scale = found.compute("Mul", [found.input(1), found.input(4)], {})
        operands.append(found.numbers(6, scale, "", axis=0))
    numbers = found.compute("Gemm", operands, attributes)
    if found.input(7):
        found.result(numbers, 7)
    else:
        found.bound(numbers)


def _of_two(op: str) -> Decompose:
    def decompose(found: Decomposition) -> None:
        found.result(found.compute(op, [found.operand(0), found.operand(3)], {}), 6)

    return decompose


def _multiplication(found: Decomposition) -> None:
    """Decompose QLinearMul: ONNX Runtime scales the product of the integers once."""
    scales = [found.value(found.required(place)) for place in (1, 4, 6)]
    first, second, target = (np.empty(0) if scale is None else scale.reshape(-1) for scale in scales)
    if not first.size == second.size == target.size == 1:
        _of_two("Mul")(found)
        return
    one = found.constant(np.array(1, np.float32))
    product = found.compute("Mul", [found.numbers(0, one, found.input(2)), found.numbers(3, one, found.input(5))])
    factor = (first * second / target).astype(np.float32).reshape(())
    found.quantised(found.compute("Mul", [product, found.constant(factor)]), one, found.input(7))


def _of_one(op: str, *without: str) -> Decompose:
    def decompose(found: Decomposition) -> None:
        found.result(found.compute(op, [found.operand(0)], found.attributes(*without)), 3)

    return decompose


def _concatenation(found: Decomposition) -> None:
    """Decompose QLinearConcat: scale and zero point of the output, then tensor, scale and zero point of each part."""
    parts = [found.operand(place) for place in range(2, len(found.node.input), 3)]
    found.result(found.compute("Concat", parts, found.attributes()), 0)


DECOMPOSITIONS: Mapping[tuple[str, str], Decompose] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _product,
    (RUNTIME, "QGemm"): _gemm,
    (RUNTIME, "QLinearAdd"): _of_two("Add"),
    (RUNTIME, "QLinearMul"): _multiplication,
    (RUNTIME, "QLinearSigmoid"): _of_one("Sigmoid"),
    (RUNTIME, "QLinearLeakyRelu"): _of_one("LeakyRelu"),
    (RUNTIME, "QLinearSoftmax"): _of_one("Softmax", "opset"),
    (RUNTIME, "QLinearAveragePool"): _of_one("AveragePool", "channels_last"),
    (RUNTIME, "QLinearGlobalAveragePool"): _of_one("GlobalAveragePool", "channels_last"),
    (RUNTIME, "QLinearConcat"): _concatenation,
}
