"""ONNX Runtime's profile of a session: the time of each executed node, and the sent nodes that it computes."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Dict, List, Sequence, Tuple

from device_agents.backends.onnx_bytes import GraphNode, read_nodes

WARMUP_RUNS = 2
NodeTimes = List[Tuple[str, List[float]]]
"""Name of an executed node, and its time in each run in microseconds."""
_SUFFIX = "_kernel_time"
_REORDERS = ("ReorderOutput", "Transpose")
_GIVEN_NAME = re.compile(r"(?<![A-Za-z0-9])[nt][0-9]+(?![A-Za-z0-9])")


def read_profile(content: bytes, runs: int) -> NodeTimes:
    """Return each executed node's name and its time in each of the last `runs` runs, in microseconds.

    Nodes are in order of execution. The times of a node inside a loop add up. Raises ValueError for another format.
    """
    taken: Dict[Tuple[int, str], List[float]] = defaultdict(list)
    for event in json.loads(content):
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            node = int(event["args"]["node_index"]), event["name"][: -len(_SUFFIX)]
            taken[node].append(float(event["dur"]))
    total = runs + WARMUP_RUNS
    return [(name, _per_run(times, total)[WARMUP_RUNS:]) for (_, name), times in taken.items()]


def nodes_on(content: bytes, provider: str) -> List[str]:
    """Return the names of the nodes that a provider executed, by a profile; an unnamed one has its operator's name."""
    found: Dict[str, None] = {}
    for event in json.loads(content):
        if event.get("cat") != "Node" or not event["name"].endswith(_SUFFIX):
            continue
        if event["args"].get("provider") == provider:
            found[event["name"][: -len(_SUFFIX)] or event["args"].get("op_name", "?")] = None
    return list(found)


def named_after(sent: bytes, names: Sequence[str]) -> Tuple[str, ...]:
    """Return the nodes of the sent model that executed nodes are named after, if their names show it.

    Raises ValueError if `sent` is not a model.
    """
    known = read_nodes(sent)
    writers = {output: node.name for node in known for output in node.outputs if output}
    anchors = (_anchor(GraphNode(name, "", (), ()), writers, {node.name for node in known}) for name in names)
    return tuple(dict.fromkeys(node for found in anchors for node in found))


def stands_for(sent: bytes, executed: bytes, names: Sequence[str]) -> List[Tuple[str, ...]]:
    """Return for each executed node, in order of execution, the nodes of the sent model that it computes.

    These are the nodes whose results it keeps, or the node it is named after. A reorder of memory belongs to the first
    node that reads its result, as in a probe of that node, even if its result has the name of the one before it. Raises
    ValueError if `sent` or `executed` is not a model.
    """
    known = read_nodes(sent)
    writers = {output: node.name for node in known for output in node.outputs if output}
    operators = {output: node.op for node in known for output in node.outputs if output}
    nodes = read_nodes(executed)
    anchors = [_anchor(node, writers, {node.name for node in known}) for node in nodes]
    readers: Dict[str, int] = {}
    for at in reversed(range(len(nodes))):
        first = min((readers[output] for output in nodes[at].outputs if output in readers), default=None)
        if not anchors[at]:
            anchors[at] = anchors[first] if first is not None else ()
        elif first is not None and _reorders(nodes[at], operators):
            anchors[at] = anchors[first]
        readers.update((name, at) for name in nodes[at].inputs)
    places: Dict[str, List[int]] = defaultdict(list)
    for at, node in enumerate(nodes):
        places[node.name].append(at)
    return [anchors[places[name].pop(0)] if places[name] else () for name in names]


def _reorders(node: GraphNode, operators: Dict[str, str]) -> bool:
    """Return whether the runtime put this node between two others; `operators` of the sent model by their outputs."""
    return node.op in _REORDERS and all(operators.get(output) != node.op for output in node.outputs)


def _anchor(node: GraphNode, writers: Dict[str, str], known: "set[str]") -> Tuple[str, ...]:
    kept = tuple(dict.fromkeys(writers[output] for output in node.outputs if output in writers))
    if kept:
        return kept
    # Passes that rename results derive the names of operators from those of the model: t17_nchwc, n44_token_1.
    for name in (*node.outputs, node.name):
        for part in _GIVEN_NAME.findall(name):
            if part in writers or part in known:
                return (writers.get(part, part),)
    return ()


def _per_run(times: Sequence[float], runs: int) -> List[float]:
    each, left = divmod(len(times), runs)
    if left or not each:
        raise ValueError(f"a node of the profile was executed {len(times)} times in {runs} runs")
    return [sum(times[at : at + each]) for at in range(0, len(times), each)]
