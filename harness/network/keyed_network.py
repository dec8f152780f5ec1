"""A network as a table needs it: the keys and places of its layers, without nodes and constants."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from pydantic import Field, TypeAdapter

from harness.network.documents import encode, split_document
from harness.network.fusion.fusion_rules import FusionRule, as_executed
from harness.network.key import LayerKey
from harness.network.layer_flows import LayerFlow, layer_flows
from harness.network.layers import context_of, cut, place_of
from harness.network.network import FreeNode, Network, UnmeasuredNode
from harness.strict_model import Count

FORMAT = "keyed network 3"
"""The version of `encode_keyed`."""


@dataclass(frozen=True)
class KeyedLayer:
    """One layer: `context` is where its inputs come from, `place` adds a hash of its neighbourhood."""

    name: str
    op: str
    key: LayerKey
    context: str
    place: str
    flow: LayerFlow


@dataclass(frozen=True)
class KeyedNetwork:
    """A network cut into layers by the rules of a table; the annotations are what a reader process may return.

    See `Network` for the other fields. `weight_bytes` is the size of the constants that its nodes read.
    """

    name: str
    layers: tuple[KeyedLayer, ...]
    input_sizes: tuple[Count, ...]
    output_sizes: tuple[Count, ...]
    whole_input_bytes: Count
    weight_bytes: Count
    free: tuple[FreeNode, ...]
    unmeasured: tuple[UnmeasuredNode, ...]
    symbols: frozenset[str]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    file: str = ""


@dataclass(frozen=True)
class KeyedAnswer:
    """A network as a reader process returns it, a note about it, and whether it keeps weights in other files."""

    network: KeyedNetwork
    note: str
    external: bool


def keyed(network: Network, rules: Sequence[FusionRule]) -> KeyedNetwork:
    """Cut a network by fusion rules and keep what a table needs of it."""
    layers = cut(network, rules)
    flows = layer_flows(as_executed(network, rules), layers)
    return KeyedNetwork(
        name=network.name,
        layers=tuple(
            KeyedLayer(layer.name, layer.op, layer.key, context_of(network, layer), place_of(network, layers, at), flow)
            for at, (layer, flow) in enumerate(zip(layers, flows, strict=True))
        ),
        input_sizes=network.input_sizes,
        output_sizes=network.output_sizes,
        whole_input_bytes=network.whole_input_bytes,
        weight_bytes=network.constant_bytes(network.nodes),
        free=network.free,
        unmeasured=network.unmeasured,
        symbols=network.symbols,
        sha256=network.sha256,
        file=network.file,
    )


def encode_keyed(network: KeyedNetwork, note: str = "", *, external: bool = False) -> bytes:
    """Return a network, without its `file`, as bytes, which `keyed_of` reads."""
    document = asdict(KeyedAnswer(replace(network, file=""), note, external))
    document["network"]["symbols"] = sorted(network.symbols)
    return encode(document)


def keyed_of(content: bytes) -> KeyedAnswer:
    """Return what `encode_keyed` was given; raises ValueError for anything else."""
    found = _answers().validate_json(split_document(content)[0], strict=True)
    flows = [layer.flow for layer in found.network.layers]
    places = [one.writer or 0 for flow in flows for one in flow.read]
    places += [place for flow in flows for one in flow.written for place in one.readers]
    if max(places, default=0) >= max(1, len(flows)):
        raise ValueError("no place of a layer")
    return found


@functools.cache
def _answers() -> TypeAdapter[KeyedAnswer]:
    return TypeAdapter(KeyedAnswer)
