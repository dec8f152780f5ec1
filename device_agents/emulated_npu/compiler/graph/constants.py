"""Tensors known before a network runs: initializers, values computed from them, and folded scales and shifts.

A model may come without its weights. Computations on constants are therefore described at compile time and run when
the weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant, QuantisedConstant
from device_agents.emulated_npu.emulator_errors import InvalidModel
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import DataType

_EVALUATION_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that ONNX's reference raises for operands that do not fit the operator."""
FLOATS = frozenset({DataType.FLOAT32, DataType.FLOAT16, DataType.FLOAT64})
BYTES = frozenset({DataType.INT8, DataType.UINT8})
CONVERTED = BYTES | {DataType.INT16, DataType.UINT16}
"""Integers that units convert to numbers and back."""


def known(name: str, array: Array, dtype: DataType) -> LazyConstant:
    """Return a constant with known values."""
    typed: Array = np.asarray(array).astype(NUMPY_TYPES[dtype])
    return LazyConstant(name, typed.shape, dtype, (), lambda: typed)


def initializer(tensor: TensorProto, dtype: DataType) -> LazyConstant:
    """Return the constant of an initializer; without data in the model, it is its own source."""
    shape = tuple(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL:
        return LazyConstant(tensor.name, shape, dtype, (tensor.name,), lambda array: _unpacked(array, shape, dtype))
    kind = NUMPY_TYPES[dtype]
    return LazyConstant(tensor.name, shape, dtype, (), lambda: numpy_helper.to_array(tensor).astype(kind, copy=False))


def _unpacked(array: Array, shape: Sequence[int], dtype: DataType) -> Array:
    """Return the elements of a weight; two of four bits share a byte, the first one in its lower half."""
    if array.dtype.kind != "V":
        return np.asarray(array).reshape(shape)
    halves = array.view(np.uint8)[:, None] >> np.array([0, 4], np.uint8) & 15
    elements = halves.reshape(-1)[: math.prod(shape)].astype(NUMPY_TYPES[dtype]).reshape(shape)
    return elements - 16 * (elements > 7) if dtype is DataType.INT8 else elements


def value_of(constant: LazyConstant) -> Array | None:
    """Return the values, or None if they depend on weights that are not loaded."""
    return None if constant.sources else np.asarray(constant.compute())


def scalar_of(constant: LazyConstant) -> float | None:
    """Return the element of a constant with one known element, else None."""
    if math.prod(constant.shape) != 1:
        return None
    value = value_of(constant)
    return None if value is None else float(value.reshape(()))


def number_of(number: float, dtype: np.dtype[Any]) -> Array:
    """Return a number in an element type; infinite ones are the ends of integers."""
    if dtype.kind == "f":
        return np.array(number, dtype)
    ends = np.iinfo(dtype)
    return np.array(int(min(max(number, ends.min), ends.max)), dtype)


def derived(
    name: str, shape: Sequence[int], dtype: DataType, parents: Sequence[LazyConstant], function: Callable[..., Any]
) -> LazyConstant:
    """Return the constant `function(*values of parents)`; equal names must mean equal values."""
    sources = tuple(source for parent in parents for source in parent.sources)

    def compute(*arrays: Array) -> Array:
        made = np.asarray(function(*_evaluated(parents, arrays)))
        return made.astype(NUMPY_TYPES[dtype], copy=False).reshape(tuple(shape))

    return LazyConstant(name, tuple(shape), dtype, sources, compute)


def _evaluated(parents: Sequence[LazyConstant], arrays: Sequence[Array]) -> list[Array]:
    rest: Iterator[Array] = iter(arrays)
    return [np.asarray(parent.compute(*(next(rest) for _ in parent.sources))) for parent in parents]


def transposed(constant: LazyConstant) -> LazyConstant:
    """Return a matrix with its axes exchanged."""
    rows, columns = constant.shape
    found = derived(f"{constant.name}.T", (columns, rows), constant.dtype, (constant,), np.transpose)
    code = constant.quantised
    if code is None:
        return found
    axis = None if code.axis is None else 1 - code.axis
    return replace(found, quantised=replace(code, integers=transposed(code.integers), axis=axis))


def reshaped_constant(constant: LazyConstant, shape: Sequence[int]) -> LazyConstant:
    """Return the constant with another shape."""
    if constant.shape == tuple(shape):
        return constant
    name = f"{constant.name}.{'x'.join(map(str, shape))}"
    found = derived(name, shape, constant.dtype, (constant,), lambda array: array)
    code, missing = constant.quantised, len(constant.shape) - len(shape)
    if code is None:
        return found
    integers = reshaped_constant(code.integers, shape)
    if code.axis is None:
        return replace(found, quantised=replace(code, integers=integers))
    if not 0 <= missing <= code.axis or constant.shape[missing:] != tuple(shape):
        return found
    return replace(found, quantised=replace(code, integers=integers, axis=code.axis - missing))


def converted(constant: LazyConstant, dtype: DataType) -> LazyConstant:
    """Return the constant in another element type."""
    if constant.dtype == dtype:
        return constant
    name = f"{constant.name}.{dtype.name.lower()}"
    return derived(name, constant.shape, dtype, (constant,), lambda array: array)


def evaluated_node(node: NodeProto, opset: int, index: int) -> Callable[..., Any]:
    """Return the function that computes output `index` of a node from its present inputs, by ONNX's reference."""
    present = [name for name in dict.fromkeys(node.input) if name]

    def compute(*values: Array) -> Any:
        from onnx.reference import ReferenceEvaluator

        alone = NodeProto()
        alone.CopyFrom(node)
        feeds = dict(zip((name for name in node.input if name), values, strict=True))
        graph = helper.make_graph(
            [alone],
            "constant",
            [helper.make_empty_tensor_value_info(name) for name in present],
            [helper.make_empty_tensor_value_info(node.output[index])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        try:
            results: Any = ReferenceEvaluator(model).run(None, feeds)
        except _EVALUATION_ERRORS as error:
            what = f"Node {node.name[:80]!r} ({node.op_type[:80]}) of constants cannot be computed"
            raise InvalidModel(what, str(error)[:200], "Export the network with constants that fit") from error
        return results[0]

    return compute


def with_integers(
    constant: LazyConstant, integers: LazyConstant, scale: LazyConstant, zero_point: LazyConstant | None, axis: int
) -> LazyConstant:
    """Return a constant with the integers that a DequantizeLinear along `axis` computes it from.

    A constant of other parameters (blocks of an axis, other types) is returned as it is.
    """
    rank, count = len(integers.shape), math.prod(scale.shape)
    known_type = integers.dtype in (*BYTES, DataType.INT32) and scale.dtype is DataType.FLOAT32
    along = rank > 0 and -rank <= axis < rank and scale.shape == (integers.shape[axis],)
    if zero_point is not None:
        known_type = known_type and zero_point.dtype is integers.dtype
        along, count = along and zero_point.shape in ((), (1,), scale.shape), max(count, math.prod(zero_point.shape))
    if not known_type or not (count == 1 or along):
        return constant
    code = QuantisedConstant(integers, scale, zero_point, None if count == 1 else axis % rank)
    return replace(constant, quantised=code)


@dataclass(frozen=True)
class ChannelStep:
    """One affine step along channels: `apply(scale, shift, *values)` returns the new scale and shift in float64.

    The values of `parents` are flat: one number, or one for every channel.
    """

    parents: tuple[LazyConstant, ...]
    apply: Callable[..., tuple[Any, Any]]

    @property
    def added(self) -> LazyConstant | None:
        """The constant that the step adds; None if it does anything else."""
        return self.parents[0] if self.apply is _added else None


def _added(scale: Array, shift: Array, values: Array) -> tuple[Any, Any]:
    return scale, shift + values


def addition_step(constant: LazyConstant) -> ChannelStep:
    """Return the step x -> x + constant."""
    return ChannelStep((constant,), _added)


def linear_step(factor: float, offset: float) -> ChannelStep:
    """Return the step x -> factor x + offset."""
    return ChannelStep((), lambda scale, shift: (scale * factor, shift * factor + offset))


def batch_normalisation_step(parameters: Sequence[LazyConstant], epsilon: float) -> ChannelStep:
    """Return batch normalisation at inference; `parameters` are scale, bias, mean and variance."""

    def apply(scale: Array, shift: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> tuple[Any, Any]:
        factor = gamma / np.sqrt(variance + epsilon)
        return scale * factor, (shift - mean) * factor + beta

    return ChannelStep(tuple(parameters), apply)


def _folded(steps: Sequence[ChannelStep], channels: int, arrays: Sequence[Array]) -> Array:
    """Return scale and shift (2, channels) of all steps in sequence, in float64."""
    scale, shift = np.ones(channels), np.zeros(channels)
    rest = iter(arrays)
    for step in steps:
        values = [np.asarray(next(rest), np.float64).reshape(-1) for _ in step.parents]
        scale, shift = step.apply(scale, shift, *values)
    return np.stack([scale, shift])


def scale_shift(name: str, steps: Sequence[ChannelStep], channels: int, dtype: DataType) -> LazyConstant:
    """Return the steps as one scale and shift (2, channels), computed in float64 and rounded once."""
    parents = [parent for step in steps for parent in step.parents]
    return derived(name, (2, channels), dtype, parents, lambda *arrays: _folded(steps, channels, arrays))


def part_of(pair: LazyConstant, index: int, name: str) -> LazyConstant:
    """Return row `index` of a scale and shift: a constant (channels,)."""
    return derived(name, pair.shape[1:], pair.dtype, (pair,), lambda array: array[index])
