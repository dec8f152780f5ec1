"""An agent that is no agent: it speaks the protocol as well as a null device, until its case begins.

`python scripted_agent.py CASE` serves one host on standard input and output. It needs the standard library and the
frames of the agent alone, and takes no lease: leases concern other controllers, the cases the one that is connected.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.device.local import LocalConnection

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from device_agents import wire

LATENCY_NS = 100_000


class Script:
    """The polite half of the agent; a case replaces the answer to some type of request, or what comes before all."""

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        self.source, self.sink = source, sink
        self.writer = wire.FrameWriter(self.send_bytes)
        self.answers: dict[str, Callable[[wire.Frame], None]] = {}
        self.cancelled: set[int] = set()
        self.decoder = wire.Decoder()

    def send_bytes(self, data: bytes) -> None:
        """Write bytes to the host."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.sink, rest) :]

    def serve(self) -> None:
        """Answer requests until the host leaves."""
        while data := os.read(self.source, wire.READ_BYTES):
            for frame in self.decoder.feed(data):
                if frame.type == "bye":
                    return
                answer = self.answers.get(frame.type, getattr(self, frame.type, None))
                if answer is not None:
                    answer(frame)

    def reply(self, frame: wire.Frame, payload: bytes = b"", **fields: Any) -> None:
        """Answer a request with a frame of its own type."""
        self.writer.write(frame.type, frame.id, payload, **fields)

    def hello(self, frame: wire.Frame, **changed: Any) -> None:
        """Answer as a null device does."""
        fields = {"major": 2, "minor": 2, "agent_version": "1.0", "backend": frame.fields["backend"]}
        fields |= {"fingerprint": {"cpu": "scripted"}, "clock": "device", "reveals": ["unfused"]}
        self.reply(frame, **{**fields, **changed})

    def lease(self, frame: wire.Frame) -> None:
        """Grant the lease, with a token that grows."""
        self.reply(frame, token=time.time_ns() // 1000, ttl_s=frame.fields["ttl_s"])

    def heartbeat(self, frame: wire.Frame) -> None:
        """Answer a heartbeat."""
        self.reply(frame, busy=True)

    def status(self, frame: wire.Frame) -> None:
        """Report that nobody holds the device."""
        self.reply(frame, state={"disk_free_bytes": 1e12, "load_1min": 1.0}, holder=None, busy=False)

    def put(self, frame: wire.Frame) -> None:
        """Accept a probe."""
        self.reply(frame)

    def drop(self, frame: wire.Frame) -> None:
        """Forget probes."""
        self.reply(frame)

    def run(self, frame: wire.Frame) -> None:
        """Send the samples of each visit in a frame, then the end record."""
        digest, count = hashlib.sha256(), 0
        for payload in self.payloads(frame):
            digest.update(payload)
            count += payload.count(str(LATENCY_NS).encode()) // 2
            self.writer.write("samples", frame.id, payload)
        self.writer.write("end", frame.id, count=count, hash=digest.hexdigest(), cancelled=False)

    def payloads(self, frame: wire.Frame) -> list[bytes]:
        """Return a payload with honest samples for each visit of a run."""
        return [
            samples_of({"visit": at, "probe": probe, "samples": [[LATENCY_NS, None, LATENCY_NS, 0]] * runs})
            for at, (probe, _, runs) in enumerate(frame.fields["visits"])
        ]


def samples_of(*series: dict[str, Any], state: dict[str, float] | None = None) -> bytes:
    """Return a payload of samples."""
    return json.dumps({"series": series, "state": state or {}}).encode()


CASES: dict[str, Callable[[Script], None]] = {}


def case(begin: Callable[[Script], None]) -> Callable[[Script], None]:
    """Register a case under its name."""
    CASES[begin.__name__] = begin
    return begin


@case
def polite(_: Script) -> None:
    """Nothing else."""


@case
def slow_visits(script: Script) -> None:
    """Each visit takes far longer than the device reports, and a cancel is not heard."""

    def run(frame: wire.Frame) -> None:
        for payload in script.payloads(frame):
            time.sleep(0.3)
            script.writer.write("samples", frame.id, payload)

    script.answers["run"] = run


@case
def slow_probes(script: Script) -> None:
    """Each probe takes far longer to load than the host expects."""

    def put(frame: wire.Frame) -> None:
        time.sleep(0.5)
        script.reply(frame)

    script.answers["put"] = put


def _raw(header: bytes, payload: bytes = b"") -> bytes:
    """Return a frame with any bytes as its header."""
    return struct.pack(">I", len(header)) + header + payload


def _header(frame: wire.Frame, seq: int, **fields: Any) -> dict[str, Any]:
    return {"type": frame.type, "id": frame.id, "seq": seq, "payload_bytes": 0, **fields}


def _replace(type: str, *values: Any) -> Callable[[Script], None]:
    """Return a case that answers a type of request by a header with these fields, or by these bytes."""

    def begin(script: Script) -> None:
        def answer(frame: wire.Frame) -> None:
            for value in values:
                if isinstance(value, bytes):
                    script.send_bytes(value)
                else:
                    script.writer.write(
                        value.get("type", type), frame.id, **{k: v for k, v in value.items() if k != "type"}
                    )

        script.answers[type] = answer

    return begin


def _altered(type: str, *alterations: Callable[[dict[str, Any]], object]) -> Callable[[Script], None]:
    """Return a case that alters the header of the polite answer to a type of request, as JSON text."""

    def begin(script: Script) -> None:
        def answer(frame: wire.Frame) -> None:
            sent: list[bytes] = []
            plain, script.writer._send = script.writer._send, sent.append
            getattr(script, type)(frame)
            script.writer._send = plain
            for data in sent:
                (length,) = struct.unpack(">I", data[:4])
                header = json.loads(data[4 : 4 + length])
                for alter in alterations:
                    alter(header)
                script.send_bytes(_raw(json.dumps(header).encode(), data[4 + length :]))

        script.answers[type] = answer

    return begin


def _samples(alter: Callable[[list[bytes], wire.Frame], list[bytes]]) -> Callable[[Script], None]:
    """Return a case that alters the payloads of a run and confirms what it sends."""

    def begin(script: Script) -> None:
        honest = script.payloads
        script.payloads = lambda frame: alter(honest(frame), frame)  # type: ignore[method-assign]

    return begin


def _drip(type: str, size: int, *, tick_s: float = 0.1) -> Callable[[Script], None]:
    """Return a case that sends its answer to a type of request byte by byte, and never ends."""

    def begin(script: Script) -> None:
        def answer(frame: wire.Frame) -> None:
            type_sent = "samples" if type == "run" else type
            header = json.dumps(_header(frame, script.writer._seq, payload_bytes=size, type=type_sent)).encode()
            script.send_bytes(_raw(header) if size else struct.pack(">I", 60_000))
            while True:
                script.send_bytes(b" ")
                time.sleep(tick_s)

        script.answers[type] = answer

    return begin


def _quits(type: str, stream: int) -> Callable[[Script], None]:
    """Return a case that ends the agent at a type of request, after a gigabyte of errors if `stream` is theirs."""

    def begin(script: Script) -> None:
        def answer(_: wire.Frame) -> None:
            for _ in range(1 << 14 if stream == 2 else 0):
                os.write(2, bytes(1 << 16))
            os._exit(77)

        script.answers[type] = answer

    return begin


def _closes_output(type: str) -> Callable[[Script], None]:
    """Return a case that closes its output at a type of request and goes on reading."""

    def begin(script: Script) -> None:
        def answer(_: wire.Frame) -> None:
            os.close(script.sink)
            while os.read(script.source, wire.READ_BYTES):
                pass
            time.sleep(60)

        script.answers[type] = answer

    return begin


def _stops_reading(type: str) -> Callable[[Script], None]:
    """Return a case that answers a type of request and reads nothing any more."""

    def begin(script: Script) -> None:
        def answer(frame: wire.Frame) -> None:
            getattr(script, type)(frame)
            time.sleep(600)

        script.answers[type] = answer

    return begin


def _with_state(payload: bytes, value: str) -> bytes:
    facts = ", ".join(f'"{name}": {value}' for name in ("load_1min", "runnable", "steal_s", "clock_hz"))
    return payload.replace(b'"state": {}', f'"state": {{{facts}}}'.encode())


BIDI = "\u202egnp.exe\u202c \u200b\u2066\x1b]0;owned\x07\x1b[2J\ud55c\U0001f4a5"
DIGITS = "9" * 400

CASES.update(
    {
        # Before and in place of the greeting.
        "text before the greeting": lambda script: script.send_bytes(b"Last login: Mon Nov 23 from 10.0.0.1\r\n"),
        "zeros before the greeting": lambda script: script.send_bytes(bytes(4)),
        "a frame before any request": lambda script: script.writer.write("hello", 1, major=2),
        "a greeting that drips": _drip("hello", 0),
        "a greeting of the largest size": _altered(
            "hello", lambda header: header.update(fingerprint={f"fact-{i}": "x" * 950 for i in range(64)})
        ),
        "a greeting with two types": _replace(
            "hello", _raw(b'{"type":"hello","type":"error","id":1,"seq":0,"payload_bytes":0,"code":"x","message":"y"}')
        ),
        "texts that turn the line around": _altered(
            "hello", lambda header: header.update(agent_version=BIDI[:39], fingerprint={"cpu": BIDI, "runtime": BIDI})
        ),
        "cores beyond any number": _altered(
            "hello", lambda header: header.update(fingerprint={"cores": DIGITS}, clock="wall")
        ),
        "a batch that the host did not ask for": _altered(
            "hello", lambda header: header.update(fingerprint={"cpu": "scripted", "batch": "8"})
        ),
        # The lease.
        "a token below zero": _altered("lease", lambda header: header.update(token=-1)),
        "a token of 2^63": _altered("lease", lambda header: header.update(token=2**63)),
        "a token of 2^63 - 1": _altered("lease", lambda header: header.update(token=2**63 - 1)),
        "a token that is true": _altered("lease", lambda header: header.update(token=True)),
        "a lease of 10^308 s": _altered("lease", lambda header: header.update(ttl_s=1e308)),
        "always busy, with a name of 7 kB": _replace(
            "lease", {"type": "error", "code": "busy", "message": "m", "holder": BIDI * 150}
        ),
        # Loading.
        "a compilation of NaN s": _altered("put", lambda header: header.update(compile_s=float("nan"))),
        "a compilation of -1 s": _altered("put", lambda header: header.update(compile_s=-1.0)),
        "nodes on the CPU without end": _altered("put", lambda header: header.update(on_cpu=[BIDI] * 200)),
        "an answer of another type": _replace("put", {"type": "run"}),
        "an answer that drips": _drip("put", 0),
        "a session that ends in its middle": _quits("put", 0),
        "an agent that closes half of the way": _closes_output("put"),
        "an agent that stops reading": _stops_reading("lease"),
        "a gigabyte of errors at the end": _quits("put", 2),
        # Measuring.
        "samples that drip": _drip("run", 2000),
        "a state of -10^308": _samples(lambda payloads, _: [_with_state(one, "-1e308") for one in payloads]),
        "a worker that always dies": _replace(
            "run", {"type": "error", "code": "worker-died", "message": "m", "ending": BIDI, "tail": BIDI * 150}
        ),
    }
)


def start_scripted(name: str) -> LocalConnection:
    """Start the agent of a case on this machine."""
    from harness.device.local import start_process

    return start_process("The scripted agent", [sys.executable, "-I", "-S", __file__, name])


if __name__ == "__main__":
    chosen = Script()
    CASES[sys.argv[1]](chosen)
    chosen.serve()
