"""An agent that is no agent: it speaks the protocol as well as a null device, until its case begins.

`python scripted_agent.py CASE` serves one host on standard input and output. It needs the standard library and the
frames of the agent alone, and takes no lease: leases concern other controllers, the cases the one that is connected.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.device.local import LocalConnection

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from device_agents import wire

LATENCY_NS = 100_000


class Script:
    """The polite half of the agent; a case replaces the answer to some type of request, or what comes before all."""

    def __init__(self) -> None:
        self.writer = wire.FrameWriter(self.send_bytes)
        self.answers: dict[str, Callable[[wire.Frame], None]] = {}
        self.cancelled: set[int] = set()
        self.decoder = wire.Decoder()

    def send_bytes(self, data: bytes) -> None:
        """Write bytes to the host."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]

    def serve(self) -> None:
        """Answer requests until the host leaves."""
        while data := os.read(0, wire.READ_BYTES):
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
        self.reply(frame, state={"disk_free_bytes": 1e12}, holder=None, busy=False)

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
            count += len(json.loads(payload)["series"][0]["samples"])
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


def start_scripted(name: str) -> LocalConnection:
    """Start the agent of a case on this machine."""
    from harness.device.local import start_process

    return start_process("The scripted agent", [sys.executable, __file__, name])


if __name__ == "__main__":
    chosen = Script()
    CASES[sys.argv[1]](chosen)
    chosen.serve()
