"""Read ONNX files: limit their size, confine external data, check, inline functions. Nothing is executed here."""

import functools
import hashlib
import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto, TensorProto, defs, helper, inliner

from harness.errors import InvalidNetwork, UnsupportedNetwork, reason_of
from harness.files import open_plain, read_with_digest
from harness.network.learnt_weights import RUNTIME_DOMAINS, checkable, defined
from harness.network.network import ML_DOMAIN
from harness.network.reading.control_flow import all_nodes, domain_of, sort_nodes, subgraphs
from harness.network.reading.expansion import check_expansion
from harness.text import printable

MAX_FILE_BYTES = (2 << 30) - 1
MIN_OPSET = 7
DEFAULT_OPSET = 17
_INFERRED_OTHERWISE = {"STFT": ("onesided", 1)}
_DISK_BLOCK = 512
_MOST_READ = 1 << 16
"""External tensors of more elements are weights, of which only the type is needed."""
_MOST_READ_BYTES = 32 << 20
"""So much of external tensors is read, the smallest first: what may decide shapes is small."""
_LARGE_BYTES = 1 << 16
_MOST_VERSION = (1 << 31) - 1
"""ONNX finds operators by versions of 32 bits."""
_ORT_FORMAT = b"ORTM"
_IR_WITHOUT_INPUTS = 4
"""From this version of the format on, initializers need not be inputs."""
_REAL_TYPES = frozenset({1, 10, 11})
"""ONNX's numbers of float32, float16 and float64."""


@dataclass(frozen=True)
class ModelFile:
    """A checked model, its name in reports, the hash of the bytes that it was read from, and how much was stored.

    `stored_bytes` counts the file, and its external data as they occupy the disk. `is_external` says whether there are
    external data; of the smallest tensors, such as shapes and scales, they are part of the model.
    """

    name: str
    model: ModelProto
    sha256: str
    stored_bytes: int = 0
    is_external: bool = False

    @property
    def replaceable_weights(self) -> frozenset[str]:
        """The weights that are inputs as well, so that runtimes do not take them for constants.

        Before version 4 of the format, all weights are listed and are constants. Vectors may state shapes and do not
        count.
        """
        graph, lists_replaceable = self.model.graph, self.model.ir_version >= _IR_WITHOUT_INPUTS
        listed = {value.name for value in graph.input} if lists_replaceable else set()
        weights = (one for one in graph.initializer if one.name in listed and len(one.dims) > 1)
        return frozenset(one.name for one in weights if one.data_type in _REAL_TYPES)


def read_model(path: Path) -> ModelFile:
    """Read and check an ONNX file without loading large external weights.

    Raises InvalidNetwork (unreadable, truncated, not ONNX, reaches outside its folder) and
    UnsupportedNetwork (operators or opsets outside the standard).
    """
    shown = printable(str(path), 200)
    try:
        content, sha256 = read_with_digest(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        why = reason_of(error)
        smaller = "Save the network again, with its weights as external data"
        step = smaller if "larger" in why else "Give the path of an ONNX file, or builtin:NAME"
        raise InvalidNetwork(f"{shown} cannot be read", why=why, next_step=step) from error
    return parse_model(printable(path.stem, 200), shown, content, path.parent, sha256)


def parse_model(name: str, shown: str, content: bytes, folder: Path | None = None, sha256: str = "") -> ModelFile:
    """Parse and check the bytes of an ONNX file; `shown` names it in errors, `folder` may hold its external data.

    `sha256` is the hash of the content if it is known.

    Raises as `read_model` does.
    """
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        if "alloc" in str(error) or "memory" in str(error):
            raise MemoryError(str(error)) from error
        why, step = "Its content is not a protobuf message, or it is cut short", ""
        if content[4:8] == _ORT_FORMAT:
            why, step = "It has ONNX Runtime's own format", "Give the ONNX file that it was made from"
        raise InvalidNetwork(f"{shown} is not an ONNX file", why=why, next_step=step) from error
    if not model.HasField("graph") or not model.graph.node:
        why = "Its graph has no nodes" if content else "The file is empty"
        raise InvalidNetwork(f"{shown} holds no network", why=why)
    for field, value in (part for message in _messages([model]) for part in _fields(message)):
        texts = value if field.is_repeated else (value,)
        # Protobuf passes other bytes on if a file is damaged.
        if field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in texts):
            raise InvalidNetwork(f"{shown} is not valid ONNX", why="A name in it is not UTF-8 text")
    outside = _read_external_data(model, folder)
    stored_bytes = len(content) + sum(outside.values())
    return replace(check_model(name, model, content, sha256), stored_bytes=stored_bytes, is_external=bool(outside))


