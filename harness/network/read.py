"""ONNX files in: size cap, containment of external data, checker, inlining. Nothing is executed here."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import InvalidNetwork, UnsupportedNetwork

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

MAX_FILE_BYTES = (2 << 30) - 1
MIN_OPSET = 7
MAX_NODES = 200_000


@dataclass(frozen=True)
class ModelFile:
    """A checked model, with the name reports use and the hash of the bytes it came from."""

    name: str
    model: ModelProto
    sha256: str


def read_model(path: Path) -> ModelFile:
    """Reads and checks an ONNX file without loading external weights.

    Raises InvalidNetwork (unreadable, truncated, not ONNX, reaches outside its folder) and
    UnsupportedNetwork (operators or opsets outside the standard).
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InvalidNetwork(f"{path} is not a file", next_step="Name an .onnx file")
        if size > MAX_FILE_BYTES:
            why = f"It has {size:,} bytes; a protobuf file may have {MAX_FILE_BYTES:,}"
            raise InvalidNetwork(f"{path} is too large", why=why, next_step="Save its weights as external data")
        content = path.read_bytes()
    except OSError as error:
        raise InvalidNetwork(f"{path} cannot be read", why=error.strerror or str(error)) from error
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        why = "Its content is not a protobuf message, or it is cut short"
        raise InvalidNetwork(f"{path} is not an ONNX file", why=why) from error
    if not model.HasField("graph") or not model.graph.node:
        raise InvalidNetwork(f"{path} holds no network", why="Its graph has no nodes")
    check_external_data(model.graph, path.parent)
    return check_model(path.stem, model, content)


def check_model(name: str, model: ModelProto, content: bytes) -> ModelFile:
    """Checks a model that is already in memory; see `read_model` for what it raises."""
    import onnx

    model = _inline_functions(name, model)
    _check_operators(name, model)
    try:
        onnx.checker.check_model(_without_external_data(model))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        why = next((line for line in str(error).splitlines() if line.strip()), "the ONNX checker rejects it")
        raise InvalidNetwork(f"{name} is not valid ONNX", why=why[:300]) from error
    return ModelFile(name, model, hashlib.sha256(content).hexdigest())


def check_external_data(graph: GraphProto, folder: Path) -> None:
    """Every external tensor must lie in a plain file of its own inside the model's folder, whole."""
    from onnx import TensorProto

    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            _check_external_tensor(tensor, folder)


def _check_external_tensor(tensor: TensorProto, folder: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")

    def refuse(why: str) -> InvalidNetwork:
        what = f"External data of tensor {tensor.name[:80]!r} is refused"
        return InvalidNetwork(what, why=why, next_step="Keep external data in plain files beside the model")

    if not location or os.path.isabs(location) or "\\" in location or ".." in Path(location).parts:
        raise refuse(f"Its location {location[:80]!r} is not a relative path inside the model's folder")
    path = folder / location
    try:
        status = path.lstat()
        inside = path.resolve().is_relative_to(folder.resolve())
    except OSError as error:
        raise refuse(f"{location[:80]!r}: {error.strerror}") from error
    if not inside or not path.is_file() or path.is_symlink() or status.st_nlink != 1:
        raise refuse(f"{location[:80]!r} is a link or not a plain file inside the model's folder")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except ValueError as error:
        raise refuse("Its offset or length is not a number") from error
    if offset < 0 or length < 0 or offset + length > status.st_size:
        raise refuse(f"Bytes {offset} to {offset + length} lie outside the file of {status.st_size} bytes")


def _without_external_data(model: ModelProto) -> ModelProto:
    """A copy in which external tensors are inputs, so that the checker opens no file."""
    import onnx
    from onnx import TensorProto, helper

    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    if not external:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = {tensor.name for tensor in external}
    kept = [tensor for tensor in copy.graph.initializer if tensor.name not in names]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    known = {value.name for value in copy.graph.input}
    copy.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in external
        if tensor.name not in known
    )
    return copy


def _inline_functions(name: str, model: ModelProto) -> ModelProto:
    from onnx import inliner

    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except (ValueError, RuntimeError) as error:
        raise InvalidNetwork(f"The functions of {name} cannot be inlined", why=str(error)[:300]) from error


def _check_operators(name: str, model: ModelProto) -> None:
    from onnx import AttributeProto, defs

    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    version = opsets.get("ai.onnx", 0)
    newest = defs.onnx_opset_version()
    if not MIN_OPSET <= version <= newest:
        step = f"Convert it to an opset from {MIN_OPSET} to {newest}"
        raise UnsupportedNetwork(f"{name} uses opset {version}", why="This version is not supported", next_step=step)
    if len(model.graph.node) > MAX_NODES:
        raise UnsupportedNetwork(f"{name} has {len(model.graph.node):,} nodes", why=f"The limit is {MAX_NODES:,}")
    for index, node in enumerate(model.graph.node):
        label = f"Node {node.name[:80]!r} ({node.op_type[:80]})" if node.name else f"Node {index} ({node.op_type[:80]})"
        if node.domain not in ("", "ai.onnx"):
            why = f"Its domain {node.domain[:80]!r} is not part of ONNX, so its output shapes are unknown"
            raise UnsupportedNetwork(f"{label} of {name} is unknown", why=why)
        if not defs.has(node.op_type, version, ""):
            raise UnsupportedNetwork(f"{label} of {name} is unknown", why=f"Opset {version} has no such operator")
        kinds = {attribute.type for attribute in node.attribute}
        if kinds & {AttributeProto.GRAPH, AttributeProto.GRAPHS}:
            why = "It holds a subgraph; latency of control flow depends on the data"
            step = "Export the network without If, Loop and Scan"
            raise UnsupportedNetwork(f"{label} of {name} cannot be measured", why=why, next_step=step)
