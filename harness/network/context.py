"""The position of a layer in its network: where its inputs come from, and its neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.network.layers import Layer
from harness.network.network import Network

NEIGHBOURS = 6
"""Number of layers before and after a layer, in the network's order, that make up its neighbourhood."""


def context_of(network: Network, layer: Layer) -> str:
    """Return where each input of the layer comes from, `outside` or `chip`, in the order of the key."""
    return ",".join("outside" if name in network.inputs else "chip" for name in layer.graph.inputs)


def place_of(network: Network, layers: Sequence[Layer], at: int) -> str:
    """Return the context of layer `at` and a hash of its neighbourhood, such as `chip@1a2b3c4d`."""
    near = layers[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    text = " ".join(layer.key.digest for layer in near) + f" {min(at, NEIGHBOURS)}"
    return f"{context_of(network, layers[at])}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
