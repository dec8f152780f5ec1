"""A session with an agent that follows a script, over a socket pair."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from device_agents import wire
from harness.device.session import AgentSession, Deadlines, Visit

VISITS = [Visit("p", 0, 1), Visit("q", 0, 2)]


GOOD = [
    {"visit": 0, "probe": "p", "samples": [[5, 4, 3, 0]]},
    {"visit": 1, "probe": "q", "samples": [[5, 0, 7, 1], [6, None, 8, 0]]},
]


HELLO = {
    "major": wire.PROTOCOL_MAJOR,
    "minor": 0,
    "agent_version": "1.0",
    "backend": "null",
    "fingerprint": {"cpu": "a\x1b[31mb"},
    "clock": "device",
    "reveals": [],
}


SHORT = Deadlines(lease_ttl_s=0.4, run_s=0.6, margin_s=0.2)


class Stream:
    """A connection over a socket pair."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream

    def send(self, data: bytes, _stall_s: float = 30.0) -> None:
        """Sends all."""
        self.stream.sendall(data)

    def recv(self, timeout_s: float) -> bytes:
        """Some bytes."""
        self.stream.settimeout(timeout_s)
        return self.stream.recv(wire.READ_BYTES)

    def close(self) -> None:
        """Closes."""
        self.stream.close()

    def diagnosis(self) -> str:
        """What a hostile device may print."""
        return "\x1b[2Jbye"


class Peer:
    """The agent's side, scripted: what to send when a request of some type arrives."""

    def __init__(self, stream: socket.socket, script: dict[str, Callable[[Peer, wire.Frame], None]]) -> None:
        self.stream = stream
        self.writer = wire.FrameWriter(stream.sendall)
        self.seen: list[wire.Frame] = []
        standard = {"hello": self.hello, "lease": self.lease, "heartbeat": self.beat}
        self.script = {**standard, **script}
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Answers until the session closes."""
        decoder = wire.Decoder()
        while True:
            try:
                data = self.stream.recv(wire.READ_BYTES)
                for frame in decoder.feed(data):
                    self.seen.append(frame)
                    self.script.get(frame.type, lambda *_: None)(self, frame)
            except OSError:
                return
            if not data:
                return

    @staticmethod
    def hello(peer: Peer, frame: wire.Frame) -> None:
        """A proper hello."""
        peer.writer.write("hello", frame.id, **HELLO)

    @staticmethod
    def lease(peer: Peer, frame: wire.Frame) -> None:
        """A proper lease."""
        peer.writer.write("lease", frame.id, token=7, ttl_s=frame.fields["ttl_s"])

    @staticmethod
    def beat(peer: Peer, frame: wire.Frame) -> None:
        """A proper heartbeat."""
        peer.writer.write("heartbeat", frame.id, busy=True)


Meet = Callable[..., tuple[AgentSession, Peer]]


def samples_of(*series: Any, payload: bytes | None = None, end: Any = (), **fields: Any) -> Any:
    """A script for run: one samples frame with these series, and an end record, correct by default."""

    def answer(peer: Peer, frame: wire.Frame) -> None:
        text = json.dumps({"series": list(series), "state": {"load_1min": 1}}).encode() if payload is None else payload
        peer.writer.write("samples", frame.id, text)
        count = sum(len(item.get("samples", [])) for item in series)
        record = {"count": count, "hash": hashlib.sha256(text).hexdigest(), "cancelled": False, **fields, **dict(end)}
        peer.writer.write("end", frame.id, **record)

    return answer


def run_script(meet: Meet, script: Any, deadlines: Deadlines | None = None) -> list[Any]:
    """The series of a run of `VISITS` that the script answers."""
    session, _ = meet(deadlines, run=script)
    session.greet()
    session.acquire("me")
    return [series for part, _ in session.run(VISITS) for series in part]
