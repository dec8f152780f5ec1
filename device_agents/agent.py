"""The supervisor: frames in, frames out, the lease, and one worker process that measures.

One thread waits for the host, for the worker and for the next deadline, and is idle in between. No write blocks it:
bytes that a pipe does not take wait in an outbox. A second thread, the watchdog, ends the process if the first one
hangs beyond its deadline.

A worker that ended or fell silent is not replaced: the agent reports it and keeps the lease until the host says bye.
The host then opens a new session, which has a new token. docs/protocol.md lists the frames.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import sys
import time
from typing import Any, Callable, Dict, NoReturn, Optional

from device_agents import AGENT_VERSION, fingerprint, wire
from device_agents.backends import BACKENDS
from device_agents.lease import Lease, LeaseHeld, LeaseRemoved, evict_stopped, holder_of
from device_agents.watchdog import Watchdog
from device_agents.worker_link import Rejected, WorkerLink

IDLE_S = 120.0
START_S = 60.0
_GRACE_S = 5.0
_FLUSH_S = 2.0
_ENDING_BEFORE_S = 0.25
"""The agent ends this long before its lease does, so that the worker is gone when the lease runs out."""
_OUTBOX_BYTES = 4 << 20
_TTL_S = (0.2, 600.0)
_SILENCE_S = (0.1, 86400.0)
_FORWARDED = ("prepare", "put", "drop", "run", "oracle")
_PURPOSES = ("measurement", "validation")
_EXIT_PROTOCOL, _EXIT_EXPIRED, _EXIT_HUNG = 2, 3, 4


class _Finished(Exception):
    """Ends the agent with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Agent:
    """Serves one host on a pair of file descriptors."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        os.set_blocking(sink, False)
        # poll, unlike epoll, accepts any file as standard input.
        self._selector = selectors.PollSelector()
        self._decoder = wire.Decoder()
        self._outbox = bytearray()
        self._writer = wire.FrameWriter(self._outbox.extend)
        self._greeted = False
        self._backend = ""
        self._purpose = _PURPOSES[0]
        self._shared = False
        self._lease: Optional[Lease] = None
        self._worker: Optional[WorkerLink] = None
        self._watchdog = Watchdog(IDLE_S, _GRACE_S, _EXIT_HUNG, self._kill_worker)

    # --- the loop -----------------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Serve until the host leaves or the lease runs out; returns the exit code."""
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
        """Kill and reap the worker, then free the lease, so that no other session measures at the same time."""
        if self._worker is not None:
            self._worker.dispose()
        if self._lease is not None:
            self._lease.release()

    def _wait_s(self) -> float:
        deadline = self._watchdog.deadline
        if self._worker is not None and self._worker.pending is not None and not self._stalled():
            deadline = min(deadline, self._worker.pending.deadline)
        return max(0.0, deadline - time.monotonic())

    def _check_deadlines(self) -> None:
        if time.monotonic() >= self._watchdog.deadline:
            self._expire()
        if self._worker is not None and not self._stalled():
            self._worker.check_silence()

    def _expire(self) -> NoReturn:
        if self._lease is None:
            message = "the host sent no frame for %g s and holds no lease" % IDLE_S
            self._writer.write("error", 0, code="idle", message=message)
        else:
            message = "the lease of %s was not renewed within %g s" % (self._lease.resource, self._watchdog.ttl_s)
            self._writer.write("error", 0, code="lease-lost", message=message)
        raise _Finished(_EXIT_EXPIRED)

    def _kill_worker(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.kill()

    def _stalled(self) -> bool:
        """Return whether the host reads so slowly that the worker must wait; its silence is then no fault."""
        return len(self._outbox) > _OUTBOX_BYTES

    def _update_interest(self) -> None:
        self._interest(self._sink, selectors.EVENT_WRITE if self._outbox else 0, self._on_sink)
        if self._worker is not None:
            events = self._worker.wanted_events(read=not self._stalled())
            self._interest(self._worker.handle, events, self._worker.on_events)

    def _interest(self, handle: int, events: int, callback: Callable[[int], None]) -> None:
        registered = handle in self._selector.get_map()
        if registered and not events:
            self._selector.unregister(handle)
        elif registered:
            self._selector.modify(handle, events, callback)
        elif events:
            self._selector.register(handle, events, callback)

    # --- bytes of the host --------------------------------------------------------------------------------------

    def _on_sink(self, _: int = 0) -> None:
        try:
            del self._outbox[: os.write(self._sink, self._outbox[: wire.READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # the host has closed its end
            self._outbox.clear()
            raise _Finished(0) from None

    def _flush_outbox(self) -> None:
        """Send the last frames, for a moment at most."""
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
        # Parts of a long payload over a slow link also renew the lease.
        if self._holds(self._decoder.arriving.get("token")):
            self._renew()

    # --- replies of the worker ----------------------------------------------------------------------------------

    def _on_reply(self, frame: wire.Frame) -> None:
        fields = frame.fields
        if frame.type == "ready":
            self._greeted = True
            reveals = [word for word in fields["reveals"] if word != "oracle" or self._purpose == "validation"]
            self._greet(frame.id, fields["fingerprint"], self._backend, fields["clock"], reveals)
        else:
            self._writer.write(frame.type, frame.id, frame.payload, **fields)

    def _greet(self, request: int, facts: Dict[str, str], backend: Any, clock: Any, reveals: Any) -> None:
        fields: Dict[str, Any] = {"agent_version": AGENT_VERSION, "backend": backend, "fingerprint": facts}
        fields.update(major=wire.PROTOCOL_MAJOR, minor=wire.PROTOCOL_MINOR, clock=clock, reveals=reveals)
        self._writer.write("hello", request, **fields)

    # --- requests of the host -----------------------------------------------------------------------------------

    def _answer(self, frame: wire.Frame) -> None:
        if not self._lease:
            self._watchdog.renew()
        try:
            if frame.type == "bye":
                raise _Finished(0)
            if frame.type == "hello":
                return self._on_hello(frame)
            if not self._greeted:
                raise Rejected("bad-request", "%s before hello was answered" % frame.type[:40])
            if frame.type == "lease":
                return self._on_lease(frame)
            if frame.type == "status":
                return self._on_status(frame)
            self._on_leased(frame)
        except Rejected as rejected:
            self._refuse(frame.id, rejected)

    def _refuse(self, request: int, rejected: Rejected) -> None:
        self._writer.write("error", request, **rejected.fields)

    def _on_hello(self, frame: wire.Frame) -> None:
        major = frame.fields.get("major")
        if major != wire.PROTOCOL_MAJOR:
            message = "this agent speaks version %d of the protocol, not %r" % (wire.PROTOCOL_MAJOR, major)
            raise Rejected("version", message[:200], major=wire.PROTOCOL_MAJOR, agent_version=AGENT_VERSION)
        if self._greeted or self._worker is not None:
            raise Rejected("bad-request", "a session has one hello")
        backend, options = frame.fields.get("backend"), frame.fields.get("options", {})
        if backend is None:  # reports the status only, and disturbs no measurement
            self._greeted = True
            self._greet(frame.id, fingerprint.hardware(), None, None, [])
            return
        if not isinstance(backend, str) or not isinstance(options, dict):
            raise Rejected("bad-request", "hello needs a backend (text) and options (an object)")
        purpose = frame.fields.get("purpose", _PURPOSES[0])
        if purpose not in _PURPOSES:
            raise Rejected("bad-request", "the purpose of a session must be %s" % " or ".join(_PURPOSES))
        self._shared = _shares(frame, backend)
        resource = frame.fields.get("resource")
        holder = _rightful_holder(resource) if isinstance(resource, str) and not self._shared else None
        if holder is not None:  # starting a runtime would disturb the holder's measurement
            raise Rejected("busy", "%s is leased by %s" % (resource, holder), holder=holder)
        try:
            self._worker = WorkerLink(self._on_reply, self._refuse)
        except OSError as error:
            raise Rejected("system", "the worker cannot be started: %s" % error) from None
        self._backend, self._purpose = backend, purpose
        self._worker.request(frame, START_S, "start", backend=backend, options=options)

    def _on_lease(self, frame: wire.Frame) -> None:
        if self._lease is not None:
            raise Rejected("bad-request", "this session already has a lease")
        ttl_s = _number(frame, "ttl_s", _TTL_S)
        resource, holder = frame.fields.get("resource"), frame.fields.get("holder")
        if not isinstance(resource, str) or not isinstance(holder, str):
            raise Rejected("bad-request", "lease needs a resource and a holder")
        try:
            lease = Lease(resource)
            lease.acquire(holder[:200], self._shared)
        except LeaseHeld as held:
            raise Rejected("busy", str(held), holder=held.holder) from None
        except (ValueError, OSError) as error:
            code = "system" if isinstance(error, OSError) else "bad-request"
            raise Rejected(code, "%r cannot be leased: %s" % (resource[:80], error)) from None
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
            raise Rejected("bad-request", "the status cannot be read: %s" % error) from None
        self._writer.write("status", frame.id, state=facts, holder=holder, busy=self._is_busy())

    def _on_leased(self, frame: wire.Frame) -> None:
        """Answer a request that only the holder of the lease may make."""
        lease = self._lease
        if lease is None or not self._holds(frame.fields.get("token")):
            raise Rejected("lease-lost", "the token of this %s is not that of the lease" % frame.type[:40])
        self._renew()
        if frame.type == "oracle" and self._purpose != "validation":
            raise Rejected("forbidden", "the oracle answers only in a session opened for validation")
        if frame.type in _FORWARDED:
            self._forward(frame)
        elif frame.type == "heartbeat":
            self._writer.write("heartbeat", frame.id, busy=self._is_busy())
        elif frame.type == "renew":
            self._writer.write("renew", frame.id)
        elif frame.type == "cancel":  # has no answer
            if self._worker is not None:
                self._worker.cancel(frame.id)
        elif frame.type == "release":
            self._on_release(frame, lease)
        else:
            raise Rejected("bad-request", "unknown request %r" % frame.type[:40])

    def _forward(self, frame: wire.Frame) -> None:
        """Hand a request to the worker; the answer arrives in `_on_reply`."""
        fields = {name: value for name, value in frame.fields.items() if name not in ("token", "silence_s")}
        silence_s = _number(frame, "silence_s", _SILENCE_S, START_S)
        if self._worker is None:
            raise Rejected("bad-request", "this session was opened without a backend")
        self._worker.request(frame, silence_s, **fields)

    def _on_release(self, frame: wire.Frame, lease: Lease) -> None:
        if self._worker is not None:
            self._worker.check_idle()
        lease.release()
        self._lease = None
        self._watchdog.restart(IDLE_S)
        self._writer.write("release", frame.id)

    def _is_busy(self) -> bool:
        return self._worker is not None and self._worker.pending is not None

    def _renew(self) -> None:
        self._watchdog.renew()
        if self._lease is not None:
            try:
                self._lease.extend(self._watchdog.deadline, self._watchdog.ttl_s)
            except LeaseRemoved as removed:  # another controller may hold the device already
                self._writer.write("error", 0, code="lease-lost", message=str(removed))
                raise _Finished(_EXIT_EXPIRED) from None

    def _holds(self, token: Any) -> bool:
        return self._lease is not None and type(token) is int and token == self._lease.token


def _rightful_holder(resource: str) -> Optional[str]:
    """Return the holder of the resource, or None if it is free or its holder was stopped and lost the lease."""
    try:
        holder = holder_of(resource)
        return None if holder is None or evict_stopped(resource) else holder
    except (ValueError, OSError) as error:
        code = "system" if isinstance(error, OSError) else "bad-request"
        raise Rejected(code, "%r cannot be leased: %s" % (resource[:80], error)) from None


def _shares(frame: wire.Frame, backend: str) -> bool:
    """Return whether the host asks for no exclusive use of the device; only virtual devices can be shared."""
    shared = frame.fields.get("shared", False)
    if type(shared) is not bool:
        raise Rejected("bad-request", "shared must be true or false")
    if shared and backend in BACKENDS and not BACKENDS[backend].virtual:
        raise Rejected("bad-request", "a device of backend %s cannot be shared" % backend)
    return shared


def _number(frame: wire.Frame, name: str, limits: Any, default: Optional[float] = None) -> float:
    value: Any = frame.fields.get(name, default)
    if type(value) not in (int, float) or not limits[0] <= value <= limits[1]:
        raise Rejected("bad-request", "%s must be a number from %g to %g" % (name, limits[0], limits[1]))
    return float(value)


def _end(number: int, _: Any) -> NoReturn:
    sys.exit(128 + number)


def serve() -> int:
    """Serve the host on standard input and output; the entry point of the agent."""
    sink = os.dup(1)
    os.dup2(2, 1)  # standard output is for frames only; prints go to standard error
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the controller
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    agent = Agent(0, sink)
    try:
        return agent.serve()
    finally:
        agent.close()
