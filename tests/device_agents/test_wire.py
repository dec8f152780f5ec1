"""Frames survive any splitting; anything else is a FrameError."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents import wire

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.dictionaries(TEXT.filter(lambda name: name not in ("type", "id", "seq", "payload_bytes")), VALUES, max_size=4)
FRAMES = st.lists(
    st.builds(wire.Frame, TEXT, st.integers(0, 2**63 - 1), FIELDS, st.binary(max_size=300)), min_size=1, max_size=5
)


def _header(**changes: object) -> bytes:
    text = json.dumps({"type": "x", "id": 0, "seq": 0, "payload_bytes": 0, **changes}).encode()
    return struct.pack(">I", len(text)) + text


@given(FRAMES, st.randoms(use_true_random=False))
def test_round_trip_in_pieces_of_any_size(frames: list[wire.Frame], random: object) -> None:
    """What is written comes out unchanged however the stream is cut."""
    stream = bytearray()
    writer = wire.FrameWriter(stream.extend)
    for frame in frames:
        writer.write(frame.type, frame.id, frame.payload, **frame.fields) if "self" not in frame.fields else None
    sent = [frame for frame in frames if "self" not in frame.fields]
    decoder, received = wire.Decoder(), []
    while stream:
        size = random.randint(1, 100)  # type: ignore[attr-defined]
        received += list(decoder.feed(bytes(stream[:size])))
        del stream[:size]
    assert [(f.type, f.id, f.fields, f.payload) for f in received] == [(f.type, f.id, f.fields, f.payload) for f in sent]
    assert [frame.seq for frame in received] == list(range(len(sent)))
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda text: struct.pack(">I", len(text)) + text))
def test_garbage_raises_nothing_but_a_frame_error(data: bytes) -> None:
    """Arbitrary bytes either wait for more or raise FrameError."""
    try:
        list(wire.Decoder().feed(data))
    except wire.FrameError:
        pass


@given(VALUES)
def test_any_json_as_a_header_raises_nothing_but_a_frame_error(value: object) -> None:
    """A header that is JSON but not a header is a FrameError, too."""
    text = json.dumps(value).encode()
    try:
        list(wire.Decoder().feed(struct.pack(">I", len(text)) + text))
    except wire.FrameError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", wire.MAX_HEADER_BYTES + 1),
        struct.pack(">I", 0),
        struct.pack(">I", 60_000) + b"[" * 60_000,
        struct.pack(">I", 8) + b'{"a":NaN'[:8],
        _header(seq=1),
        _header(id=-1),
        _header(id=True),
        _header(id=2**63),
        _header(payload_bytes=-1),
        _header(payload_bytes=wire.MAX_PAYLOAD_BYTES + 1),
        _header(type=3),
        _header().replace(b'"id": 0', b'"id":1e9'),
        _header(x="y").replace(b'"y"', b'1e999')[:0] + struct.pack(">I", 58) + b'{"type":"x","id":0,"seq":0,"payload_bytes":0,"x":    1e999}',
        struct.pack(">I", 58) + b'{"type":"x","id":0,"seq":0,"payload_bytes":0,"x":"\\ud800" }',
    ],
)
def test_limits_and_shape_of_headers_are_enforced(data: bytes) -> None:
    """Oversized, nested, overflowing, surrogate and mistyped headers are refused before anything is read."""
    with pytest.raises(wire.FrameError):
        list(wire.Decoder().feed(data))


def test_replayed_frame_is_refused() -> None:
    """The same bytes twice are a repeat, not a second message."""
    decoder = wire.Decoder()
    assert len(list(decoder.feed(_header()))) == 1
    with pytest.raises(wire.FrameError, match="frame 0 arrived where 1 was due"):
        list(decoder.feed(_header()))


def test_arriving_tells_the_header_of_an_unfinished_frame() -> None:
    """While a payload is on its way its header can be read."""
    decoder = wire.Decoder()
    data = wire.encode(wire.Frame("put", 1, {"token": 7}, b"payload"))
    assert list(decoder.feed(data[:-1])) == []
    assert decoder.arriving["token"] == 7
    assert len(list(decoder.feed(data[-1:]))) == 1
    assert decoder.arriving == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), "x" * wire.MAX_HEADER_BYTES])
def test_writer_refuses_what_the_decoder_would_refuse(value: object) -> None:
    """A frame that cannot be read is not sent."""
    sent: list[bytes] = []
    with pytest.raises(wire.FrameError):
        wire.FrameWriter(sent.append).write("x", value=value)
    assert sent == []
