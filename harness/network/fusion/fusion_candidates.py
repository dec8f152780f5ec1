"""Neighbouring groups of operators that a device might fuse, and the shapes in which to probe them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.network.assemble import copy_node
from harness.network.fusion.fusion_patterns import parse_pattern, pattern_of
from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.fusion.rule_matching import match_all
from harness.network.input_integers import integer_range
from harness.network.key import Subgraph, attributes, canonical, layer_key
from harness.network.learnt_weights import WEIGHT_OPS
from harness.network.network import Constant, Network, Node, TensorType
from harness.network.node_inference import opset_imports, value_info
from harness.network.operator_kinds import COMMUTATIVE

SHAPES_AS_FOUND = 2
SHAPES_ADAPTED = 2
WANTED_BYTES = 1 << 18
"""Size of the tensor between the groups of an adapted pair: large enough for the smaller operator to take time."""
AFFORDABLE_WORK = 1 << 20
"""Work of a pair, in elements read and written, above which shapes are ranked lower the longer they take."""
NARROW_CHANNELS = 16
"""Channels that a convolution or matrix product of an adapted pair sums over: few, so that it takes little time beside
the operator that follows."""
_MAX_OPERATORS = 12
_MAX_BYTES = 1 << 23
_COMPOSITE_OPERATORS = 4
Nodes = tuple[Node, ...]
Types = Mapping[str, TensorType]


@dataclass(frozen=True)
class NodePair:
    """Two connected groups of nodes: only the second reads the result of the first.

    `pattern` is the pattern of both, in a form that does not depend on the order of a sum's operands.
    """

    network: Network
    first: Nodes
    second: Nodes
    pattern: str

    @property
    def between(self) -> str:
        """The tensor that the first group writes and the second reads."""
        return _sink(self.first).outputs[0]

    @property
    def result(self) -> str:
        """The result of the second group."""
        return _sink(self.second).outputs[0]

    @property
    def graph(self) -> Subgraph:
        """Both groups as one subgraph."""
        return canonical(self.network, (*self.first, *self.second), [self.result])

    @property
    def shape(self) -> str:
        """The types of the first group's first input and of its result, as text."""
        graph = canonical(self.network, self.first, [self.between])
        read = [str(self.network.types[name]) for name in graph.inputs[:1]]
        return "->".join([*read, str(self.network.types[self.between])])


def neighbours(networks: Sequence[Network], rules: Sequence[FusionRule]) -> dict[str, tuple[NodePair, ...]]:
    """Return pairs of neighbouring groups by the pattern of both; the rules found so far group the nodes.

    Without rules, groups are single nodes. Composites of five operators and more, which runtimes fuse as a whole or not
    at all, are then divided into the last operator and the rest. Once an operator with weights was found not to fuse
    with the one before it, no longer patterns across these two are tried.
    """
    found: dict[str, list[NodePair]] = {}
    for network in networks:
        for first, second in (*_adjacent(network, rules), *(() if rules else _composites(network))):
            pattern = _pattern(network, (*first, *second))
            found.setdefault(pattern, []).append(NodePair(network, first, second, pattern))
    return {pattern: tuple(pairs) for pattern, pairs in found.items()}


def shapes(pairs: Sequence[NodePair]) -> tuple[NodePair, ...]:
    """Return a few distinct pairs of one pattern: as found, and adapted to shapes that show a saving best."""
    found = _by_key(pairs)
    as_found = sorted(found.values(), key=_contrast, reverse=True)
    adapted = _by_key(variant for pair in as_found for variant in _variants(pair))
    varied = sorted((adapted[key] for key in adapted if key not in found), key=_contrast, reverse=True)
    chosen = as_found[:SHAPES_AS_FOUND] + varied[:SHAPES_ADAPTED]
    rest = as_found[SHAPES_AS_FOUND:] + varied[SHAPES_ADAPTED:]
    return (*chosen, *rest[: SHAPES_AS_FOUND + SHAPES_ADAPTED - len(chosen)])


def _by_key(pairs: Iterable[NodePair]) -> dict[str, NodePair]:
    """Return the first pair of each key."""
    found: dict[str, NodePair] = {}
    for pair in pairs:
        found.setdefault(layer_key(pair.network, pair.graph).digest, pair)
    return found


