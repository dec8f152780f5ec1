"""Read a file's network in a child process with limits: a hostile file costs an error, not the memory of the host.

All that depends on the file is done there: parsing, checking, preparing, and setting another batch. Rows with another
batch are compared in a child of that child, with separate limits: if they are exceeded, nothing was compared, but the
network is handed back.
"""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import ErrorRecord, HarnessError, InvalidNetwork, record_of
from harness.network.documents import decode_document, encode, is_whole
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.keyed_network import KeyedNetwork, encode_keyed, keyed, keyed_of
from harness.network.network import Network
from harness.network.reading import limited_process
from harness.network.reading.batch import Rebatched, leading_dims, rebatch
from harness.network.reading.batch_check import TOO_LARGE, check_rows
from harness.network.reading.control_flow import all_nodes
from harness.network.reading.limited_process import Answer
from harness.network.reading.limits import READING, Limits, too_much_memory
from harness.network.reading.network_codec import decode_network, encode_network, most_parts
from harness.network.reading.prepare import prepare
from harness.network.reading.read import ModelFile, parse_model, read_model
from harness.text import byte_size, printable

Source = Path | tuple[str, bytes]
"""The path of a file, or the name and content of one."""
_ERRORS = ("InvalidNetwork", "UnsupportedNetwork", "UnsupportedType", "UnresolvedDimension", "UsageError")
_MAX_TEXT = 2000
_LEAST_S = 2
"""The least processor time for comparing rows."""


def read_network(source: Source, dims: Mapping[str, int], batch: int | None = None) -> tuple[Network, str]:
    """Return the prepared network of a file; `batch` sets the leading dimensions of its inputs, also fixed ones.

    The text is empty, or says why the rows of the new batch were not compared with the network of the file. Raises the
    errors of `read_model`, `prepare`, `leading_dims`, `rebatch` and `check_rows`, and UnsupportedNetwork for a file
    that takes more memory or time than its size explains.
    """
    return network_of(_in_child(source, {"want": "network", "dims": dict(dims), "batch": batch}), source)


def network_of(answer: bytes, source: Source) -> tuple[Network, str]:
    """Return what a child's answer holds, as `read_network` does.

    Raises the error that the answer states, and InvalidNetwork for a damaged one.
    """
    _checked(answer, source)
    try:
        return decode_network(answer)
    except (ValueError, RecursionError) as error:
        raise _damaged(source) from error


def read_keyed(
    source: Source, dims: Mapping[str, int], rules: Sequence[FusionRule], batch: int | None = None
) -> tuple[KeyedNetwork, str, bytes]:
    """Return what `keyed` makes of the network of a file, and the text that `read_network` returns.

    The bytes are what `encode_keyed` made; they are empty if the network also depends on other files, or if rows were
    not compared. Raises as `read_network` does.
    """
    wanted = {"want": "keys", "dims": dict(dims), "batch": batch, "rules": [asdict(rule) for rule in rules]}
    answer = _in_child(source, wanted)
    _checked(answer, source)
    try:
        found = keyed_of(answer)
    except ValueError as error:
        raise _damaged(source) from error
    return found.network, found.note, b"" if found.note or found.external else answer


def has_external_data(path: Path) -> bool:
    """Return whether a checked file keeps weights in other files; raises as `read_network` does."""
    answer = _checked(_in_child(path, {"want": "external data"}), path)
    return bool(answer.get("external"))


def _in_child(source: Source, wanted: Mapping[str, Any]) -> bytes:
    limits = READING.limits(_size(source))

    def request() -> bytes:
        name, content = (os.fsencode(source), b"") if isinstance(source, Path) else (source[0].encode(), source[1])
        header = {**wanted, "name": name.hex(), "is_path": isinstance(source, Path)}
        return json.dumps(header).encode() + b"\n" + content

    module = "harness.network.reading.limited_reading"
    answer = limited_process.answer_of(
        lambda: _guarded(lambda: _read(source, wanted)), module, request, limits, is_whole
    )
    if not answer.content:
        raise _ended(source, answer, limits)
    return answer.content


def _checked(answer: bytes, source: Source) -> Mapping[str, Any]:
    """Return the document of an answer; raises the error that it states, and InvalidNetwork for a damaged one."""
    try:
        document, _ = decode_document(answer, most_parts(_size(source)))
    except (ValueError, RecursionError) as error:
        raise _damaged(source) from error
    _raise_error(document, source, READING.limits(_size(source)))
    return document


