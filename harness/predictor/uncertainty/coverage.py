"""Where a layer is among the layers that a predictor has learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.features.layer_features import code_of

_EDGE_QUANTILE = 0.95
_BLOCK = 256
_APART = 1e3
_VARIANT_WEIGHT = 2.0
_SAME = 1e-4
_MOVERS = "move/"


class Coverage(StrEnum):
    """Whether a prediction interpolates or extrapolates.

    inside: all sizes are within the learnt range, and a learnt layer is near
    edge: all sizes are within the learnt range, but the nearest learnt layer is further than usual among them
    outside: a size is smaller or larger than any learnt one, or only other operators of its kind were learnt
    """

    INSIDE = "inside"
    EDGE = "edge"
    OUTSIDE = "outside"


@dataclass(frozen=True)
class Hull:
    """The learnt layers of all operators, on axes in doublings of their sizes.

    operators: the order in which arrays list operators
    places: one row per learnt layer, (layers, axes)
    owner: index of each learnt layer's operator
    low, high: the range of every axis per operator, (operators, axes)
    near: the distance to a learnt layer up to which a layer counts as inside, per operator
    names: the finest classes of the learnt layers without products
    """

    operators: tuple[str, ...]
    places: Floats
    owner: Ints
    low: Floats
    high: Floats
    near: Floats
    names: tuple[str, ...]

    def knows(self, paths: Sequence[str]) -> Mask:
        """Return for which classes code of theirs was learnt."""
        own = frozenset(self.operators)
        return np.array([code_of(path) in own for path in paths], dtype=bool)

    def locate(self, arrays: LayerArrays) -> tuple[list[Coverage], Floats]:
        """Return the coverage of each layer, and the doublings by which it is beyond the hull, (layers,)."""
        operator = operator_index(self.operators, arrays)
        known = operator >= 0
        place = points_of(arrays)
        beyond = np.maximum(np.maximum(self.low[operator] - place, place - self.high[operator]), 0.0).max(axis=1)
        strange = np.array([path.startswith(_MOVERS) and path not in self.names for path in arrays.paths], dtype=bool)
        beyond = np.where(known, np.where(beyond > _SAME, beyond, 0.0), 1.0)
        beyond = np.where(strange, np.maximum(beyond, 1.0), beyond)
        far = nearest(place, operator, self.places, self.owner) > self.near[operator] + _SAME
        classes = np.where(beyond > 0.0, Coverage.OUTSIDE, np.where(far, Coverage.EDGE, Coverage.INSIDE))
        return [Coverage(name) for name in classes], beyond


def hull_of(arrays: LayerArrays, operators: tuple[str, ...]) -> Hull:
    """Return the hull of learnt layers; `operators` must name all of theirs."""
    place, owner = points_of(arrays), operator_index(operators, arrays)
    own = [place[owner == index] for index in range(len(operators))]
    distance = nearest(place, owner, place, owner, itself=True)
    near = [float(np.quantile(distance[owner == index], _EDGE_QUANTILE)) for index in range(len(operators))]
    low = np.stack([part.min(axis=0) for part in own])
    high = np.stack([part.max(axis=0) for part in own])
    names = tuple(sorted({path for path in arrays.paths if path.startswith(_MOVERS)}))
    return Hull(operators, place, owner, low, high, np.minimum(near, _APART / 2), names)


def operator_index(operators: tuple[str, ...], arrays: LayerArrays) -> Ints:
    """Return the index of each layer's operator, -1 where it is none of `operators`."""
    known = {name: index for index, name in enumerate(operators)}
    return np.array([known.get(name, -1) for name in arrays.operators], dtype=np.int64)


def points_of(arrays: LayerArrays) -> Floats:
    """Return layers as points on axes in doublings, with more weight on window axes, (layers, axes)."""
    sizes = arrays.sizes
    axes = [sizes["batch"], sizes["in_channels"], sizes["out_channels"], sizes["groups"]]
    axes += [sizes["in_height"] * sizes["in_width"]]
    window = [sizes["kernel_height"], sizes["kernel_width"], sizes["stride_height"], sizes["stride_width"]]
    window += [sizes["dilation_height"], sizes["dilation_width"]]
    other = [sizes["parts"] + sizes["extra_operands"], sizes["element_bytes"]]
    axes += [arrays.rows * sizes["out_channels"] / arrays.runs]
    weighted = [_VARIANT_WEIGHT * np.log2(axis) for axis in [*window, *other]]
    return np.stack([*(np.log2(axis) for axis in axes), *weighted], axis=1)


def nearest(place: Floats, operator: Ints, learnt: Floats, owner: Ints, *, itself: bool = False) -> Floats:
    """Return the distance to the nearest other learnt layer of the same operator, very far where there is none.

    `itself` states that the places are the learnt layers.
    """
    found = np.full(len(place), _APART)
    for index in np.unique(operator):
        asked, known = np.flatnonzero(operator == index), np.flatnonzero(owner == index)
        for start in range(0, asked.size if known.size else 0, _BLOCK):
            part = asked[start : start + _BLOCK]
            # A product of matrices would start threads, which take twice as long together as one.
            products = np.einsum("ik,jk->ij", place[part], learnt[known])
            squares = (place[part] ** 2).sum(axis=1)[:, None] + (learnt[known] ** 2).sum(axis=1) - 2.0 * products
            if itself:
                squares[part[:, None] == known] = _APART**2
            found[part] = np.sqrt(np.maximum(squares.min(axis=1), 0.0))
    return found
