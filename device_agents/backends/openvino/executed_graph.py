"""The graph that OpenVINO executes for a model, in terms of the nodes of the sent model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from device_agents.backends.onnx_bytes import read_nodes

_NO_WORK = ("Input", "Output", "Const")


@dataclass(frozen=True)
class ExecutedNode:
    """An executed node: the nodes of the sent model that it computes, and the memory layout of its first result.

    A node that OpenVINO adds, such as a reorder or half of a decomposed operator, computes none of them; it `serves`
    the nodes of the first node that reads its result, or else of the node whose result it reads. A layout names
    dimensions in memory order: "abcd" is plain, "acdb" has channels last.
    """

    name: str
    nodes: Tuple[str, ...]
    serves: Tuple[str, ...]
    layout: str


def executed_nodes(compiled: Any, sent: bytes) -> List[ExecutedNode]:
    """Return what a compiled model executes, in an order of execution, without nodes that read constants only."""
    known = _known(sent)
    operations = list(compiled.get_runtime_model().get_ordered_ops())
    facts = [
        {name: str(getattr(value, "value", value)) for name, value in operation.get_rt_info().items()}
        for operation in operations
    ]
    places = {operation.get_friendly_name(): at for at, operation in enumerate(operations)}
    reads = [_reads(operation, places) for operation in operations]
    live = _live(facts, reads)
    nodes = [_originals(fact, known) if at in live else () for at, fact in enumerate(facts)]
    serves = _served(nodes, reads, live)
    layouts = [fact.get("outputLayouts", "").partition(",")[0] for fact in facts]
    return [
        ExecutedNode(operation.get_friendly_name(), nodes[at], serves[at], layouts[at])
        for at, operation in enumerate(operations)
        if at in live and facts[at].get("layerType") not in _NO_WORK
    ]


def encode(nodes: Sequence[ExecutedNode]) -> bytes:
    """Encode as JSON the executed nodes that compute nodes of the sent model."""
    layers = [{"name": node.name, "nodes": node.nodes, "layout": node.layout} for node in nodes if node.nodes]
    return json.dumps({"layers": layers}).encode()


def _reads(operation: Any, places: Dict[str, int]) -> List[int]:
    names = (operation.input_value(at).get_node().get_friendly_name() for at in range(operation.get_input_size()))
    return [places[name] for name in names if name in places]


def _live(facts: Sequence[Dict[str, str]], reads: Sequence[Sequence[int]]) -> Set[int]:
    """Return the indices of operations that depend on an input of the model."""
    live: Set[int] = set()
    for at, fact in enumerate(facts):
        if fact.get("layerType") == "Input" or any(one in live for one in reads[at]):
            live.add(at)
    return live


def _known(sent: bytes) -> Dict[str, str]:
    """Map the names that OpenVINO uses for nodes, their own or those of model outputs, to names of nodes."""
    nodes = read_nodes(sent)
    results = {output: node.name for node in nodes for output in node.outputs if output}
    return {**results, **{node.name: node.name for node in nodes}}


def _originals(facts: Dict[str, str], known: Mapping[str, str]) -> Tuple[str, ...]:
    """Return the sent nodes; OpenVINO appends the part of a node after a slash, as in `n0/WithoutBiases`."""
    names = (name.partition("/")[0] for name in facts.get("originalLayersNames", "").split(","))
    return tuple(dict.fromkeys(known[name] for name in names if name in known))


def _served(nodes: Sequence[Tuple[str, ...]], reads: Sequence[Sequence[int]], live: Set[int]) -> List[Tuple[str, ...]]:
    serves = list(nodes)
    readers: Dict[int, int] = {}
    for at in reversed(range(len(nodes))):
        if at in live:
            if not serves[at] and at in readers:
                serves[at] = serves[readers[at]]
            readers.update((one, at) for one in reads[at])
    for at in sorted(live):
        if not serves[at]:
            serves[at] = next((serves[one] for one in reads[at] if serves[one]), ())
    return serves
