"""Read ONNX files: limit their size, confine external data, check, inline functions. Nothing is executed here."""

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, defs, inliner

from harness.errors import InvalidNetwork, UnsupportedNetwork, reason_of
from harness.files import read_with_digest
from harness.network.learnt_weights import RUNTIME_DOMAINS, checkable, defined
from harness.network.network import ML_DOMAIN
from harness.network.reading.checked_copy import IR_WITHOUT_INPUTS, without_weights
from harness.network.reading.completion import align_functions, complete
from harness.network.reading.control_flow import all_nodes, domain_of, sort_nodes
from harness.network.reading.expansion import check_expansion
from harness.network.reading.external_data import read_external_data
from harness.network.reading.messages import fields, messages
from harness.text import printable

MAX_FILE_BYTES = (2 << 30) - 1
MIN_OPSET = 7
_MOST_VERSION = (1 << 31) - 1
"""ONNX finds operators by versions of 32 bits."""
_ORT_FORMAT = b"ORTM"
_OTHER_FILES = {
    b"version https://git-lfs": ("It is a pointer of Git LFS", "Get the file itself with `git lfs pull`"),
    b"\x1f\x8b": ("It is compressed with gzip", "Decompress it first"),
    b"PK\x03\x04": ("It is a zip archive, such as a model that PyTorch saved", "Unpack it, or export it as ONNX"),
}
"""Why files that start with these bytes are not ONNX, and the next step."""
_ABSENT = re.compile(r"input (?P<tensor>'.*') of node: (?:name: (?P<node>.*) )?OpType: (?P<op>.*) is not output of any")
"""What the ONNX checker says of a node that reads an unknown tensor, or of a cycle."""


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

        Before version 4 of the format, all weights are listed and are constants.
        """
        graph, lists_replaceable = self.model.graph, self.model.ir_version >= IR_WITHOUT_INPUTS
        listed = {value.name for value in graph.input} if lists_replaceable else set()
        return frozenset(one.name for one in graph.initializer if one.name in listed)


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
        for start, (found, advice) in _OTHER_FILES.items():
            if content.startswith(start):
                why, step = found, advice
        raise InvalidNetwork(f"{shown} is not an ONNX file", why=why, next_step=step) from error
    if not model.HasField("graph") or not model.graph.node:
        why = "Its graph has no nodes" if content else "The file is empty"
        step = "Give a network with an operator that computes its outputs" if model.HasField("graph") else ""
        raise InvalidNetwork(f"{shown} holds no network", why=why, next_step=step)
    for field, value in (part for message in messages([model]) for part in fields(message)):
        texts = value if field.is_repeated else (value,)
        # Protobuf passes other bytes on if a file is damaged.
        if field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in texts):
            raise InvalidNetwork(f"{shown} is not valid ONNX", why="A name in it is not UTF-8 text")
    outside = read_external_data(model, folder)
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
            align_functions(model)
            model = inliner.inline_local_functions(model)
        sort_nodes(model.graph)
        complete(model)
        _check_operators(name, model)
        what = f"{name} is not valid ONNX"
        with checkable(model, all_nodes(model.graph.node)):
            onnx.checker.check_model(without_weights(model))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        why, step = " ".join(str(error).split()) or "the ONNX checker rejects it", ""
        if absent := _ABSENT.search(why):
            node, op = absent["node"] or "without a name", absent["op"]
            why = f"Node {node} ({op}) reads {absent['tensor']}, which is no input, no weight and no earlier result"
            step = "Export it again, with all its weights and without a circle"
        raise InvalidNetwork(what, why=why[:300], next_step=step) from error
    return ModelFile(name, model, sha256 or hashlib.sha256(content).hexdigest(), len(content))


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
        known = stated[domain] if domain else version
        if not defined(node.op_type, known, domain):
            since = next((later for later in range(known, newest + 1) if defs.has(node.op_type, later, domain)), 0)
            why, step = f"Opset {known} has no such operator", f"Export it with opset {since} or newer"
            if not since:
                why, step = f"{why}: exporters keep what they cannot translate", ""
            raise UnsupportedNetwork(f"{label} of {name} is unknown", why=why, next_step=step)
