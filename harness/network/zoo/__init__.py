"""Published architectures as ONNX networks with seeded weights.

The networks have the structure and the exact parameter count of the published ones, and are written as an exporter
writes them: nothing folded, nothing fused. Their weights are random, for measuring and not for predicting. Importing
this package is cheap; onnx is imported by the first call of `build`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["NAMES", "build"]

NAMES = ("mobilenetv2", "resnet18", "efficientnet_b0", "dscnn", "vit_tiny", "bert_mini")


def build(name: str, seed: int = 0) -> ModelProto:
    """Return the network called `name` (one of `NAMES`) with weights drawn from `seed`.

    The same name and seed give the same bytes. Raises ValueError, listing the names, for any other name.
    """
    if name not in NAMES:
        raise ValueError(f"no network called {name!r} in the zoo; choose one of: {', '.join(NAMES)}")
    from harness.network.zoo import convolutional, transformers

    module = transformers if name in ("vit_tiny", "bert_mini") else convolutional
    model: ModelProto = getattr(module, f"build_{name}")(seed)
    return model
