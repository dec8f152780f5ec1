"""Layers on integers: a layer that works on converted integers reads the integers themselves (S3.6).

Units convert integers where they read them (docs/isa.md), so the conversions before them disappear. A product of
two factors of bytes becomes one of integers, with the numbers that scale its exact sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import (
    BYTES,
    ChannelStep,
    derived,
    known,
    scale_shift,
    value_of,
)
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Draft, IntegerProduct
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, View
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Quantisation

CONVERTING = frozenset(function for function in Function if not function.is_transfer)
"""The functions whose units convert integers."""
_SLOTS = ("quantised_first", "quantised_second", "quantised_third")
_SAME_SCALE = 1e-5
"""The largest relative difference of scales that count as equal: files store rounded products."""


def read_integers(build: Builder) -> tuple[str, ...]:
    """Let layers read integers instead of the numbers converted from them; return the names of nodes that are free.

    Conversions that nothing reads any more are removed. Their nodes belong to the first layer that converts instead.
    """
    first_reader: dict[str, Draft] = {}
    for draft in build.drafts:
        if draft.layer.function not in CONVERTING:
            continue
        if draft.layer.function.multiplies:
            _multiply_integers(build, draft)
        for place, view in enumerate(draft.layer.inputs[: len(_SLOTS)]):
            if view.value in build.integers:
                integers, code = build.integers[view.value]
                first_reader.setdefault(view.value, draft)
                _set_input(draft, place, views.composed(view, integers), code)
    return _drop_conversions(build, first_reader)


def _set_input(draft: Draft, place: int, view: View, code: Quantisation) -> None:
    """Make the draft read a quantised view; a product of integers has its quantisation apart."""
    inputs = list(draft.layer.inputs)
    inputs[place] = view
    settings: Any = {} if draft.product is not None else {_SLOTS[place]: code}
    draft.layer = replace(draft.layer, inputs=tuple(inputs), settings=replace(draft.layer.settings, **settings))


def _drop_conversions(build: Builder, first_reader: Mapping[str, Draft]) -> tuple[str, ...]:
    read = {view.value for draft in build.drafts for view in draft.layer.reads} | build.homes.keys()
    free: list[str] = []
    kept = []
    for draft in build.drafts:
        name = draft.layer.output.value
        if name not in build.integers or name in read or build.values[name].is_output:
            kept.append(draft)
        elif name in first_reader:
            reader = first_reader[name]
            reader.layer = replace(reader.layer, nodes=(*draft.layer.nodes, *reader.layer.nodes))
        else:
            free.extend(draft.layer.nodes)
    build.drafts[:] = kept
    return tuple(free)


def _multiply_integers(build: Builder, draft: Draft) -> None:
    """Make the draft a product of integers if both of its factors are converted from bytes."""
    layer = draft.layer
    first = _bytes_of(build, layer.inputs[0])
    if first is None:
        return
    if layer.weights is None:
        second = _bytes_of(build, layer.inputs[1])
        if second is not None:
            scale = known(f"{layer.name}.second.scale", np.array([second.scale]), DataType.FLOAT32)
            zero = known(f"{layer.name}.second.zero", np.array([second.zero_point]), DataType.INT32)
            draft.product = IntegerProduct(first, scale, zero)
        return
    code, channels = layer.weights.quantised, 1 if layer.matrix else 0
    if code is not None and code.integers.dtype in BYTES and code.axis in (None, channels):
        draft.product = IntegerProduct(first, code.scale, code.zero_point)
        draft.layer = replace(layer, weights=code.integers)


def _bytes_of(build: Builder, view: View) -> Quantisation | None:
    """Return the quantisation of the bytes that a view is converted from; None if there are none."""
    integers, code = build.integers.get(view.value, (None, None))
    return code if integers is not None and build.dtype(integers) in BYTES else None


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