def normal_form(pattern: str) -> str:
    """Return the pattern with the operands of sums and products in one order: results of operators first."""
    names: dict[str, str] = {}
    parts = []
    for node in parse_pattern(pattern):
        reads = sorted(node.reads, key=lambda read: read.startswith("x")) if node.op in COMMUTATIVE else node.reads
        labels = [names.setdefault(read, f"x{len(names)}") if read.startswith("x") else read for read in reads]
        parts.append(f"{node.op}({','.join(labels)})")
    return ";".join(parts)


def _sink(group: Sequence[Node]) -> Node:
    return max(group, key=lambda node: node.index)


def _pattern(network: Network, nodes: Sequence[Node]) -> str:
    return normal_form(pattern_of(network, nodes))


def _adjacent(network: Network, rules: Sequence[FusionRule]) -> Iterator[tuple[Nodes, Nodes]]:
    owner: dict[int, Nodes] = {node.index: (node,) for node in network.nodes}
    for group in match_all(network, rules):
        owner.update((node.index, tuple(sorted(group, key=lambda one: one.index))) for node in group)
    apart = {rule.pattern for rule in rules if not rule.holds}
    for node in network.nodes:
        first, readers = owner[node.index], network.readers(node.outputs[0])
        if node is not _sink(first) or node.outputs[0] in network.outputs or not _is_plain(network, first):
            continue
        seconds = [owner[reader.index] for reader in readers]
        if len({_sink(group).index for group in seconds}) != 1 or not _is_plain(network, seconds[0]):
            continue
        known = any(_has_weights(network, reader) and _pattern(network, (node, reader)) in apart for reader in readers)
        if not known and len(first) + len(seconds[0]) <= _MAX_OPERATORS:
            yield first, seconds[0]


def _has_weights(network: Network, node: Node) -> bool:
    return node.op in WEIGHT_OPS and len(node.inputs) > 1 and node.inputs[1] in network.constants


def _composites(network: Network) -> Iterator[tuple[Nodes, Nodes]]:
    long = [rule for rule in DEFAULT_RULES if len(rule.nodes) > _COMPOSITE_OPERATORS]
    for group in match_all(network, long):
        nodes = tuple(sorted(group, key=lambda node: node.index))
        yield nodes[:-1], nodes[-1:]


def _is_plain(network: Network, group: Sequence[Node]) -> bool:
    """Return whether all nodes have one result, they read activations, and their result is not used as indices."""
    if not all(len(node.results) == 1 for node in group) or not any(map(network.activations, group)):
        return False
    return integer_range(network, _sink(group).outputs[0]) is None


def _contrast(pair: NodePair) -> float:
    """Return how well a saving will show for its cost: the share of the smaller group in the work of both.

    Small tensors between the groups and large total work reduce it.
    """
    first, second = _work(pair.network, pair.first), _work(pair.network, pair.second)
    enough = min(1.0, pair.network.types[pair.between].bytes / WANTED_BYTES)
    return min(first, second) / (first + second) * enough * min(1.0, AFFORDABLE_WORK / (first + second))


def _work(network: Network, group: Sequence[Node]) -> float:
    """Return elements read and written, plus multiplications / 8: a core does about eight in the time of an element."""
    total = 0.0
    for node in group:
        written = network.types[node.outputs[0]]
        total += written.elements + sum(network.types[name].elements for name in network.activations(node))
        weights = [network.types[name] for name in node.inputs[1:2] if name in network.constants]
        if weights and len(weights[0].shape) > 1:
            shape = weights[0].shape
            depth = math.prod(shape[1:]) if node.op.startswith("Conv") else math.prod(shape) / shape[-1]
            total += written.elements * depth / 8
    return total


def _variants(pair: NodePair) -> Iterator[NodePair]:
    """Yield the pair with few channels to sum over, and that pair in larger shapes, if its operators allow it."""
    narrow = _narrowed(pair)
    yield narrow
    factor = math.sqrt(WANTED_BYTES / narrow.network.types[pair.between].bytes)
    for step in sorted({max(1.0, factor / 2), max(1.0, factor), factor * 1.5} - {1.0}):
        if (grown := _grown(narrow, step)) is not None:
            yield grown


