"""The work of a window that lies on its map: kernels skip taps on the padding, but process its pixels one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays

_MOST_TAPS = 64
_ALONE = 2.0
"""The time of a tap at the edge of a map, where pixels are processed one at a time, over one in its middle."""


@dataclass(frozen=True)
class AxisShares:
    """Along one axis: the share of taps that lie on the map, and of positions whose taps all do, (layers,)."""

    taps: Floats
    whole: Floats


def shares_of(arrays: LayerArrays, axis: str) -> AxisShares:
    """Return the shares along the axis "height" or "width"."""
    size, taps, apart = (arrays.sizes[f"{name}_{axis}"] for name in ("in", "kernel", "dilation"))
    count, stride = arrays.sizes[f"out_{axis}"], arrays.sizes[f"stride_{axis}"]
    padding = np.maximum((count - 1) * stride + (taps - 1) * apart + 1 - size, 0.0) // 2

    def on_map(first_tap: Floats | int, last_tap: Floats | int) -> Floats:
        """Count the positions whose taps from the first to the last are on the map."""
        first = np.maximum(np.ceil((padding - first_tap * apart) / stride), 0.0)
        last = np.minimum(np.floor((size - 1 + padding - last_tap * apart) / stride), count - 1)
        return np.asarray(np.maximum(last - first + 1, 0.0))

    inside = np.zeros(len(arrays))
    for tap in range(min(int(taps.max(initial=0)), _MOST_TAPS)):
        inside += np.where(tap < taps, on_map(tap, tap), 0.0)
    share = np.clip(inside / (count * np.minimum(taps, _MOST_TAPS)), 0.0, 1.0)
    return AxisShares(share, np.minimum(on_map(0, taps - 1) / count, share))


def work_on_map(arrays: LayerArrays) -> Floats:
    """Return the time of a window that skips its padding over that of one without padding, (layers,)."""
    rows, columns = shares_of(arrays, "height"), shares_of(arrays, "width")
    return np.asarray(rows.taps * (_ALONE * columns.taps - (_ALONE - 1.0) * columns.whole))
