"""Bounds of the graph that a runtime reveals, checked before anything parses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


def reveal_limit_bytes(model: bytes) -> int:
    """Return the largest graph that a runtime may reveal for a model without its weights."""
    return _SPARE_BYTES + _BYTES_PER_BYTE * len(model)


def check_revealed(format_name: str, content: bytes, model: bytes, device: str) -> None:
    """Raise ProtocolError if a revealed graph has more parts than the model explains; `content` is not parsed for that.

    A parser needs a hundred times the bytes of an empty part.
    """
    most = _SPARE_PARTS + _PARTS_PER_BYTE * len(model)
    try:
        if format_name == "onnxruntime":
            parts = 0
            for size in _parts(content, 0, len(content), "model", _DEEPEST):
                parts += size
                if parts > most:
                    break
        else:
            parts = sum(map(content.count, _MARKS))
    except (IndexError, ValueError) as error:
        raise ProtocolError(f"{device} revealed a graph that is malformed", why=str(error)) from None
    if parts > most:
        why = f"It has more than {most:,} parts; the model that was sent has {len(model):,} bytes"
        raise ProtocolError(f"{device} revealed a graph that is too large", why=why)


def _parts(content: bytes, at: int, end: int, kind: str, deepest: int) -> Iterator[int]:
    """Yield the parts of a message from `at` to `end`, as numbers of parts."""
    if not deepest:
        raise ValueError("graphs are nested too deeply")
    while at < end:
        yield 1
        tag, at = _varint(content, at)
        wire_type = tag & 7
        if wire_type == 0:
            _, at = _varint(content, at)
        elif wire_type == 2:
            size, at = _varint(content, at)
            inner = _WITHIN[kind].get(tag >> 3)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            if inner == "other":
                yield size // _OTHER_BYTES
            elif inner:
                yield from _parts(content, at, at + size, inner, deepest - 1)
            at += size
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
        else:
            raise ValueError("a field has an unknown type")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and where it ends."""
    value = shift = 0
    while content[at] & 0x80:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError("a number is too long")
    return value | content[at] << shift, at + 1
