"""The features of a layer from its key.

A key holds everything that affects latency, so the entries of a table are enough to train on, and any layer of a
network can be predicted. Classes of operators are paths, `mac/conv/dense/Relu`: layers of one path run the same code,
layers that share only its beginning run similar code.
"""

import functools
from dataclasses import replace

from harness.errors import UsageError
from harness.network.layers import FEATURE_MAP
from harness.predictor.features.data_movement_classes import between_conversions
from harness.predictor.features.key_parser import MalformedKey, ParsedKey, parse_key
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.features.mover_features import mover
from harness.predictor.features.product_features import loop_nest
from harness.predictor.features.runtime_operators import in_usual_operators

_MOST_KEPT, _LONGEST_KEPT = 1 << 13, 1 << 12
"""Descriptions that stay in memory, since networks have many layers in common, and the longest text of one."""


def describe(signature: str, context: str = "", *, warm: bool = False) -> LayerFeatures | None:
    """Return the features of the layer with this key (`LayerKey.text`); None if it is not a key of this version.

    `context` is that of a table's entry, see `context_of`; `warm` is that of `LayerFeatures`.

    Every operator has features: convolutions and matrix products are loop nests, with a fused activation in the class
    and further inputs as extra operands; anything else moves bytes. A text that contradicts itself, as a forged table
    may hold, is no key; neither is that of a layer with an empty tensor.
    """
    found = _described if len(signature) + len(context) <= _LONGEST_KEPT else _described.__wrapped__
    return found(signature, context, warm)


@functools.lru_cache(_MOST_KEPT)
def _described(signature: str, context: str, warm: bool) -> LayerFeatures | None:
    try:
        parsed = parse_key(signature)
        if parsed is None:
            return None
        maps = context.partition("@")[0].split(",").count(FEATURE_MAP)
        return replace(features_of(parsed, plain=bool(context) and not maps), maps=maps, warm=warm)
    except (MalformedKey, UsageError):  # the latter from LayerFeatures, for sizes below 1 and groups that do not divide
        return None


def features_of(parsed: ParsedKey, *, plain: bool = False) -> LayerFeatures:
    """Return the features of a parsed key; raises MalformedKey and UsageError for one that contradicts itself.

    `plain` states that no input is a feature map: then the last axis of any tensor holds what lies together.
    """
    parsed = in_usual_operators(parsed)
    nest = loop_nest(parsed)
    return mover(replace(parsed, operators=between_conversions(parsed.operators)), plain) if nest is None else nest
