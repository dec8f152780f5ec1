"""Run one node on the host by ONNX Runtime, which measures nothing: its values, or the types of its results.

A network has many nodes that differ only in names and sizes, such as the arithmetic on shapes that exporters write.
They share one session, because opening one takes longer than running it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.array_types import Array
from harness.errors import InvalidNetwork
from harness.host_runtime import is_shortage, open_session, session_options
from harness.network.network import PACKED, Node

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


MAX_FORM_BYTES = 4096
"""Nodes of more bytes share nothing."""
_IR_VERSION = 8
_SESSIONS = 32

Opsets = tuple[tuple[str, int], ...]
Kinds = tuple[tuple[str, str, tuple[int | None, ...]], ...]
"""Names, element types and sizes of tensors."""


def form_of(node: Node) -> bytes | None:
    """Return what a node is without its names; None if it is too large, or holds subgraphs, which have names."""
    from onnx import NodeProto

    if node.proto.ByteSize() > MAX_FORM_BYTES or any(
        item.HasField("g") or item.graphs for item in node.proto.attribute
    ):
        return None
    places = [f"i{place}" if name else "" for place, name in enumerate(node.proto.input)]
    results = [f"o{place}" if name else "" for place, name in enumerate(node.proto.output)]
    form = NodeProto(op_type=node.proto.op_type, domain=node.proto.domain, input=places, output=results)
    form.attribute.extend(node.proto.attribute)
    return bytes(form.SerializeToString())


class CannotRun(Exception):
    """ONNX Runtime cannot run a node; its text is the runtime's reason."""


def values(node: Node, feeds: Mapping[str, Any], opsets: Mapping[str, int]) -> dict[str, Array]:
    """Return a node's results.

    `feeds` are the values that it reads, by their names in the file. Raises CannotRun, MemoryError, and InvalidNetwork
    for a constant without its data.
    """
    from onnx import numpy_helper

    if node.op == "Constant" and (held := _constant(node)) is not None:
        return {node.outputs[0]: held}
    form = form_of(node)
    stored = {name for name, value in feeds.items() if str(value.dtype) in PACKED}
    try:
        if form is None or stored:
            given = {name: value for name, value in feeds.items() if name not in stored}
            tensors = [numpy_helper.from_array(feeds[name], name) for name in stored]
            session = _open(node.proto, _kinds(node, given), tuple(opsets.items()), tensors)
        else:
            given = {f"i{place}": feeds[name] for place, name in enumerate(node.proto.input) if name}
            session = _session(form, _kinds(node, given), tuple(opsets.items()))
        results = session.run(None, given)
    except Exception as error:  # the runtime's exceptions have no narrower common base
        if is_shortage(error):
            raise MemoryError(f"Node {node.name[:80]!r} ({node.op}) takes too much memory") from error
        raise CannotRun(re.split(": |, Error ", " ".join(str(error).split()))[-1]) from error
    return {name: np.asarray(value) for name, value in zip(node.results, results, strict=True)}


def _kinds(node: Node, given: Mapping[str, Any]) -> Kinds:
    """Return the types of what a node reads; without sizes for ONNX's operators, so that they share a session.

    Some operators of ONNX Runtime demand the sizes, and so does a Resize to given sizes.
    """
    sized = bool(node.domain) or node.op == "Resize"
    return tuple(
        (name, str(value.dtype), value.shape if sized else (None,) * len(value.shape)) for name, value in given.items()
    )


def _constant(node: Node) -> Array | None:
    """Return what a Constant node holds as numbers in full; None for texts and sparse tensors."""
    from onnx import numpy_helper

    held = {item.name: item for item in node.proto.attribute}
    if "value" in held:
        try:
            return numpy_helper.to_array(held["value"].t)
        except (ValueError, KeyError, TypeError) as error:  # wrong data, or an element type that there is not
            what = f"Node {node.name[:80]!r} (Constant) is damaged"
            raise InvalidNetwork(what, why=str(error)[:200]) from error
    if "value_int" in held:
        return np.array(held["value_int"].i, np.int64)
    if "value_ints" in held:
        return np.array(held["value_ints"].ints, np.int64)
    if "value_float" in held:
        return np.array(held["value_float"].f, np.float32)
    if "value_floats" in held:
        return np.array(held["value_floats"].floats, np.float32)
    return None


@functools.lru_cache(_SESSIONS)
def _session(form: bytes, kinds: Kinds, opsets: Opsets) -> Any:
    from onnx import NodeProto

    return _open(NodeProto.FromString(form), kinds, opsets)


def _open(proto: NodeProto, kinds: Kinds, opsets: Opsets, held: Sequence[TensorProto] = ()) -> Any:
    """Return a session of one node for inputs of these types; `held` are inputs that can only be constants."""
    from onnx import helper

    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), sizes)
        for name, dtype, sizes in kinds
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = helper.make_graph([proto], "node", inputs, outputs, held)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    options = session_options(threads=1, level="DISABLE_ALL")
    options.enable_cpu_mem_arena = False  # a result would keep the arena of its session, 1 MiB of address space
    return open_session(model.SerializeToString(), options)
