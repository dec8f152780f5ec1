"""Frames between host and agent, and between the agent's supervisor and its worker.

A frame is a 4-byte big-endian length, a UTF-8 JSON header of that length, and a payload of `payload_bytes` bytes.
Lengths are checked before anything is read or allocated.

Every header has the fields `type`, `id` (of the request; replies repeat it), `seq` (number of frames sent before on
this side) and `payload_bytes`. Other fields depend on the type and are in `Frame.fields`. docs/protocol.md lists the
types.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Mapping, Optional

PROTOCOL_MAJOR = 2
PROTOCOL_MINOR = 5
MAX_HEADER_BYTES = 64 * 1024
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
READ_BYTES = 64 * 1024

_LENGTH = struct.Struct(">I")
_RESERVED = ("type", "id", "seq", "payload_bytes")


class FrameError(ValueError):
    """The bytes are not a frame, or the frame exceeds a limit."""


@dataclass(frozen=True)
class Frame:
    """One message: its type, the request it belongs to, its fields and its payload."""

    type: str
    id: int = 0
    fields: Dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""
    seq: int = 0


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame; raises FrameError if a decoder would refuse them."""
    header = {**frame.fields, "type": frame.type, "id": frame.id, "seq": frame.seq, "payload_bytes": len(frame.payload)}
    try:
        text = json.dumps(header, allow_nan=False, separators=(",", ":"), ensure_ascii=True).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"the header is not plain JSON: {error}") from error
    if len(text) > MAX_HEADER_BYTES:
        raise FrameError(f"a header of {len(text)} bytes exceeds the limit of {MAX_HEADER_BYTES}")
    if len(frame.payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {len(frame.payload)} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}")
    return _LENGTH.pack(len(text)) + text + frame.payload


def strict_json(text: bytes) -> Any:
    """Parse JSON; raises FrameError for NaN, infinities, overflowing numbers, lone surrogates and deep nesting."""
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

    A malformed header, or a `seq` that is not the next one, raises FrameError; the stream is then unusable. With
    `payload_limits`, so does a payload longer than the limit of its frame's type, in bytes, before it is received; a
    type that has no limit there may have no payload. The mapping may change between frames.
    """

    def __init__(self, payload_limits: Optional[Mapping[str, int]] = None) -> None:
        self._limits = payload_limits
        self._buffer = bytearray()
        self._header: Dict[str, Any] | None = None
        self._next_seq = 0

    @property
    def pending_bytes(self) -> int:
        """Number of received bytes that do not form a whole frame yet."""
        return len(self._buffer) + (1 if self._header is not None else 0)

    @property
    def arriving(self) -> Dict[str, Any]:
        """Header of the frame whose payload is incomplete; empty between frames."""
        return self._header or {}

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes and yield the frames that they complete."""
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
            raise FrameError(f"the header length {length} is not from 2 to {MAX_HEADER_BYTES}")
        if len(self._buffer) < _LENGTH.size + length:
            return None
        header: Dict[str, Any] = strict_json(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length]))
        del self._buffer[: _LENGTH.size + length]
        _check_header(header)
        if header["seq"] != self._next_seq:
            raise FrameError(f"frame {header['seq']} arrived instead of frame {self._next_seq}")
        if self._limits is not None and header["payload_bytes"] > self._limits.get(header["type"], 0):
            limit = self._limits.get(header["type"], 0)
            raise FrameError(f"a payload of {header['payload_bytes']} bytes exceeds the limit of {limit} here")
        self._next_seq += 1
        self._header = header
        return header


def _check_header(header: Any) -> None:
    if not isinstance(header, dict) or not isinstance(header.get("type"), str):
        raise FrameError("the header has no type")
    for name, limit in (("id", 2**63), ("seq", 2**63), ("payload_bytes", MAX_PAYLOAD_BYTES + 1)):
        value = header.get(name)
        if type(value) is not int or not 0 <= value < limit:
            raise FrameError(f"the header field {name} is not an integer from 0 to {limit - 1}")


class FrameWriter:
    """Numbers frames and passes their bytes to `send`."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._seq = 0

    def write(self, type: str, id: int = 0, payload: bytes = b"", **fields: Any) -> None:
        """Send one frame."""
        self._send(encode(Frame(type, id, fields, payload, self._seq)))
        self._seq += 1
