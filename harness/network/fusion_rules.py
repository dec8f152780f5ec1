"""Which neighbouring operators a device executes as one: patterns, matching, and learning them.

A pattern is written like `Conv/dense/16(x0);BatchNormalization(0);Relu(1)`: operators in canonical order,
each with the activations it reads, `xN` from outside and `N` the result of the N-th operator. Constants
are left out. Convolutions carry their kind and the alignment of their channels, on which runtimes decide.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.network.key import attributes, canonical
from harness.network.network import Network, Node

MAX_ALIGNMENT = 16
SIGNIFICANCE = 0.01
"""Largest p-value at which a rule that probes found holds."""
_MAX_SWAPPED = 3
COMMUTATIVE = frozenset({"Add", "Mul", "Sum", "Max", "Min", "And", "Or", "Equal"})
_PATTERN_NODE = re.compile(r"([A-Za-z0-9_/]+)\(([x0-9,]*)\)\Z")


@dataclass(frozen=True)
class PatternNode:
    """An operator and its activations: `x0`, `x1` … from outside, `0`, `1` … from inside."""

    op: str
    reads: tuple[str, ...]


@dataclass(frozen=True)
class FusionRule:
    """A pattern the device fuses, with its evidence: of `matched` places seen, `fused` were fused.

    A rule that was found by probes counts shapes for places. `saving` is then what is saved of the time that the
    smaller of the two groups that were put together takes alone, and `p_value` the chance to see as much where less
    than half of that is saved, corrected for all the patterns that were tried.
    """

    pattern: str
    matched: int = 0
    fused: int = 0
    source: str = "default"
    saving: float | None = None
    p_value: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the device fused at least half of the places seen; a default rule has seen none.

        What probes found must be significant, too.
        """
        return 2 * self.fused >= self.matched and (self.p_value is None or self.p_value <= SIGNIFICANCE)

    @property
    def nodes(self) -> tuple[PatternNode, ...]:
        """The parsed pattern; raises ValueError where it is malformed."""
        return parse_pattern(self.pattern)


def parse_pattern(text: str) -> tuple[PatternNode, ...]:
    """The operators of a pattern; the last one is the sink."""
    nodes = []
    for position, part in enumerate(text.split(";")):
        found = _PATTERN_NODE.match(part)
        if not found:
            raise ValueError(f"{part!r} is not an operator of a fusion pattern")
        reads = tuple(found[2].split(",")) if found[2] else ()
        if any(not re.fullmatch(r"x\d+|\d+", read) or (read.isdigit() and int(read) >= position) for read in reads):
            raise ValueError(f"{part!r} reads something that is not before it")
        nodes.append(PatternNode(found[1], reads))
    return tuple(nodes)


def _activations(*chains: str) -> tuple[FusionRule, ...]:
    kinds = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "PRelu")
    return tuple(FusionRule(f"{chain};{kind}({chain.count(';')})") for chain in chains for kind in kinds)


DEFAULT_RULES: tuple[FusionRule, ...] = (
    *_activations("Conv(x0);BatchNormalization(0)", "Conv(x0)", "ConvTranspose(x0)", "Gemm(x0)", "MatMul(x0);Add(0)"),
    FusionRule("Conv(x0);BatchNormalization(0)"),
    FusionRule("ConvTranspose(x0);BatchNormalization(0)"),
    FusionRule("BatchNormalization(x0);Relu(0)"),
    FusionRule("MatMul(x0);Add(0)"),
    FusionRule("Sigmoid(x0);Mul(x0,0)"),
    FusionRule("Div(x0);Erf(0);Add(1);Mul(x0,2);Mul(3)"),
    FusionRule("ReduceMean(x0);Sub(x0,0);Pow(1);ReduceMean(2);Add(3);Sqrt(4);Div(1,5);Mul(6);Add(7)"),
)
"""What most devices fuse; used where the backend does not tell. A plain `Conv` stands for every kind."""


