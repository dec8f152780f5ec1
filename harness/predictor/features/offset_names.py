"""The names under which a roofline keeps the constants of a layer: the device, its classes, its variant, its state."""

from __future__ import annotations

import math
from typing import Final

from harness.predictor.features.data_movement_classes import AVERAGE, NORM
from harness.predictor.features.layer_features import (
    CODE_LEVELS,
    INTEGER,
    WIDEST,
    LayerFeatures,
    classes_of,
    code_of,
    multiplies_windows,
)

DEVICE: Final = ""
_PAGE = 4096
WARM, COLD_WEIGHTS = " warm", " warm but for weights"
"""Ends of the names of warm layers; nothing is learnt of the second, which stands for the first but for weights."""
_VARIANT_SIZES = 6
"""Kernel, stride and dilation of both axes."""


def offset_names(layer: LayerFeatures) -> tuple[str, ...]:
    """Return the names whose offsets add up to the constants of a layer, the device's first."""
    classes, code = classes_of(layer.operator), code_of(layer.operator)
    coarse = classes[: CODE_LEVELS - 1]
    # A product of copied windows does not depend on how far apart their elements were.
    is_product = multiplies_windows(layer.operator)
    variants = [] if is_product else [" ".join(map(str, (code, *layer.kernel, *layer.stride, *layer.dilation)))]
    inputs = layer.in_channels // layer.groups
    # Fewer input channels than a vector holds, as in first layers, are not what fills it.
    few = not layer.is_channelwise and inputs < WIDEST
    together = layer.columns if few else math.gcd(inputs, layer.columns)
    across = layer.groups if layer.is_channelwise else together
    vector = f"{code} by {min(across & -across, WIDEST)}" + (" of few" if few else "")
    # Rows are normalised whole; a PRelu branches on each element, and averages of bytes are computed one by one.
    vectors = [] if is_product or layer.operator.startswith((NORM, "move/map/PRelu", AVERAGE)) else [vector]
    # Products read maps of few channels in the plain layout, and all others in blocks.
    maps = [f"{code} of {'few ' if few else ''}maps"] if layer.maps else []
    warm = [name + (COLD_WEIGHTS if layer.cold_weights else WARM) for name in coarse if layer.warm]
    # Rows of a matrix that are whole pages apart share few places of a cache.
    paged = [f"{code} paged"] if layer.paged or (INTEGER in code and layer.rows % _PAGE == 0) else []
    return tuple(dict.fromkeys((DEVICE, *classes, *variants, *vectors, *maps, *warm, *paged)))


def window_of(name: str) -> tuple[str, float] | None:
    """Return the class, stride and dilation of a variant, and the logarithm of its taps; None for other names."""
    code, *sizes = name.split(" ")
    if len(sizes) != _VARIANT_SIZES or not sizes[0].isdigit():
        return None
    return " ".join((code, *sizes[2:])), math.log(int(sizes[0]) * int(sizes[1]))
