"""Published topologies beside the built-in ones, as ONNX networks with seeded weights.

Estimates are checked on networks that nothing was fitted to. These are written the way exporters write them: opsets
13 to 17, batch norms folded into convolutions or not, activations as one operator or several, always one sample,
float32 and fixed shapes. The weights are random; the networks are for measuring, not for predicting.

`python -m benchmarks.topologies FOLDER [NAME ...]` writes them as NAME.onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["FAMILIES", "NAMES", "build"]

FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "convolutional": (
        *("vgg11", "resnet34", "resnext50", "regnety_400mf", "repvgg_a0", "densenet_bc_100", "convnext_tiny"),
        *("inception_resnet", "xception"),
    ),
    "mobile": (
        *("mobilenetv1", "mobilenetv3_small", "mobilenetv3_large", "mnasnet_a1", "efficientnet_lite0", "ghostnet"),
        *("shufflenetv2", "pp_lcnet", "squeezenext"),
    ),
    "dense_prediction": ("tiny_yolov3", "blazeface", "fsrcnn", "espcn", "unet", "deeplabv3", "hrnet"),
    "transformers": ("segformer_b0", "deit_tiny", "bert_tiny", "mixer_s16", "whisper_tiny"),
    "one_dimensional": ("tcn", "wavenet", "res8", "crnn_conv", "pointnet", "autoencoder"),
}
NAMES: Final = tuple(name for names in FAMILIES.values() for name in names)


def build(name: str, seed: int = 0) -> ModelProto:
    """Return the network called `name` (one of `NAMES`) with weights drawn from `seed`.

    The same name and seed give the same bytes. Raises ValueError, listing the names, for any other name.
    """
    for family, names in FAMILIES.items():
        if name in names:
            model: ModelProto = getattr(import_module(f"benchmarks.topologies.{family}"), f"build_{name}")(seed)
            return model
    raise ValueError(f"no topology called {name!r}; choose one of: {', '.join(NAMES)}")
