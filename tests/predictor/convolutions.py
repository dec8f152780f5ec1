"""Features of convolutions from their sizes."""

import math
from collections.abc import Sequence

from harness.predictor.features.layer_features import LayerFeatures, plane_of


def convolution(
    *,
    batch: int,
    in_channels: int,
    out_channels: int,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    groups: int = 1,
    dilation: Sequence[int] = (1, 1),
) -> LayerFeatures:
    """Return a float32 convolution of a map of `size`, padded by `padding` on both sides of each axis.

    A depthwise one (as many groups as channels) has a separate operator: it runs different kernels.
    """
    out_size = tuple(
        (edge + 2 * pad - apart * (taps - 1) - 1) // step + 1
        for edge, pad, apart, taps, step in zip(size, padding, dilation, kernel, stride, strict=True)
    )
    depthwise = groups > 1 and groups == in_channels
    return LayerFeatures(
        operator="DepthwiseConv" if depthwise else "Conv",
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        in_size=plane_of(size),
        out_size=plane_of(out_size),
        kernel=plane_of(kernel),
        stride=plane_of(stride),
        groups=groups,
        weight_elements=out_channels * in_channels // max(groups, 1) * math.prod(kernel),
        dilation=plane_of(dilation),
    )
