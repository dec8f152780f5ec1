"""Compare the fusion found by pair probes with the fusion that devices report: a part of docs/accuracy.md.

On cpu01 the search ignores what the device reports; the fusion of npu01-blind is reported by npu01, which is the same
machine.
"""

import functools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.devices import Run, patiently, references
from benchmarks.generated_page import Section, table
from benchmarks.parts import say
from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.measure.device_requests import load_request
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.probed_fusion import FusionSearch, TriedPattern
from harness.measure.journal.journal import Journal
from harness.network.assemble import EmittedNames
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.fusion.rule_matching import match_all
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.auxiliary import auxiliary_for
from harness.probe.probe import network_probe

REPORTING_DEVICE = {"cpu01": "cpu01", "npu01-blind": "npu01"}
"""For each searched device the device that reports its fusion."""
_NANOSECONDS = {"cpu": "cpu_ns", "wall": "wall_ns", "device": "device_ns"}
Counts = Mapping[tuple[bool, bool], int]
"""How often a pattern or place is (found, reported)."""


@dataclass(frozen=True)
class ReportedFusion:
    """The fusion of a network that a device reports: the group and the chains of each node, by its index."""

    groups: Mapping[int, int]
    chains: Mapping[int, frozenset[int]]

    def is_fused(self, nodes: Sequence[int]) -> bool:
        """Return whether the nodes are executed as one."""
        return len({self.groups[node] for node in nodes}) == 1

    def is_chained(self, nodes: Sequence[int]) -> bool:
        """Return whether the nodes hand results over on chip."""
        shared = frozenset.intersection(*(self.chains.get(node, frozenset()) for node in nodes))
        return bool(shared)


@dataclass(frozen=True)
class Searched:
    """The result of a search on a device; `cost` is a sentence."""

    search: FusionSearch
    rules: tuple[FusionRule, ...]
    cost: str


def fusion_section(run: Run) -> Section:
    """Compare fusion found by pair probes with reported fusion, on both devices."""
    networks = load_networks(references(run.networks[-1:] if run.quick else run.networks))
    texts = []
    for device in REPORTING_DEVICE:
        say(f"fusion: {device}")
        texts.append(patiently(functools.partial(compare, device, networks)))
    return Section("\n\n".join(texts), ())


def compare(device: str, networks: Sequence[Network]) -> str:
    """Search for the fusion of a device and compare it with what is reported, in Markdown."""
    reporting = REPORTING_DEVICE[device]
    reported = reported_fusion(reporting, networks)
    searched = search_on(device, networks)
    head = f"**{device}** against the report of {reporting}: {searched.cost}."
    return f"{head}\n\n{pattern_tables(searched, networks, reported)}"


def reported_fusion(device: str, networks: Sequence[Network]) -> list[ReportedFusion]:
    """Return the fusion of each network that the device reports."""
    found = []
    with open_session(BUILT_IN[device]) as session:
        session.acquire()
        for network in networks:
            probe = network_probe(network)
            revealed = session.put(load_request(probe, reveal=True))
            session.drop([probe.id])
            assert revealed is not None
            names = probe.model.names
            groups = read_runtime_graph(network, names, revealed.format, revealed.content).groups
            owner = {node: number for number, group in enumerate(groups) for node in group}
            chains = _chains_of_nodes(names, revealed.content) if revealed.format == "emulated-npu" else {}
            found.append(ReportedFusion(owner, chains))
    return found


def _chains_of_nodes(names: EmittedNames, content: bytes) -> dict[int, frozenset[int]]:
    """Return for each node index the chains that its layers belong to."""
    graph = json.loads(content)
    chain_of = {layer: number for number, chain in enumerate(graph["chains"]) for layer in chain}
    found: dict[int, set[int]] = {}
    for number, layer in enumerate(graph["layers"]):
        for node in layer["nodes"]:
            found.setdefault(names.nodes[node], set()).update({chain_of[number]} if number in chain_of else ())
    return {index: frozenset(chains) for index, chains in found.items()}


