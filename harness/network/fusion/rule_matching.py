"""Where the rules of a device match in a network: the groups of nodes that it executes as one."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from harness.network.fusion.fusion_patterns import PatternNode, label_of, names_of, position_of
from harness.network.fusion.fusion_rules import LISTED, FusionRule, structure_of
from harness.network.network import Network, Node
from harness.network.operator_kinds import COMMUTATIVE

_MAX_SWAPPED = 3


def match_all(network: Network, rules: Sequence[FusionRule]) -> list[tuple[Node, ...]]:
    """Return disjoint groups of nodes that match the rules, longest pattern first, then in topological order.

    A rule that lists the groups of this network replaces all others. Requires the network `as_executed`.
    """
    exact = _groups_of(network, rules)
    if exact is not None:
        return [tuple(network.nodes[index] for index in group) for group in exact]
    matcher = Matcher(network)
    claimed: set[int] = set()
    groups = []
    for rule in sorted((rule for rule in rules if rule.holds and rule.nodes), key=lambda rule: -len(rule.nodes)):
        for group in matcher.places(rule.nodes, claimed):
            claimed.update(node.index for node in group)
            groups.append(group)
    return groups


def _groups_of(network: Network, rules: Sequence[FusionRule]) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups that a rule lists for this network; None if no rule does, or one lists nodes that it lacks."""
    listed = [rule for rule in rules if rule.pattern.startswith(LISTED)]
    start = f"{LISTED}{structure_of(network)}: " if listed else ""
    groups = next((rule.exact_groups for rule in listed if rule.pattern.startswith(start)), None)
    return None if any(index >= len(network.nodes) for group in groups or () for index in group) else groups


class Matcher:
    """Finds patterns in one network, starting at the sink."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._names = {node.index: names_of(network, node) for node in network.nodes}
        self._sinks: dict[str, list[Node]] = defaultdict(list)
        for node in network.nodes:
            for name in set(self._names[node.index]):
                self._sinks[name].append(node)

    def places(self, pattern: Sequence[PatternNode], claimed: set[int]) -> Iterator[tuple[Node, ...]]:
        """Yield disjoint groups that match, and share no node with `claimed` or with unfused nodes."""
        taken = claimed | self._network.unfused
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
        node, expected = self._network.producers.get(tensor), pattern[position_of(label)]
        if node is None or expected.op not in self._names[node.index]:
            return
        if label_of(position_of(label), node.outputs.index(tensor)) != label:
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
