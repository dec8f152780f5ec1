"""The supervisor: frames in, frames out, the lease, and one worker process that does the measuring.

It is one thread that waits for the host, for the worker and for the next deadline, and is idle between
these: no write ever blocks it, because bytes that a pipe does not take wait in an outbox. A second
thread is a watchdog that ends the process should the first one hang beyond its deadline.

A worker that died or fell silent is not replaced: the agent says so and keeps the lease until the host
says bye, and the host opens a new session, which has a new token. docs/protocol.md lists the frames.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, NoReturn, Optional

from device_agents import AGENT_VERSION, fingerprint, wire
from device_agents.child import WorkerProcess
from device_agents.lease import Lease, LeaseHeld, evict_stopped, holder_of
from device_agents.watchdog import Watchdog

IDLE_S = 120.0
START_S = 60.0
_GRACE_S = 5.0
_FLUSH_S = 2.0
_ENDING_S = 2.0
_ENDING_BEFORE_S = 0.25
"""An agent gives up so long before its lease ends: the worker is to be gone and the board free by then."""
_OUTBOX_BYTES = 4 << 20
_TTL_S = (0.2, 600.0)
_SILENCE_S = (0.1, 86400.0)
_FORWARDED = ("put", "drop", "run", "oracle")
_PURPOSES = ("measurement", "validation")
_EXIT_PROTOCOL, _EXIT_EXPIRED, _EXIT_HUNG = 2, 3, 4


class _Rejected(Exception):
    """A request that gets an error frame instead of an answer."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields: Dict[str, Any] = {"code": code, "message": message, **fields}


