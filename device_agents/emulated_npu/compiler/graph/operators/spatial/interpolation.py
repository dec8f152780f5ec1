"""Interpolation along one axis as ONNX's Resize defines it: the elements and their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.numpy_types import Array


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
