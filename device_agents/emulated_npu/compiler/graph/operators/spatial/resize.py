"""Resize and Upsample: axis by axis, as views, copies or products by constant interpolation matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function

_COORDINATES = frozenset(
    {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"}
)
_SETTINGS = (("cubic_coeff_a", -0.75), ("exclude_outside", 0), ("antialias", 0))
"""Attributes of the interpolation, with their defaults."""
_WHOLE = 1e-3
"""How far a scaled size may be from a whole number: scales are float32."""


@dataclass(frozen=True)
class Interpolation:
    """Mode (nearest, linear, cubic), coordinates and rounding by ONNX's names; `cubic` is cubic_coeff_a.

    With `antialias` every element that a smaller result covers has a weight.
    """

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    exclude_outside: bool
    antialias: bool = False


def coordinates(how: Interpolation, size: int, target: int, scale: float) -> Array:
    """Return the position of each result on the original axis, in float32 as ONNX Runtime computes it."""
    place, ratio = np.arange(target, dtype=np.float32), np.float32(scale)
    half = np.float32(0.5)
    if how.coordinates == "asymmetric":
        return place / ratio
    if how.coordinates == "align_corners":
        return place * np.float32(size - 1) / np.float32(target - 1) if target > 1 else place * 0
    if how.coordinates == "tf_half_pixel_for_nn":
        return (place + half) / ratio
    if how.coordinates == "pytorch_half_pixel" and target == 1:
        return place * 0
    found = (place + half) / ratio - half
    if how.coordinates == "half_pixel_symmetric":
        found = found + np.float32(size / 2) * (1 - np.float32(target) / (ratio * np.float32(size)))
    return found


def nearest_indices(how: Interpolation, size: int, target: int, scale: float) -> Array:
    """Return the index of the original element for each result."""
    place = coordinates(how, size, target, scale)
    if how.rounding == "round_prefer_floor":
        place = np.ceil(place - np.float32(0.5))
    elif how.rounding == "round_prefer_ceil":
        place = np.floor(place + np.float32(0.5))
    else:
        place = np.floor(place) if how.rounding == "floor" else np.ceil(place)
    return np.clip(place, 0, size - 1).astype(np.int64)


def matrix(how: Interpolation, size: int, target: int, scale: float) -> Array:
    """Return the weights (size, target): the result is the original axis times this matrix."""
    weights = np.zeros((size, target))
    columns = np.arange(target)
    if how.mode == "nearest":
        weights[nearest_indices(how, size, target, scale), columns] = 1
        return weights
    place = coordinates(how, size, target, scale).astype(np.float64)
    first, stretch = np.floor(place).astype(np.int64), max(1.0, 1 / scale) if how.antialias else 1.0
    excludes = how.exclude_outside and (how.antialias or how.mode == "cubic")
    reach = math.ceil((1 if how.mode == "linear" else 2) * stretch)
    for offset in range(1 - reach, reach + 1):
        weight = _kernel(how, np.abs(first + offset - place) / stretch)
        if excludes:
            weight = weight * ((first + offset >= 0) & (first + offset < size))
        np.add.at(weights, (np.clip(first + offset, 0, size - 1), columns), weight)
    return weights / weights.sum(axis=0) if excludes or how.antialias else weights


def _kernel(how: Interpolation, distance: Array) -> Array:
    """Return the weight of an element at a distance (Keys 1981, "Cubic convolution interpolation")."""
    x, a = distance, how.cubic
    if how.mode == "linear":
        return np.asarray(np.maximum(0.0, 1 - x))
    inner, outer = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.asarray(np.where(x < 1, inner, np.where(x < 2, outer, 0.0)))


@dataclass(frozen=True)
class _Axis:
    """One axis that changes: its place, and how it is sampled."""

    place: int
    size: int
    target: int
    scale: float


def _text(node: OnnxNode, name: str, default: str) -> str:
    given = node.attribute(name)
    return given.decode() if given else default


def _interpolation(build: Builder, node: OnnxNode) -> Interpolation:
    mode = _text(node, "mode", "nearest")
    if node.op == "Upsample" or build.source.opset < 11:
        coordinates, rounding = "asymmetric", "floor"
    else:
        coordinates = _text(node, "coordinate_transformation_mode", "half_pixel")
        rounding = _text(node, "nearest_mode", "round_prefer_floor")
    if coordinates not in _COORDINATES:
        raise unsupported(node, f"Coordinates {coordinates[:40]!r} are not supported")
    if mode not in ("nearest", "linear", "cubic"):
        raise unsupported(node, f"Mode {mode[:40]!r} is not supported")
    cubic, *flags = (node.attribute(name, value) for name, value in _SETTINGS)
    return Interpolation(mode, coordinates, rounding, cubic, *map(bool, flags))


def _axes(build: Builder, node: OnnxNode, source: View) -> list[_Axis]:
    """Return the axes to resample, with the scales of the node, or those that follow from the sizes."""
    rank, target = len(source.axes), build.type(node.outputs[0]).shape
    places = [axis % rank for axis in node.attribute("axes") or range(rank)]
    scales = _scales(build, node, [(source.shape[place], target[place]) for place in places])
    if _text(node, "coordinate_transformation_mode", "half_pixel") == "align_corners":
        _check_whole(node, [source.shape[place] for place in places], scales)
    return [
        _Axis(place, source.shape[place], target[place], scale)
        for place, scale in zip(places, scales, strict=True)
        if target[place] != source.shape[place] or scale != 1
    ]


def _check_whole(node: OnnxNode, sizes: Sequence[int], scales: Sequence[float]) -> None:
    """Raise UnsupportedOperator for scaled sizes that are not whole numbers: ONNX and its runtimes disagree on them."""
    for size, scale in zip(sizes, scales, strict=True):
        if abs(size * scale - round(size * scale)) > _WHOLE:
            raise unsupported(node, f"With align_corners the scale {scale:g} of {size} elements has no last element")


def _scales(build: Builder, node: OnnxNode, sizes: list[tuple[int, int]]) -> list[float]:
    attribute = node.attribute("scales")
    if attribute is not None:
        return [float(scale) for scale in attribute]
    place = 1 if node.op == "Upsample" or build.source.opset < 11 else 2
    name = node.input(place)
    if name and 0 not in build.type(name).shape:
        return [float(scale) for scale in build.required(name, "scales").reshape(-1)]
    wanted = build.required(node.input(3), "sizes").reshape(-1)
    ratios = [float(np.float32(size) / np.float32(old)) for size, (old, _) in zip(wanted, sizes, strict=True)]
    policy = _text(node, "keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(ratios)


def resize(build: Builder, node: OnnxNode) -> None:
    """Add a Resize: axes that repeat or skip elements only move data; all others are matrix products."""
    source, how = build.view(node.inputs[0]), _interpolation(build, node)
    repeats: dict[int, int] = {}
    products: list[tuple[_Axis, Array]] = []
    for axis in _axes(build, node, source):
        indices = nearest_indices(how, axis.size, axis.target, axis.scale) if how.mode == "nearest" else None
        factor = axis.target // axis.size
        if indices is not None and np.array_equal(indices, np.arange(axis.target) // max(factor, 1)):
            if factor > 1:
                repeats[axis.place] = factor
            elif axis.target != axis.size:
                source = views.sliced(source, axis.place, 0, axis.target)
        elif indices is not None and len(set(np.diff(indices))) <= 1 and axis.target <= axis.size:
            step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
            source = views.sliced(source, axis.place, int(indices[0]), axis.target, step)
        else:
            products.append((axis, matrix(how, axis.size, axis.target, axis.scale)))
    for number, (axis, weights) in enumerate(products):
        last = number == len(products) - 1 and not repeats
        source = _product(build, source, axis, weights, last)
    if repeats or not products:
        name = node.outputs[0]
        build.bind(name, build.repeated(source, repeats, 1, build.type(name).shape, name))


def _product(build: Builder, source: View, axis: _Axis, weights: Array, last: bool) -> View:
    """Multiply along one axis; return the result."""
    dtype = build.dtype(source)
    shape = (*source.shape[: axis.place], axis.target, *source.shape[axis.place + 1 :])
    value = build.result() if last else build.temporary(f"axis{axis.place}", shape, dtype)
    order = [*(place for place in range(len(shape)) if place != axis.place), axis.place]
    first, output = views.permuted(source, order), views.permuted(value, order)
    if len(shape) == 1:
        first, output = views.with_axis(first, 0), views.with_axis(output, 0)
    constant = known(f"{build.node.outputs[0]}.interpolation{axis.place}", weights, dtype)
    build.layer(Function.CONVOLVE, [first], output, weights=constant, matrix=True)
    return value


HANDLERS: Mapping[str, Handler] = {"Resize": resize, "Upsample": resize}
