"""Published architectures as ONNX networks with seeded weights.

The networks have the structure and the exact parameter count of the published ones, written the way an exporter
writes them (nothing folded, nothing fused), but random weights: they are for measuring, not for predicting.
Importing this package is cheap; onnx is imported by the first call of `build`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["NAMES", "build"]

_MODULES = {
    "mobilenetv2": "inverted_residuals",
    "resnet18": "resnet",
    "efficientnet_b0": "inverted_residuals",
    "dscnn": "dscnn",
    "vit_tiny": "transformers",
    "bert_mini": "transformers",
}
"""The module of each network; its function is called `build_NAME`."""
NAMES = tuple(_MODULES)


def build(name: str, seed: int = 0) -> ModelProto:
    """Return the network called `name` (one of `NAMES`) with weights drawn from `seed`.

    The same name and seed give the same bytes. Papers and parameter counts (trainable ones, without the running
    statistics of batch norm):

    - mobilenetv2: Sandler et al. 2018, 3,504,872
    - resnet18: He et al. 2015, 11,689,512
    - efficientnet_b0: Tan and Le 2019, 5,288,548
    - dscnn: Zhang et al. 2017 in the variant of MLPerf Tiny, 23,756
    - vit_tiny: Dosovitskiy et al. 2020, Touvron et al. 2020, 5,717,416
    - bert_mini: Devlin et al. 2018, Turc et al. 2019, 11,170,560

    Raises ValueError, listing the names, for any other name.
    """
    if name not in NAMES:
        raise ValueError(f"no network called {name!r} in the zoo; choose one of: {', '.join(NAMES)}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    model: ModelProto = getattr(module, f"build_{name}")(seed)
    return model
