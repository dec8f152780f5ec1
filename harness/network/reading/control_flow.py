"""Nodes and the subgraphs of If, Loop and Scan: domains, what they read, copies, and a Scan as a Loop."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto, helper

from harness.errors import InvalidNetwork, UnsupportedNetwork
from harness.network.network import Node

SEPARATOR = "/"
AXES_AS_INPUT = 13
"""Operator set from which Squeeze, Unsqueeze and Split read axes and sizes as an input."""


@dataclass(frozen=True)
class Repetition:
    """A Loop, or a Scan as a Loop: tensors that state how often it runs and that begin its states.

    `stacks` are the axis along which each further result collects its parts, and whether the last part comes first.
    """

    body: GraphProto
    times: str
    going: str
    carried: tuple[str, ...]
    stacks: tuple[tuple[int, bool], ...]


def domain_of(message: NodeProto | FunctionProto | OperatorSetIdProto) -> str:
    """Return the domain of an operator, a function or an operator set, with one name for that of ONNX."""
    return "" if message.domain == "ai.onnx" else str(message.domain)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def tensors_read(graph: GraphProto) -> Iterator[str]:
    """Yield every tensor that the nodes of a graph, or of its subgraphs, read; graph outputs count as read."""
    for node in graph.node:
        yield from node.input
        for inner in subgraphs(node):
            yield from tensors_read(inner)
    yield from (value.name for value in graph.output)


def stored(graph: GraphProto) -> list[TensorProto]:
    """Return the initializers of a graph, and the values of the sparse ones, which have their names."""
    return [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]


def captured(node: NodeProto) -> list[str]:
    """Return the tensors that the subgraphs of a node read from outside, each once."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        own = _defined(graph) | {tensor.name for tensor in stored(graph)}
        found.update((name, None) for name in tensors_read(graph) if name and name not in own)
    return list(found)


def sort_nodes(graph: GraphProto) -> None:
    """Put each node after those that it reads from, as runtimes do; nodes in a cycle come last."""
    writers = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    awaited = [{writers[name] for name in (*node.input, *captured(node)) if name in writers} for node in graph.node]
    if all(at > max(before, default=-1) for at, before in enumerate(awaited)):
        return
    readers: dict[int, list[int]] = {}
    for at, before in enumerate(awaited):
        for writer in before:
            readers.setdefault(writer, []).append(at)
    ready = [at for at, before in enumerate(awaited) if not before]
    order: list[int] = []
    while ready:
        order.append(at := heapq.heappop(ready))
        for reader in readers.get(at, ()):
            awaited[reader].discard(at)
            if not awaited[reader]:
                heapq.heappush(ready, reader)
    nodes = [graph.node[at] for at in (*order, *sorted(set(range(len(awaited))) - set(order)))]
    del graph.node[:]
    graph.node.extend(nodes)


def renamed(graph: GraphProto, label: str, *, weights: str = "", results: Sequence[str] = ()) -> GraphProto:
    """Return a copy of a branch or body in which every name that it defines starts with `label`.

    Those of its initializers start with `weights` if given: iterations of a loop share them. What its nodes write to
    its outputs has the names `results` if given.
    """
    names = {name: f"{label}{SEPARATOR}{name}" for name in _defined(graph)}
    written = {name for node in graph.node for name in node.output}
    found = zip(graph.output, results, strict=False)
    names.update((own.name, name) for own, name in found if own.name in written and name)
    names.update((tensor.name, f"{weights or label}{SEPARATOR}{tensor.name}") for tensor in stored(graph))
    return _renamed(graph, names, label)


def loop_of(loop: NodeProto, inputs: Sequence[str]) -> Repetition:
    """Return a Loop that reads tensors of these names."""
    body = next(subgraphs(loop))
    times, going, *carried = (*inputs, *[""] * (2 - len(inputs)))
    return Repetition(body, times, going, tuple(carried), ((0, False),) * (len(body.output) - 1 - len(carried)))


