"""Replies of a hostile device: every read has a deadline and a byte budget, and nothing large is parsed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from device_agents import wire
from harness.device import link
from harness.device.inventory import BUILT_IN
from harness.device.replies import EndReply, RunCheck
from harness.device.session import AgentSession, LoadRequest, Visit
from harness.errors import HarnessError, LinkLost, ProtocolError

HELLO = {"major": 2, "minor": 0, "agent_version": "1", "backend": "null", "fingerprint": {}, "reveals": []}
BOUND_BYTES = 8 << 20
MEGABYTE = bytes(1 << 20)


class Device:
    """A connection whose other end, `answer`, gets every frame of the host; it counts what the host has read."""

    def __init__(self, answer: Callable[[Device, wire.Frame], None], clock: str = "device") -> None:
        self.host, self.stream = socket.socketpair()
        self.received = 0
        self.is_deaf = False
        self.clock = clock
        self.writer = wire.FrameWriter(self.stream.sendall)
        self._answer = answer
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def send(self, data: bytes, _stall_s: float = 30.0) -> None:
        """Send all bytes to the device, unless it does not listen any more."""
        if self.is_deaf:
            raise BrokenPipeError("the device does not listen")
        self.host.settimeout(10)
        self.host.sendall(data)

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end."""
        self.host.settimeout(timeout_s)
        data = self.host.recv(wire.READ_BYTES)
        self.received += len(data)
        return data

    def close(self) -> None:
        """Close the connection."""
        self.host.close()

    def diagnosis(self) -> str:
        """Return no diagnosis."""
        return ""

    def flood(self, header: dict[str, object]) -> None:
        """Send a header, and then bytes until the host has hung up."""
        text = json.dumps(header).encode()
        self.stream.sendall(struct.pack(">I", len(text)) + text)
        while True:
            self.stream.sendall(MEGABYTE)

    def _serve(self) -> None:
        decoder = wire.Decoder()
        with contextlib.suppress(OSError):
            while data := self.stream.recv(wire.READ_BYTES):
                for frame in decoder.feed(data):
                    self._answer(self, frame)


def polite(device: Device, frame: wire.Frame) -> None:
    """Answer hello, lease and heartbeats as an agent does."""
    if frame.type == "hello":
        device.writer.write("hello", frame.id, clock=device.clock, **HELLO)
    elif frame.type == "lease":
        device.writer.write("lease", frame.id, token=7, ttl_s=60.0)
    elif frame.type == "heartbeat":
        device.writer.write("heartbeat", frame.id, busy=True)


@contextlib.contextmanager
def session_with(device: Device, leased: bool = True) -> Iterator[AgentSession]:
    """Open a session with the device and check at its end that the host has read and kept little."""
    tracemalloc.start()
    session = AgentSession(device, BUILT_IN["null01"])
    try:
        if leased:
            session.greet()
            session.acquire("the test")
        yield session
        _, peak = tracemalloc.get_traced_memory()
        assert device.received < BOUND_BYTES
        assert peak < 16 * BOUND_BYTES
    finally:
        tracemalloc.stop()
        session.close()
        device.stream.close()
        device.thread.join(300)


@pytest.mark.parametrize("type", ["hello", "error", "lease", "end", "heartbeat"])
def test_a_payload_where_none_belongs_is_refused_before_it_arrives(type: str) -> None:
    """A frame of 256 MB in answer to hello is refused by its header, whatever type it has."""

    def answer(device: Device, frame: wire.Frame) -> None:
        device.flood({"type": type, "id": frame.id, "seq": 0, "payload_bytes": wire.MAX_PAYLOAD_BYTES})

    with session_with(Device(answer), leased=False) as session, pytest.raises(ProtocolError, match="268435456 bytes"):
        session.greet()


