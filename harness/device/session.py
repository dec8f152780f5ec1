"""A session with the agent of one device: it takes the lease, loads probes and returns samples."""

import getpass
import hashlib
import json
import os
import platform
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from device_agents import wire
from device_agents.messages import LoadReport, LoadRequest, Revealed, Truth
from harness.device import replies
from harness.device.adb import start_over_adb
from harness.device.inventory import Adb, Device, Ssh
from harness.device.link import FIRST_MINOR, AgentLink, Deadlines, PutsAhead
from harness.device.local import start_here
from harness.device.replies import RunCheck, Series, Visit, check, check_graph_size, graph_limit_bytes, read_truth
from harness.device.time_limit import TimeLimit
from harness.device.transport import Connection
from harness.device.variant import HOST_FACTS
from harness.errors import DeviceUnreachable, LinkLost, ProtocolError
from harness.text import last_part

__all__ = [
    "AgentHello",
    "AgentSession",
    "Deadlines",
    "LoadReport",
    "LoadRequest",
    "Revealed",
    "Series",
    "Truth",
    "Visit",
    "open_session",
    "start_agent",
]

Purpose = Literal["measurement", "validation"]
_REQUEST_BYTES = wire.MAX_HEADER_BYTES - 4096
_ORACLE_BYTES = 8 << 20
PREPARE = "prepare"
_FEWEST_PREPARED = 2


@dataclass(frozen=True)
class AgentHello:
    """The agent's answer to hello; `clock` names the clock of its samples that latencies use."""

    agent_version: str
    backend: str
    fingerprint: Mapping[str, str]
    clock: str
    reveals: tuple[str, ...]