def pattern_of(network: Network, group: Sequence[Node]) -> str:
    """The pattern of a connected group of nodes with one sink."""
    sink = max(group, key=lambda node: node.index)
    graph = canonical(network, group, [sink.outputs[0]])
    labels: dict[str, str] = {name: f"x{index}" for index, name in enumerate(graph.inputs)}
    parts = []
    for position, node in enumerate(graph.nodes):
        labels[node.outputs[0]] = str(position)
        reads = ",".join(labels[name] for name in _reads(network, node))
        parts.append(f"{_variant(network, node)}({reads})")
    return ";".join(parts)


def match_all(network: Network, rules: Sequence[FusionRule]) -> list[tuple[Node, ...]]:
    """Disjoint groups of nodes that match the rules: longest pattern first, then in topological order."""
    matcher = _Matcher(network)
    claimed: set[int] = set()
    groups = []
    for rule in sorted((rule for rule in rules if rule.holds), key=lambda rule: -len(rule.nodes)):
        for group in matcher.places(rule.nodes, claimed):
            claimed.update(node.index for node in group)
            groups.append(group)
    return groups


def learn_rules(told: Sequence[tuple[Network, Sequence[frozenset[int]]]], source: str) -> tuple[FusionRule, ...]:
    """Rules that reproduce the groups a backend told for these networks.

    A rule holds where the device fused at least half of the places its pattern matches, places inside longer
    rules left out; one that does not hold is kept as evidence against it. Groups with several sinks, or with
    an operator of several results, cannot be written as a pattern and are passed over.
    """
    found: Counter[str] = Counter()
    for network, groups in told:
        nodes = {node.index: node for node in network.nodes}
        found.update(
            pattern_of(network, [nodes[index] for index in sorted(group)])
            for group in groups
            if len(group) > 1 and _has_one_sink(network, group)
        )
    evidence = _Evidence(told)
    rules: list[FusionRule] = []
    for _, patterns in itertools.groupby(sorted(found, key=lambda text: (-_length(text), text)), _length):
        # Where a sum of two convolutions is drawn into one of them, both ways to write that match: the truer first.
        for pattern in sorted(patterns, key=lambda text: -evidence.share(text)):
            rules.append(evidence.rule(pattern, source))
    return tuple(rules)


def _length(pattern: str) -> int:
    return pattern.count(";") + 1


class _Evidence:
    """Places of patterns in networks whose groups were told; places of rules that hold are claimed."""

    def __init__(self, told: Sequence[tuple[Network, Sequence[frozenset[int]]]]) -> None:
        self._told = [(_Matcher(network), set(groups)) for network, groups in told]
        self._claimed: list[set[int]] = [set() for _ in told]

    def share(self, pattern: str) -> float:
        """How many of the unclaimed places are groups that were told, as a fraction."""
        places = self._places(pattern)
        return sum(self._is_told(*place) for place in places) / max(1, len(places))

    def rule(self, pattern: str, source: str) -> FusionRule:
        """The pattern with its evidence; claims its places where it holds."""
        places = self._places(pattern)
        rule = FusionRule(pattern, len(places), sum(self._is_told(*place) for place in places), source)
        for slot, group in places if rule.holds else ():
            self._claimed[slot].update(node.index for node in group)
        return rule

    def _places(self, pattern: str) -> list[tuple[int, tuple[Node, ...]]]:
        nodes = parse_pattern(pattern)
        return [
            (slot, group)
            for slot, (matcher, _) in enumerate(self._told)
            for group in matcher.places(nodes, self._claimed[slot])
        ]

    def _is_told(self, slot: int, group: Sequence[Node]) -> bool:
        return frozenset(node.index for node in group) in self._told[slot][1]


def _has_one_sink(network: Network, group: frozenset[int]) -> bool:
    readers = network.consumers
    sinks = [
        node
        for node in network.nodes
        if node.index in group
        and any(
            tensor in network.outputs or any(reader.index not in group for reader in readers.get(tensor, []))
            for tensor in node.outputs
        )
    ]
    inner = [node for node in network.nodes if node.index in group]
    return len(sinks) == 1 and all(len([name for name in node.outputs if name]) == 1 for node in inner)


