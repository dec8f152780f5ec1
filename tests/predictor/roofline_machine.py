"""A simulated device in closed form, built otherwise than the predictor: caches, partial tiles, efficiency by operator.

latency = launch + longer of (compute, traffic) + a fifth of the shorter
compute = work in whole vectors of channels / (peak * efficiency of the operator and of the reduction's length)
traffic = bytes in cache / fast + bytes beyond it / slow
"""

import math
import zlib

from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures, code_of

_LAUNCH_S, _PEAK, _FAST, _SLOW, _CACHE = 2e-6, 5e10, 4e10, 1.2e10, 1 << 20
_VECTOR, _ROWS = 16, 4
_FLAT = ("move/map", "move/copy", "move/view")
_SLOWEST, _FASTEST = 0.25, 0.9


def efficiency(operator: str) -> float:
    """Return the share of the peak that an operator reaches, fixed by its class of code; activations cost a little."""
    own = zlib.crc32(code_of(operator).encode()) / 2**32
    fused = zlib.crc32(operator.encode()) / 2**32
    return (_SLOWEST + (_FASTEST - _SLOWEST) * own) * (0.85 + 0.15 * fused)


def latency_s(layer: LayerFeatures) -> float:
    """Return the latency of a layer."""
    alone = layer.groups == layer.in_channels == layer.out_channels  # its channels are the vectors
    groups, columns = (1, layer.groups) if alone else (layer.groups, layer.columns)
    rows = math.ceil(layer.rows / _ROWS) * _ROWS
    depth = layer.in_channels // layer.groups * layer.taps
    work = groups * rows * math.ceil(columns / _VECTOR) * _VECTOR * depth
    if layer.operator.startswith(_FLAT):  # any elements that lie together fill vectors
        work = math.ceil(layer.rows * layer.out_channels / _VECTOR) * _VECTOR
    filled = depth / (depth + 24.0)
    compute_s = work / (_PEAK * efficiency(layer.operator) * filled)
    moved = float(layer_arrays([layer]).without_tables().moved_bytes[0])  # rows are picked where their table lies
    traffic_s = min(moved, _CACHE) / _FAST + max(0, moved - _CACHE) / _SLOW
    return _LAUNCH_S + max(compute_s, traffic_s) + 0.2 * min(compute_s, traffic_s)
