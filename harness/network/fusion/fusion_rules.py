"""Fusion rules: patterns of operators that a device executes as one, how they match, and how they are learnt.

A pattern looks like `Conv/dense/16(x0);BatchNormalization(0);Relu(1)`: operators in canonical order, each with the
activations that it reads. `xN` is a tensor from outside, `N` the first result of the N-th operator, `N.1` its second.
Constants, and operators that only prepare constants, are left out.
A convolution has its kind and the alignment of its channels, because runtimes decide on these.

What a runtime fuses can depend on more than a pattern shows: on the operators around it, or on its place in the
network. A rule can therefore also list the groups of one network: `network 1f2e3d4c5b6a7988: 0 1 2; 5 6`.

Before it fuses, a runtime may rewrite a network. Rules with the names in `REWRITES` say so: `MOVED_TRANSPOSES` that it
leaves out Transposes which cancel each other, `UNSIGNED_PAIRS` that it makes signed pairs unsigned.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.network.fusion.moved_transposes import with_moved_transposes
from harness.network.fusion.signed_pairs import with_unsigned_pairs
from harness.network.key import attributes, canonical
from harness.network.network import Network, Node
from harness.network.operator_kinds import ACTIVATIONS, COMMUTATIVE

MOVED_TRANSPOSES = "transposes: moved"
UNSIGNED_PAIRS = "int8 pairs: uint8"
REWRITES: Mapping[str, Callable[[Network], Network]] = {
    MOVED_TRANSPOSES: with_moved_transposes,
    UNSIGNED_PAIRS: with_unsigned_pairs,
}
"""What runtimes do to networks before they fuse, in this order."""
MAX_ALIGNMENT = 16
SIGNIFICANCE = 0.01
"""Largest p-value at which a rule found by probes holds."""
_MAX_SWAPPED = 3
_PATTERN_NODE = re.compile(r"([A-Za-z0-9_/]+)\(([x0-9,.]*)\)\Z")
_LISTED = "network "
_NODES = "[0-9]{1,7}( [0-9]{1,7})+"
_EXACT = re.compile(rf"{_LISTED}[0-9a-f]{{16}}: ({_NODES}(; {_NODES})*)?\Z")
_KIND = re.compile(r"(Conv|BatchNormalization)/[a-z]*/?[0-9]+")
_READ = re.compile(r"x\d+|\d+(\.\d+)?")


ReportedGroups = tuple[Network, Sequence[frozenset[int]]]
"""A network and the groups of nodes that a device reports to execute as one, by their indices."""


@dataclass(frozen=True)
class PatternNode:
    """An operator and the activations that it reads: `x0`, `x1` … from outside, `0`, `1` … from inside."""

    op: str
    reads: tuple[str, ...]


@dataclass(frozen=True)
class FusionRule:
    """A pattern and its evidence: the device fused `fused` of the `matched` places at which the pattern was seen.

    For a rule found by probes the places are shapes. Its `saving` is the time that fusion saves, as a fraction of the
    time that the smaller of the two fused groups takes alone. Its `p_value` is the probability of such a measurement
    if less than half of that time were saved, corrected for the number of patterns that were tried.
    """

    pattern: str
    matched: int = 0
    fused: int = 0
    source: str = "default"
    saving: float | None = None
    p_value: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the device fused at least half of the places; a rule found by probes must also be significant.

        A default rule has no places and holds.
        """
        return 2 * self.fused >= self.matched and (self.p_value is None or self.p_value <= SIGNIFICANCE)

    @property
    def nodes(self) -> tuple[PatternNode, ...]:
        """The operators of the pattern, empty for a rule of another kind; raises ValueError if it is malformed."""
        groups = self.exact_groups
        if groups is not None:
            if len({index for group in groups for index in group}) < sum(map(len, groups)):
                raise ValueError(f"{self.pattern[:80]!r} lists a node twice")
            return ()
        return () if self.pattern in REWRITES else parse_pattern(self.pattern)

    @property
    def exact_groups(self) -> tuple[tuple[int, ...], ...] | None:
        """The groups of one network, by indices of its nodes, none if the device fuses nothing; None for a pattern."""
        if not _EXACT.match(self.pattern):
            return None
        groups = self.pattern.partition(": ")[2]
        return tuple(tuple(map(int, group.split())) for group in groups.split("; ")) if groups else ()


@functools.lru_cache(maxsize=1024)
def parse_pattern(text: str) -> tuple[PatternNode, ...]:
    """Return the operators of a pattern, the sink last; raises ValueError if it is malformed."""
    nodes = []
    for position, part in enumerate(text.split(";")):
        found = _PATTERN_NODE.match(part)
        if not found:
            raise ValueError(f"{part!r} is not an operator of a fusion pattern")
        reads = tuple(found[2].split(",")) if found[2] else ()
        if not all(_READ.fullmatch(read) and (read[0] == "x" or _position(read) < position) for read in reads):
            raise ValueError(f"{part!r} reads something that is not before it")
        nodes.append(PatternNode(found[1], reads))
    return tuple(nodes)


