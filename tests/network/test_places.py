"""The place of a layer is its context and a digest that depends only on its neighbours."""

import functools
import re
from dataclasses import replace

from hypothesis import given, strategies as st

from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.key import LayerKey
from harness.network.layers import NEIGHBOURS, Layer, context_of, cut, place_of
from harness.network.model_references import load_network
from harness.network.network import Network

NAMES = ("dscnn", "squeezenet")


@functools.cache
def layers_of(name: str) -> tuple[Network, tuple[Layer, ...]]:
    """Return a built-in network and its layers."""
    network = load_network(f"builtin:{name}")
    return network, cut(network, DEFAULT_RULES)


def places(network: Network, layers: tuple[Layer, ...]) -> list[str]:
    """Return the places of all layers."""
    return [place_of(network, layers, at) for at in range(len(layers))]


def test_a_place_begins_with_its_context() -> None:
    """A place is the context, an at sign and eight hexadecimal digits."""
    for name in NAMES:
        network, layers = layers_of(name)
        for layer, place in zip(layers, places(network, layers), strict=True):
            context, _, digest = place.partition("@")
            assert context == context_of(network, layer)
            assert re.fullmatch("[0-9a-f]{8}", digest)


def test_names_have_no_part_in_it() -> None:
    """Names do not change places."""
    for name in NAMES:
        network, layers = layers_of(name)
        renamed = tuple(replace(layer, name=f"other {at}") for at, layer in enumerate(layers))
        assert places(network, renamed) == places(network, layers)


@given(st.data())
def test_a_layer_changes_the_places_of_its_neighbours_only(data: st.DataObject) -> None:
    """Removing a layer changes the places of its neighbours on either side and of no other layers."""
    network, layers = layers_of("squeezenet")
    removed = data.draw(st.integers(0, len(layers) - 1))
    before = places(network, layers)
    after = places(network, (*layers[:removed], *layers[removed + 1 :]))
    for at, place in enumerate(before):
        if at != removed:
            moved = after[at - (at > removed)]
            assert (moved == place) == (abs(at - removed) > NEIGHBOURS)


def test_equal_layers_in_different_neighbourhoods_are_in_different_places() -> None:
    """Equal layers in the same place have equal neighbours."""
    network, layers = layers_of("dscnn")
    found: dict[tuple[LayerKey, str], tuple[LayerKey, ...]] = {}
    for at, place in enumerate(places(network, layers)):
        around = tuple(layer.key for layer in layers[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1])
        assert found.setdefault((layers[at].key, place), around) == around
    assert len({layer.key for layer in layers}) < len(layers)
    assert len(found) == len(layers)
