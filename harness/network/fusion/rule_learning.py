"""Rules of fusion from the groups that a device reports for networks."""

import itertools
from collections.abc import Iterator, Sequence

from harness.network.fusion.fusion_patterns import of_any_kind, parse_pattern, pattern_of
from harness.network.fusion.fusion_rules import FusionRule, structure_of
from harness.network.fusion.rule_matching import Matcher, match_all
from harness.network.network import Network

ReportedGroups = tuple[Network, Sequence[frozenset[int]]]
"""A network and the groups of nodes that a device reports to execute as one, by their indices."""


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
    networks = [(Matcher(network), set(groups), set[int]()) for network, groups in reported]

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


def _length(pattern: str) -> int:
    return pattern.count(";") + 1


def _without_fixed(network: Network, groups: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    fixed = {node.index for node in network.nodes if network.is_fixed(node)}
    return [group - fixed for group in groups if not group <= fixed]


def _has_one_sink(network: Network, group: frozenset[int]) -> bool:
    nodes = [node for node in network.nodes if node.index in group]
    sinks = [node for node in nodes if any(network.is_read_outside(name, group) for name in node.results)]
    return len(sinks) == 1