def check_model(name: str, model: ModelProto, content: bytes, sha256: str = "") -> ModelFile:
    """Check a model that is already in memory, with the hash of its content; raises the errors of `read_model`."""
    check_expansion(name, model)
    what = f"The functions of {name} cannot be inlined"
    for entry in (*model.opset_import, *(entry for each in model.functions for entry in each.opset_import)):
        if not 0 <= entry.version <= _MOST_VERSION:
            why = f"It states opset {entry.version} of {entry.domain[:80] or 'ai.onnx'!r}"
            raise InvalidNetwork(f"{name} is not valid ONNX", why=why)
    try:
        if model.functions:
            _align_functions(model)
            model = inliner.inline_local_functions(model)
        sort_nodes(model.graph)
        _complete_domains(model)
        _complete_names(model)
        _complete_outputs(model)
        _complete_attributes(model)
        _check_operators(name, model)
        what = f"{name} is not valid ONNX"
        with checkable(model, all_nodes(model.graph.node)):
            onnx.checker.check_model(_without_weights(model))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split()) or "the ONNX checker rejects it"
        raise InvalidNetwork(what, why=why[:300]) from error
    return ModelFile(name, model, sha256 or hashlib.sha256(content).hexdigest(), len(content))


def _messages(roots: Iterable[Message]) -> Iterator[Message]:
    """Yield protobuf messages and all messages inside them."""
    waiting = list(roots)
    while waiting:
        yield (message := waiting.pop())
        for field, value in _fields(message):
            if field.type == field.TYPE_MESSAGE:
                waiting += value if field.is_repeated else (value,)


def _fields(message: Message) -> Sequence[tuple[FieldDescriptor, Any]]:
    """Return the fields of a message that are set, of a tensor those without its values: to read these copies them."""
    if message.DESCRIPTOR.name != "TensorProto":
        return list(message.ListFields())
    return [(field, getattr(message, field.name)) for field in _plain_fields(message.DESCRIPTOR)]


@functools.cache
def _plain_fields(descriptor: Descriptor) -> list[FieldDescriptor]:
    return [field for field in descriptor.fields if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE)]


def _read_external_data(model: ModelProto, folder: Path | None) -> dict[Path, int]:
    """Check that external initializers lie in plain files inside the model's folder, and nothing else is external.

    Reads small ones, and returns the size of each file on the disk. Raises InvalidNetwork.
    """
    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    files, left_bytes = dict[Path, int](), _MOST_READ_BYTES
    for tensor in sorted(external, key=lambda tensor: math.prod(tensor.dims)):
        path, size = _read_external_tensor(tensor, folder, left_bytes)
        files[path] = size
        left_bytes -= len(tensor.raw_data)
    for message in _messages([*model.graph.sparse_initializer, *model.graph.node, *model.functions]):
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            why = "Only initializers may keep their data in another file"
            raise InvalidNetwork(f"Tensor {message.name[:80]!r} of a node refers to external data", why=why)
    return files


