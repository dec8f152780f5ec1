"""Layers on integers: a layer that works on converted integers reads the integers themselves (S3.6).

Units convert integers where they read them (docs/isa.md), so the conversions before them disappear. A product of
two factors of bytes becomes one of integers (integer_products.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import BYTES, known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Draft, IntegerProduct
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Quantisation

CONVERTING = frozenset(function for function in Function if not function.is_transfer)
"""The functions whose units convert integers."""
_SLOTS = ("quantised_first", "quantised_second", "quantised_third")


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
