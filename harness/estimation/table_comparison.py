"""Two tables compared, or two devices by their newest tables: networks, layers and operators, and which is faster."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.files import file_digest
from harness.lut.layer_diff import EntryChange, common_layers, is_relevant
from harness.lut.table import Lut
from harness.network.keyed_reading import read_keyed_networks
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX, Models, is_builtin, model_references
from harness.network.network_list import RefusedNetwork
from harness.workspace import Workspace

Faster = Literal["a", "b", "neither"]
_HASH = 8
"""Digits of a file's hash by which entries name their networks."""


@dataclass(frozen=True)
class ComparedNetwork:
    """A network on both sides; a latency is None if the table lacks one of its layers.

    `ratio` is b to a. A side is faster if the 95 % intervals do not overlap. `a_unknown` and `b_unknown` name the
    layers that a table lacks, as `name (operators)`.
    """

    name: str
    a_s: float | None
    b_s: float | None
    a_interval_s: tuple[float, float] | None
    b_interval_s: tuple[float, float] | None
    ratio: float | None
    faster: Faster | None
    a_unknown: tuple[str, ...] = ()
    b_unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedLayer:
    """A layer of both tables; a side is faster by more than 2 % and three standard errors.

    `example` is a layer of the compared networks with this key, as `network: name`; empty if there is none.
    """

    key: str
    context: str
    op: str
    signature: str
    a_s: float
    b_s: float
    ratio: float
    z: float
    faster: Faster
    example: str = ""


@dataclass(frozen=True)
class ComparedOperators:
    """The common layers of the same operators: their sums, and how many are faster on each side."""

    op: str
    layers: int
    a_s: float
    b_s: float
    ratio: float
    a_faster: int
    b_faster: int


@dataclass(frozen=True)
class TableComparison:
    """Two tables; `unnamed` networks are in both, and are known by the hash of their file alone.

    `only_a` and `only_b` count the layers of one table that the other lacks.
    """

    networks: tuple[ComparedNetwork, ...]
    layers: tuple[ComparedLayer, ...]
    operators: tuple[ComparedOperators, ...]
    only_a: int
    only_b: int
    unnamed: tuple[str, ...]
    refused_networks: tuple[RefusedNetwork, ...]

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Networks that one of the tables does not cover."""
        return tuple(one.name for one in self.networks if one.ratio is None)


def compare_tables(
    a: Lut,
    b: Lut,
    models: Models = (),
    *,
    workspace: Workspace,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    strict: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> TableComparison:
    """Compare two tables on networks, by default on those that both tables were measured with.

    These are found among the built-in networks and the ONNX files in the workspace. Refused networks are left out and
    listed; with `strict`, the refusal is raised.
    """
    references = model_references(models)
    unnamed: tuple[str, ...] = ()
    if not references:
        references, unnamed = known_networks(hashes_of(a) & hashes_of(b), a, workspace)
    networks: tuple[ComparedNetwork, ...] = ()
    refused: tuple[RefusedNetwork, ...] = ()
    examples: dict[str, str] = {}
    if references:
        read = read_keyed_networks(references, a.rules, dims, batch=batch, strict=strict, note=note)
        other = read_keyed_networks(references, b.rules, dims, batch=batch, strict=strict)
        pairs = zip(read.networks, other.networks, strict=True)
        networks = tuple(_network(estimate_network(one, a), estimate_network(two, b)) for one, two in pairs)
        refused = read.refused
        for one in reversed(read.networks):
            examples |= {layer.key.digest: f"{one.name}: {layer.name}" for layer in reversed(one.layers)}
    changes = (_layer(one, examples.get(one.key, "")) for one in common_layers(a, b))
    layers = tuple(sorted(changes, key=lambda one: -abs(one.b_s - one.a_s)))
    keys = [{entry.key for entry in table.entries} for table in (a, b)]
    return TableComparison(
        networks, layers, _by_operators(layers), len(keys[0] - keys[1]), len(keys[1] - keys[0]), unnamed, refused
    )


def _network(a: NetworkEstimate, b: NetworkEstimate) -> ComparedNetwork:
    known = a.latency_s, b.latency_s, a.interval_s, b.interval_s
    if a.latency_s is None or b.latency_s is None or a.interval_s is None or b.interval_s is None:
        lacking = (tuple(f"{layer.name} ({layer.op})" for layer in one.unknown) for one in (a, b))
        return ComparedNetwork(a.name, *known, None, None, *lacking)
    faster: Faster = "neither"
    if a.interval_s[1] < b.interval_s[0]:
        faster = "a"
    elif b.interval_s[1] < a.interval_s[0]:
        faster = "b"
    return ComparedNetwork(a.name, *known, b.latency_s / a.latency_s, faster)


def _layer(one: EntryChange, example: str) -> ComparedLayer:
    faster: Faster = "neither" if not is_relevant(one) else "a" if one.z > 0 else "b"
    place = (one.key, one.context, one.op, one.signature)
    return ComparedLayer(*place, one.before_s, one.after_s, one.ratio, one.z, faster, example)


def _by_operators(layers: Iterable[ComparedLayer]) -> tuple[ComparedOperators, ...]:
    groups: defaultdict[str, list[ComparedLayer]] = defaultdict(list)
    for layer in layers:
        groups[layer.op].append(layer)
    found = []
    for op, own in groups.items():
        a_s, b_s = sum(one.a_s for one in own), sum(one.b_s for one in own)
        wins = [sum(one.faster == side for one in own) for side in ("a", "b")]
        found.append(ComparedOperators(op, len(own), a_s, b_s, b_s / a_s, *wins))
    return tuple(sorted(found, key=lambda one: -abs(one.b_s - one.a_s)))


def side_names(a: Lut, b: Lut) -> Sequence[str]:
    """Return short names of the sides: the devices, or the tables if they are of one device."""
    return (a.device, b.device) if a.device != b.device else (a.path.name, b.path.name)


def hashes_of(table: Lut) -> set[str]:
    """Return the networks that a table was measured with, by the beginning of the hashes of their files."""
    return {name for entry in table.entries for name in entry.networks.split()}


def networks_of(table: Lut, workspace: Workspace) -> tuple[str, ...]:
    """Return the networks that a table was measured with, without those that are neither built in nor files here."""
    return known_networks(hashes_of(table), table, workspace)[0]


def known_networks(hashes: set[str], table: Lut, workspace: Workspace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the built-in networks and files of the workspace that have these hashes, and the hashes left over."""
    found: dict[str, str] = {}
    for path in sorted(workspace.root.glob("**/*.onnx")) if hashes else ():
        found.setdefault(file_digest(path)[:_HASH], str(path))
    left = hashes - found.keys()
    if left:
        builtin = [f"{BUILTIN_PREFIX}{name}" for name in BUILTIN_NAMES]
        read = read_keyed_networks(builtin, table.rules).networks
        found |= {one.sha256[:_HASH]: one.file for one in read if is_builtin(one.file)}
    known = tuple(found[one] for one in sorted(hashes & found.keys(), key=lambda one: found[one]))
    return known, tuple(sorted(hashes - found.keys()))
