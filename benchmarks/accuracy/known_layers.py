"""Part of docs/accuracy.md about known layers in unknown neighbourhoods: random mixes of built-in networks on npu01."""

import dataclasses
import hashlib
import random
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.accuracy.devices import Errors, Run, patiently, references, truth_of
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, signed, table
from benchmarks.parts import say
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, Truth, open_session
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.lut.table import Lut
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.layers import cut
from harness.network.network import Network, Node
from harness.network.network_list import load_networks

MIXED = (
    ("resnet50", "inception_v2", "vgg19", "densenet121"),
    ("inception_v1", "shufflenet", "squeezenet", "alexnet", "zfnet512"),
    ("mobilenetv2", "resnet18", "efficientnet_b0", "vit_tiny", "dscnn"),
)
"""Networks of one operator set each."""
DRAWS, SEED = 30, 1
QUICK_DRAWS = 3
BIAS = 0.02
MOST_BLOCKS = 160
JUMPS = 2
"""Fewest places of a mix at which two blocks meet that no network has in this order."""
_ATTEMPTS = 1000


@dataclasses.dataclass(frozen=True)
class _Mix:
    """Relative errors of one mix: of the whole, on the processor, and that of a table without chains."""

    error: float
    on_processor: float
    from_layers: float
    within_interval: bool


def known_layers_section(run: Run) -> Section:
    """Estimate mixes of profiled networks, and compare them with the device's own times."""
    lut = run.device("npu01").table
    rows, found = [], []
    with open_session(BUILT_IN["npu01"], "validation") as session:
        patiently(session.acquire)
        for group in MIXED:
            names = [name for name in group if name in run.networks]
            say(f"npu01: mixes of {', '.join(names)}")
            errors = _errors(session, lut, names, QUICK_DRAWS if run.quick else DRAWS) if names else []
            found += errors
            rows += [_row(", ".join(names), errors)] if errors else []
    header = (
        *("mixes of", "mixes", "mean error", "mean absolute", "worst", "on the processor", "from layers alone"),
        "95 %",
    )
    last = [_row("**all**", found)] if found else []
    bias = statistics.fmean(one.error for one in found) if found else None
    target = reached(
        "npu01: known layers in unknown neighbourhoods, mean error",
        "–" if bias is None else signed(bias, 2),
        None if bias is None else abs(bias) <= BIAS,
    )
    return Section(table(header, [*rows, *last]), (target,))


def _errors(session: AgentSession, lut: Lut, names: Sequence[str], draws: int) -> list[_Mix]:
    known = {entry.key for entry in lut.entries}
    plain = dataclasses.replace(lut, chains=())
    networks = load_networks(references(names))
    found = []
    for mix in mixes(networks, lut.rules, known, draws, SEED):
        truth = truth_of(session, mix)
        estimates = estimate_network(mix, lut), estimate_network(mix, plain)
        found.append(_compare(mix, truth, *estimates))
    return found


def _compare(mix: Network, truth: Truth, found: NetworkEstimate, plain: NetworkEstimate) -> _Mix:
    overhead = truth.overhead
    if overhead is None or found.latency_s is None or plain.latency_s is None or found.interval_s is None:
        raise ValueError(f"{mix.name} is not covered, or npu01 does not report its overhead")
    true_s = truth.makespan_s + overhead.c_s
    true_s += overhead.a_s_per_byte * mix.input_bytes + overhead.b_s_per_byte * mix.output_bytes
    low_s, high_s = found.interval_s
    return _Mix(
        found.latency_s / true_s - 1,
        (found.latency_s - found.overhead_s) / truth.makespan_s - 1,
        plain.latency_s / true_s - 1,
        low_s <= true_s <= high_s,
    )


def _row(label: str, found: Sequence[_Mix]) -> tuple[str, ...]:
    errors = Errors(tuple(one.error for one in found))
    return (
        label,
        str(len(found)),
        signed(statistics.fmean(errors.errors)),
        percent(errors.mean),
        signed(max(errors.errors, key=abs)),
        signed(statistics.fmean(one.on_processor for one in found)),
        signed(statistics.fmean(one.from_layers for one in found)),
        f"{sum(one.within_interval for one in found)} of {len(found)}",
    )


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