def _read_external_tensor(tensor: TensorProto, folder: Path | None, left_bytes: int) -> tuple[Path, int]:
    """Return the file of a tensor's data and its size on the disk, where holes take no room; raises InvalidNetwork.

    Values that may decide shapes become part of the tensor, if they take no more than `left_bytes`.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")

    def refuse(why: str) -> InvalidNetwork:
        what = f"External data of tensor {tensor.name[:80]!r} is refused"
        return InvalidNetwork(what, why=why, next_step="Keep external data in plain files in the folder of the model")

    if folder is None:
        raise refuse("The network is held in memory, without a folder")
    plain = location.isprintable() and "\\" not in location and ".." not in Path(location).parts
    if not location or os.path.isabs(location) or not plain:
        raise refuse(f"Its location {location[:80]!r} is not a relative path inside the model's folder")
    path = folder / location
    try:
        status = path.lstat()
        # A link in a circle cannot be resolved: Python 3.12 and earlier raise RuntimeError.
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        inside = is_plain and path.resolve().is_relative_to(folder.resolve())
    except OSError as error:
        raise refuse(f"{location[:80]!r}: {error.strerror}") from error
    if not inside:
        raise refuse(f"{location[:80]!r} is a link or not a plain file inside the model's folder")
    try:
        needed = _tensor_bytes(tensor)
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
    except (KeyError, ValueError) as error:
        raise refuse("Its offset, length or element type is not valid") from error
    if min(offset, needed) < 0 or length != needed or offset + length > status.st_size:
        why = f"It needs {needed} bytes; stated are {length} at {offset} of a file of {status.st_size} bytes"
        raise refuse(why)
    if math.prod(tensor.dims) <= _MOST_READ and needed <= left_bytes:
        try:
            with open_plain(path) as file:
                file.seek(offset)
                tensor.raw_data = file.read(needed)
        except OSError as error:
            raise refuse(f"{location[:80]!r}: {error.strerror}") from error
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return path, min(status.st_size, status.st_blocks * _DISK_BLOCK)


def _tensor_bytes(tensor: TensorProto) -> int:
    """Return the size of a tensor's data in bytes; raises ValueError for text and KeyError for unknown types."""
    elements = int(math.prod(tensor.dims))
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return -(-elements // 2)
    if tensor.data_type == TensorProto.STRING:
        raise ValueError("no fixed size")
    return elements * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _without_weights(model: ModelProto) -> ModelProto:
    """Return a copy in which weights are inputs, so that the checker opens no file and copies no gigabytes.

    Weights are external tensors, and large ones of which the checker would find nothing else than their type.
    """
    initializers, inputs = model.graph.initializer, {value.name for value in model.graph.input}
    names = Counter(tensor.name for tensor in initializers)
    names.update(tensor.values.name for tensor in model.graph.sparse_initializer)

    def is_weight(tensor: TensorProto) -> bool:
        if tensor.data_location == TensorProto.EXTERNAL:
            return True
        is_declared = model.ir_version >= _IR_WITHOUT_INPUTS or tensor.name in inputs
        return is_declared and bool(tensor.name) and names[tensor.name] == 1 and _is_large(tensor)

    weights = [is_weight(tensor) for tensor in initializers]
    if not any(weights):
        return model
    copy, graph = _copied(model, "graph"), _copied(model.graph, "initializer")
    for tensor, is_left_out in zip(initializers, weights, strict=True):
        if not is_left_out:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    copy.graph.CopyFrom(graph)
    return copy


def _is_large(tensor: TensorProto) -> bool:
    """Return whether a tensor is large and its values are exactly as many bytes as its type takes."""
    size = len(tensor.raw_data)  # a copy, as every reading of bytes is
    if size < _LARGE_BYTES:
        return False
    others = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    if any(others) or tensor.string_data or tensor.external_data or tensor.HasField("segment"):
        return False
    try:
        return min(tensor.dims, default=0) > 0 and size == _tensor_bytes(tensor)
    except (KeyError, ValueError, TypeError):
        return False


_Copied = TypeVar("_Copied", bound="Message")


def _copied(message: _Copied, left_out: str) -> _Copied:
    """Return a copy without one field, which may be large."""
    copy: _Copied = type(message)()
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        elif field.type == field.TYPE_MESSAGE:
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
    return copy


def _align_functions(model: ModelProto) -> None:
    """State the network's operator sets in functions where their operators are the same: only those are inlined."""
    stated = {domain_of(entry): entry.version for entry in model.opset_import}

    def since(op: str, version: int, domain: str) -> int:
        return int(defs.get_schema(op, version, domain).since_version) if defs.has(op, version, domain) else 0

    for function in model.functions:
        for entry in function.opset_import:
            domain = domain_of(entry)
            version = stated.get(domain, entry.version)
            used = {node.op_type for node in all_nodes(function.node) if domain_of(node) == domain}
            if all(since(op, version, domain) == since(op, entry.version, domain) for op in used):
                entry.version = version


def _complete_domains(model: ModelProto) -> None:
    """Give ONNX's domain one name, and state an opset of it if no operator needs one."""
    nodes, imports = list(all_nodes(model.graph.node)), model.opset_import
    for message in (*imports, *nodes):
        if message.domain != domain_of(message):
            message.domain = ""
    if imports and all(entry.domain for entry in (*imports, *nodes)):
        imports.add(version=DEFAULT_OPSET)


def _complete_names(model: ModelProto) -> None:
    """Name the graphs that have no name: the checker demands one, and runtimes do not read it."""
    inner = (graph for node in all_nodes(model.graph.node) for graph in subgraphs(node))
    for graph in (model.graph, *inner):
        graph.name = graph.name or "graph"


def _complete_outputs(model: ModelProto) -> None:
    """Give outputs without type or shape what the checker demands. Nothing reads it: all types are inferred."""
    for value in model.graph.output:
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            kind = value.type.tensor_type
            kind.elem_type = kind.elem_type or TensorProto.FLOAT
            kind.shape.SetInParent()


def _complete_attributes(model: ModelProto) -> None:
    """State the attributes that ONNX's shape inference reads with another default than the operator has."""
    for node in all_nodes(model.graph.node):
        name, value = _INFERRED_OTHERWISE.get(node.op_type, ("", 0))
        if name and not any(attribute.name == name for attribute in node.attribute):
            node.attribute.append(helper.make_attribute(name, value))


def _check_operators(name: str, model: ModelProto) -> None:
    stated = {entry.domain: entry.version for entry in model.opset_import}
    versions = sorted({entry.version for entry in model.opset_import if not domain_of(entry)})
    if len(versions) > 1:
        raise InvalidNetwork(f"{name} is not valid ONNX", why=f"It states opset {versions[0]} and opset {versions[-1]}")
    version = versions[0] if versions else 0
    newest = defs.onnx_opset_version()
    if not MIN_OPSET <= version <= newest:
        step = f"Convert it to an opset from {MIN_OPSET} to {newest}"
        raise UnsupportedNetwork(f"{name} uses opset {version}", why="This version is not supported", next_step=step)
    for index, node in enumerate(all_nodes(model.graph.node)):
        label = f"Node {node.name[:80]!r} ({node.op_type[:80]})" if node.name else f"Node {index} ({node.op_type[:80]})"
        # ONNX's checker lets such attributes pass everywhere, as it does inside functions.
        reference = next((each for each in node.attribute if each.ref_attr_name), None)
        if reference is not None:
            why = f"Its attribute {reference.name[:80]!r} refers to {reference.ref_attr_name[:80]!r} of a function"
            raise InvalidNetwork(f"{label} of {name} is not inside a function", why=why)
        domain = domain_of(node)
        if any((domain_of(each), each.name) == (domain, node.op_type) for each in model.functions):
            why = "Its function needs other operator sets than the network"
            step = "Export both with the same operator sets"
            raise UnsupportedNetwork(f"{label} of {name} cannot be replaced by its function", why=why, next_step=step)
        if domain not in ("", ML_DOMAIN, *RUNTIME_DOMAINS):
            why = f"Its domain {node.domain[:80]!r} belongs neither to ONNX nor to ONNX Runtime"
            raise UnsupportedNetwork(f"{label} of {name} is unknown", why=why)
        known = version if not domain else stated.get(domain, defs.onnx_ml_opset_version())
        if not defined(node.op_type, known, domain):
            raise UnsupportedNetwork(f"{label} of {name} is unknown", why=f"Opset {known} has no such operator")
