"""The frame decoder and the checks of frames: streams of an agent, with wrong values anywhere."""

import contextlib
import dataclasses
import hashlib
import json
import random
import struct
from pathlib import Path
from typing import Any

from device_agents import wire
from fuzz.mutation import INTEGERS, TEXTS, any_value, json_text, mutate_bytes, mutate_json
from fuzz.outcome import Outcome
from harness.device import replies
from harness.errors import DeviceError, ProtocolError
from harness.strict_model import StrictModel

_LENGTH = struct.Struct(">I")
_MOST_PIECES = 1000
_VISITS = (replies.Visit("p", 1, 2), replies.Visit("q", 0, 3))
_REPLIES: dict[str, type[StrictModel]] = {
    "hello": replies.HelloReply,
    "lease": replies.LeaseReply,
    "status": replies.StatusReply,
    "put": replies.PutReply,
    "end": replies.EndReply,
}


def read(data: bytes, folder: Path) -> Outcome:  # noqa: ARG001 - nothing is written
    """Decode a stream in pieces of a size that its first byte sets, encode it again, and check frames as replies."""
    size = max(1 + (data[0] if data else 0) ** 2, len(data) // _MOST_PIECES)
    decoder = wire.Decoder()
    frames: list[wire.Frame] = []
    accepted = True
    try:
        for at in range(1, len(data), size):
            frames += decoder.feed(data[at : at + size])
            if decoder.pending_bytes > size + 8 + wire.MAX_HEADER_BYTES + wire.MAX_PAYLOAD_BYTES:
                raise AssertionError("the decoder keeps more than one frame")
    except wire.FrameError:
        accepted = False
    run = replies.RunCheck("device", _VISITS, 0, "device")
    for frame in frames:
        _check_round_trip(frame)
        try:
            _reply(frame, run)
        except ProtocolError:
            accepted = False
    return Outcome.of(accepted)


def _check_round_trip(frame: wire.Frame) -> None:
    first = dataclasses.replace(frame, seq=0)
    with contextlib.suppress(wire.FrameError):  # escaped characters may exceed the size limit
        encoded = wire.encode(first)
        if list(wire.Decoder().feed(encoded)) != [first]:
            raise AssertionError(f"{first} changes when encoded and decoded")


def _reply(frame: wire.Frame, run: replies.RunCheck) -> None:
    if frame.type == "samples":
        run.samples(frame.payload)
    elif frame.type == "oracle":
        replies.read_truth(frame.payload, "p", "device")
    elif frame.type == "error":
        if not isinstance(replies.agent_error("device", frame.fields), DeviceError):
            raise AssertionError("an error frame that is not a DeviceError")
    elif frame.type in _REPLIES:
        reply = replies.check(_REPLIES[frame.type], frame.fields, "device")
        if isinstance(reply, replies.EndReply):
            run.end(reply, False)


def seeds() -> list[bytes]:
    """Return streams of an agent: a whole run, the truth of an oracle, and errors."""
    software = {"major": 2, "minor": 0, "agent_version": "1", "fingerprint": {"cpu": "x", "runtime": "y 1"}}
    hello = {**software, "backend": "null", "clock": "device", "reveals": ["fusion", "chains"]}
    samples = json.dumps(
        {
            "series": [
                {"visit": 0, "probe": "p", "samples": [[1000, 900, 800, 0], [1001, None, 7, 1]]},
                {"visit": 1, "probe": "q", "samples": [[5, 5, 5, 0]] * 3},
            ],
            "state": {"load_1min": 0.5, "cpu_mhz": 2400},
        }
    ).encode()
    truth = json.dumps(
        {
            "probe": "p",
            "overhead": {"a_s_per_byte": 1e-10, "b_s_per_byte": 2e-10, "c_s": 1e-4},
            "makespan_s": 2e-3,
            "layers": [{"name": "conv", "nodes": ["n0", "n1"], "latency_s": 2e-3}],
        }
    ).encode()
    end = {"count": 5, "hash": hashlib.sha256(samples).hexdigest(), "cancelled": False}
    error = {"code": "worker-died", "message": "the worker ended", "ending": "signal SIGKILL", "tail": "out of memory"}
    streams: list[list[tuple[str, int, bytes, dict[str, Any]]]] = [
        [
            ("hello", 1, b"", hello),
            ("lease", 2, b"", {"token": 1_700_000_000, "ttl_s": 60.0}),
            ("put", 3, b"{}", {"format": "onnxruntime"}),
            ("heartbeat", 4, b"", {"busy": True}),
            ("samples", 5, samples, {}),
            ("end", 5, b"", end),
        ],
        [("oracle", 1, truth, {}), ("status", 2, b"", {"state": {"temp_c": 40.5}, "holder": None, "busy": False})],
        [("error", 0, b"", error), ("error", 1, b"", {"code": "busy", "message": "x", "holder": "somebody"})],
    ]
    return [bytes([size]) + _stream(frames) for frames in streams for size in (0, 200)]


def _stream(frames: list[tuple[str, int, bytes, dict[str, Any]]]) -> bytes:
    sent = bytearray()
    writer = wire.FrameWriter(sent.extend)
    for kind, number, payload, fields in frames:
        writer.write(kind, number, payload, **fields)
    return bytes(sent)


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Change one frame, the order of frames, or bytes; most lengths and sequence numbers stay correct."""
    frames = _taken_apart(data[1:])
    if not frames or draw.random() < 0.15:
        return mutate_bytes(data, draw)
    at = draw.randrange(len(frames))
    header, payload = frames[at]
    kind = draw.randrange(9)
    if kind == 0:
        del frames[at]
    elif kind == 1:
        frames.insert(draw.randrange(len(frames) + 1), frames[at])
    elif kind == 2:
        frames[at] = (header, mutate_bytes(payload, draw))
    elif kind in (3, 4) and payload[:1] == b"{":
        with contextlib.suppress(ValueError, RecursionError):
            frames[at] = (header, json_text(mutate_json(json.loads(payload), draw), draw))
    elif kind == 5:
        frames[at] = ({**header, draw.choice((*header, "extra")): any_value(draw)}, payload)
    else:
        changed = mutate_json(header, draw)
        frames[at] = (changed if isinstance(changed, dict) else header, payload)
    return bytes([draw.choice((0, 1, 5, 200, data[0]))]) + _put_together(frames, draw)


def _taken_apart(stream: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Return headers and payloads up to the first one that cannot be parsed."""
    frames: list[tuple[dict[str, Any], bytes]] = []
    with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError, struct.error):
        while stream:
            (length,) = _LENGTH.unpack_from(stream)
            header = json.loads(stream[4 : 4 + length])
            size = header["payload_bytes"]
            if type(size) is not int or not 0 <= size < 1 << 20:
                break
            frames.append((header, stream[4 + length : 4 + length + size]))
            stream = stream[4 + length + size :]
    return frames


def _put_together(frames: list[tuple[dict[str, Any], bytes]], draw: random.Random) -> bytes:
    stream = b""
    for seq, (header, payload) in enumerate(frames):
        fields = dict(header)
        if draw.random() < 0.97:
            fields |= {"seq": seq, "payload_bytes": len(payload)}
        text = json_text(fields, draw)
        length = len(text) if draw.random() < 0.98 else draw.choice((0, 1, len(text) + 1, 1 << 16, (1 << 32) - 1))
        stream += _LENGTH.pack(length) + text + payload
    if draw.random() < 0.02:
        stream += _LENGTH.pack(draw.choice(INTEGERS[:8]) & 0xFFFFFFFF) + draw.choice(TEXTS).encode()
    return stream
