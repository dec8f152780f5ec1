"""Fusion found by pair probes against what devices tell: the tables of docs/accuracy.md, as Markdown.

`python benchmarks/fusion_rules.py [cpu01|npu01-blind] [NETWORK ...]`; all built-in networks unless named. On cpu01
the search goes on as if the device told nothing; what npu01-blind does is told by npu01, the same machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device.holder import holder
from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.measure.campaign import payload_of
from harness.measure.device_run import DeviceRun
from harness.measure.fusion import FusionSearch, TriedPattern
from harness.measure.journal import Journal
from harness.network.assemble import EmittedNames
from harness.network.fusion_rules import FusionRule, match_all
from harness.network.models import BUILTIN_NAMES, BUILTIN_PREFIX, load_networks
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.auxiliary import auxiliary_for
from harness.probe.probe import network_probe

TELLS = {"cpu01": "cpu01", "npu01-blind": "npu01"}
"""Which device tells what the one that is searched does."""


@dataclass(frozen=True)
class Told:
    """What a device tells of a network: the group of each node by index, and the chain where it has one."""

    groups: Mapping[int, int]
    chains: Mapping[int, frozenset[int]]

    def is_fused(self, nodes: Sequence[int]) -> bool:
        """Whether the nodes are executed as one."""
        return len({self.groups[node] for node in nodes}) == 1

    def is_chained(self, nodes: Sequence[int]) -> bool:
        """Whether the nodes hand results over on chip."""
        shared = frozenset.intersection(*(self.chains.get(node, frozenset()) for node in nodes))
        return bool(shared)


def told_by(device: str, networks: Sequence[Network]) -> list[Told]:
    """What the device tells of each network."""
    found = []
    with open_session(BUILT_IN[device]) as session:
        session.acquire(holder())
        for network in networks:
            probe = network_probe(network)
            revealed = session.put(payload_of(probe), reveal=True)
            session.drop([probe.id])
            assert revealed is not None
            names = probe.model.names
            groups = read_runtime_graph(network, names, revealed.format, revealed.content).groups
            owner = {node: number for number, group in enumerate(groups) for node in group}
            chains = _chained(names, revealed.content) if revealed.format == "emulated-npu" else {}
            found.append(Told(owner, chains))
    return found


def _chained(names: EmittedNames, content: bytes) -> dict[int, frozenset[int]]:
    """For each node by its index the chains that its layers are part of."""
    told = json.loads(content)
    chain_of = {layer: number for number, chain in enumerate(told["chains"]) for layer in chain}
    found: dict[int, set[int]] = {}
    for number, layer in enumerate(told["layers"]):
        for node in layer["nodes"]:
            found.setdefault(names.nodes[node], set()).update({chain_of[number]} if number in chain_of else ())
    return {index: frozenset(chains) for index, chains in found.items()}


def searched(device: str, networks: Sequence[Network]) -> tuple[FusionSearch, tuple[FusionRule, ...], str]:
    """The search on a device in a journal of its own, its rules, and what it took in words."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open_session(BUILT_IN[device]) as session:
        session.acquire(holder())
        with Journal(Path(folder) / "journal.sqlite") as journal:
            kind = auxiliary_for(session.hello.clock)
            search = FusionSearch(DeviceRun(session, journal, device), kind, 0, False)
            rules = search.run(networks)
            campaigns = journal.campaigns(device)
            taken = [series for one in campaigns for series in journal.samples(one.id).values()]
            probes = sum(len(journal.probes(one.id)) for one in campaigns)
            refused = sum(bool(probe.refused) for one in campaigns for probe in journal.probes(one.id).values())
    clock = session.hello.clock
    nanoseconds = {"cpu": "cpu_ns", "wall": "wall_ns", "device": "device_ns"}[clock]
    device_s = sum(getattr(sample, nanoseconds) or 0 for series in taken for sample in series) / 1e9
    cost = (
        f"{len(rules)} patterns in {len(campaigns)} campaigns, {probes} probes ({refused} refused): "
        f"{device_s:.1f} s on the device ({clock}), {time.monotonic() - started_s:.0f} s of wall clock in all"
    )
    return search, rules, cost


