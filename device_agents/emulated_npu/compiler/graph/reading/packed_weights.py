"""Products by weights of few bits, products of integers with a scale, and embeddings of ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from device_agents.emulated_npu.compiler.graph.constants import FLOATS
from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decompose, Decomposition
from device_agents.emulated_npu.compiler.graph.reading.fused import EPSILON

_NUMBER = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}


def _few_bits(found: Decomposition) -> None:
    """Decompose MatMulNBits: blocks of a row of weights have one scale and one zero point each."""
    given = found.attributes()
    try:
        columns, rows, bits, block = (int(given[name]) for name in ("N", "K", "bits", "block_size"))
    except KeyError as error:
        raise found.invalid(f"It has no attribute {error.args[0]}") from error
    if bits not in (2, 4, 8) or min(columns, rows, block) < 1:
        raise found.unsupported(f"The compiler does not support {bits} bits in blocks of {block}")
    if found.input(4):
        raise found.unsupported("The compiler does not support its order of blocks")
    blocks = -(-rows // block)
    _check_size(found, 1, columns * blocks * -(-block * bits // 8))
    _check_size(found, 2, columns * blocks)
    weights = _unpacked(found, found.required(1), bits, (columns, blocks, block))
    scales = found.reshaped(found.required(2), (columns, blocks, 1))
    if not found.input(3):
        zeros = found.number(float(1 << bits - 1))
    elif found.types[found.input(3)].dtype in FLOATS:
        _check_size(found, 3, columns * blocks)
        zeros = found.reshaped(found.input(3), (columns, blocks, 1))
    else:
        _check_size(found, 3, columns * -(-blocks * bits // 8))
        zeros = _unpacked(found, found.input(3), bits, (columns, blocks, 1))
    numbers = found.compute("Mul", [found.compute("Sub", [weights, zeros]), scales])
    matrix = found.sliced(found.reshaped(numbers, (columns, blocks * block)), 1, 0, rows)
    product = found.compute("MatMul", [found.required(0), found.transposed(matrix, (1, 0))])
    if found.input(5):
        product = found.compute("Add", [product, found.input(5)])
    found.bound(product)


def _check_size(found: Decomposition, place: int, wanted: int) -> None:
    """Raise InvalidModel if an input has another number of elements than the attributes say."""
    size = math.prod(found.types[found.required(place)].shape)
    if size != wanted:
        raise found.invalid(f"Its input {place} has {size} elements; N, K, bits and block_size need {wanted}")


def _unpacked(found: Decomposition, tensor: str, bits: int, shape: tuple[int, int, int]) -> str:
    """Return numbers from bytes that hold several, the first one in the lowest bits; rows end with a byte."""
    _, blocks, block = shape
    whole, parts = found.compute("Cast", [tensor], {"to": TensorProto.INT32}), 8 // bits
    row = blocks * block if block == 1 else block  # zero points share the bytes of a row, weights those of a block
    stored = -(-row // parts)
    whole = found.reshaped(whole, (-1, stored, 1))
    several, base = [], found.constant(np.array(1 << bits, np.int32))
    for _ in range(parts):
        rest = found.compute("Div", [whole, base])
        several.append(found.compute("Sub", [whole, found.compute("Mul", [rest, base])]))
        whole = rest
    elements = found.reshaped(found.joined(several, 2), (-1, stored * parts))
    if stored * parts > row:
        elements = found.sliced(elements, 1, 0, row)
    numbers = found.compute("Cast", [elements], {"to": _NUMBER[found.number_type]})
    return found.reshaped(numbers, shape)


def _scaled_integers(found: Decomposition) -> None:
    """Decompose MatMulIntegerToFloat: a product of integers, its scales, and a bias."""
    factors = [found.required(0), found.required(1), found.input(4), found.input(5)]
    found.bound(scaled_product(found, factors, [found.required(2), found.required(3)], found.input(6)))


def _dynamic(found: Decomposition) -> None:
    """Decompose DynamicQuantizeMatMul, whose first factor becomes integers of 8 bits first."""
    first, scale, zero = found.compute_several("DynamicQuantizeLinear", [found.required(0)], 3)
    factors = [first, found.required(1), zero, found.input(3)]
    found.bound(scaled_product(found, factors, [scale, found.required(2)], found.input(4)))


def scaled_product(found: Decomposition, factors: list[str], scales: list[str], bias: str) -> str:
    """Return a product of integers, which may have zero points, times two scales, plus a bias if there is one."""
    while not factors[-1]:
        factors = factors[:-1]
    numbers = found.compute("Cast", [found.compute("MatMulInteger", factors)], {"to": TensorProto.FLOAT})
    product = found.compute("Mul", [numbers, found.compute("Mul", scales)])
    return found.compute("Add", [product, bias]) if bias else product


def _embedded(found: Decomposition) -> None:
    """Decompose EmbedLayerNormalization: rows of three tables by words, places and segments, added and normalised."""
    batch, rows = found.shape(0, 2)
    total = found.compute("Gather", [found.required(2), found.required(0)], {"axis": 0})
    if found.input(8):
        place = found.compute("Gather", [found.required(3), found.input(8)], {"axis": 0})
    else:
        place = found.sliced(found.required(3), 0, 0, rows)
    total = found.compute("Add", [total, place])
    if found.input(1) and found.input(4):
        segment = found.compute("Gather", [found.input(4), found.input(1)], {"axis": 0})
        total = found.compute("Add", [total, segment])
    epsilon = found.attributes().get("epsilon", EPSILON)
    normal = [total, found.required(5), found.required(6)]
    found.bound(found.compute("LayerNormalization", normal, {"axis": -1, "epsilon": epsilon}))
    if found.output(1) and found.input(7):
        found.bound(found.reshaped(found.reduced("ReduceSum", found.input(7), 1), (batch,)), 1)
    elif found.output(1):
        found.bound(found.constant(np.zeros(batch, np.int32)), 1)
    found.bound(total, 2)


DECOMPOSITIONS: Mapping[str, Decompose] = {
    "MatMulNBits": _few_bits,
    "MatMulIntegerToFloat": _scaled_integers,
    "DynamicQuantizeMatMul": _dynamic,
    "EmbedLayerNormalization": _embedded,
}
