"""A network as a table needs it: the keys and places of its layers, without nodes and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.network.documents import count_of, encode, list_of, text_of, texts_of
from harness.network.fusion.fusion_rules import FusionRule, as_executed
from harness.network.key import LayerKey
from harness.network.layer_flows import LayerFlow, ReadTensor, WrittenTensor, layer_flows
from harness.network.layers import context_of, cut, place_of
from harness.network.network import FreeNode, Network, UnmeasuredNode

FORMAT = "keyed network 1"
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
    """A network cut into layers by the rules of a table; see `Network` for the other fields.

    `weight_bytes` is the size of the constants that its nodes read.
    """

    name: str
    layers: tuple[KeyedLayer, ...]
    input_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]
    weight_bytes: int
    free: tuple[FreeNode, ...]
    unmeasured: tuple[UnmeasuredNode, ...]
    symbols: frozenset[str]
    sha256: str
    file: str = ""


def keyed(network: Network, rules: Sequence[FusionRule]) -> KeyedNetwork:
    """Cut a network by fusion rules and keep what a table needs of it."""
    layers = cut(network, rules)
    flows = layer_flows(as_executed(network, rules), layers)
    return KeyedNetwork(
        name=network.name,
        layers=tuple(
            KeyedLayer(
                layer.name,
                layer.op,
                layer.key,
                context_of(network, layer),
                place_of(network, layers, at),
                flow,
            )
            for at, (layer, flow) in enumerate(zip(layers, flows, strict=True))
        ),
        input_sizes=network.input_sizes,
        output_sizes=network.output_sizes,
        weight_bytes=network.constant_bytes(network.nodes),
        free=network.free,
        unmeasured=network.unmeasured,
        symbols=network.symbols,
        sha256=network.sha256,
        file=network.file,
    )


def encode_keyed(network: KeyedNetwork, note: str = "", *, external: bool = False) -> bytes:
    """Return a network, without its `file`, as bytes; `note` is a text about it.

    `external` is whether the network keeps weights in other files.
    """
    document = {
        "note": note,
        "external": external,
        "name": network.name,
        "layers": [
            [one.name, one.op, one.key.text, one.context, one.place, *_flow_row(one.flow)] for one in network.layers
        ],
        "input_sizes": list(network.input_sizes),
        "output_sizes": list(network.output_sizes),
        "weight_bytes": network.weight_bytes,
        "free": [[node.name, node.op, node.reason] for node in network.free],
        "unmeasured": [[node.name, node.op] for node in network.unmeasured],
        "symbols": sorted(network.symbols),
        "sha256": network.sha256,
    }
    return encode(document)


def keyed_of(document: Mapping[str, Any]) -> tuple[KeyedNetwork, str]:
    """Return the network of a document of `encode_keyed`, and the note; raises ValueError for anything else."""
    try:
        rows = list_of(document["layers"])
        found = KeyedNetwork(
            name=text_of(document["name"]),
            layers=tuple(_layer(row, len(rows)) for row in rows),
            input_sizes=tuple(count_of(size) for size in list_of(document["input_sizes"])),
            output_sizes=tuple(count_of(size) for size in list_of(document["output_sizes"])),
            weight_bytes=count_of(document["weight_bytes"]),
            free=tuple(FreeNode(*texts_of(row, 3)) for row in document["free"]),
            unmeasured=tuple(UnmeasuredNode(*texts_of(row, 2)) for row in document["unmeasured"]),
            symbols=frozenset(texts_of(document["symbols"])),
            sha256=text_of(document["sha256"]),
        )
        return found, text_of(document["note"])
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def _flow_row(flow: LayerFlow) -> list[Any]:
    read = [[one.bytes, one.writer] for one in flow.read]
    written = [[one.bytes, int(one.is_output), *one.readers] for one in flow.written]
    return [read, written, flow.weight_bytes]


def _layer(row: Any, count: int) -> KeyedLayer:
    name, op, key, context, place, read, written, weight_bytes = list_of(row)

    def place_below(value: Any) -> int:
        if count_of(value) >= count:
            raise ValueError("no place of a layer")
        return int(value)

    flow = LayerFlow(
        tuple(ReadTensor(count_of(size), None if writer is None else place_below(writer)) for size, writer in read),
        tuple(
            WrittenTensor(count_of(size), tuple(map(place_below, readers)), count_of(is_output) > 0)
            for size, is_output, *readers in written
        ),
        count_of(weight_bytes),
    )
    return KeyedLayer(text_of(name), text_of(op), LayerKey(text_of(key)), text_of(context), text_of(place), flow)