REVEALED = {
    "empty nodes, 80 MB": ("onnxruntime", 80_000_000, b""),
    "JSON, 100 MB": ("emulated-npu", 100_000_000, b""),
    "empty nodes, 1 MB": ("onnxruntime", 0, b"\x3a\x80\x80\x3c" + b"\x0a\x00" * 0x78000),
    "empty attributes, 600 kB": ("onnxruntime", 0, b"\x3a\x84\x80\x24\x0a\x80\x80\x24" + b"\x2a\x00" * 0x48000),
    "empty value infos, 600 kB": ("onnxruntime", 0, b"\x3a\x80\x80\x24" + b"\x6a\x00" * 0x48000),
    "nested JSON, 1 MB": ("emulated-npu", 0, b'{"layers":[' + b"[]," * 300_000 + b"[]]}"),
    "nested JSON of OpenVINO, 1 MB": ("openvino", 0, b'{"layers":[' + b"{}," * 300_000 + b"{}]}"),
    "a field beyond the end": ("onnxruntime", 0, b"\x3a\xff\xff\xff\x7f"),
    "an endless number": ("onnxruntime", 0, b"\xff" * 1000),
}


@pytest.mark.parametrize("case", REVEALED)
def test_revealed_graphs_are_bounded_before_they_are_parsed(case: str) -> None:
    """A graph with more bytes or parts than the model explains is refused without parsing it."""
    format_name, size, content = REVEALED[case]

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "put" and size:
            header = {"type": "put", "id": frame.id, "seq": 2, "payload_bytes": size, "format": format_name}
            device.flood(header)
        elif frame.type == "put":
            device.writer.write("put", frame.id, content, format=format_name)

    with session_with(Device(answer)) as session, pytest.raises(ProtocolError, match=r"exceeds|too large|malformed"):
        session.put(LoadRequest("p", b"m" * 2000, (), (), 1, True))


@pytest.mark.parametrize("format_name", ["onnxruntime", "openvino"])
def test_a_graph_of_the_size_of_the_model_is_accepted(format_name: str) -> None:
    """A proper graph passes the bounds unchanged."""
    node = b"\x0a\x0c\x0a\x01x\x12\x01y\x22\x04Relu"
    graph = node * 100
    content = b"\x3a" + bytes([len(graph) & 0x7F | 0x80, len(graph) >> 7]) + graph
    if format_name == "openvino":
        content = json.dumps({"layers": [{"name": "a", "nodes": ["n0"], "layout": "abcd"}] * 100}).encode()

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "put":
            device.writer.write("put", frame.id, content, format=format_name)

    with session_with(Device(answer)) as session:
        revealed = session.put(LoadRequest("p", b"m" * 2000, (), (), 1, True))
    assert revealed is not None
    assert revealed.content == content