def verdict(tried: TriedPattern, rule: FusionRule) -> str:
    """The verdict in a word."""
    return "fused" if rule.holds else "apart" if tried.is_apart else "undecided"


def print_patterns(
    search: FusionSearch, rules: Sequence[FusionRule], networks: Sequence[Network], told: Sequence[Told]
) -> None:
    """One row a pattern, and how often the verdicts are what is told, by patterns and by places."""
    print("| pattern | places | shapes | saving | p | verdict | told fused | told chained |\n|" + "---|" * 8)
    count: Counter[tuple[bool, bool]] = Counter()
    points_of: Counter[tuple[bool, bool]] = Counter()
    open_ones = 0
    for tried, rule in zip(search.tried, rules, strict=True):
        places = [
            (told_one, [node.index for node in group])
            for network, told_one in zip(networks, told, strict=True)
            for group in match_all(network, [FusionRule(rule.pattern)])
        ]
        fused = sum(one.is_fused(nodes) for one, nodes in places)
        chained = sum(one.is_chained(nodes) and not one.is_fused(nodes) for one, nodes in places)
        word = verdict(tried, rule)
        cells = (
            f"`{rule.pattern}`", len(places), rule.matched, f"{rule.saving:.2f}", f"{rule.p_value:.1e}", word,
            f"{fused}/{len(places)}", f"{chained}/{len(places)}",
        )  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |")
        open_ones += word == "undecided"
        count[rule.holds, 2 * fused > len(places)] += 1
        points_of[rule.holds, True] += fused
        points_of[rule.holds, False] += len(places) - fused
    print()
    print("| counted by | found and told | found, not told | told, not found | neither | precision | recall |")
    print("|" + "---|" * 7)
    print_counts("patterns tried", count)
    print_counts("places of these patterns", points_of)
    print_counts("pairs of adjacent operators, as cut in the end", _edges(rules, networks, told))
    print(f"\n{open_ones} patterns are left undecided, and count as not found.")


def print_counts(what: str, count: Mapping[tuple[bool, bool], int]) -> None:
    """A row of the summary; keys are (found, told)."""
    hits, extra, missed = count[True, True], count[True, False], count[False, True]
    precision, recall = hits / max(1, hits + extra), hits / max(1, hits + missed)
    cells = (what, hits, extra, missed, count[False, False], f"{precision:.1%}", f"{recall:.1%}")
    print("| " + " | ".join(map(str, cells)) + " |")


def _edges(
    rules: Sequence[FusionRule], networks: Sequence[Network], told: Sequence[Told]
) -> Counter[tuple[bool, bool]]:
    """Every pair of an operator and a reader of its result: whether one layer holds both, as cut and as told."""
    count: Counter[tuple[bool, bool]] = Counter()
    for network, told_one in zip(networks, told, strict=True):
        owner = {node.index: -1 - node.index for node in network.nodes}
        for number, group in enumerate(match_all(network, rules)):
            owner.update((node.index, number) for node in group)
        for node in network.nodes:
            for reader in {one.index for name in node.outputs for one in network.consumers.get(name, [])}:
                count[owner[node.index] == owner[reader], told_one.is_fused([node.index, reader])] += 1
    return count


def main() -> None:
    """Searches, compares, prints."""
    devices = [argument for argument in sys.argv[1:] if argument in TELLS] or list(TELLS)
    names = [argument for argument in sys.argv[1:] if argument not in TELLS] or BUILTIN_NAMES
    networks = load_networks([BUILTIN_PREFIX + name for name in names])
    for device in devices:
        told = told_by(TELLS[device], networks)
        search, rules, cost = searched(device, networks)
        print(f"\n### {device}\n\n{cost}.\n")
        print_patterns(search, rules, networks, told)


if __name__ == "__main__":
    main()
