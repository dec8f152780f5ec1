"""Size limits of the graph that a runtime reports, checked before anything parses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from device_agents.backends.onnx_bytes import fields
from harness.errors import ProtocolError

_SPARE_BYTES = 1 << 20
_BYTES_PER_BYTE = 8
"""A runtime adds names, types and attributes to the nodes of the model, but no weights."""
_SPARE_PARTS = 10_000
_PARTS_PER_BYTE = 2
_MARKS = (b",", b"[", b"{")
_WITHIN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "other", 11: "other", 12: "other", 13: "other", 14: "other"},
    "node": {5: "attribute"},
    "attribute": {5: "other", 6: "graph", 10: "other", 11: "graph"},
}
"""The fields of an ONNX message that hold messages; `other` ones are not followed but counted by their size."""
_OTHER_BYTES = 4
_DEEPEST = 32


def graph_limit_bytes(model: bytes) -> int:
    """Return the size of the largest graph that a runtime may report for a model without its weights."""
    return _SPARE_BYTES + _BYTES_PER_BYTE * len(model)


def check_graph_size(format_name: str, content: bytes, model: bytes, device: str) -> None:
    """Raise ProtocolError if a reported graph has more parts than the model explains; `content` is not parsed for that.

    A parser needs a hundred times the bytes of an empty part.
    """
    most = _SPARE_PARTS + _PARTS_PER_BYTE * len(model)
    try:
        if format_name == "onnxruntime":
            parts = 0
            for size in _parts(memoryview(content), "model", _DEEPEST):
                parts += size
                if parts > most:
                    break
        else:
            parts = sum(map(content.count, _MARKS))
    except ValueError as error:
        raise ProtocolError(f"{device} reported a malformed graph", why=str(error)) from None
    if parts > most:
        why = f"It has more than {most:,} parts; the model that was sent has {len(model):,} bytes"
        raise ProtocolError(f"{device} reported a graph that is too large", why=why)


def _parts(message: memoryview, kind: str, deepest: int) -> Iterator[int]:
    """Yield the parts of a message, as numbers of parts."""
    if not deepest:
        raise ValueError("graphs are nested too deeply")
    for number, value, _ in fields(message):
        yield 1
        inner = _WITHIN[kind].get(number)
        if inner == "other":
            yield len(value) // _OTHER_BYTES
        elif inner:
            yield from _parts(value, inner, deepest - 1)
