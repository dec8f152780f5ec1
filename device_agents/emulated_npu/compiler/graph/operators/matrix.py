"""Matrix products: Gemm and MatMul, with one constant operand or none."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived, linear_step, reshaped_constant, transposed
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Draft, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation, Binary


def product(build: Builder, first: View, tensor: str, output: View, transpose: bool = False) -> Draft:
    """Add the product of first (batch..., rows, K) and a tensor (batch..., K, N), or transposed (batch..., N, K).

    A vector (K) is a matrix of one column.
    """
    constant, shape = build.constant(tensor), _matrix_shape(build, tensor)
    if constant is not None and math.prod(shape[:-2]) == 1:
        matrix = reshaped_constant(constant, shape[-2:])
        weights = transposed(matrix) if transpose else matrix
        return build.layer(Function.CONVOLVE, [first], output, weights=weights, matrix=True)
    second = build.view(tensor)
    if len(second.axes) == 1:
        second = views.with_axis(second, 1)
    if transpose:
        second = _exchanged(second)
    second = views.expanded(second, (*first.shape[:-2], *second.shape[-2:]))
    return build.layer(Function.CONVOLVE, [first, second], output, matrix=True)


def _matrix_shape(build: Builder, tensor: str) -> tuple[int, ...]:
    shape = build.type(tensor).shape
    return shape if len(shape) > 1 else (*shape, 1)


def _exchanged(view: View) -> View:
    rank = len(view.axes)
    return views.permuted(view, (*range(rank - 2), rank - 1, rank - 2))


def gemm(build: Builder, node: OnnxNode) -> None:
    """Add a Gemm: alpha A B + beta C; a separate layer adds C until folding."""
    first = build.view(node.inputs[0])
    if node.attribute("transA", 0):
        first = _exchanged(first)
    kind, shape = build.type(node.outputs[0]), build.type(node.inputs[1]).shape
    rows = shape[1] if node.attribute("transB", 0) else shape[0]
    if first.shape[-1] != rows:
        raise unsupported(node, f"It multiplies rows of {first.shape[-1]} elements by columns of {rows}")
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    adds = bool(node.input(2)) and beta != 0
    output = build.temporary("product", kind.shape, kind.dtype) if adds else build.result()
    draft = product(build, first, node.inputs[1], output, bool(node.attribute("transB", 0)))
    if alpha != 1:
        draft.steps.append(linear_step(alpha, 0.0))
    if adds:
        term = build.expanded(_scaled(build, node.inputs[2], beta), kind.shape, "third input")
        build.binary(Binary.ADD, output, term, build.result())


def _scaled(build: Builder, tensor: str, factor: float) -> View:
    if factor == 1:
        return build.view(tensor)
    kind, constant = build.type(tensor), build.constant(tensor)
    if constant is not None:
        name = f"{tensor}.times.{factor:.9g}"
        return build.constant_view(derived(name, kind.shape, kind.dtype, (constant,), lambda array: array * factor))
    scaled = build.temporary("scaled", kind.shape, kind.dtype)
    build.map(build.view(tensor), scaled, Activation.SCALE, factor, 0.0)
    return scaled


def matmul(build: Builder, node: OnnxNode) -> None:
    """Add a MatMul of any ranks with broadcast batches; vectors get a second axis of size 1."""
    first = build.view(node.inputs[0])
    if len(first.axes) == 1:
        first = views.with_axis(first, 0)
    output, inner = build.result(), _matrix_shape(build, node.inputs[1])
    batch = np.broadcast_shapes(first.shape[:-2], inner[:-2])
    matrix = views.divided(output, (*batch, first.shape[-2], inner[-1]))
    product(build, views.expanded(first, (*batch, *first.shape[-2:])), node.inputs[1], matrix)


HANDLERS: Mapping[str, Handler] = {"Gemm": gemm, "MatMul": matmul}
