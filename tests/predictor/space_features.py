"""Features of layers of a space, as the default rules cut their networks."""

from collections.abc import Sequence

from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures
from harness.space.configuration import Configuration
from harness.space.layer_network import network_of, own_layers


def parts_of(layers: Sequence[Configuration]) -> list[list[LayerFeatures]]:
    """Return the features of the parts of each layer."""
    own = own_layers(cut(network_of(layers, "space"), DEFAULT_RULES))
    described = [[describe(part.key.text) for part in own.get(index, ())] for index in range(len(layers))]
    return [[part for part in parts if part is not None] for parts in described]
