"""Frames survive any splitting; anything else is a FrameError."""

import contextlib
import dataclasses
import itertools
import json
import struct

import pytest
from hypothesis import given, strategies as st

from device_agents import wire

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
RESERVED = ("type", "id", "seq", "payload_bytes")
FIELDS = st.dictionaries(TEXT.filter(lambda name: name not in RESERVED), VALUES, max_size=4)
FRAMES = st.lists(
    st.builds(wire.Frame, TEXT, st.integers(0, 2**63 - 1), FIELDS, st.binary(max_size=300)), min_size=1, max_size=5
)


def _framed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _header(**changes: object) -> bytes:
    return _framed(json.dumps({"type": "x", "id": 0, "seq": 0, "payload_bytes": 0, **changes}).encode())


@given(FRAMES, st.lists(st.integers(1, 100), min_size=1))
def test_round_trip_in_pieces_of_any_size(frames: list[wire.Frame], sizes: list[int]) -> None:
    """Frames arrive unchanged, however the stream is cut."""
    sent = [dataclasses.replace(frame, seq=seq) for seq, frame in enumerate(frames)]
    stream = b"".join(wire.encode(frame) for frame in sent)
    decoder, received, pieces = wire.Decoder(), [], itertools.cycle(sizes)
    while stream:
        size = next(pieces)
        received += list(decoder.feed(stream[:size]))
        stream = stream[size:]
    assert received == sent
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=400) | st.binary(max_size=200).map(_framed))
def test_garbage_raises_nothing_but_a_frame_error(data: bytes) -> None:
    """Arbitrary bytes either wait for more or raise FrameError."""
    with contextlib.suppress(wire.FrameError):
        list(wire.Decoder().feed(data))


@given(VALUES)
def test_any_json_as_a_header_raises_nothing_but_a_frame_error(value: object) -> None:
    """A header that is JSON but not a header is a FrameError, too."""
    with contextlib.suppress(wire.FrameError):
        list(wire.Decoder().feed(_framed(json.dumps(value).encode())))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xff\xff\xff", "header length"),
        (struct.pack(">I", wire.MAX_HEADER_BYTES + 1), "header length"),
        (struct.pack(">I", 0), "header length"),
        (_framed(b"[" * 60_000), "not plain JSON"),
        (_framed(b'{"id":' + b"9" * 60_000 + b"}"), "not plain JSON"),
        (_framed(b"[]"), "no type"),
        (_framed(b'{"type": "\xff"}'), "not plain JSON"),
        (_header(x=123).replace(b"123", b"NaN"), "not plain JSON"),
        (_header(x="12345").replace(b'"12345"', b"  1e999"), "not plain JSON"),
        (_header(x="123456").replace(b"123456", b"\\ud800"), "not plain JSON"),
        (_header(seq=1), "frame 1 arrived instead of frame 0"),
        (_header(id=-1), "header field id"),
        (_header(id=True), "header field id"),
        (_header(id=1.5), "header field id"),
        (_header(id=2**63), "header field id"),
        (_header(payload_bytes=-1), "header field payload_bytes"),
        (_header(payload_bytes=0.0), "header field payload_bytes"),
        (_header(payload_bytes=wire.MAX_PAYLOAD_BYTES + 1), "header field payload_bytes"),
        (_header(type=3), "no type"),
    ],
)
def test_limits_and_shape_of_headers_are_enforced(data: bytes, why: str) -> None:
    """Oversized, nested, overflowing, surrogate and mistyped headers are refused before anything is read."""
    with pytest.raises(wire.FrameError, match=why):
        list(wire.Decoder().feed(data))


def test_replayed_frame_is_refused() -> None:
    """A repeated frame is a FrameError, not a second message."""
    decoder = wire.Decoder()
    assert len(list(decoder.feed(_header()))) == 1
    with pytest.raises(wire.FrameError, match="frame 0 arrived instead of frame 1"):
        list(decoder.feed(_header()))


def test_arriving_is_the_header_of_an_unfinished_frame() -> None:
    """The header of a frame can be read before its payload is complete."""
    decoder = wire.Decoder()
    data = wire.encode(wire.Frame("put", 1, {"token": 7}, b"payload"))
    assert list(decoder.feed(data[:-1])) == []
    assert decoder.arriving["token"] == 7
    assert len(list(decoder.feed(data[-1:]))) == 1
    assert decoder.arriving == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), "x" * wire.MAX_HEADER_BYTES])
def test_writer_refuses_what_the_decoder_would_refuse(value: object) -> None:
    """A frame that no decoder accepts is not sent."""
    sent: list[bytes] = []
    with pytest.raises(wire.FrameError):
        wire.FrameWriter(sent.append).write("x", value=value)
    assert sent == []
