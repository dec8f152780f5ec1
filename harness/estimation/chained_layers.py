"""Layers of a network in the chains that the rules of a table give it, for devices that chain layers on chip."""

from __future__ import annotations

from collections.abc import Sequence

from harness.lut.neighbourhoods import ClassValue, Neighbourhoods
from harness.network.chain_borders import Chained
from harness.network.chain_rules import OrderedLayer
from harness.network.keyed_network import KeyedLayer


def class_values(layers: Sequence[KeyedLayer], known: Neighbourhoods) -> list[ClassValue | None]:
    """Return the value of each layer in the class of its neighbourhood; None where the table lacks its key.

    Layers that take no time on the device are in no chain and have no value here: their entries hold in any
    neighbourhood.
    """
    views = [place for place, layer in enumerate(layers) if layer.key.digest in known.views]
    chained = Chained([layer.flow for layer in layers], views)
    order = [place for place in range(len(layers)) if place not in chained.views]
    in_order = [
        OrderedLayer(
            layers[place].key.digest,
            layers[place].op,
            chained.result_bytes(place),
            chained.weight_bytes(place),
            at > 0 and chained.reads(place, order[at - 1]),
        )
        for at, place in enumerate(order)
    ]
    found: list[ClassValue | None] = [None] * len(layers)
    for chain in known.rules.chains(in_order):
        group = [order[at] for at in chain]
        for place, borders in zip(group, chained.borders(group), strict=True):
            key = layers[place].key.digest
            found[place] = known.find(key, borders.read_bytes, borders.written_bytes)
    return found
