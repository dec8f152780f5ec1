"""Products of integers: the numbers that scale their exact sums (docs/isa.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from device_agents.emulated_npu.compiler.graph.constants import ChannelStep, derived, scale_shift, value_of
from device_agents.emulated_npu.compiler.graph.drafts import IntegerProduct
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType
from device_agents.emulated_npu.unit_settings import Activation, Quantisation

_SAME_SCALE = 1e-5
"""The largest relative difference of scales that count as equal: files store rounded products."""


def finished_product(layer: HardwareLayer, product: IntegerProduct, steps: Sequence[ChannelStep]) -> HardwareLayer:
    """Return a layer that multiplies integers with the numbers that scale its sums.

    A bias of integers is added before the sums are scaled. If nothing stands between the sums and their quantisation,
    they are scaled to it directly. Both are what ONNX Runtime does. Other steps are linear functions of scaled sums.
    """
    channels, settings = layer.output.axes[channel_axis(layer)].size, layer.settings
    zero, zeros = _zero_points(product.zero_point)
    bias = _integer_bias(product, steps)
    is_exact = bias is not None or not steps
    target, divisor = settings.quantised_target, 1.0
    if target.scale and is_exact and settings.activation is Activation.NONE and layer.residual is None:
        target, divisor = Quantisation(1.0, target.zero_point), target.scale
    factors = _factors(f"{layer.name}.factors", product, divisor, channels)
    settings = replace(
        settings,
        quantised_target=target,
        quantised_first=Quantisation(1.0, product.first.zero_point),
        quantised_second=Quantisation(1.0, zero),
    )
    values = value_of(factors) if math.prod(product.scale.shape) == 1 else None
    if not steps and zeros is None and values is not None and 0 < values[0] < math.inf:
        first = Quantisation(float(values[0]), product.first.zero_point)
        return replace(layer, settings=replace(settings, quantised_first=first))
    name = f"{layer.name}.scale_shift"
    if is_exact:
        return replace(layer, settings=settings, scale_shift=_exact_rows(name, factors, bias, zeros))
    scaling = ChannelStep((factors,), lambda scale, shift, factor: (scale * factor, shift))
    pair = scale_shift(name, (scaling, *steps), channels, DataType.FLOAT32)
    return replace(layer, settings=settings, scale_shift=pair if zeros is None else _with_row(pair, zeros))


def _factors(name: str, product: IntegerProduct, divisor: float, channels: int) -> LazyConstant:
    """Return the number that an integer of the sums represents, for each channel, in units of the divisor."""

    def compute(scale: Array) -> Array:
        factors = np.float32(product.first.scale) * scale.reshape(-1).astype(np.float32) / np.float32(divisor)
        return np.broadcast_to(factors, (channels,))

    return derived(name, (channels,), DataType.FLOAT32, (product.scale,), compute)


def _zero_points(constant: LazyConstant | None) -> tuple[int, LazyConstant | None]:
    """Return the zero point of all channels, or 0 and the constant if channels have different or unknown ones."""
    if constant is None:
        return 0, None
    values = value_of(constant)
    if values is None or np.ptp(values.astype(np.int64)):
        return 0, constant
    return int(values.flat[0]), None


def _integer_bias(product: IntegerProduct, steps: Sequence[ChannelStep]) -> LazyConstant | None:
    """Return the integers of a bias that has the scale of the sums; None if the steps are anything else."""
    added = steps[0].added if len(steps) == 1 else None
    code = None if added is None else added.quantised
    if code is None or code.integers.dtype is not DataType.INT32:
        return None
    zero = None if code.zero_point is None else value_of(code.zero_point)
    scales = value_of(code.scale), value_of(product.scale)
    if (zero is not None and zero.any()) or any(scale is None for scale in scales):
        return None
    own, factor = (np.asarray(scale, np.float64).reshape(-1) for scale in scales)
    fits = own.size in (1, factor.size) or factor.size == 1
    same = fits and np.allclose(own, factor * product.first.scale, rtol=_SAME_SCALE, atol=0.0)
    return code.integers if same else None


def _exact_rows(
    name: str, factors: LazyConstant, bias: LazyConstant | None, zeros: LazyConstant | None
) -> LazyConstant:
    """Return the rows of an INT32 operand: numbers added to sums, bits of their factors, and zero points if any."""
    (channels,) = factors.shape
    others = [constant for constant in (bias, zeros) if constant is not None]
    number = 2 if zeros is None else 3

    def compute(scale: Array, *values: Array) -> Array:
        rows = np.zeros((number, channels), np.int32)
        rows[1] = np.ascontiguousarray(scale, np.float32).view(np.int32)
        places = [0] * (bias is not None) + [2] * (zeros is not None)
        for place, row in zip(places, values, strict=True):
            rows[place] = row.reshape(-1)
        return rows

    return derived(name, (number, channels), DataType.INT32, (factors, *others), compute)


def _with_row(pair: LazyConstant, zeros: LazyConstant) -> LazyConstant:
    """Return a scale and shift with the zero points of the channels as a third row."""
    channels = pair.shape[1]

    def compute(rows: Array, values: Array) -> Array:
        return np.concatenate([rows, np.broadcast_to(values.reshape(-1).astype(np.float32), (1, channels))])

    return derived(f"{pair.name}.zeros", (3, channels), pair.dtype, (pair, zeros), compute)