def _position(read: str) -> int:
    """Return which operator of a pattern writes what another reads."""
    return int(read.partition(".")[0])


def _label(position: int, slot: int) -> str:
    return f"{position}.{slot}" if slot else str(position)


def _activations(*chains: str) -> tuple[FusionRule, ...]:
    return tuple(FusionRule(f"{chain};{kind}({chain.count(';')})") for chain in chains for kind in ACTIVATIONS)


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
"""Fusions that most devices do; used if the backend reports none. `Conv` without a kind matches every kind."""


def pattern_of(network: Network, group: Sequence[Node]) -> str:
    """Return the pattern of a connected group of nodes with one sink."""
    sink = max(group, key=lambda node: node.index)
    graph = canonical(network, group, [sink.outputs[0]])
    labels: dict[str, str] = {name: f"x{index}" for index, name in enumerate(graph.inputs)}
    parts = []
    for position, node in enumerate(node for node in graph.nodes if not network.is_fixed(node)):
        labels.update((name, _label(position, slot)) for slot, name in enumerate(node.outputs))
        reads = ",".join(labels[name] for name in network.activations(node))
        parts.append(f"{_variant(network, node)}({reads})")
    return ";".join(parts)


def as_executed(network: Network, rules: Sequence[FusionRule]) -> Network:
    """Return the network as the device of these rules rewrites it before it fuses; nodes keep their indices."""
    patterns = {rule.pattern for rule in rules}
    for name, rewrite in REWRITES.items():
        network = rewrite(network) if name in patterns else network
    return network


def match_all(network: Network, rules: Sequence[FusionRule]) -> list[tuple[Node, ...]]:
    """Return disjoint groups of nodes that match the rules, longest pattern first, then in topological order.

    A rule that lists the groups of this network replaces all others. Requires the network `as_executed`.
    """
    exact = _groups_of(network, rules)
    if exact is not None:
        return [tuple(network.nodes[index] for index in group) for group in exact]
    matcher = _Matcher(network)
    claimed: set[int] = set()
    groups = []
    for rule in sorted((rule for rule in rules if rule.holds and rule.nodes), key=lambda rule: -len(rule.nodes)):
        for group in matcher.places(rule.nodes, claimed):
            claimed.update(node.index for node in group)
            groups.append(group)
    return groups


def _groups_of(network: Network, rules: Sequence[FusionRule]) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups that a rule lists for this network; None if no rule does, or one lists nodes that it lacks."""
    listed = [rule for rule in rules if rule.pattern.startswith(_LISTED)]
    start = f"{_LISTED}{structure_of(network)}: " if listed else ""
    groups = next((rule.exact_groups for rule in listed if rule.pattern.startswith(start)), None)
    return None if any(index >= len(network.nodes) for group in groups or () for index in group) else groups


def of_any_kind(pattern: str) -> str:
    """Return the pattern for convolutions of all kinds and alignments."""
    return _KIND.sub(r"\1", pattern)


def learn_rules(
    reported: Sequence[ReportedGroups], source: str, known: Sequence[FusionRule] = ()
) -> tuple[FusionRule, ...]:
    """Return rules that reproduce the groups that a backend reports for networks.

    `known` rules hold besides, but for patterns about which the networks say something.

    A rule holds if the device fused at least half of the places that its pattern matches, not counting places inside
    longer rules. A rule that does not hold is kept as evidence. Groups with several sinks cannot be written as a
    pattern. The groups of networks that the patterns do not reproduce are listed.
    """
    found: set[str] = set()
    reported = [(network, _without_fixed(network, groups)) for network, groups in reported]
    for network, groups in reported:
        nodes = {node.index: node for node in network.nodes}
        fused = (group for group in groups if len(group) > 1 and _has_one_sink(network, group))
        found.update(pattern_of(network, [nodes[index] for index in sorted(group)]) for group in fused)
    networks = [(_Matcher(network), set(groups), set[int]()) for network, groups in reported]

    def places_of(pattern: str) -> list[tuple[frozenset[int], bool, set[int]]]:
        """Return the places left to a pattern, whether each is a reported group, and the claims of its network."""
        nodes = parse_pattern(pattern)
        return [
            (place, place in groups, claimed)
            for matcher, groups, claimed in networks
            for place in (frozenset(node.index for node in group) for group in matcher.places(nodes, claimed))
        ]

    def rank(pattern: str) -> float:
        places = places_of(pattern)
        return -sum(fused for _, fused, _ in places) / max(1, len(places))

    rules: list[FusionRule] = []
    for _, patterns in itertools.groupby(sorted(found, key=lambda text: (-_length(text), text)), _length):
        # A sum fused into one of two convolutions matches two patterns; the one with more evidence comes first.
        for pattern in sorted(patterns, key=rank):
            places = places_of(pattern)
            rules.append(FusionRule(pattern, len(places), sum(fused for _, fused, _ in places), source))
            for place, _, claimed in places if rules[-1].holds else ():
                claimed.update(place)
    shown = {of_any_kind(rule.pattern) for rule in rules}
    rules += [rule for rule in known if of_any_kind(rule.pattern) not in shown]
    return (*rules, *_exact_rules(reported, rules, source))


def _exact_rules(reported: Sequence[ReportedGroups], rules: Sequence[FusionRule], source: str) -> Iterator[FusionRule]:
    for network, groups in reported:
        wanted = {group for group in groups if len(group) > 1}
        found = {frozenset(node.index for node in group) for group in match_all(network, rules)}
        if found != wanted:
            listed = "; ".join(" ".join(map(str, sorted(group))) for group in sorted(wanted, key=min))
            yield FusionRule(f"network {structure_of(network)}: {listed}", 1, 1, source)


def structure_of(network: Network) -> str:
    """Return a hash of a network's operators, types and connections, without names and weights."""
    labels = {name: f"x{at}" for at, name in enumerate(network.inputs)}
    digest = hashlib.sha256()
    for node in network.nodes:
        labels.update((name, f"{node.index}.{slot}") for slot, name in enumerate(node.results))
        read = [labels.get(name) or str(network.types.get(name)) for name in node.inputs]
        written = [str(network.types[name]) for name in node.results]
        digest.update(repr((node.domain, node.op, read, written, sorted(attributes(network, node).items()))).encode())
    return digest.hexdigest()[:16]


