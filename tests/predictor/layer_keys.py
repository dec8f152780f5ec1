"""Keys of layers, and their features."""

from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures

_WINDOW = "dilations=1,1;group={group};kernel_shape={k},{k};pads={p},{p},{p},{p};strides={s},{s}"


def window(k: int, p: int, s: int = 1, group: int = 1) -> str:
    """Return the attributes of a convolution in a key."""
    return _WINDOW.format(k=k, p=p, s=s, group=group)


def described(text: str) -> LayerFeatures:
    """Return the features of a valid key."""
    layer = describe(text)
    assert layer is not None
    return layer
