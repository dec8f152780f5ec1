"""Wrap parts of a network: in functions, in branches of If, in Loop and Scan over constants."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from fuzz.edits.draft import Draft, Edit, Kind, Unsuited, copied, reads

DOMAIN = "ours"


def function(draft: Draft) -> None:
    """Put one node, or a few that follow each other, into a function, and call it in their place."""
    body, start = _stretch(draft)
    inputs, outputs = _ends(draft, body, start)
    name = draft.fresh("F")
    opsets = [copied(one) for one in draft.model.opset_import]
    made = helper.make_function(DOMAIN, name, inputs, outputs, body, opsets)
    call = helper.make_node(name, inputs, outputs, draft.node_name(), domain=DOMAIN)
    if draft.draw.random() < 0.4:
        _lift_attribute(draft, made, call)
    _replace(draft, start, len(body), call)
    draft.model.functions.append(made)
    for holder in (draft.model, *draft.model.functions):
        if DOMAIN not in {one.domain for one in holder.opset_import}:
            holder.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _lift_attribute(draft: Draft, made: Any, call: NodeProto) -> None:
    """Let the function refer to an attribute of the call, or to its default."""
    node = draft.pick([node for node in made.node if node.attribute])
    item = draft.pick([item for item in node.attribute if not item.ref_attr_name])
    given = copied(item)
    given.name = f"given_{item.name}"
    if draft.draw.random() < 0.7:
        made.attribute.append(given.name)
        call.attribute.append(given)
    else:
        made.attribute_proto.append(given)
    kept = type(item)(name=item.name, type=item.type, ref_attr_name=given.name)
    item.CopyFrom(kept)


def call_again(draft: Draft) -> None:
    """Call a function once more, on its own result or another tensor of that type."""
    calls = [node for node in draft.graph.node if node.domain == DOMAIN and len(node.output) == 1]
    call = copied(draft.pick(calls))
    tensor = draft.pick([name for name in call.input if name in draft.tensors()])
    kind = draft.types[tensor]
    other = draft.pick(draft.tensors(lambda found: found == kind))
    call.input[:] = [other if name == tensor else name for name in call.input]
    call.output[:] = [draft.fresh("t")]
    call.name = draft.node_name()
    draft.graph.node.insert(draft.after(call.input), call)
    draft.attach(call.output[0], other)


def branch(draft: Draft) -> None:
    """Put a stretch of nodes into both branches of If, under a condition that is constant or computed from one."""
    body, start = _stretch(draft)
    _, outputs = _ends(draft, body, start)
    then, otherwise = (_graph(draft, body, outputs, label) for label in ("then", "else"))
    condition = draft.constant(np.array(draft.draw.random() < 0.5), node=False)
    call = helper.make_node("If", [condition], outputs, draft.node_name(), then_branch=then, else_branch=otherwise)
    _replace(draft, start, len(body), call)
    if draft.draw.random() < 0.3:
        negated = draft.append("Not", [condition])  # goes before all other nodes
        draft.graph.node[start + 1].input[:] = negated


def _graph(draft: Draft, body: Sequence[NodeProto], outputs: Sequence[str], label: str) -> GraphProto:
    """Return a branch of some nodes, whose results have other names than outside."""
    names = {name: draft.fresh(label) for node in body for name in node.output if name}
    nodes = [copied(node) for node in body]
    for node in nodes:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
    kinds = [(names[name], draft.types[name]) for name in outputs]
    ends = [helper.make_tensor_value_info(name, kind.element, kind.shape) for name, kind in kinds]
    return helper.make_graph(nodes, draft.fresh("g"), [], ends)


def loop(draft: Draft) -> None:
    """Add a number that Loop or Scan computes from constants, which a reader folds."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    result = _loop(draft) if draft.draw.random() < 0.7 else _scan(draft)
    (found,) = draft.append("Cast", [result], to=kind.element)
    (summed,) = draft.append("Add", [tensor, found])
    draft.state(summed, kind if kind.shape else Kind(kind.element, (1,)))
    draft.attach(summed, tensor)


def _loop(draft: Draft) -> str:
    value, draw = helper.make_tensor_value_info, draft.draw
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node(draw.choice(("Neg", "Exp", "Sqrt", "Abs")), ["v"], ["w"]),
        ],
        draft.fresh("b"),
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [1])],
        [value("d", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [1])],
    )
    times = draft.constant(np.array(draw.choice((0, 1, 3, 100)), np.int64))
    condition = draft.constant(np.array(draw.random() < 0.9))
    start = draft.constant(np.ones(1, np.float32))
    return draft.append("Loop", [times, condition, start], body=body)[0]


def _scan(draft: Draft) -> str:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["u"]), helper.make_node("Identity", ["u"], ["o"])],
        draft.fresh("b"),
        [value("s", TensorProto.FLOAT, [1]), value("e", TensorProto.FLOAT, [1])],
        [value("u", TensorProto.FLOAT, [1]), value("o", TensorProto.FLOAT, [1])],
    )
    if draft.opset < 9:
        raise Unsuited("Scan had a batch")
    items = draft.constant(np.ones((draft.draw.choice((1, 2, 5)), 1), np.float32))
    start = draft.constant(np.zeros(1, np.float32))
    return draft.append("Scan", [start, items], 2, body=body, num_scan_inputs=1)[0]


def unwrap(draft: Draft) -> None:
    """Put the nodes of a branch in the place of its If."""
    node = draft.pick([node for node in draft.graph.node if node.op_type == "If"])
    at = next(at for at, other in enumerate(draft.graph.node) if other is node or other == node)
    graph = draft.pick([item.g for item in node.attribute])
    names = {value.name: result for value, result in zip(graph.output, node.output, strict=True)}
    inner = [copied(one) for one in graph.node]
    draft.graph.initializer.extend(copied(one) for one in graph.initializer)
    for one in inner:
        for field in (one.input, one.output):
            field[:] = [names.get(name, name) for name in field]
    del draft.graph.node[at]
    for place, one in enumerate(inner, at):
        draft.graph.node.insert(place, one)


def _stretch(draft: Draft) -> tuple[list[NodeProto], int]:
    """Return copies of one to four nodes in a row, and the place of the first."""
    count = draft.draw.choice((1, 1, 2, 4))
    places = range(max(1, len(draft.graph.node) - count + 1))
    start = draft.pick([at for at in places if draft.graph.node[at].input])
    body = [copied(node) for node in draft.graph.node[start : start + count]]
    return body, start


def _ends(draft: Draft, body: Sequence[NodeProto], start: int) -> tuple[list[str], list[str]]:
    """Return what a stretch reads from before it, and what is read of it behind it."""
    written = {name for node in body for name in node.output if name}
    inner = {name for node in body for name in reads(node)} & draft.types.keys()
    read = [*(name for node in body for name in node.input if name), *sorted(inner)]
    later = {name for node in draft.graph.node[start + len(body) :] for name in reads(node)}
    later |= {value.name for value in draft.graph.output}
    outputs = [name for node in body for name in node.output if name in later]
    if not outputs or any(name not in draft.types for name in outputs):
        raise Unsuited("nothing is read, or of an unknown type")
    return list(dict.fromkeys(name for name in read if name not in written)), outputs


def _replace(draft: Draft, start: int, count: int, node: NodeProto) -> None:
    for _ in range(count):
        del draft.graph.node[start]
    draft.graph.node.insert(start, node)


EDITS: tuple[Edit, ...] = (function, function, call_again, branch, branch, loop, unwrap)