def _reads(network: Network, node: Node) -> list[str]:
    return [name for name in node.inputs if name and name not in network.constants]


def _variant(network: Network, node: Node) -> str:
    """The operator with what runtimes look at when they decide: kind of convolution, channel alignment."""
    if node.op == "BatchNormalization":
        return f"BatchNormalization/{_alignment(network.types[node.outputs[0]].shape)}"
    if node.op != "Conv":
        return node.op
    group = attributes(network, node)["group"]
    channels = network.types[node.inputs[0]].shape[1]
    kind = "dense" if group == 1 else "depthwise" if group == channels else "grouped"
    if kind == "grouped":
        per_group = network.types[node.inputs[1]].shape
        return f"Conv/grouped/{min(_alignment((1, size)) for size in per_group[:2])}"
    return f"Conv/{kind}/{_alignment(network.types[node.outputs[0]].shape)}"


def _alignment(shape: tuple[int, ...]) -> int:
    channels = shape[1] if len(shape) > 1 else 1
    return max(size for size in (1, 2, 4, 8, MAX_ALIGNMENT) if channels % size == 0)


class _Matcher:
    """Finds patterns in one network, from the sink backwards."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._writers = network.producers
        self._readers = network.consumers
        self._variants = {node.index: _variant(network, node) for node in network.nodes}

    def places(self, pattern: Sequence[PatternNode], claimed: set[int]) -> Iterator[tuple[Node, ...]]:
        """Disjoint groups that match, avoiding and then extending the claimed nodes."""
        taken = set(claimed)
        for sink in self._network.nodes:
            for bound in self._bind(pattern, len(pattern) - 1, sink, {}):
                group = tuple(node for node in bound.values() if isinstance(node, Node))
                indices = {node.index for node in group}
                if len(indices) == len(pattern) and taken.isdisjoint(indices) and self._is_closed(group, sink):
                    taken |= indices
                    yield group
                    break

    def _bind(
        self, pattern: Sequence[PatternNode], position: int, node: Node, bound: dict[str, Node | str]
    ) -> Iterator[dict[str, Node | str]]:
        wanted = pattern[position]
        variant = self._variants[node.index]
        if wanted.op not in (variant, node.op):
            return
        reads = _reads(self._network, node)
        if len(reads) != len(wanted.reads):
            return
        bound = {**bound, str(position): node}
        swappable = node.op in COMMUTATIVE and len(reads) <= _MAX_SWAPPED
        for order in itertools.permutations(reads) if swappable else (tuple(reads),):
            yield from self._bind_reads(pattern, wanted.reads, order, bound)

    def _bind_reads(
        self,
        pattern: Sequence[PatternNode],
        wanted: tuple[str, ...],
        reads: tuple[str, ...],
        bound: dict[str, Node | str],
    ) -> Iterator[dict[str, Node | str]]:
        if not wanted:
            yield bound
            return
        label, tensor = wanted[0], reads[0]
        if label.startswith("x"):
            if bound.get(label, tensor) == tensor:
                yield from self._bind_reads(pattern, wanted[1:], reads[1:], {**bound, label: tensor})
            return
        writer = self._writers.get(tensor)
        if writer is None or writer.outputs[0] != tensor:
            return
        if label in bound:
            if bound[label] == writer:
                yield from self._bind_reads(pattern, wanted[1:], reads[1:], bound)
            return
        for extended in self._bind(pattern, int(label), writer, bound):
            yield from self._bind_reads(pattern, wanted[1:], reads[1:], extended)

    def _is_closed(self, group: Sequence[Node], sink: Node) -> bool:
        """No result but the sink's is read outside."""
        inside = {node.index for node in group}
        return all(
            tensor not in self._network.outputs
            and all(reader.index in inside for reader in self._readers.get(tensor, []))
            for node in group
            if node.index != sink.index
            for tensor in node.outputs
        )
