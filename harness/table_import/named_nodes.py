"""Rows that name nodes of a network, as runtimes' own profiles have them, become that network's layers."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import NetworkError
from harness.network.fusion.fusion_rules import FusionRule, structure_of
from harness.network.fusion.rule_learning import ReportedGroups
from harness.network.layers import context_of, cut
from harness.network.model_references import BUILTIN_PREFIX, load_network
from harness.network.network import Network
from harness.table_import.cells import BadRow, Column, Row, read_as, word
from harness.table_import.imported_layers import ImportedLayer, RowCounts, moved_bytes
from harness.table_import.mapping import NetworkRows, NodeRows
from harness.table_import.one_layer_network import PlacedLayer
from harness.table_import.source_file import NotMeasured, RowLatency, SourceFile, combined, latency_of, without_overhead

MAX_NETWORKS = 1000
_SEPARATORS = re.compile(r" \+ |[,;]")


class Networks:
    """The networks that a mapping and its rows name, each read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[tuple[str, tuple[tuple[str, int], ...]], Network | NetworkError] = {}

    def of(self, section: NodeRows | NetworkRows, row: Row | None) -> Network:
        """Return the network of a row, or of a section that names it itself; raises BadRow and NetworkError."""
        if row is None or not isinstance(section.model, Column):
            return self._load(str(section.model), section.dims)
        name = read_as(word, "model", section.model, row)
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts and name.strip()
        if not name.startswith(BUILTIN_PREFIX) and not inside:
            raise BadRow(f"{section.model.column} is {name[:60]!r}, not a file in the folder of the mapping")
        try:
            return self._load(name, section.dims)
        except NetworkError as error:
            raise BadRow(str(error)[:200]) from error

    def _load(self, name: str, dims: Mapping[str, int]) -> Network:
        place = name, tuple(sorted(dims.items()))
        if place not in self._read:
            if len(self._read) >= MAX_NETWORKS:
                raise BadRow(f"the file names more than {MAX_NETWORKS} networks")
            builtin = name.startswith(BUILTIN_PREFIX)
            try:
                self._read[place] = load_network(name if builtin else self._folder / name, dims)
            except NetworkError as error:
                self._read[place] = error
        found = self._read[place]
        if isinstance(found, NetworkError):
            raise found
        return found


@dataclass(frozen=True)
class NodeLayers:
    """Layers of networks, and the groups of nodes that the tool executed as one."""

    layers: tuple[ImportedLayer, ...]
    groups: tuple[ReportedGroups, ...]


Named = tuple[frozenset[int], RowLatency, int]
"""The nodes of a row by their index, their latency, and the row's line."""


def node_layers(
    source: SourceFile, rows: Iterable[tuple[NodeRows, Row]], counts: RowCounts, networks: Networks
) -> NodeLayers:
    """Return the layers that rows name; rows with the same nodes are runs of one layer."""
    named: dict[str, list[Named]] = defaultdict(list)
    by_hash: dict[str, Network] = {}
    for section, row in rows:
        try:
            latency = latency_of(source.mapping, row)
            network = networks.of(section, row)
            by_hash[network.sha256] = network
            named[network.sha256].append((_nodes(network, section, row), latency, row.line))
        except NotMeasured:
            counts.not_measured += 1
        except BadRow as error:
            counts.refuse(row.line, error)
    layers: list[ImportedLayer] = []
    groups: list[ReportedGroups] = []
    for digest, parts in named.items():
        disjoint = _disjoint(parts, counts)
        groups.append((by_hash[digest], tuple(dict.fromkeys(nodes for nodes, _, _ in disjoint))))
        layers += _layers(source, by_hash[digest], disjoint, counts)
    return NodeLayers(_joined(layers), tuple(groups))


def _nodes(network: Network, section: NodeRows, row: Row) -> frozenset[int]:
    """Return the nodes that a row names; nodes that take no time are ignored."""
    text = read_as(str, "nodes", section.nodes, row).strip()
    for part in section.remove:
        text = text.removeprefix(part).removesuffix(part)
    known = {node.name: node.index for node in network.nodes if not network.is_fixed(node)}
    free = {node.name for node in network.free} | {node.name for node in network.nodes} - known.keys()
    if text in known:
        return frozenset({known[text]})
    parts = text.split(section.separator) if section.separator else _SEPARATORS.split(text)
    names = [part.strip() for part in parts if part.strip()]
    unknown = next((name for name in names if name not in known and name not in free), None)
    if unknown is not None or not names:
        raise BadRow(f"{network.name} has no node {(unknown or '')[:60]!r}")
    found = frozenset(known[name] for name in names if name in known)
    if not found:
        raise BadRow(f"{names[0][:60]!r} takes no time when {network.name} runs")
    return found


def _disjoint(rows: Sequence[Named], counts: RowCounts) -> list[Named]:
    """Return the rows, except each that shares only a part of its nodes with an earlier row."""
    owner: dict[int, frozenset[int]] = {}
    kept = []
    for nodes, latency, line in rows:
        if any(owner.get(node, nodes) != nodes for node in nodes):
            counts.refuse(line, BadRow("it shares nodes with an earlier row that also has others"))
            continue
        owner.update(dict.fromkeys(nodes, nodes))
        kept.append((nodes, latency, line))
    return kept


def _layers(source: SourceFile, network: Network, parts: Sequence[Named], counts: RowCounts) -> list[ImportedLayer]:
    """Cut the network by the rows' groups, and give each layer the latency of its rows."""
    rows: dict[frozenset[int], list[tuple[RowLatency, int]]] = defaultdict(list)
    for nodes, latency, line in parts:
        rows[nodes].append((latency, line))
    several = [" ".join(map(str, sorted(nodes))) for nodes in rows if len(nodes) > 1]
    rules = [FusionRule(f"network {structure_of(network)}: {'; '.join(several)}", 1, 1, "import")] if several else []
    found = []
    for layer in cut(network, rules):
        nodes = frozenset(node.index for node in layer.graph.nodes if not network.is_fixed(node))
        measured = rows.get(nodes)
        if not measured:
            continue
        keyed = PlacedLayer(layer.key.text, layer.op, context_of(network, layer))
        try:
            total = without_overhead(source.mapping, combined([one for one, _ in measured]), *moved_bytes(keyed.key))
        except BadRow as error:
            counts.refuse(measured[0][1], error)
            continue
        found.append(ImportedLayer(keyed, total, tuple(line for _, line in measured), (network.sha256[:8],)))
    return found


def _joined(layers: Sequence[ImportedLayer]) -> tuple[ImportedLayer, ...]:
    """Return one layer for each key and context: a layer that occurs several times has the median of its places."""
    places: dict[PlacedLayer, list[ImportedLayer]] = defaultdict(list)
    for one in layers:
        places[one.layer].append(one)
    return tuple(
        ImportedLayer(
            layer,
            combined([one.latency for one in parts]),
            tuple(line for one in parts for line in one.lines),
            tuple(dict.fromkeys(name for one in parts for name in one.networks)),
        )
        for layer, parts in places.items()
    )