def _narrowed(pair: NodePair) -> NodePair:
    """Return the pair with few channels to sum over, or as it is."""
    graph, constants = pair.graph, pair.network.constants
    for node in graph.nodes:
        if node.inputs[0] in graph.inputs and len(node.inputs) > 1 and node.inputs[1] in constants:
            changes = _narrow(pair.network, node)
            return (_with_types(pair, changes) if changes else None) or pair
    return pair


def _narrow(network: Network, node: Node) -> Types:
    """Return new types of the first input and the weights, with few channels to sum over."""
    read, weight = network.types[node.inputs[0]], network.types[node.inputs[1]]
    given = attributes(network, node)
    if node.op == "Conv" and weight.shape[1] == read.shape[1] > NARROW_CHANNELS:
        axes = 1, 1
    elif node.op in ("MatMul", "Gemm") and len(weight.shape) == 2 and not given.get("transA"):
        axes = -1, 1 if given.get("transB") else 0
    else:
        return {}
    changed = (kind.resized(axis, NARROW_CHANNELS) for kind, axis in zip((read, weight), axes, strict=True))
    return dict(zip(node.inputs, changed, strict=False))


def _grown(pair: NodePair, factor: float) -> NodePair | None:
    """Return the pair on pictures `factor` times as high and wide, or on `factor` squared times as many rows.

    Returns None if it becomes too large or its operators do not accept these shapes.
    """
    changes = {name: _grow(pair.network.types[name], factor) for name in pair.graph.inputs}
    small = sum(kind.bytes for kind in changes.values()) <= _MAX_BYTES
    return _with_types(pair, changes) if changes and small else None


def _grow(kind: TensorType, factor: float) -> TensorType:
    growing = {4: {2: factor, 3: factor}, 3: {1: factor**2}, 2: {0: factor**2}}.get(len(kind.shape), {})
    sizes = (max(1, round(size * growing[axis])) if axis in growing else size for axis, size in enumerate(kind.shape))
    return TensorType(kind.dtype, tuple(sizes))


def _with_types(pair: NodePair, changes: Types) -> NodePair | None:
    """Return the pair with these types of its inputs, or None if its operators do not accept them."""
    network = pair.network
    nodes = (*pair.first, *pair.second)
    types = _retyped(network, sorted(nodes, key=lambda node: node.index), changes)
    if types is None:
        return None
    constants = {
        name: Constant(changes[name]) if name in changes else constant for name, constant in network.constants.items()
    }
    changed = replace(network, types={**network.types, **types}, constants=constants)
    return replace(pair, network=changed) if _pattern(changed, nodes) == pair.pattern else None


def _retyped(network: Network, nodes: Sequence[Node], changes: Types) -> dict[str, TensorType] | None:
    """Return the types of `changes` and of all tensors that the nodes, given in topological order, then write.

    Returns None if an operator does not accept these shapes.
    """
    import onnx
    from onnx import helper, numpy_helper

    written = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
    values, initializers = [], []
    for name in read:
        constant = network.constants.get(name)
        if constant is not None and constant.value is not None and name not in changes:
            initializers.append(numpy_helper.from_array(constant.value, name))
        else:
            values.append(value_info(name, changes.get(name, network.types[name])))
    results = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.results]
    copies = [copy_node(node, node.name, node.inputs, node.outputs) for node in nodes]
    graph = helper.make_graph(copies, "retyped", values, results, initializers)
    model = helper.make_model(graph, opset_imports=opset_imports(network.opsets))
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    types = dict(changes)
    for value in inferred.graph.output:
        sizes = value.type.tensor_type.shape.dim
        if not value.type.tensor_type.HasField("shape") or any(size.dim_value <= 0 for size in sizes):
            return None
        types[value.name] = TensorType(network.types[value.name].dtype, tuple(size.dim_value for size in sizes))
    known = {**network.types, **types}
    # Shape inference does not check a constant shape against the number of elements.
    views = (node for node in nodes if node.op == "Reshape")
    fits = all(known[node.inputs[0]].elements == known[node.outputs[0]].elements for node in views)
    return types if fits else None
