"""The place of a layer: its context, and a digest of its neighbours that is the same wherever they are the same."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.network.context import NEIGHBOURS, context_of, place_of
from harness.network.fusion_rules import DEFAULT_RULES
from harness.network.key import LayerKey
from harness.network.layers import Layer, cut
from harness.network.models import load_network
from harness.network.network import Network

NAMES = ("dscnn", "squeezenet")


@functools.cache
def layers_of(name: str) -> tuple[Network, tuple[Layer, ...]]:
    """A built-in network and its layers."""
    network = load_network(f"builtin:{name}")
    return network, cut(network, DEFAULT_RULES)


def places(network: Network, layers: tuple[Layer, ...]) -> list[str]:
    """The places of all layers."""
    return [place_of(network, layers, at) for at in range(len(layers))]


def test_a_place_begins_with_its_context() -> None:
    """Behind it eight hexadecimal digits, as a table takes them."""
    for name in NAMES:
        network, layers = layers_of(name)
        for layer, place in zip(layers, places(network, layers), strict=True):
            context, _, digest = place.partition("@")
            assert context == context_of(network, layer)
            assert re.fullmatch("[0-9a-f]{8}", digest)


def test_names_have_no_part_in_it() -> None:
    """The same layers under other names are in the same places."""
    for name in NAMES:
        network, layers = layers_of(name)
        renamed = tuple(replace(layer, name=f"other {at}") for at, layer in enumerate(layers))
        assert places(network, renamed) == places(network, layers)


@settings(deadline=None)
@given(st.data())
def test_neighbours_tell_and_others_do_not(data: st.DataObject) -> None:
    """Without a layer the places of its neighbours on either side are others, those further away stay as they are."""
    network, layers = layers_of("squeezenet")
    removed = data.draw(st.integers(0, len(layers) - 1))
    before = places(network, layers)
    after = places(network, (*layers[:removed], *layers[removed + 1 :]))
    for at, place in enumerate(before):
        if at != removed:
            moved = after[at - (at > removed)]
            assert (moved == place) == (abs(at - removed) > NEIGHBOURS)


def test_equal_layers_in_different_neighbourhoods_are_in_different_places() -> None:
    """A layer that occurs twice with the same neighbours all around is one place, else two."""
    network, layers = layers_of("dscnn")
    found: dict[tuple[LayerKey, str], tuple[LayerKey, ...]] = {}
    for at, place in enumerate(places(network, layers)):
        around = tuple(layer.key for layer in layers[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1])
        assert found.setdefault((layers[at].key, place), around) == around
    assert len({layer.key for layer in layers}) < len(layers)
    assert len(found) == len(layers)