def scan_of(
    scan: NodeProto, inputs: Sequence[str], shapes: Sequence[Sequence[int]], label: str
) -> tuple[Repetition, int]:
    """Return a Scan that reads tensors of these names and shapes as a Loop, and the number of its steps.

    The tensors `label/times`, the number of steps, and `label/backwards`, their numbers from the last to the first, do
    not exist yet. Input 2 is read as `label/scanned2`, since the body may use its name for something else. Raises
    ValueError for a Scan whose parts contradict each other.
    """
    given = {item.name: helper.get_attribute_value(item) for item in scan.attribute}
    body, states = given["body"], len(inputs) - given["num_scan_inputs"]
    axes = given.get("scan_input_axes", [0] * (len(inputs) - states))
    turned = given.get("scan_input_directions", [0] * len(axes))
    number = helper.make_tensor_value_info(f"{label}{SEPARATOR}number", TensorProto.INT64, [])
    going = helper.make_tensor_value_info(f"{label}{SEPARATOR}going", TensorProto.BOOL, [])
    (steps,) = {shape[axis] for shape, axis in zip(shapes[states:], axes, strict=True)}
    whole = type(body)(initializer=body.initializer, input=[number, going, *body.input[:states]])
    whole.sparse_initializer.extend(body.sparse_initializer)
    sources = [f"{label}{SEPARATOR}scanned{at}" for at in range(states, len(inputs))]
    for part, source, axis, is_turned in zip(body.input[states:], sources, axes, turned, strict=True):
        whole.node.extend(_part(part, source, axis, number.name, f"{label}{SEPARATOR}backwards" if is_turned else ""))
    whole.node.extend(body.node)
    whole.output.extend([going, *body.output])
    rows = len(body.output) - states
    ends = given.get("scan_output_axes", [0] * rows), given.get("scan_output_directions", [0] * rows)
    found = [(axis, bool(is_turned)) for axis, is_turned in zip(*ends, strict=True)]
    return Repetition(whole, f"{label}{SEPARATOR}times", "", tuple(inputs[:states]), tuple(found)), steps


def _part(part: ValueInfoProto, source: str, axis: int, number: str, backwards: str) -> Iterator[NodeProto]:
    """Yield nodes that extract the part of an input that a step of a Scan reads."""
    if backwards:
        yield helper.make_node("Gather", [backwards, number], [f"{part.name}{SEPARATOR}number"])
        number = f"{part.name}{SEPARATOR}number"
    yield helper.make_node("Gather", [source, number], [part.name], axis=axis)


def stacking(parts: Sequence[str], result: str, axes: str, axis: int, opset: int) -> Iterator[NodeProto]:
    """Yield nodes that join equal tensors along a new axis. `axes` is the name of a constant that holds the axis."""
    rows = [f"{result}{SEPARATOR}{at}" for at in range(len(parts))]
    for part, row in zip(parts, rows, strict=True):
        if opset < AXES_AS_INPUT:
            yield helper.make_node("Unsqueeze", [part], [row], axes=[axis])
        else:
            yield helper.make_node("Unsqueeze", [part, axes], [row])
    yield helper.make_node("Concat", rows, [result], axis=axis)


def _defined(graph: GraphProto) -> set[str]:
    """Return the names of a graph's inputs and of all that its nodes write."""
    return {value.name for value in graph.input} | {name for node in graph.node for name in node.output if name}


def _renamed(graph: GraphProto, names: Mapping[str, str], label: str) -> GraphProto:
    copy = type(graph)()
    copy.CopyFrom(graph)
    for tensor in stored(copy):
        tensor.name = names.get(tensor.name, tensor.name)
    for value in (*copy.input, *copy.output):
        value.name = names.get(value.name, value.name)
    for node in copy.node:
        node.name = f"{label}{SEPARATOR}{node.name}" if node.name else ""
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for inner in subgraphs(node):
            shadowed = _defined(inner) | {tensor.name for tensor in stored(inner)}
            visible = {name: new for name, new in names.items() if name not in shadowed}
            inner.CopyFrom(_renamed(inner, visible, label))
    return copy


def contradiction(node: Node) -> InvalidNetwork:
    """Return the error of a loop whose inputs do not fit its body."""
    why = "The numbers of tensors differ, or the tensors that it scans differ in length"
    return InvalidNetwork(f"Node {node.name[:80]!r} ({node.op}) does not match its body", why=why)


def unknown_flow(node: Node, choices: Sequence[str]) -> UnsupportedNetwork:
    """Return the error of control flow that depends on the inputs; `choices` are those whose values can be given."""
    why = "It holds a subgraph, and the latency of control flow depends on the data"
    what = f"Node {node.name[:80]!r} ({node.op}) cannot be measured"
    step = "" if choices else "Export the network without If, Loop and Scan"
    return UnsupportedNetwork(what, why=why, next_step=step, unset=choices)