def _length(pattern: str) -> int:
    return pattern.count(";") + 1


def _without_fixed(network: Network, groups: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    fixed = {node.index for node in network.nodes if network.is_fixed(node)}
    return [group - fixed for group in groups if not group <= fixed]


def _has_one_sink(network: Network, group: frozenset[int]) -> bool:
    nodes = [node for node in network.nodes if node.index in group]
    sinks = [node for node in nodes if any(network.is_read_outside(name, group) for name in node.results)]
    return len(sinks) == 1


def _variant(network: Network, node: Node) -> str:
    """Return the operator with the properties that runtimes decide on: kind of convolution, channel alignment."""
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
    """Finds patterns in one network, starting at the sink."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._variants = {node.index: _variant(network, node) for node in network.nodes}
        self._sinks: dict[str, list[Node]] = defaultdict(list)
        for node in network.nodes:
            for name in {node.op, self._variants[node.index]}:
                self._sinks[name].append(node)

    def places(self, pattern: Sequence[PatternNode], claimed: set[int]) -> Iterator[tuple[Node, ...]]:
        """Yield disjoint groups that match and share no node with `claimed`."""
        taken = set(claimed)
        for sink in self._sinks.get(pattern[-1].op, ()):
            if sink.index in taken:
                continue
            for bound in self._bind(pattern, [(str(len(pattern) - 1), sink.outputs[0])], {}):
                written = [bound[label] for label in bound if not label.startswith("x")]
                group = tuple({node.index: node for node in map(self._network.producers.__getitem__, written)}.values())
                indices = {node.index for node in group}
                if len(indices) == len(pattern) and taken.isdisjoint(indices) and self._is_closed(group, sink):
                    taken |= indices
                    yield group
                    break

    def _bind(
        self, pattern: Sequence[PatternNode], wanted: Sequence[tuple[str, str]], bound: Mapping[str, str]
    ) -> Iterator[Mapping[str, str]]:
        """Yield every way to extend `bound`, tensors by the labels of a pattern, by the `wanted` labels and tensors."""
        if not wanted:
            yield bound
            return
        (label, tensor), *rest = wanted
        if label in bound:
            if bound[label] == tensor:
                yield from self._bind(pattern, rest, bound)
            return
        bound = {**bound, label: tensor}
        if label.startswith("x"):
            yield from self._bind(pattern, rest, bound)
            return
        node, expected = self._network.producers.get(tensor), pattern[_position(label)]
        if node is None or expected.op not in (self._variants[node.index], node.op):
            return
        if _label(_position(label), node.outputs.index(tensor)) != label:
            return
        reads = self._network.activations(node)
        if len(reads) == len(expected.reads):
            swappable = node.op in COMMUTATIVE and len(reads) <= _MAX_SWAPPED
            for order in itertools.permutations(reads) if swappable else (reads,):
                yield from self._bind(pattern, [*zip(expected.reads, order, strict=True), *rest], bound)

    def _is_closed(self, group: Sequence[Node], sink: Node) -> bool:
        """Return whether only the sink's results are read outside the group."""
        inside = {node.index for node in group}
        inner = (tensor for node in group if node.index != sink.index for tensor in node.outputs)
        return not any(self._network.is_read_outside(tensor, inside) for tensor in inner)