class _Finished(Exception):
    """The agent ends with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class _Pending:
    """The one request that the worker is busy with."""

    id: int
    type: str
    silence_s: float
    deadline: float


class Agent:
    """Serves one host on a pair of file descriptors."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        os.set_blocking(sink, False)
        # poll, unlike epoll, takes any file for standard input.
        self._selector = selectors.PollSelector()
        self._decoder = wire.Decoder()
        self._outbox = bytearray()
        self._writer = wire.FrameWriter(self._outbox.extend)
        self._greeted = False
        self._backend = ""
        self._purpose = _PURPOSES[0]
        self._lease: Optional[Lease] = None
        self._watchdog = Watchdog(IDLE_S, _GRACE_S, _EXIT_HUNG, self._kill_worker)
        self._worker: Optional[WorkerProcess] = None
        self._worker_problem: Optional[_Rejected] = None
        self._worker_decoder = wire.Decoder()
        self._worker_outbox = bytearray()
        self._worker_writer = wire.FrameWriter(self._worker_outbox.extend)
        self._pending: Optional[_Pending] = None

    # --- the loop -----------------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Runs until the host leaves or the lease runs out; returns the exit code."""
        self._watchdog.start()
        self._selector.register(self._source, selectors.EVENT_READ, self._on_host)
        try:
            while True:
                self._check_deadlines()
                self._update_interest()
                for key, events in self._selector.select(self._wait_s()):
                    key.data(events)
        except _Finished as finished:
            self._flush_outbox()
            return finished.code

    def close(self) -> None:
        """Kills and reaps the worker first, frees the lease after: nobody else measures beside it."""
        if self._worker is not None:
            self._worker.dispose()
        if self._lease is not None:
            self._lease.release()

    def _wait_s(self) -> float:
        deadline = self._watchdog.deadline
        if self._pending is not None and not self._stalled():
            deadline = min(deadline, self._pending.deadline)
        return max(0.0, deadline - time.monotonic())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if now >= self._watchdog.deadline:
            self._expire()
        pending, worker = self._pending, self._worker
        if pending is not None and worker is not None and now >= pending.deadline and not self._stalled():
            self._kill_worker()
            message = "the worker said nothing for %g s during %s" % (pending.silence_s, pending.type)
            self._lose_worker(worker, _Rejected("worker-silent", message, tail=worker.tail()))

    def _expire(self) -> NoReturn:
        if self._lease is None:
            message = "the host said nothing for %g s and holds no lease" % IDLE_S
            self._writer.write("error", 0, code="idle", message=message)
        else:
            message = "the lease of %s was not renewed within %g s" % (self._lease.resource, self._watchdog.ttl_s)
            self._writer.write("error", 0, code="lease-lost", message=message)
        raise _Finished(_EXIT_EXPIRED)

    def _kill_worker(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.kill_now()
            worker.wait(_ENDING_S)

    def _stalled(self) -> bool:
        """Whether the host reads so slowly that the worker has to wait; its silence is then no fault."""
        return len(self._outbox) > _OUTBOX_BYTES

    def _update_interest(self) -> None:
        self._interest(self._sink, selectors.EVENT_WRITE if self._outbox else 0, self._on_sink)
        if self._worker is not None and self._worker_problem is None:
            events = (0 if self._stalled() else selectors.EVENT_READ) | (
                selectors.EVENT_WRITE if self._worker_outbox else 0
            )
            self._interest(self._worker.socket.fileno(), events, self._on_worker)

    def _interest(self, handle: int, events: int, callback: Callable[[int], None]) -> None:
        registered = handle in self._selector.get_map()
        if registered and not events:
            self._selector.unregister(handle)
        elif registered:
            self._selector.modify(handle, events, callback)
        elif events:
            self._selector.register(handle, events, callback)

    # --- bytes --------------------------------------------------------------------------------------------------

    def _on_sink(self, _: int = 0) -> None:
        try:
            del self._outbox[: os.write(self._sink, self._outbox[: wire.READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # the host does not listen any more
            self._outbox.clear()
            raise _Finished(0) from None

    def _flush_outbox(self) -> None:
        """Gives the last frames a moment to leave."""
        deadline = time.monotonic() + _FLUSH_S
        try:
            while self._outbox and time.monotonic() < deadline:
                if select.select([], [self._sink], [], max(0.0, deadline - time.monotonic()))[1]:
                    self._on_sink()
        except _Finished:
            pass

    def _on_host(self, _: int) -> None:
        try:
            data = os.read(self._source, wire.READ_BYTES)
        except OSError:
            data = b""
        if not data:
            raise _Finished(0)
        try:
            for frame in self._decoder.feed(data):
                self._answer(frame)
        except wire.FrameError as error:
            self._writer.write("error", 0, code="protocol", message=str(error)[:1000])
            raise _Finished(_EXIT_PROTOCOL) from None
        # A long payload over a slow link is a sign of life, too.
        if self._holds(self._decoder.arriving.get("token")):
            self._renew()

    def _on_worker(self, events: int) -> None:
        worker = self._worker
        if worker is None:
            return
        try:
            if events & selectors.EVENT_WRITE and self._worker_outbox:
                del self._worker_outbox[: worker.socket.send(self._worker_outbox[: 4 * wire.READ_BYTES])]
                self._touch()
            if not events & selectors.EVENT_READ:
                return
            data = worker.socket.recv(wire.READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                raise _Rejected("worker-died", "the worker ended")
            for frame in self._worker_decoder.feed(data):
                self._on_reply(frame)
        except wire.FrameError as error:
            self._bury(worker, "the worker sent no frame: %s" % error)
        except _Rejected as problem:
            self._bury(worker, str(problem))

    # --- the worker ---------------------------------------------------------------------------------------------

    def _touch(self) -> None:
        if self._pending is not None:
            self._pending.deadline = time.monotonic() + self._pending.silence_s

    def _on_reply(self, frame: wire.Frame) -> None:
        pending = self._pending
        if pending is None or frame.id != pending.id:
            raise _Rejected("worker-died", "the worker answered a request that nobody made")
        self._touch()
        fields = frame.fields
        if frame.type != "samples":
            self._pending = None
        if frame.type == "ready":
            self._greeted = True
            reveals = [word for word in fields["reveals"] if word != "oracle" or self._purpose == "validation"]
            self._writer.write("hello", frame.id, **_greeting({**fields, "backend": self._backend, "reveals": reveals}))
        else:
            self._writer.write(frame.type, frame.id, frame.payload, **fields)

    def _bury(self, worker: WorkerProcess, message: str) -> None:
        """The worker is gone or out of its mind: what remains is to say how it ended."""
        if not worker.wait(_ENDING_S):
            self._kill_worker()
        message = "%s: %s" % (message, worker.ending())
        self._lose_worker(worker, _Rejected("worker-died", message, ending=worker.ending(), tail=worker.tail()))

    def _lose_worker(self, worker: WorkerProcess, problem: _Rejected) -> None:
        self._interest(worker.socket.fileno(), 0, self._on_worker)
        self._worker_problem = problem
        self._worker_outbox.clear()
        if self._pending is not None:
            request, self._pending = self._pending.id, None
            self._writer.write("error", request, **problem.fields)

    def _forward(self, frame: wire.Frame, silence_s: float, type: str = "", **fields: Any) -> None:
        """Hands a request to the worker; the answer comes through `_on_reply`."""
        if self._worker_problem is not None:
            raise self._worker_problem
        if self._worker is None:
            raise _Rejected("bad-request", "this session was opened without a backend")
        if self._pending is not None:
            raise _Rejected("bad-request", "the worker is busy with request %d" % self._pending.id)
        self._worker.trim()
        self._worker_writer.write(type or frame.type, frame.id, frame.payload, **fields)
        self._pending = _Pending(frame.id, frame.type, silence_s, time.monotonic() + silence_s)

    # --- requests -----------------------------------------------------------------------------------------------

    def _answer(self, frame: wire.Frame) -> None:
        if not self._lease:
            self._watchdog.renew()
        try:
            if frame.type == "bye":
                raise _Finished(0)
            if frame.type == "hello":
                return self._on_hello(frame)
            if not self._greeted:
                raise _Rejected("bad-request", "%s before hello was answered" % frame.type[:40])
            if frame.type == "lease":
                return self._on_lease(frame)
            if frame.type == "status":
                return self._on_status(frame)
            self._on_leased(frame)
        except _Rejected as rejected:
            self._writer.write("error", frame.id, **rejected.fields)

    def _on_hello(self, frame: wire.Frame) -> None:
        major = frame.fields.get("major")
        if major != wire.PROTOCOL_MAJOR:
            message = "this agent speaks version %d of the protocol, not %r" % (wire.PROTOCOL_MAJOR, major)
            raise _Rejected("version", message[:200], major=wire.PROTOCOL_MAJOR, agent_version=AGENT_VERSION)
        if self._greeted or self._worker is not None:
            raise _Rejected("bad-request", "a session has one hello")
        backend, options = frame.fields.get("backend"), frame.fields.get("options", {})
        if backend is None:  # a look at the device, without disturbing who measures on it
            self._greeted = True
            self._writer.write("hello", frame.id, **_greeting({"fingerprint": fingerprint.hardware()}))
            return
        if not isinstance(backend, str) or not isinstance(options, dict):
            raise _Rejected("bad-request", "hello needs a backend (text) and options (an object)")
        purpose = frame.fields.get("purpose", _PURPOSES[0])
        if purpose not in _PURPOSES:
            raise _Rejected("bad-request", "the purpose of a session is %s" % " or ".join(_PURPOSES))
        resource = frame.fields.get("resource")
        holder = _rightful_holder(resource) if isinstance(resource, str) else None
        if holder is not None:  # starting a runtime would disturb who measures
            raise _Rejected("busy", "%s is leased by %s" % (resource, holder), holder=holder)
        try:
            self._worker = WorkerProcess()
        except OSError as error:
            raise _Rejected("system", "the worker cannot be started: %s" % error) from None
        self._backend, self._purpose = backend, purpose
        self._forward(frame, START_S, "start", backend=backend, options=options)

    def _on_lease(self, frame: wire.Frame) -> None:
        if self._lease is not None:
            raise _Rejected("bad-request", "this session has a lease")
        ttl_s = _number(frame, "ttl_s", _TTL_S)
        resource, holder = frame.fields.get("resource"), frame.fields.get("holder")
        if not isinstance(resource, str) or not isinstance(holder, str):
            raise _Rejected("bad-request", "lease needs a resource and a holder")
        try:
            lease = Lease(resource)
            lease.acquire(holder[:200])
        except LeaseHeld as held:
            raise _Rejected("busy", str(held), holder=held.holder) from None
        except ValueError as error:
            raise _Rejected("bad-request", "no lease of %r: %s" % (resource[:80], error)) from None
        except OSError as error:
            raise _Rejected("system", "no lease of %r: %s" % (resource[:80], error)) from None
        self._lease = lease
        self._watchdog.restart(ttl_s - min(_ENDING_BEFORE_S, ttl_s / 8))
        self._renew()
        self._writer.write("lease", frame.id, token=lease.token, ttl_s=ttl_s)

    def _on_status(self, frame: wire.Frame) -> None:
        resource = frame.fields.get("resource")
        try:
            holder = holder_of(resource) if isinstance(resource, str) else None
            facts = fingerprint.state()
        except (ValueError, OSError) as error:
            raise _Rejected("bad-request", "no status: %s" % error) from None
        self._writer.write("status", frame.id, state=facts, holder=holder, busy=self._pending is not None)

    def _on_leased(self, frame: wire.Frame) -> None:
        """Requests that only the holder of the lease may make."""
        lease = self._lease
        if lease is None or not self._holds(frame.fields.get("token")):
            raise _Rejected("lease-lost", "the token of this %s is not the one of the lease" % frame.type[:40])
        self._renew()
        fields = {name: value for name, value in frame.fields.items() if name not in ("token", "silence_s")}
        if frame.type == "oracle" and self._purpose != "validation":
            raise _Rejected("forbidden", "the oracle answers only in a session that was opened for validation")
        if frame.type in _FORWARDED:
            self._forward(frame, _number(frame, "silence_s", _SILENCE_S, START_S), **fields)
        elif frame.type == "heartbeat":
            self._writer.write("heartbeat", frame.id, busy=self._pending is not None)
        elif frame.type == "renew":
            self._writer.write("renew", frame.id)
        elif frame.type == "cancel":  # has no answer; one that comes late has nothing left to stop
            if self._pending is not None and (self._pending.id, self._pending.type) == (frame.id, "run"):
                self._worker_writer.write("cancel", frame.id)
        elif frame.type == "release":
            self._on_release(frame, lease)
        else:
            raise _Rejected("bad-request", "unknown request %r" % frame.type[:40])

    def _on_release(self, frame: wire.Frame, lease: Lease) -> None:
        if self._pending is not None:
            raise _Rejected("bad-request", "the worker is busy with request %d" % self._pending.id)
        lease.release()
        self._lease = None
        self._watchdog.restart(IDLE_S)
        self._writer.write("release", frame.id)

    def _renew(self) -> None:
        self._watchdog.renew()
        if self._lease is not None:
            self._lease.extend(self._watchdog.deadline, self._watchdog.ttl_s)

    def _holds(self, token: Any) -> bool:
        return self._lease is not None and type(token) is int and token == self._lease.token


def _rightful_holder(resource: str) -> Optional[str]:
    """Who holds the resource; one that is stopped and whose lease has run out does not any more."""
    try:
        holder = holder_of(resource)
        return None if holder is None or evict_stopped(resource) else holder
    except ValueError as error:
        raise _Rejected("bad-request", "no lease of %r: %s" % (resource[:80], error)) from None


def _greeting(fields: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "major": wire.PROTOCOL_MAJOR,
        "minor": wire.PROTOCOL_MINOR,
        "agent_version": AGENT_VERSION,
        "backend": fields.get("backend"),
        "fingerprint": fields["fingerprint"],
        "clock": fields.get("clock"),
        "reveals": fields.get("reveals", []),
    }


def _number(frame: wire.Frame, name: str, limits: Any, default: Optional[float] = None) -> float:
    value: Any = frame.fields.get(name, default)
    if type(value) not in (int, float) or not limits[0] <= value <= limits[1]:
        raise _Rejected("bad-request", "%s must be a number from %g to %g" % (name, limits[0], limits[1]))
    return float(value)


def _end(number: int, _: Any) -> NoReturn:
    sys.exit(128 + number)


def serve() -> int:
    """Entry point of the agent: serves the host on standard input and output."""
    sink = os.dup(1)
    os.dup2(2, 1)  # standard output belongs to frames; whatever prints, prints to standard error
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's business
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    agent = Agent(0, sink)
    try:
        return agent.serve()
    finally:
        agent.close()