class AgentSession:
    """A session with an agent; closing it ends the agent and frees the lease.

    `load_reports` has the report of each probe that was loaded. `board` is the device's.
    """

    hello: AgentHello
    token: int
    board: str = "local"

    def __init__(self, connection: Connection, device: Device, deadlines: Deadlines | None = None) -> None:
        self._device = device
        self.board = device.board
        self._name = device.name
        self._deadlines = deadlines or Deadlines()
        self._link = AgentLink(connection, device.name, self._deadlines)
        self.token = 0
        self.load_reports: dict[str, LoadReport] = {}
        self._prepared: set[bytes] = set()
        self._ahead = PutsAhead(self._send_put, lambda request: self._wait_worker(request, "put"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def greet(self, with_backend: bool = True, purpose: Purpose = "measurement") -> AgentHello:
        """Say hello; without a backend the agent starts no worker and reports its status only.

        A session for validation may ask the oracle if `reveals` of the answer lists it; a measurement never does.
        """
        backend = self._device.backend if with_backend else None
        version: dict[str, Any] = {"major": wire.PROTOCOL_MAJOR, "minor": wire.PROTOCOL_MINOR, "purpose": purpose}
        options, resource = dict(self._device.options), self._device.resource
        if with_backend and not self._device.exclusive:
            version["shared"] = True
        try:
            request = self._link.send("hello", backend=backend, options=options, resource=resource, **version)
            frame = self._link.wait(request, ("hello",), self._deadlines.start_s)
        except LinkLost as error:
            next_step = f"Find the cause with `harness devices check {self._name}`"
            raise DeviceUnreachable(f"No agent answers on {self._name}", why=error.why, next_step=next_step) from error
        reply = check(replies.HelloReply, frame.fields, self._name)
        if reply.major != wire.PROTOCOL_MAJOR or reply.backend != backend or (backend and reply.clock is None):
            raise ProtocolError(f"The agent on {self._name} answered a different hello than the one that was sent")
        if forged := HOST_FACTS & reply.fingerprint.keys():
            why = f"It reports {' and '.join(sorted(forged))}, which only the host sets"
            raise ProtocolError(f"The agent on {self._name} reports facts that it cannot know", why=why)
        facts = {key: last_part(value) for key, value in reply.fingerprint.items()}
        version_text = last_part(reply.agent_version)
        self._ahead.allowed = reply.minor >= FIRST_MINOR
        self.hello = AgentHello(version_text, reply.backend or "", facts, reply.clock or "", tuple(reply.reveals))
        return self.hello

    def acquire(self, holder: str | None = None) -> int:
        """Take the lease of the device's resource in the name of `holder`, by default this controller.

        A device that is not exclusive gives a lease to every session. Returns the fencing token.
        """
        holder = last_part(holder or controller_name(), 150)
        fields: dict[str, Any] = {"resource": self._device.resource, "ttl_s": self._deadlines.lease_ttl_s}
        frame = self._link.ask("lease", self._deadlines.reply_s, holder=holder, **fields)
        self.token = check(replies.LeaseReply, frame.fields, self._name).token
        self._link.keep_lease(self.token)
        return self.token

    def unprepared(self, models: Iterable[bytes]) -> list[bytes]:
        """Return those of the models that a device which reveals "prepare" has not compiled yet, each once."""
        if PREPARE not in self.hello.reveals:
            return []
        return [one for one in dict.fromkeys(models) if hashlib.sha256(one).digest() not in self._prepared]

    def prepare(self, models: Sequence[bytes]) -> None:
        """Let a device that reveals "prepare" compile models side by side before they are loaded; each once.

        A model that cannot be compiled is reported when it is loaded.
        """
        new = self.unprepared(models)
        if len(new) < _FEWEST_PREPARED:
            return
        content = b"".join(new)
        digest = hashlib.sha256(content).hexdigest()
        frame = self._ask_worker("prepare", content, model_bytes=list(map(len, new)), sha256=digest)
        check(replies.EmptyReply, frame.fields, self._name)
        self._prepared.update(hashlib.sha256(one).digest() for one in new)

    def put(self, request: LoadRequest) -> Revealed | None:
        """Load a probe; returns the runtime's graph if the request asks for it and the backend reveals it.

        A request that was sent ahead is not sent again.
        """
        self._link.allow("put", graph_limit_bytes(request.model) if request.reveal else 0)
        frame = self._ahead.answer(request)
        reply = check(replies.PutReply, frame.fields, self._name)
        if (reply.format is None) != (not frame.payload) or (frame.payload and not request.reveal):
            raise ProtocolError(f"{self._name} reported a graph that was not requested, or an empty one")
        self.load_reports[request.probe] = LoadReport(
            reply.compile_s,
            tuple(reply.on_cpu),
            reply.first_run_s,
            reply.before_bytes,
            reply.loaded_bytes,
            reply.peak_bytes,
        )
        if reply.format is None:
            return None
        check_graph_size(reply.format, frame.payload, request.model, self._name)
        return Revealed(reply.format, frame.payload)

    def put_ahead(self, request: LoadRequest) -> bool:
        """Send a probe before its `put`, which follows in the same order, so that the device need not wait for it.

        Returns False if the device takes no further one now, or never does; `put` sends it then.
        """
        return self._ahead.add(request)

    @property
    def sent_ahead(self) -> tuple[str, ...]:
        """The probes that were sent ahead and whose `put` has not begun."""
        return self._ahead.probes

    def _send_put(self, request: LoadRequest) -> int:
        lists = {"weights": request.weights, "inputs": request.inputs}
        content = request.model + json.dumps(lists, allow_nan=False).encode()
        return self._send_worker(
            "put",
            content,
            probe=request.probe,
            model_bytes=len(request.model),
            sha256=hashlib.sha256(content).hexdigest(),
            output_bytes=request.output_bytes,
            reveal=request.reveal,
            runs=request.runs,
        )

    def oracle(self, probe: str) -> Truth:
        """Return the true latencies of a loaded probe; needs a session for validation."""
        self._link.allow("oracle", _ORACLE_BYTES)
        frame = self._ask_worker("oracle", probe=probe)
        check(replies.EmptyReply, frame.fields, self._name)
        return read_truth(frame.payload, probe, self._name)

    def drop(self, probes: Sequence[str]) -> None:
        """Unload probes."""
        for part in _parts(list(probes)):
            check(replies.EmptyReply, self._ask_worker("drop", probes=part).fields, self._name)

    def run(self, visits: Sequence[Visit]) -> Iterator[tuple[tuple[Series, ...], Mapping[str, float]]]:
        """Run visits in order; yields for each samples frame its series and the state of the device.

        A list too long for one request is sent as several. After an iterator that is not read to its end, the session
        allows `close` only.
        """
        for visit in visits:
            if type(visit.runs) is not int or type(visit.warmup) is not int or visit.runs < 1 or visit.warmup < 0:
                raise ValueError(f"{visit} needs one run or more")
        self._ahead.finish()
        self._link.cancelling = False
        first = 0
        for part in _parts([[visit.probe, visit.warmup, visit.runs] for visit in visits]):
            cancelled = yield from self._run_part(part, visits[first : first + len(part)], first)
            if cancelled or self._link.cancelling:
                return
            first += len(part)

    def _run_part(
        self, part: list[Any], visits: Sequence[Visit], first: int
    ) -> Generator[tuple[tuple[Series, ...], Mapping[str, float]], None, bool]:
        ledger = RunCheck(self._name, visits, first, self.hello.clock)
        request = self._link.open_run(visits=part, silence_s=self._deadlines.run_s)
        deadline_s = self._deadlines.run_s + self._deadlines.margin_s
        while True:
            self._link.allow("samples", ledger.room_bytes)
            frame = self._link.wait(request, ("samples", "end"), deadline_s)
            if frame.type == "end":
                break
            check(replies.EmptyReply, frame.fields, self._name)
            yield ledger.samples(frame.payload)
        self._link.end_run()
        reply = check(replies.EndReply, frame.fields, self._name)
        ledger.end(reply, self._link.cancel_sent)
        return reply.cancelled

    def cancel(self) -> None:
        """Stop the present run after its current visit; safe in a signal handler."""
        self._link.cancelling = True

    def status(self) -> Mapping[str, Any]:
        """Return `state` (facts about the device), `holder` of its resource, and whether the worker is `busy`."""
        self._ahead.finish()
        frame = self._link.ask("status", self._deadlines.reply_s, resource=self._device.resource)
        reply = check(replies.StatusReply, frame.fields, self._name)
        holder = None if reply.holder is None else last_part(reply.holder, 200)
        return {"state": dict(reply.state), "holder": holder, "busy": reply.busy}

    def limit_time(self, limit: TimeLimit) -> None:
        """Give up at the end of this limit whatever the session waits for, with DeviceTooSlow."""
        self._link.time_limit = limit

    def close(self) -> None:
        """Say bye, end the agent and free the lease; a second call does nothing."""
        self._link.close()

    def _ask_worker(self, type: str, payload: bytes = b"", **fields: Any) -> wire.Frame:
        self._ahead.finish()
        return self._wait_worker(self._send_worker(type, payload, **fields), type)

    def _send_worker(self, type: str, payload: bytes, **fields: Any) -> int:
        return self._link.send(type, payload, token=self.token, silence_s=self._deadlines.load_s, **fields)

    def _wait_worker(self, request: int, type: str) -> wire.Frame:
        return self._link.wait(request, (type,), self._deadlines.load_s + self._deadlines.margin_s)


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    """Divide a list into parts whose JSON fits into the header of a frame."""
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


def controller_name() -> str:
    """Return user, host and process id of this controller as text; leases are held in this name."""
    return f"{user_name()}@{platform.node()} pid {os.getpid()}"


def user_name() -> str:
    """Return the name of this user, the number if the system knows no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the second since Python 3.13
        return str(os.getuid())


def start_agent(device: Device) -> Connection:
    """Start the agent of a device, on this machine, over SSH or over adb.

    Raises a DeviceError, or a ConfigurationError if a setting of the transport is wrong.
    """
    if isinstance(device.transport, Ssh):
        from harness.device.ssh.ssh_connection import start_over_ssh  # loads paramiko

        return start_over_ssh(device.name, device.transport)
    if isinstance(device.transport, Adb):
        return start_over_adb(device.name, device.transport)
    return start_here()


def open_session(device: Device, purpose: Purpose = "measurement") -> AgentSession:
    """Start the agent of a device and greet it; raises a DeviceError."""
    session = AgentSession(start_agent(device), device)
    try:
        session.greet(purpose=purpose)
    except BaseException:
        session.close()
        raise
    return session
