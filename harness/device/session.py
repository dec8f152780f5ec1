"""A session with the agent of one device: the lease, probes up, samples down.

Every wait has a deadline. Once the lease is held, a thread sends heartbeats, which renew it, as long as the
controller makes progress; a controller that hangs for ten minutes loses the device, and a link that is
silent for three heartbeats is lost.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from device_agents import wire
from device_agents.truth import Revealed, Truth
from harness.device.inventory import Device
from harness.device.replies import (
    RESUME,
    EmptyReply,
    EndReply,
    HelloReply,
    LeaseReply,
    PutReply,
    RunCheck,
    Series,
    StatusReply,
    Visit,
    agent_error,
    check,
    read_truth,
)
from harness.device.transport import Connection
from harness.device.transports import transport_of
from harness.errors import BackendError, DeviceUnreachable, HarnessError, LinkLost, ProtocolError
from harness.text import last_part

__all__ = [
    "AgentHello",
    "AgentSession",
    "Deadlines",
    "ProbePayload",
    "Revealed",
    "Series",
    "Truth",
    "Visit",
    "open_session",
]

Purpose = Literal["measurement", "validation"]
_SLICE_S = 0.5
_REQUEST_BYTES = wire.MAX_HEADER_BYTES - 4096


@dataclass(frozen=True)
class Deadlines:
    """How long a session waits for what.

    The lease on the device runs out `lease_ttl_s` after the last sign of us; heartbeats are sent as long as the
    controller has used the session within `keep_s`. A worker that says nothing for `load_s` while it loads, or for
    `run_s` while it measures, is killed.
    """

    lease_ttl_s: float = 60.0
    start_s: float = 90.0
    reply_s: float = 30.0
    load_s: float = 300.0
    run_s: float = 120.0
    margin_s: float = 10.0
    keep_s: float = 600.0


@dataclass(frozen=True)
class ProbePayload:
    """A probe as it travels: the model without its weights, and how the device makes weights and inputs."""

    probe: str
    model: bytes
    weights: tuple[Mapping[str, Any], ...]
    inputs: tuple[Mapping[str, Any], ...]
    output_bytes: int


@dataclass(frozen=True)
class AgentHello:
    """What the agent says about itself. `clock` names the clock of its samples that latencies should use."""

    agent_version: str
    backend: str
    fingerprint: Mapping[str, str]
    clock: str
    reveals: tuple[str, ...]


class AgentSession:
    """One connection to an agent; closing it ends the agent and frees the lease."""

    hello: AgentHello
    token: int

    def __init__(self, connection: Connection, device: Device, deadlines: Deadlines | None = None) -> None:
        self._connection = connection
        self._device = device
        self._name = device.name
        self._deadlines = deadlines or Deadlines()
        self._writer = wire.FrameWriter(connection.send)
        self._decoder = wire.Decoder()
        self._inbox: deque[wire.Frame] = deque()
        self._sending = threading.Lock()
        self._requests = 0
        self._heartbeats: set[int] = set()
        self._used_s = time.monotonic()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self._broken: HarnessError | None = None
        self._running = False
        self._cancel = self._cancel_sent = False
        self.token = 0

    def __enter__(self) -> AgentSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- requests -----------------------------------------------------------------------------------------------

    def greet(self, with_backend: bool = True, purpose: Purpose = "measurement") -> AgentHello:
        """Says hello; without a backend the agent starts no worker and can only tell its status.

        A session for validation may ask the oracle where `reveals` of the answer lists it; measuring never does.
        """
        backend = self._device.backend if with_backend else None
        version: dict[str, Any] = {"major": wire.PROTOCOL_MAJOR, "minor": wire.PROTOCOL_MINOR, "purpose": purpose}
        options, resource = dict(self._device.options), self._device.resource
        try:
            request = self._send("hello", backend=backend, options=options, resource=resource, **version)
            frame = self._wait(request, ("hello",), self._deadlines.start_s)
        except LinkLost as error:
            next_step = f"See what is missing by `harness devices check {self._name}`"
            raise DeviceUnreachable(f"No agent answers on {self._name}", why=error.why, next_step=next_step) from error
        reply = check(HelloReply, frame.fields, self._name)
        if reply.major != wire.PROTOCOL_MAJOR or reply.backend != backend or (backend and reply.clock is None):
            raise ProtocolError(f"The agent on {self._name} answered another hello than ours")
        facts = {key: last_part(value) for key, value in reply.fingerprint.items()}
        self.hello = AgentHello(
            last_part(reply.agent_version), reply.backend or "", facts, reply.clock or "", tuple(reply.reveals)
        )
        return self.hello

    def acquire(self, holder: str) -> int:
        """Takes the lease of the device's resource, naming who we are; returns the fencing token."""
        fields: dict[str, Any] = {"resource": self._device.resource, "ttl_s": self._deadlines.lease_ttl_s}
        frame = self._ask("lease", self._deadlines.reply_s, holder=last_part(holder, 150), **fields)
        self.token = check(LeaseReply, frame.fields, self._name).token
        self._keeper = threading.Thread(target=self._keep, name=f"heartbeat {self._name}", daemon=True)
        self._keeper.start()
        return self.token

    def put(self, payload: ProbePayload, reveal: bool = False) -> Revealed | None:
        """Loads a probe on the device; with `reveal`, returns what the runtime made of it where it tells."""
        lists = {"weights": [dict(spec) for spec in payload.weights], "inputs": [dict(spec) for spec in payload.inputs]}
        content = payload.model + json.dumps(lists, allow_nan=False).encode()
        frame = self._ask(
            "put",
            self._deadlines.load_s + self._deadlines.margin_s,
            content,
            token=self.token,
            silence_s=self._deadlines.load_s,
            probe=payload.probe,
            model_bytes=len(payload.model),
            sha256=hashlib.sha256(content).hexdigest(),
            output_bytes=payload.output_bytes,
            reveal=reveal,
        )
        reply = check(PutReply, frame.fields, self._name)
        if (reply.format is None) != (not frame.payload) or (frame.payload and not reveal):
            raise ProtocolError(f"{self._name} revealed what nobody asked for, or nothing where it said so")
        return Revealed(reply.format, frame.payload) if reply.format is not None else None

    def oracle(self, probe: str) -> Truth:
        """The truth about a loaded probe, from an emulated device in a session for validation."""
        silence_s = self._deadlines.load_s
        timeout_s = silence_s + self._deadlines.margin_s
        frame = self._ask("oracle", timeout_s, token=self.token, silence_s=silence_s, probe=probe)
        check(EmptyReply, frame.fields, self._name)
        return read_truth(frame.payload, probe, self._name)

    def drop(self, probes: Sequence[str]) -> None:
        """Unloads probes."""
        for part in _parts(list(probes)):
            silence_s = self._deadlines.load_s
            timeout_s = silence_s + self._deadlines.margin_s
            frame = self._ask("drop", timeout_s, token=self.token, silence_s=silence_s, probes=part)
            check(EmptyReply, frame.fields, self._name)

    def run(self, visits: Sequence[Visit]) -> Iterator[tuple[tuple[Series, ...], Mapping[str, float]]]:
        """Runs visits in order; yields what each samples frame holds: series, and the state of the device.

        A list too long for one request is sent as several, one after the other. An iterator that is not read
        to its end leaves the session good for nothing but `close`.
        """
        for visit in visits:
            if type(visit.runs) is not int or type(visit.warmup) is not int or visit.runs < 1 or visit.warmup < 0:
                raise ValueError(f"{visit} needs one run or more")
        self._cancel = False
        first = 0
        for part in _parts([[visit.probe, visit.warmup, visit.runs] for visit in visits]):
            cancelled = yield from self._run_part(part, visits[first : first + len(part)], first)
            if cancelled or self._cancel:
                return
            first += len(part)

    def _run_part(
        self, part: list[Any], visits: Sequence[Visit], first: int
    ) -> Generator[tuple[tuple[Series, ...], Mapping[str, float]], None, bool]:
        ledger = RunCheck(self._name, visits, first)
        request = self._send("run", token=self.token, visits=part, silence_s=self._deadlines.run_s)
        self._running, self._cancel_sent = True, False
        deadline_s = self._deadlines.run_s + self._deadlines.margin_s
        while True:
            frame = self._wait(request, ("samples", "end"), deadline_s)
            if frame.type == "end":
                break
            check(EmptyReply, frame.fields, self._name)
            yield ledger.samples(frame.payload)
        self._running = False
        reply = check(EndReply, frame.fields, self._name)
        ledger.end(reply, self._cancel_sent)
        return reply.cancelled

    def cancel(self) -> None:
        """Asks the running request to stop after the current visit; safe in a signal handler."""
        self._cancel = True

    def status(self) -> Mapping[str, Any]:
        """State facts of the device (`state`), who holds its resource (`holder`), whether the worker is busy."""
        reply = check(
            StatusReply,
            self._ask("status", self._deadlines.reply_s, resource=self._device.resource).fields,
            self._name,
        )
        holder = None if reply.holder is None else last_part(reply.holder, 200)
        return {"state": dict(reply.state), "holder": holder, "busy": reply.busy}

    def close(self) -> None:
        """Says bye, ends the agent, frees the lease; harmless when repeated."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            self._send("bye")
        except (HarnessError, OSError):
            pass  # the agent ends on end of input as well, and a dead link frees the lease by itself
        finally:
            self._connection.close()

    # --- frames -------------------------------------------------------------------------------------------------

    def _ask(self, type: str, timeout_s: float, payload: bytes = b"", **fields: Any) -> wire.Frame:
        return self._wait(self._send(type, payload, **fields), (type,), timeout_s)

    def _send(self, type: str, payload: bytes = b"", **fields: Any) -> int:
        if self._running and type != "bye":
            raise HarnessError("A run was abandoned", next_step="Close this session and open another")
        self._used_s = time.monotonic()
        try:
            return self._write(type, None, payload, **fields)
        except LinkLost as lost:
            raise self._last_words() or lost from None

    def _write(self, type: str, request: int | None, payload: bytes = b"", **fields: Any) -> int:
        with self._sending:
            if self._broken is not None:
                raise self._broken
            if request is None:
                self._requests += 1
                request = self._requests
            if type == "heartbeat":
                self._heartbeats.add(request)
            try:
                self._writer.write(type, request, payload, **fields)
            except wire.FrameError as error:
                raise BackendError(f"A {type} for {self._name} is too large to send", why=str(error)) from error
            except (OSError, EOFError) as error:
                self._broken = self._lost(f"{type} could not be sent: {last_part(str(error), 200)}")
                raise self._broken from error
            return request

    def _keep(self) -> None:
        while not self._closed.wait(self._deadlines.lease_ttl_s / 4):
            if time.monotonic() - self._used_s > self._deadlines.keep_s:
                continue
            try:
                self._write("heartbeat", None, token=self.token)
            except HarnessError:
                return  # whoever waits for the answer finds the reason

    def _wait(self, request: int, types: tuple[str, ...], timeout_s: float) -> wire.Frame:
        """The next frame that answers the request; heartbeats are taken on the way."""
        started_s = heard_s = time.monotonic()
        bound_s = 0.75 * self._deadlines.lease_ttl_s + self._deadlines.margin_s
        while True:
            while self._inbox:
                frame = self._take(self._inbox.popleft(), request, types)
                if frame is not None:
                    return frame
            now_s = self._used_s = time.monotonic()
            if now_s - started_s > timeout_s:
                raise self._lost(f"no {' or '.join(types)} within {timeout_s:g} s")
            if self.token and now_s - heard_s > bound_s:
                raise self._lost(f"nothing arrived for {bound_s:g} s, heartbeats included")
            if self._running and self._cancel and not self._cancel_sent:
                self._cancel_sent = True
                self._write("cancel", request, token=self.token)
            if self._receive(min(_SLICE_S, max(0.01, timeout_s - (now_s - started_s)))):
                heard_s = time.monotonic()

    def _take(self, frame: wire.Frame, request: int, types: tuple[str, ...]) -> wire.Frame | None:
        if frame.id in self._heartbeats and frame.type in ("heartbeat", "error"):
            self._heartbeats.discard(frame.id)
            if frame.type == "heartbeat":
                return None
        elif frame.id != request and (frame.type, frame.id) != ("error", 0):
            raise ProtocolError(f"{self._name} answered request {frame.id}, which is not open")
        if frame.type == "error":
            self._running = False
            raise agent_error(self._name, frame.fields)
        if frame.type not in types:
            raise ProtocolError(f"{self._name} answered {last_part(frame.type, 40)!r} instead of {' or '.join(types)}")
        return frame

    def _receive(self, timeout_s: float) -> bool:
        try:
            data = self._connection.recv(timeout_s)
        except TimeoutError:
            return False
        except (OSError, EOFError) as error:
            raise self._lost(last_part(str(error), 200)) from error
        if not data:
            where = "in the middle of a frame" if self._decoder.pending_bytes else "before the answer"
            raise self._lost(f"the stream ended {where}; {last_part(self._connection.diagnosis())}")
        try:
            self._inbox.extend(self._decoder.feed(data))
        except wire.FrameError as error:
            why = f"{error}; {last_part(self._connection.diagnosis())}"
            raise ProtocolError(f"{self._name} sent bytes that are no frame", why=why) from error
        return True

    def _last_words(self) -> HarnessError | None:
        """Why the agent ended, where it said so before it did: that is the error to tell."""
        try:
            while self._receive(_SLICE_S):
                pass
        except HarnessError:
            pass  # the end of the stream, which is no news
        words = [frame for frame in self._inbox if (frame.type, frame.id) == ("error", 0)]
        return agent_error(self._name, words[-1].fields) if words else None

    def _lost(self, why: str) -> LinkLost:
        return LinkLost(f"The connection to {self._name} is lost", why=why, next_step=RESUME)


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    """Cuts a list into pieces whose JSON fits into the header of a frame."""
    part: list[Any] = []
    size = 0
    for item in items:
        length = len(json.dumps(item)) + 1
        if part and size + length > _REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(item)
        size += length
    if part:
        yield part


def open_session(device: Device, purpose: Purpose = "measurement") -> AgentSession:
    """Starts the agent of a device and greets it; raises a DeviceError."""
    session = AgentSession(transport_of(device).open(), device)
    try:
        session.greet(purpose=purpose)
    except BaseException:
        session.close()
        raise
    return session