def search_on(device: str, networks: Sequence[Network]) -> Searched:
    """Search for fusion on a device, with a journal of its own."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open_session(BUILT_IN[device]) as session:
        session.acquire()
        with Journal(Path(folder) / "journal.sqlite") as journal:
            kind = auxiliary_for(session.hello.clock)
            search = FusionSearch(DeviceRun(session, journal, device), kind, 0, False)
            rules = search.run(networks)
            campaigns = journal.campaigns(device)
            taken = [series for one in campaigns for series in journal.samples(one.id).values()]
            probes = sum(len(journal.probes(one.id)) for one in campaigns)
            refused = sum(bool(probe.refused) for one in campaigns for probe in journal.probes(one.id).values())
    clock = session.hello.clock
    device_s = sum(getattr(sample, _NANOSECONDS[clock]) or 0 for series in taken for sample in series) / 1e9
    cost = (
        f"{len(rules)} patterns in {len(campaigns)} campaigns, {probes} probes ({refused} refused): "
        f"{device_s:.1f} s on the device ({clock}), {time.monotonic() - started_s:.0f} s of wall-clock time in total"
    )
    return Searched(search, rules, cost)


def verdict(tried: TriedPattern, rule: FusionRule) -> str:
    """Return the verdict in a word."""
    return "fused" if rule.holds else "apart" if tried.is_apart else "undecided"


def pattern_tables(searched: Searched, networks: Sequence[Network], reported: Sequence[ReportedFusion]) -> str:
    """Return one row per pattern, and how often the verdicts agree with the report, by patterns and by places."""
    rows = []
    patterns: Counter[tuple[bool, bool]] = Counter()
    by_place: Counter[tuple[bool, bool]] = Counter()
    undecided = 0
    for tried, rule in zip(searched.search.tried, searched.rules, strict=True):
        places = [
            (fusion, [node.index for node in group])
            for network, fusion in zip(networks, reported, strict=True)
            for group in match_all(network, [FusionRule(rule.pattern)])
        ]
        fused = sum(fusion.is_fused(nodes) for fusion, nodes in places)
        chained = sum(fusion.is_chained(nodes) and not fusion.is_fused(nodes) for fusion, nodes in places)
        word = verdict(tried, rule)
        measured = (f"{rule.saving:.2f}", f"{rule.p_value:.1e}", word)
        of_places = (f"{fused}/{len(places)}", f"{chained}/{len(places)}")
        rows.append((f"`{rule.pattern}`", len(places), rule.matched, *measured, *of_places))
        undecided += word == "undecided"
        patterns[rule.holds, 2 * fused > len(places)] += 1
        by_place[rule.holds, True] += fused
        by_place[rule.holds, False] += len(places) - fused
    counts = [
        _count_row("patterns tried", patterns),
        _count_row("places of these patterns", by_place),
        _count_row("pairs of adjacent operators, as finally cut", _edges(searched.rules, networks, reported)),
    ]
    header = ("pattern", "places", "shapes", "saving", "p", "verdict", "reported fused", "reported chained")
    columns = ("found and reported", "found, not reported", "reported, not found", "neither", "precision", "recall")
    return "\n\n".join(
        (
            table(header, rows),
            table(("counted by", *columns), counts),
            f"{undecided} patterns are undecided and count as not found.",
        )
    )


def _count_row(name: str, count: Counts) -> tuple[object, ...]:
    hits, extra, missed = count[True, True], count[True, False], count[False, True]
    precision, recall = hits / max(1, hits + extra), hits / max(1, hits + missed)
    return name, hits, extra, missed, count[False, False], f"{precision:.1%}", f"{recall:.1%}"


def _edges(
    rules: Sequence[FusionRule], networks: Sequence[Network], reported: Sequence[ReportedFusion]
) -> Counter[tuple[bool, bool]]:
    """Count pairs of an operator and a reader of its result by whether one layer holds both: (as cut, as reported)."""
    count: Counter[tuple[bool, bool]] = Counter()
    for network, fusion in zip(networks, reported, strict=True):
        owner = {node.index: -1 - node.index for node in network.nodes}
        for number, group in enumerate(match_all(network, rules)):
            owner.update((node.index, number) for node in group)
        for node in network.nodes:
            for reader in {one.index for name in node.outputs for one in network.consumers.get(name, [])}:
                count[owner[node.index] == owner[reader], fusion.is_fused([node.index, reader])] += 1
    return count
