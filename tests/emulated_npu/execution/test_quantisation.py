"""Quantised operands of commands: conversion where units read and write, and products of integers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scratchpad import Scratchpad

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command, Function, Space
from device_agents.emulated_npu.unit_settings import Activation, Binary, Quantisation, Settings

BYTES = st.sampled_from([np.dtype(np.int8), np.dtype(np.uint8)])
SCALES = st.floats(min_value=2.0**-20, max_value=2.0**20, width=32)
ONE = Quantisation(1.0, 0)


@st.composite
def codes(draw: st.DrawFn) -> tuple[np.dtype[Any], Quantisation]:
    """Draw a type of bytes and a quantisation with a zero point of it."""
    dtype = draw(BYTES)
    ends = np.iinfo(dtype)
    return dtype, Quantisation(draw(SCALES), draw(st.integers(int(ends.min), int(ends.max))))


def copied(array: Array, dtype: Any, settings: Settings) -> Array:
    """Return the elements that a COPY writes."""
    pad = Scratchpad()
    first = pad.put(array)
    return pad.run(Command(Function.COPY, pad.room(array.shape, dtype), first, settings=settings))


@given(codes(), st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_quantised_target(code: tuple[np.dtype[Any], Quantisation], numbers: list[float]) -> None:
    """A number becomes the nearest integer of its quotient by the scale, halves to even, saturated."""
    dtype, quantisation = code
    ends = np.iinfo(dtype)
    array = np.array(numbers, np.float32)
    with np.errstate(over="ignore"):
        quotients = array / np.float32(quantisation.scale)
    found = copied(array, dtype, Settings(quantised_target=quantisation))
    for quotient, integer in zip(quotients.tolist(), found.tolist(), strict=True):
        far = not -1000 < quotient < 1000
        nearest = (1000 if quotient > 0 else -1000) if far else round(quotient)
        assert integer == min(max(nearest + quantisation.zero_point, ends.min), ends.max)


@given(codes())
def test_conversions_are_inverse(code: tuple[np.dtype[Any], Quantisation]) -> None:
    """Every integer becomes a number and the same integer again, by two copies and by one."""
    dtype, quantisation = code
    ends = np.iinfo(dtype)
    every = np.arange(ends.min, ends.max + 1).astype(dtype)
    numbers = copied(every, np.float32, Settings(quantised_first=quantisation))
    assert numbers.tolist() == [
        np.float32(int(each) - quantisation.zero_point) * np.float32(quantisation.scale) for each in every
    ]
    assert (copied(numbers, dtype, Settings(quantised_target=quantisation)) == every).all()
    both = Settings(quantised_first=quantisation, quantised_target=quantisation)
    assert (copied(every, dtype, both) == every).all()


def test_not_a_number_becomes_the_lowest() -> None:
    """The lowest integer stands for what is not a number, and infinities saturate."""
    array = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert copied(array, np.int8, Settings(quantised_target=Quantisation(0.5, 3))).tolist() == [-128, 127, -128]


@given(codes(), codes(), codes(), st.integers(0, 2**32 - 1))
def test_sum_of_quantised_operands(
    first: tuple[np.dtype[Any], Quantisation],
    second: tuple[np.dtype[Any], Quantisation],
    target: tuple[np.dtype[Any], Quantisation],
    seed: int,
) -> None:
    """A function of quantised operands is the function between three copies that convert."""
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 20, dtype, endpoint=True) for dtype, _ in (first, second)
    ]
    pad = Scratchpad()
    settings = Settings(
        mode=Binary.ADD,
        activation=Activation.RELU,
        quantised_first=first[1],
        quantised_second=second[1],
        quantised_target=target[1],
    )
    room = pad.room((20,), target[0])
    found = pad.run(Command(Function.BINARY, room, *map(pad.put, arrays), settings=settings))
    numbers = [
        copied(array, np.float32, Settings(quantised_first=code))
        for array, (_, code) in zip(arrays, (first, second), strict=True)
    ]
    total = np.maximum(numbers[0] + numbers[1], 0)
    assert (found == copied(total, target[0], Settings(quantised_target=target[1]))).all()


def product(first: Array, second: Array, target: Any, settings: Settings, fourth: Array | None = None) -> Array:
    """Return the product of (rows, K) and (K, N) by the matrix unit."""
    pad = Scratchpad()
    rows, columns = len(first), second.shape[1]
    return pad.run(
        Command(
            Function.CONVOLVE,
            pad.room((1, 1, rows, columns), target),
            pad.put(first.reshape(1, 1, *first.shape)),
            pad.put(second.reshape(1, 1, 1, *second.shape), Space.SB),
            fourth=None if fourth is None else pad.put(fourth, Space.SB),
            settings=settings,
        )
    )[0, 0]


@given(codes(), codes(), st.sampled_from([3, 300]), st.integers(0, 2**32 - 1))
def test_product_of_integers(
    first: tuple[np.dtype[Any], Quantisation], second: tuple[np.dtype[Any], Quantisation], depth: int, seed: int
) -> None:
    """Sums of products of integers less their zero points are exact, with a bias and zero points of the channels."""
    rng = np.random.default_rng(seed)
    x, w = (
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        for (dtype, _), shape in zip((first, second), ((4, depth), (depth, 5)), strict=True)
    )
    zeros = rng.integers(np.iinfo(second[0]).min, np.iinfo(second[0]).max, 5, np.int32, endpoint=True)
    bias = rng.integers(-(2**20), 2**20, 5, np.int32)
    centred = x.astype(np.int64) - first[1].zero_point
    settings = Settings(
        quantised_first=Quantisation(1.0, first[1].zero_point), quantised_second=Quantisation(1.0, second[1].zero_point)
    )
    plain = product(x, w, np.int32, settings)
    assert (plain == centred @ (w.astype(np.int64) - second[1].zero_point)).all()
    factors = rng.uniform(0.001, 1, 5).astype(np.float32)
    rows = np.stack([bias, factors.view(np.int32), zeros])
    exact = centred @ (w.astype(np.int64) - zeros) + bias
    assert (product(x, w, np.float32, settings, rows) == exact.astype(np.float32) * factors).all()


@pytest.mark.parametrize("function", [Function.CONVOLVE, Function.DEPTHWISE])
def test_padding_is_the_number_zero(function: Function) -> None:
    """A window on padding alone has the sum 0, whatever the zero point is."""
    pad = Scratchpad()
    deep = (1,) * (function is Function.DEPTHWISE)
    settings = Settings(
        kernel=(1, 3, 3), pad=(0, 3, 3), quantised_first=Quantisation(1.0, 100), quantised_second=Quantisation(1.0, 7)
    )
    space = Space.NB if deep else Space.SB
    first = pad.put(np.full((1, 2, 2, 1, *deep), 200, np.uint8))
    second = pad.put(np.full((1, 3, 3, 1, 1), 9, np.int8), space)
    found = pad.run(Command(function, pad.room((1, 1, 1, 1, *deep), np.int32), first, second, settings=settings))
    assert found.item() == 0


@pytest.mark.parametrize(
    ("settings", "dtype", "why"),
    [
        (Settings(quantised_first=Quantisation(0.5, 0)), np.float32, "float32"),
        (Settings(quantised_first=Quantisation(0.5, 200)), np.int8, "200"),
        (Settings(quantised_target=Quantisation(0.5, 0)), np.float32, "float32"),
    ],
)
def test_operands_that_cannot_be_quantised(settings: Settings, dtype: Any, why: str) -> None:
    """Floating operands, and zero points that are no integer of the type, fault with the reason."""
    with pytest.raises(ExecutionFault) as fault:
        copied(np.zeros(3, dtype), np.float32, settings)
    assert why in fault.value.why


def test_transfers_do_not_convert() -> None:
    """A LOAD with a quantised operand faults."""
    pad = Scratchpad()
    first = pad.put(np.zeros(3, np.int8), Space.DDR)
    with pytest.raises(ExecutionFault, match="LOAD"):
        pad.run(Command(Function.LOAD, pad.room((3,), np.int8), first, settings=Settings(quantised_first=ONE)))


def test_quantised_target_does_not_accumulate() -> None:
    """Sums that are not complete cannot lie in a quantised target."""
    pad = Scratchpad()
    first = pad.put(np.zeros((1, 1, 2, 3), np.int8))
    second = pad.put(np.zeros((1, 1, 1, 3, 4), np.int8), Space.SB)
    settings = Settings(quantised_first=ONE, quantised_second=ONE, quantised_target=ONE)
    command = Command(
        Function.CONVOLVE, pad.room((1, 1, 2, 4), np.int8), first, second, settings=settings, accumulate=True
    )
    with pytest.raises(ExecutionFault, match="CONVOLVE"):
        pad.run(command)
