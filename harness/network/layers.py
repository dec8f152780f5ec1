"""Cut a network into layers: groups of nodes that the device executes as one, each with its canonical key."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from harness.network.fusion.fusion_rules import FusionRule, as_executed
from harness.network.fusion.rule_matching import match_all
from harness.network.key import LayerKey, Subgraph, canonical, layer_key
from harness.network.network import Network, Node

FEATURE_MAP, ON_CHIP, OUTSIDE = "map", "chip", "outside"
"""Where an input of a layer comes from, see `context_of`."""
NEIGHBOURS = 6
"""Number of layers before and after a layer, in the network's order, that make up its neighbourhood."""


@dataclass(frozen=True)
class Layer:
    """One layer of a network; `graph` has its nodes and the tensors that they read from outside and return."""

    name: str
    op: str
    key: LayerKey
    graph: Subgraph


def cut(network: Network, rules: Sequence[FusionRule]) -> tuple[Layer, ...]:
    """Cut a network by fusion rules, longest pattern first; each node that no rule matches is a separate layer.

    Every node of `network.nodes` is in exactly one layer, except nodes that do not depend on the network's inputs.
    These are in each layer that reads their results, and in a layer of their own if the network returns the results.
    The layers are those of the network `as_executed`.
    """
    network = as_executed(network, rules)
    groups = match_all(network, rules)
    claimed = {node.index for group in groups for node in group}
    groups += [(node,) for node in network.nodes if node.index not in claimed and not _is_only_read(network, node)]
    layers = (_layer(network, group) for group in groups)
    return tuple(sorted(layers, key=lambda layer: max(node.index for node in layer.graph.nodes)))


def _is_only_read(network: Network, node: Node) -> bool:
    """Return whether a node is only in layers that read its results, which are fixed and not outputs of the network."""
    return network.is_fixed(node) and not any(name in network.outputs for name in node.results)


def _layer(network: Network, nodes: Sequence[Node]) -> Layer:
    inside = {node.index for node in nodes}
    outputs = [name for node in nodes for name in node.results if network.is_read_outside(name, inside)]
    graph = canonical(network, nodes, outputs)
    return Layer(
        name=min(nodes, key=lambda node: node.index).name,
        op="+".join(node.op for node in graph.nodes),
        key=layer_key(network, graph),
        graph=graph,
    )


def context_of(network: Network, layer: Layer) -> str:
    """Return where each input of the layer comes from, in the order of the key.

    `outside` is an input of the network, `map` a feature map of another layer, `chip` any other result of one.
    The context of a layer without inputs is `outside`.
    """
    return ",".join(_source(network, tensor) for tensor in layer.graph.inputs) or OUTSIDE


def _source(network: Network, tensor: str) -> str:
    if tensor in network.inputs:
        return OUTSIDE
    return FEATURE_MAP if tensor in network.feature_maps else ON_CHIP


def place_of(network: Network, layers: Sequence[Layer], at: int) -> str:
    """Return the context of layer `at` and a hash of its neighbourhood, such as `chip@1a2b3c4d`."""
    near = layers[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    digest = neighbourhood([layer.key.digest for layer in near], min(at, NEIGHBOURS))
    return f"{context_of(network, layers[at])}@{digest}"


def neighbourhood(keys: Sequence[str], before: int) -> str:
    """Return the hash of a neighbourhood: digests of its keys in order, `before` of them before the layer."""
    return hashlib.sha256(f"{' '.join(keys)} {before}".encode()).hexdigest()[:8]