@pytest.mark.parametrize("header", [None, {"type": "error", "id": 0, "seq": 2, "payload_bytes": 100}])
def test_last_words_have_an_end(header: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that never stops talking after it stopped listening is cut off after a bounded number of bytes."""
    begin = threading.Event()

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "lease":
            begin.wait(300)
            if header is not None:
                device.flood(header)
            for _ in range(1 << 40):
                device.writer.write("error", 0, code="system", message="m" * 60_000)

    monkeypatch.setattr(link, "_LAST_WORDS_S", 5.0)
    device = Device(answer)
    with session_with(device) as session, pytest.raises(HarnessError):
        device.is_deaf = True
        begin.set()
        session.drop(["p"])


def test_last_words_that_drip_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that sends one byte after another is not listened to for longer than the deadline."""
    stopped = threading.Event()

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "lease":
            device.is_deaf = True
            device.stream.sendall(struct.pack(">I", 60_000))
            while not stopped.wait(0.05):
                device.stream.sendall(b" ")

    monkeypatch.setattr(link, "_LAST_WORDS_S", 0.5)
    with session_with(Device(answer)) as session:
        with pytest.raises(LinkLost):
            session.drop(["p"])
        stopped.set()


@pytest.mark.parametrize("filling", [b"[],", b"{},", b"1,"])
def test_samples_of_nothing_but_brackets_are_refused_before_they_are_parsed(filling: bytes) -> None:
    """A payload that fits into the bytes of the request but has far more values is not parsed."""

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "run":
            text = b'{"series":[' + filling * (2_000_000 // len(filling)) + b"0]}"
            device.writer.write("samples", frame.id, text)

    with session_with(Device(answer)) as session, pytest.raises(ProtocolError, match="more bytes or values"):
        list(session.run([Visit("p", 0, 1)] * 200))


@pytest.mark.parametrize(
    ("clock", "sample"),
    [
        ("device", [5, 5, None, 0]),
        ("device", [5, 5, 2**62, 0]),
        ("device", [5, 5, 86_400 * 10**9 + 1, 0]),
        ("cpu", [5, None, 5, 0]),
        ("cpu", [5, 0, 5, 0]),
        ("cpu", [5, 2**62, 5, 0]),
        ("wall", [2**62, 5, 5, 0]),
        ("wall", [5, 5, 2**62, 0]),
    ],
)
def test_samples_have_a_time_on_the_announced_clock(clock: str, sample: list[int | None]) -> None:
    """A sample without the time that latencies use, or beyond a day on any clock, is the device's fault."""

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "run":
            series = {"visit": 0, "probe": "p", "samples": [sample]}
            device.writer.write("samples", frame.id, json.dumps({"series": [series], "state": {}}).encode())

    with session_with(Device(answer, clock)) as session, pytest.raises(ProtocolError) as refused:
        list(session.run([Visit("p", 0, 1)]))
    assert (refused.value.exit_code, refused.value.fault) == (4, "device")


Flood = Callable[[wire.FrameWriter, int], None]
VISITS = [Visit("p", 0, 3)] * 200


def series(visit: int, *, padding: int = 0) -> bytes:
    """Return a valid payload of samples, with spaces that JSON permits."""
    text = json.dumps({"series": [{"visit": visit, "probe": "p", "samples": [[1, 1, 1, 0]] * 3}], "state": {}})
    return text.encode() + b" " * padding


def _repeat_a_visit(writer: wire.FrameWriter, request: int) -> None:
    for visit in itertools.chain(range(200), itertools.repeat(0)):
        writer.write("samples", request, series(visit))


def _pad_with_spaces(writer: wire.FrameWriter, request: int) -> None:
    for visit in range(200):
        writer.write("samples", request, series(visit, padding=1 << 20))


def _beat_without_end(writer: wire.FrameWriter, request: int) -> None:
    for beat in itertools.count(request + 1):
        writer.write("heartbeat", beat, busy=True)


def _samples_without_series(writer: wire.FrameWriter, request: int) -> None:
    while True:
        writer.write("samples", request, b'{"series": [], "state": {}}')


def _more_samples_than_asked(writer: wire.FrameWriter, request: int) -> None:
    rows = [[1, 1, 1, 0]] * 100_000
    writer.write("samples", request, json.dumps({"series": [{"visit": 0, "probe": "p", "samples": rows}]}).encode())
    _repeat_a_visit(writer, request)


FLOODS: dict[str, Flood] = {
    "a visit again and again": _repeat_a_visit,
    "spaces": _pad_with_spaces,
    "heartbeats": _beat_without_end,
    "empty frames": _samples_without_series,
    "more samples than asked": _more_samples_than_asked,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_endless_valid_frames_are_cut_off(flood: Flood) -> None:
    """A device that keeps sending valid frames after its samples is refused after a bounded number of bytes."""

    def answer(device: Device, frame: wire.Frame) -> None:
        polite(device, frame)
        if frame.type == "run":
            flood(device.writer, frame.id)

    with session_with(Device(answer)) as session, pytest.raises(ProtocolError):
        list(session.run(VISITS))


def test_proper_samples_fit_under_the_cap() -> None:
    """The largest numbers, the longest names and a full state are accepted."""
    probe, most, events = "\u20ac" * 200, 86_400 * 10**9, 2**31 - 1
    check = RunCheck("device", [Visit(probe, 0, 50)] * 3, 0, "device")
    digest = hashlib.sha256()
    for visit in range(3):
        rows = [[most, most, most, events]] * 50
        state = {f"{index:064d}": -1.2345678901234567e-300 for index in range(64)}
        reply = {"series": [{"visit": visit, "probe": probe, "samples": rows}], "state": state}
        payload = json.dumps(reply, indent=None).encode()
        digest.update(payload)
        check.samples(payload)
    check.end(EndReply(count=150, hash=digest.hexdigest(), cancelled=False), False)
