"""Frames between host and agent, and between the agent's supervisor and its worker.

A frame is a 4-byte big-endian length, a UTF-8 JSON header of that many bytes, and a payload of
`payload_bytes` bytes. Lengths are checked before anything is read or allocated.

Header fields of every frame: `type`, `id` (of the request; replies repeat it), `seq` (count of frames
sent on this side, from 0) and `payload_bytes`; the others belong to the type and are in `Frame.fields`.
docs/protocol.md lists the types.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator

PROTOCOL_MAJOR = 2
PROTOCOL_MINOR = 0
MAX_HEADER_BYTES = 64 * 1024
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
READ_BYTES = 64 * 1024

_LENGTH = struct.Struct(">I")
_RESERVED = ("type", "id", "seq", "payload_bytes")


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame beyond the limits."""


@dataclass(frozen=True)
class Frame:
    """One message: its type, the request it belongs to, its fields and its payload."""

    type: str
    id: int = 0
    fields: Dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""
    seq: int = 0


def encode(frame: Frame) -> bytes:
    """The bytes of a frame; raises FrameError where the decoder would refuse them."""
    header = {**frame.fields, "type": frame.type, "id": frame.id, "seq": frame.seq, "payload_bytes": len(frame.payload)}
    try:
        text = json.dumps(header, allow_nan=False, separators=(",", ":"), ensure_ascii=True).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"header is not plain JSON: {error}") from error
    if len(text) > MAX_HEADER_BYTES:
        raise FrameError(f"header of {len(text)} bytes is over the limit of {MAX_HEADER_BYTES}")
    if len(frame.payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"payload of {len(frame.payload)} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
    return _LENGTH.pack(len(text)) + text + frame.payload


def strict_json(text: bytes) -> Any:
    """JSON without NaN, infinities, overflowing numbers, lone surrogates or bottomless nesting."""
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not plain JSON: {type(error).__name__}") from error
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


class Decoder:
    """Turns a stream of bytes, in pieces of any size, into frames.

    Frames must arrive with consecutive `seq`; a gap, a repeat or a malformed header raises FrameError,
    after which the stream cannot be used any more.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: Dict[str, Any] | None = None
        self._next_seq = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received that do not make a whole frame yet."""
        return len(self._buffer) + (1 if self._header is not None else 0)

    @property
    def arriving(self) -> Dict[str, Any]:
        """The header of the frame whose payload is still on its way; empty between frames."""
        return self._header or {}

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Adds received bytes; yields the frames they complete."""
        self._buffer += data
        while True:
            header = self._header or self._take_header()
            if header is None:
                return
            size = header["payload_bytes"]
            if len(self._buffer) < size:
                return
            payload = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._header = None
            fields = {name: value for name, value in header.items() if name not in _RESERVED}
            yield Frame(header["type"], header["id"], fields, payload, header["seq"])

    def _take_header(self) -> Dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise FrameError(f"header length {length} is outside 2 to {MAX_HEADER_BYTES}")
        if len(self._buffer) < _LENGTH.size + length:
            return None
        header: Dict[str, Any] = strict_json(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length]))
        del self._buffer[: _LENGTH.size + length]
        _check_header(header)
        if header["seq"] != self._next_seq:
            raise FrameError(f"frame {header['seq']} arrived where {self._next_seq} was due")
        self._next_seq += 1
        self._header = header
        return header


def _check_header(header: Any) -> None:
    if not isinstance(header, dict) or not isinstance(header.get("type"), str):
        raise FrameError("header has no type")
    for name, limit in (("id", 2**63), ("seq", 2**63), ("payload_bytes", MAX_PAYLOAD_BYTES + 1)):
        value = header.get(name)
        if type(value) is not int or not 0 <= value < limit:
            raise FrameError(f"header field {name} is not an integer from 0 to {limit - 1}")


class FrameWriter:
    """Numbers frames and hands their bytes to `send`."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._seq = 0

    def write(self, type: str, id: int = 0, payload: bytes = b"", **fields: Any) -> None:
        """Sends one frame."""
        self._send(encode(Frame(type, id, fields, payload, self._seq)))
        self._seq += 1