def _size(source: Source) -> int:
    if not isinstance(source, Path):
        return len(source[1])
    try:
        return source.stat().st_size
    except (OSError, ValueError):  # the reader says what is wrong
        return 0


def _serve(request: bytes) -> bytes:
    header, _, content = request.partition(b"\n")
    wanted = json.loads(header)
    name = bytes.fromhex(wanted["name"])
    source: Source = Path(os.fsdecode(name)) if wanted["is_path"] else (name.decode(), content)
    return _guarded(lambda: _read(source, wanted))


def _read(source: Source, wanted: Mapping[str, Any]) -> bytes:
    file = read_model(source) if isinstance(source, Path) else parse_model(source[0], source[0], source[1])
    if wanted["want"] == "external data":
        return encode({"external": file.is_external})
    limited_process.allow_for_nodes(sum(1 for _ in all_nodes(file.model.graph.node)))
    network, batch, reason = prepared(file, wanted["dims"], wanted["batch"]), wanted["batch"], ""
    found = rebatch(network, batch) if batch else None
    if found is not None and found.network is not network:
        network, reason = found.network, _compared(source, network, found)
    if wanted["want"] == "network":
        return encode_network(network, reason)
    rules = [FusionRule(**rule) for rule in wanted["rules"]]
    return encode_keyed(keyed(network, rules), reason, external=file.is_external)


def _compared(source: Source, network: Network, found: Rebatched) -> str:
    """Return what `check_rows` does, or that it took too much; raises its errors."""
    limits = READING.limits(network.stored_bytes)
    left_s = max(_LEAST_S, limits.cpu_s + limits.more_s - int(time.process_time()))
    limits = replace(limits, cpu_s=left_s)

    def step() -> bytes:
        return encode({"reason": check_rows(network, found, threads=1)})

    answer = limited_process.answer_of(lambda: _guarded(step), "", bytes, limits, is_whole)
    if answer.is_out_of_time:
        return f"this takes more than {left_s} s of processor time; {READING.more_seconds(limits)} allows more"
    document = decode_document(answer.content)[0] if answer.content else {"memory": True}
    if document.get("memory") or document.get("reason") == TOO_LARGE:
        return f"this {too_much_memory(limits)}; {READING.more_memory(limits)} allows more"
    _raise_error(document, source, limits)
    return str(document["reason"])


def prepared(file: ModelFile, dims: Mapping[str, int], batch: int | None) -> Network:
    """Prepare a checked file; `batch` sets symbolic leading dimensions."""
    return prepare(file, leading_dims(file.model, dims, batch) if batch else dims)


def _guarded(step: Callable[[], bytes]) -> bytes:
    """Return what a step returns, or its error as a document."""
    try:
        return step()
    except HarnessError as error:
        return encode({"error": asdict(record_of(error, _MAX_TEXT))})
    except MemoryError:
        return encode({"memory": True})
    except Exception:  # a bug: the parent raises it
        return encode({"bug": traceback.format_exc()[-_MAX_TEXT:]})


def _raise_error(document: Mapping[str, Any], source: Source, limits: Limits) -> None:
    if document.get("memory"):
        raise READING.too_large(_shown(source), "to read", limits)
    if "bug" in document:
        raise RuntimeError(f"{_shown(source)} was not read:\n{str(document['bug'])[:_MAX_TEXT]}")
    if "error" not in document:
        return
    try:
        record = TypeAdapter(ErrorRecord).validate_python(document["error"])
    except ValidationError:
        raise _damaged(source) from None
    if record.kind not in _ERRORS:
        raise _damaged(source)
    raise record.error()


def _ended(source: Source, answer: Answer, limits: Limits) -> HarnessError:
    shown = _shown(source)
    if answer.is_out_of_time:
        return READING.too_slow(shown, "to read", answer.time(limits), limits)
    if answer.signal:
        name = signal.Signals(answer.signal).name
        why = f"It crashes the library that parses it, or takes more than {byte_size(limits.memory_bytes)} ({name})"
        return InvalidNetwork(f"{shown} cannot be read", why=why)
    return READING.too_large(shown, "to read", limits)


def _damaged(source: Source) -> InvalidNetwork:
    return InvalidNetwork(f"{_shown(source)} cannot be read", why="The reader process returned invalid data")


def _shown(source: Source) -> str:
    return printable(str(source) if isinstance(source, Path) else source[0], 200)


if __name__ == "__main__":
    limited_process.serve(_serve)
