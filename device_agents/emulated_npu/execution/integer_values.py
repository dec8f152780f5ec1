"""Integers that represent numbers: conversion where a unit reads and writes, and sums of products of bytes.

All arithmetic is float32 with one rounding for each operation, as in ONNX Runtime's kernels: an integer is centred,
converted and multiplied by the scale; a number is divided by the scale, clamped, and rounded with halves to even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from device_agents.emulated_npu.execution.operand_checks import fault
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command
from device_agents.emulated_npu.unit_settings import UNQUANTISED, Quantisation

_EXACT_IN_FLOAT32 = 1 << 24
_LARGEST_FACTOR = 255
_ZERO_POINT_ROW = 2


def evaluate(
    evaluator: Callable[..., Array], command: Command, target: Array, sources: Sequence[Array | None]
) -> Array:
    """Return the values of a command with quantised operands: the evaluator sees the numbers that they represent.

    Products of bytes stay integers until their sums are complete; the evaluators of these functions scale them.
    Raises ExecutionFault for operands that cannot be quantised.
    """
    settings = command.settings
    if command.function.is_transfer:
        raise fault(command, "it moves data and does not convert them")
    codes = [settings.quantised_first, settings.quantised_second, settings.quantised_third]
    if _of_bytes(command, sources):
        codes[:2] = UNQUANTISED, UNQUANTISED
    numbers = [
        source if source is None else decoded(command, source, code)
        for source, code in zip(sources, (*codes, UNQUANTISED), strict=False)
    ]
    if not settings.quantised_target.scale:
        return evaluator(command, target, *numbers)
    if command.accumulate:
        raise fault(command, "it adds to a quantised target")
    made = evaluator(command, np.broadcast_to(np.float32(0), target.shape), *numbers)
    return encoded(command, made, settings.quantised_target, target.dtype)


def decoded(command: Command, integers: Array, quantisation: Quantisation) -> Array:
    """Return the float32 numbers that integers represent; unquantised elements are returned as they are.

    Raises ExecutionFault for other types than integers of 8 to 32 bits, and a zero point that is none of the type.
    """
    if not quantisation.scale:
        return integers
    _check(command, integers.dtype, quantisation, (1, 2, 4))
    centred = integers.astype(np.int32) - np.int32(quantisation.zero_point)
    return np.asarray(centred.astype(np.float32) * np.float32(quantisation.scale))


def encoded(command: Command, numbers: Array, quantisation: Quantisation, dtype: np.dtype[Any]) -> Array:
    """Return the nearest integers of a type for numbers, halves to even, saturated; the lowest one for NaN.

    Raises ExecutionFault for other types than integers of 8 and 16 bits, and a zero point that is none of the type.
    """
    _check(command, dtype, quantisation, (1, 2))
    zero, ends = quantisation.zero_point, np.iinfo(dtype)
    scaled = numbers.astype(np.float32, copy=False) / np.float32(quantisation.scale)
    clamped = np.fmin(np.fmax(scaled, np.float32(ends.min - zero)), np.float32(ends.max - zero))
    return np.asarray((np.rint(clamped) + np.float32(zero)).astype(dtype))


def _check(command: Command, dtype: np.dtype[Any], quantisation: Quantisation, sizes: tuple[int, ...]) -> None:
    if dtype.kind not in "iu" or dtype.itemsize not in sizes:
        raise fault(command, f"a quantised operand is {dtype.name}")
    ends = np.iinfo(dtype)
    if not ends.min <= quantisation.zero_point <= ends.max:
        raise fault(command, f"the zero point {quantisation.zero_point} is not a valid {dtype.name} value")


def _of_bytes(command: Command, sources: Sequence[Array | None]) -> bool:
    return command.function.multiplies and all(
        source is not None and source.dtype.kind in "iu" and source.dtype.itemsize == 1 for source in sources[:2]
    )


def multiplies_integers(command: Command, first: Array, second: Array) -> bool:
    """Return whether a product of this command is one of quantised bytes, whose sums are scaled at the end."""
    return bool(command.settings.quantised_first.scale) and _of_bytes(command, (first, second))


def centred(
    command: Command, first: Array, second: Array, fourth: Array | None, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return both factors less their zero points; a third row of `fourth` has those of the channels of `second`.

    Raises ExecutionFault for a zero point that is not an integer of its factor's type.
    """
    codes = command.settings.quantised_first, command.settings.quantised_second
    for factor, code in zip((first, second), codes, strict=True):
        _check(command, factor.dtype, code, (1,))
    zeros: Any = codes[1].zero_point
    if fourth is not None and len(fourth) > _ZERO_POINT_ROW:
        zeros = fourth[_ZERO_POINT_ROW].astype(dtype)
    return first.astype(dtype) - dtype.type(codes[0].zero_point), second.astype(dtype) - zeros


def exact_type(reduced: int) -> np.dtype[Any]:
    """Return the floating type in which sums of `reduced` products of centred bytes are exact."""
    return np.dtype(np.float32 if reduced * _LARGEST_FACTOR**2 <= _EXACT_IN_FLOAT32 else np.float64)


def scaled_sums(command: Command, sums: Array, target: Array, fourth: Array | None) -> Array:
    """Return complete sums of integers as numbers, or as INT32 for a target of INT32.

    Sums wrap around in 32 bits. Raises ExecutionFault for a fourth operand that does not fit.
    """
    channels = target.shape[3:]
    if fourth is not None and (fourth.shape[1:] != channels or len(fourth) not in (2, 3)):
        raise fault(command, f"the operand fourth has the dims {fourth.shape} for channels {channels}")
    if fourth is not None and fourth.dtype not in (np.int32, np.float32):
        raise fault(command, f"the operand fourth is {fourth.dtype.name}")
    if fourth is not None and command.accumulate:
        raise fault(command, "it adds to its target and scales the sum")
    whole = sums.astype(np.int64, copy=False).astype(np.int32)
    exact = fourth is not None and fourth.dtype == np.int32
    if fourth is not None and exact:
        whole += fourth[0]
    if target.dtype == np.int32:
        return whole
    settings = command.settings
    numbers = whole.astype(np.float32)
    numbers *= np.float32(settings.quantised_first.scale) * np.float32(settings.quantised_second.scale or 1)
    if fourth is not None and exact:
        numbers *= np.ascontiguousarray(fourth[1]).view(np.float32)
    elif fourth is not None:
        numbers *= fourth[0]
        numbers += fourth[1]
    return numbers
