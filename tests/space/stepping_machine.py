"""A synthetic device whose latency rises in steps of 32 output channels, and a space of convolutions for it."""

import math

from space_features import parts_of

from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.space.planner import Parts, Round
from harness.space.space import LayerSpace

SPACE = LayerSpace.model_validate(
    {
        "limits": {"max_macs": 100_000_000},
        "layers": (
            {
                "op": "Conv",
                "channels_in": {"low": 8, "high": 256, "multiple_of": 8},
                "channels_out": {"low": 8, "high": 256},
                "size": {"low": 7, "high": 56},
                "kernel": [1, 3],
                "stride": [1, 2],
            },
            {"op": "Add", "channels": {"low": 8, "high": 256}, "size": {"low": 7, "high": 56}, "share": 0.5},
        ),
    }
)


def latency_s(layer: LayerFeatures) -> float:
    """Return the latency: additions by bytes, convolutions by products with output channels in blocks of 32."""
    if layer.operator == "move/map/simple/Add":
        return 2e-6 + layer.moved_bytes * 1e-10
    blocks = math.ceil(layer.out_channels / 32) * 32
    return 5e-6 + layer.rows * blocks * layer.in_channels * layer.taps * 1e-11


def measure(asked: Round) -> list[Parts]:
    """Return all layers of a round with their latencies."""
    return [[TrainingExample(part, latency_s(part)) for part in parts] for parts in parts_of(asked.layers)]
