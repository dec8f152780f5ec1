"""The feature matrix that corrections are learnt from: sizes, work, bytes, tiling and terms of the roofline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays, filled_vectors
from harness.predictor.roofline.device_tiling import shares_of
from harness.predictor.roofline.roofline import Roofline, RooflineTerms

_CHANNEL_WIDTHS = (8, 16, 32, 64, 128, 256)
_PIXEL_WIDTHS = (2, 4, 6, 8)
_LOGARITHMS = ("batch", "in_channels", "out_channels", "in_height", "in_width", "out_height", "out_width")
_HARDLY = -10.0
_PLAIN = ("kernel_height", "kernel_width", "stride_height", "stride_width", "extra_operands", "element_bytes")

FeatureMatrix = NDArray[np.float32]
"""Single precision, (layers, features), so that thresholds compare the same here and in the stored form."""


def feature_matrix(arrays: LayerArrays, roofline: Roofline) -> tuple[FeatureMatrix, RooflineTerms]:
    """Return the features of layers, in which terms are relative to the roofline, and their roofline."""
    terms = roofline.terms(arrays)
    sizes = arrays.sizes
    depth = arrays.group_channels * arrays.taps
    columns = [
        *(np.log(sizes[name]) for name in _LOGARITHMS),
        *(sizes[name] for name in _PLAIN),
        *(np.log(value) for value in (arrays.macs, arrays.rows, depth, arrays.groups, arrays.moved_bytes)),
        *(np.log(value) for value in (arrays.in_bytes, arrays.out_bytes, 1.0 + arrays.weight_bytes)),
        np.log(arrays.macs / arrays.moved_bytes),
        sizes["kernel_height"] / sizes["in_height"],
        sizes["kernel_width"] / sizes["in_width"],
        shares_of(arrays, "height").taps * shares_of(arrays, "width").taps,
        np.log2(filled_vectors(np.where(arrays.channelwise, arrays.groups, arrays.group_channels))),
        np.log2(filled_vectors(np.where(arrays.channelwise, arrays.groups, arrays.columns))),
        np.log(arrays.runs / (arrays.rows * sizes["out_channels"])),
        sizes["dilation_height"] * sizes["dilation_width"],
        sizes["maps"],
        sizes["warm"],
        *(_filled(sizes["out_channels"], width) for width in _CHANNEL_WIDTHS),
        *(_filled(sizes["in_channels"], width) for width in _CHANNEL_WIDTHS),
        *(_filled(sizes["out_height"], width) * _filled(sizes["out_width"], width) for width in _PIXEL_WIDTHS),
        *np.log(roofline.tiling.waves(arrays)).T,
        *(terms.tiles - terms.latency[:, None]).T,
        terms.kernel - terms.latency,
        terms.memory - terms.latency,
        np.maximum(terms.weights - terms.latency, _HARDLY),
        terms.latency,
        *roofline.tiling.padded_work(arrays).T,
    ]
    return np.stack(columns, axis=1).astype(np.float32), terms


def _filled(size: Floats, width: int) -> Floats:
    """Return the useful share of tiles of `width`."""
    return np.asarray(size / (np.ceil(size / width) * width))
