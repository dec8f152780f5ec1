"""Networks that nobody profiled, of layers that the table knows: random mixes of blocks of built-in networks."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.network.fusion.fusion_rules import FusionRule
from harness.network.layers import cut
from harness.network.network import Network, Node

MOST_BLOCKS = 160
JUMPS = 2
"""Fewest places of a mix at which two blocks meet that no network has in this order."""
_ATTEMPTS = 1000


@dataclass(frozen=True)
class Block:
    """Layers of a network between two places at which only one tensor is alive, `source` and `result`."""

    network: Network
    number: int
    nodes: tuple[Node, ...]
    source: str
    result: str
    last: bool


def mixes(
    networks: Sequence[Network], rules: Sequence[FusionRule], known: Collection[str], count: int, seed: int
) -> Iterator[Network]:
    """Yield random mixes of networks of one operator set, of layers with `known` keys alone.

    After each block follows its successor or, as often, another block that reads a tensor of the same type.
    """
    draw = random.Random(f"{seed} {' '.join(network.name for network in networks)}")
    blocks = [blocks_of(network, rules) for network in networks]
    made = 0
    for _ in range(_ATTEMPTS * count):
        if made == count:
            return
        path = _path(draw, blocks)
        mix = joined(path, f"mix {seed}.{made}") if path else None
        if mix is not None and all(layer.key.digest in known for layer in cut(mix, rules)):
            made += 1
            yield mix


def blocks_of(network: Network, rules: Sequence[FusionRule]) -> list[Block]:
    """Cut a network of one input into the smallest blocks."""
    layers = cut(network, rules)
    last_read = {name: at for at, layer in enumerate(layers) for name in layer.graph.inputs}
    last_read |= dict.fromkeys(network.outputs, len(layers))
    found: list[Block] = []
    alive, nodes, source = set(network.inputs), dict[int, Node](), network.inputs[0]
    for at, layer in enumerate(layers):
        nodes |= {node.index: node for node in layer.graph.nodes}
        alive = {name for name in (*alive, *layer.graph.outputs) if last_read.get(name, -1) > at}
        if len(alive) == 1 and source not in alive:
            (result,) = alive
            inside = tuple(nodes[index] for index in sorted(nodes))
            found.append(Block(network, len(found), inside, source, result, at == len(layers) - 1))
            nodes, source = {}, result
    return found


def joined(blocks: Sequence[Block], name: str) -> Network:
    """Return the network of blocks one behind the other."""
    types = {"x": blocks[0].network.types[blocks[0].source]}
    nodes: list[Node] = []
    constants = {}
    source = "x"
    for number, block in enumerate(blocks):
        names = {"": "", block.source: source}
        for tensor in (tensor for node in block.nodes for tensor in (*node.inputs, *node.outputs) if tensor):
            names.setdefault(tensor, f"{number}.{tensor}")
            if tensor in block.network.constants:
                constants[names[tensor]] = block.network.constants[tensor]
            types[names[tensor]] = block.network.types.get(tensor) or block.network.constants[tensor].type
        for node in block.nodes:
            ends = (tuple(names[tensor] for tensor in tensors) for tensors in (node.inputs, node.outputs))
            inputs, outputs = ends
            nodes.append(replace(node, index=len(nodes), name=f"{number}.{node.name}", inputs=inputs, outputs=outputs))
        source = names[block.result]
    text = " ".join(f"{block.network.sha256} {block.number}" for block in blocks)
    return Network(
        name=name,
        opset=blocks[0].network.opset,
        inputs=("x",),
        outputs=(source,),
        nodes=tuple(nodes),
        types=types,
        constants=constants,
        free=(),
        symbols=frozenset(),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def _path(draw: random.Random, networks: Sequence[Sequence[Block]]) -> list[Block]:
    """Return a random way from an input to an output; empty where it has too few jumps or too many blocks."""
    reading = defaultdict(list)
    for block in (block for blocks in networks for block in blocks):
        reading[block.network.types[block.source]].append(block)
    following = {(blocks[0].network.name, block.number): block for blocks in networks for block in blocks}
    path = [draw.choice([blocks[0] for blocks in networks])]
    jumps = 0
    while not path[-1].last and len(path) < MOST_BLOCKS:
        block = path[-1]
        behind = following[block.network.name, block.number + 1]
        others = [
            other
            for other in reading[block.network.types[block.result]]
            if other is not behind and (other.network is not block.network or other.number > block.number)
        ]
        jump = bool(others) and draw.random() < 0.5
        path.append(draw.choice(others) if jump else behind)
        jumps += jump
    return path if path[-1].last and jumps >= JUMPS else []
