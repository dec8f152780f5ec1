"""Where a layer stands in its network: what its inputs come from, and who its neighbours are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.network.layers import Layer
from harness.network.network import Network

NEIGHBOURS = 6
"""Layers before and behind, in the network's order, that tell one neighbourhood from another."""


def context_of(network: Network, layer: Layer) -> str:
    """Where each input of the layer comes from: `outside` or `chip`, in the key's order."""
    return ",".join("outside" if name in network.inputs else "chip" for name in layer.graph.inputs)


def place_of(network: Network, layers: Sequence[Layer], at: int) -> str:
    """The context of the layer at a place with its neighbourhood behind it: `chip@1a2b3c4d`."""
    near = layers[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    text = " ".join(layer.key.digest for layer in near) + f" {min(at, NEIGHBOURS)}"
    return f"{context_of(network, layers[at])}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
