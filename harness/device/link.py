"""Requests and answers over one connection to an agent.

Every wait has a deadline. Once the lease is held, a thread sends heartbeats, which renew it, as long as the
controller makes progress. A controller that hangs for ten minutes loses the device, and a link that is silent for
three heartbeats is lost.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from device_agents import wire
from device_agents.messages import MOST_PUT_AHEAD_BYTES, MOST_PUTS, LoadRequest
from harness.device.replies import RESUME, agent_error
from harness.device.time_limit import TimeLimit
from harness.device.transport import CLOSE_S, QUIET_SHELL, SEND_STALL_S, Connection, TooManyErrors
from harness.errors import BackendError, DeviceTooSlow, HarnessError, LinkLost, ProtocolError
from harness.text import first_line, last_part

_SLICE_S = 0.5
_LAST_WORDS_S = 2.0
_LAST_WORDS_BYTES = 1 << 20
"""How long and how much a device may say after a request could not be sent."""
_PIECE_BYTES = 1 << 20
"""How much is sent between two looks at the time limit."""
FIRST_MINOR = 5
"""The first minor version of the protocol whose agents queue further requests while they work on one."""
_MOST_MODEL_BYTES = MOST_PUT_AHEAD_BYTES // 2
"""The specifications of its weights and inputs follow the model."""


@dataclass(frozen=True)
class Deadlines:
    """Deadlines of a session, in seconds.

    The lease runs out `lease_ttl_s` after the last frame of the host. Heartbeats are sent as long as the controller
    used the session within `keep_s`. A worker that sends no frame for `load_s` while it loads a probe, or for `run_s`
    while it measures, is killed. `margin_s` is added to these on the host.
    """

    lease_ttl_s: float = 60.0
    start_s: float = 90.0
    reply_s: float = 30.0
    load_s: float = 300.0
    run_s: float = 120.0
    margin_s: float = 10.0
    keep_s: float = 600.0


class AgentLink:
    """Sends requests to an agent and waits for their answers; a thread sends heartbeats once `keep_lease` was called.

    While a run is open, no other request may be sent; `cancelling` makes the next wait send a cancel. Sending and
    waiting raise DeviceTooSlow at the end of `time_limit`.
    """

    def __init__(self, connection: Connection, device: str, deadlines: Deadlines) -> None:
        self._connection = connection
        self._device = device
        self._deadlines = deadlines
        self._writer = wire.FrameWriter(self._send_bytes)
        self._stall_s = SEND_STALL_S
        self.time_limit = TimeLimit()
        self._payload_limits: dict[str, int] = {}
        self._decoder = wire.Decoder(self._payload_limits)
        self._inbox: deque[wire.Frame] = deque()
        self._has_answered = False
        self._sending = threading.Lock()
        self._requests = 0
        self._heartbeats: set[int] = set()
        self._used_s = time.monotonic()
        self._closed = threading.Event()
        self._beating: threading.Thread | None = None
        self._broken: HarnessError | None = None
        self._run_is_open = False
        self.cancelling = self.cancel_sent = False
        self.token = 0

    def ask(self, type: str, timeout_s: float, payload: bytes = b"", **fields: Any) -> wire.Frame:
        """Send a request and return its answer, a frame of the same type."""
        return self.wait(self.send(type, payload, **fields), (type,), timeout_s)

    def send(self, type: str, payload: bytes = b"", **fields: Any) -> int:
        """Send a request and return its id."""
        if self._run_is_open and type != "bye":
            raise HarnessError("A run was abandoned", next_step="Close this session and open another")
        self._used_s = time.monotonic()
        try:
            return self._write(type, None, payload, **fields)
        except LinkLost as lost:
            raise self._last_words() or lost from None

    def open_run(self, **fields: Any) -> int:
        """Send a run and return its id; it stays open until `end_run` or an error."""
        request = self.send("run", token=self.token, **fields)
        self._run_is_open, self.cancel_sent = True, False
        return request

    def allow(self, type: str, payload_bytes: int) -> None:
        """From now on accept payloads of at most `payload_bytes` in frames of this type; other types have none."""
        self._payload_limits[type] = payload_bytes

    def end_run(self) -> None:
        """Allow other requests again."""
        self._run_is_open = False

    def keep_lease(self, token: int) -> None:
        """Send heartbeats with this token until the link is closed."""
        self.token = token
        name = f"heartbeat {self._device}"
        self._beating = threading.Thread(target=self._send_heartbeats, name=name, daemon=True)
        self._beating.start()

    def wait(self, request: int, types: tuple[str, ...], timeout_s: float) -> wire.Frame:
        """Return the next frame that answers the request; answers to heartbeats are consumed on the way."""
        started_s = heard_s = time.monotonic()
        bound_s = 0.75 * self._deadlines.lease_ttl_s + self._deadlines.margin_s
        while True:
            while self._inbox:
                frame = self._take(self._inbox.popleft(), request, types)
                if frame is not None:
                    return frame
            self.time_limit.check(self._device)
            now_s = self._used_s = time.monotonic()
            if now_s - started_s > timeout_s:
                raise self._lost(f"no {' or '.join(types)} within {timeout_s:g} s")
            if self.token and now_s - heard_s > bound_s:
                raise self._lost(f"nothing arrived for {bound_s:g} s, heartbeats included")
            if self._run_is_open and self.cancelling and not self.cancel_sent:
                self.cancel_sent = True
                self._write("cancel", request, token=self.token)
            if self._receive(min(_SLICE_S, max(0.01, timeout_s - (now_s - started_s)))):
                heard_s = time.monotonic()

    def close(self) -> None:
        """Say bye and close the connection; a second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._stall_s = CLOSE_S
        try:
            self._write("bye", None, within_s=CLOSE_S)  # no last words: nobody waits for an answer
        except HarnessError:
            pass  # the agent also ends on end of input, and a dead link frees the lease
        finally:
            self._connection.close()
            if self._beating is not None:  # beside a second thread, networks would be read in new interpreters
                self._beating.join(CLOSE_S)

    def _send_bytes(self, data: bytes) -> None:
        for first in range(0, len(data), _PIECE_BYTES):
            self.time_limit.check(self._device)
            self._connection.send(data[first : first + _PIECE_BYTES], self._stall_s)

    def _write(
        self, type: str, request: int | None, payload: bytes = b"", within_s: float = -1.0, **fields: Any
    ) -> int:
        """Send a frame and return its id; `within_s` limits the wait for another thread that sends."""
        if not self._sending.acquire(timeout=within_s):
            raise self._lost(f"{type} could not be sent: the agent takes no bytes")
        try:
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
                raise BackendError(f"A {type} for {self._device} is too large to send", why=str(error)) from error
            except DeviceTooSlow as error:
                self._broken = error
                raise
            except (OSError, EOFError) as error:
                self._broken = self._lost(f"{type} could not be sent: {last_part(str(error), 200)}")
                raise self._broken from error
            return request
        finally:
            self._sending.release()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(self._deadlines.lease_ttl_s / 4):
            if time.monotonic() - self._used_s > self._deadlines.keep_s:
                continue
            try:
                self._write("heartbeat", None, token=self.token)
            except HarnessError:
                return  # the thread that waits for an answer raises the error

    def _take(self, frame: wire.Frame, request: int, types: tuple[str, ...]) -> wire.Frame | None:
        if frame.id in self._heartbeats and frame.type in ("heartbeat", "error"):
            self._heartbeats.discard(frame.id)
            if frame.type == "heartbeat":
                return None
        elif frame.id != request and (frame.type, frame.id) != ("error", 0):
            raise ProtocolError(f"{self._device} answered request {frame.id}, which is not open")
        if frame.type == "error":
            self._run_is_open = False
            raise agent_error(self._device, frame.fields)
        if frame.type not in types:
            answer = last_part(frame.type, 40)
            raise ProtocolError(f"{self._device} answered {answer!r} instead of {' or '.join(types)}")
        return frame

    def _receive(self, timeout_s: float) -> int:
        """Receive some frames or parts of them; returns the number of bytes, 0 if none arrived in time."""
        try:
            data = self._connection.recv(timeout_s)
        except TimeoutError:
            return 0
        except TooManyErrors as error:
            why = f"{error}; {last_part(self._connection.diagnosis())}"
            raise ProtocolError(f"{self._device} does not stop writing", why=why) from error
        except (OSError, EOFError) as error:
            raise self._lost(last_part(str(error), 200)) from error
        if not data:
            where = "in the middle of a frame" if self._decoder.pending_bytes else "before the answer"
            raise self._lost(f"the stream ended {where}; {last_part(self._connection.diagnosis())}")
        try:
            for frame in self._decoder.feed(data):
                self._has_answered = True
                self._inbox.append(frame)
        except wire.FrameError as error:
            if not self._has_answered and data[0]:  # headers are at most 64 KiB, so the first byte of a frame is 0
                what = f"The shell of {self._device} prints a text before the agent answers"
                raise ProtocolError(what, why=f"It begins with {first_line(data)!r}", next_step=QUIET_SHELL) from error
            why = f"{error}; {last_part(self._connection.diagnosis())}"
            next_step = f"Find the cause with `harness devices check {self._device}`"
            what = f"{self._device} sent bytes that are not a frame"
            raise ProtocolError(what, why=why, next_step=next_step) from error
        return len(data)

    def _last_words(self) -> HarnessError | None:
        """Return the error that the agent sent before it ended, if any: it is the reason for a broken link.

        A device that never ends gets no more than _LAST_WORDS_S and _LAST_WORDS_BYTES.
        """
        self._payload_limits.clear()  # errors have no payload
        deadline_s, left = time.monotonic() + _LAST_WORDS_S, _LAST_WORDS_BYTES
        try:
            while left > 0 and (wait_s := deadline_s - time.monotonic()) > 0:
                received = self._receive(min(_SLICE_S, wait_s))
                if not received:
                    break
                left -= received
        except HarnessError:
            pass  # the end of the stream is expected
        words = [frame for frame in self._inbox if (frame.type, frame.id) == ("error", 0)]
        return agent_error(self._device, words[-1].fields) if words else None

    def _lost(self, why: str) -> LinkLost:
        return LinkLost(f"The connection to {self._device} is lost", why=why, next_step=RESUME)


@dataclass
class PutsAhead:
    """Requests to load probes that were sent before their turn, so that neither side waits for the other.

    They are in order, and the agent answers in the same order.

    `send` sends a request and returns its id, `wait` returns the answer to an id.
    """

    send: Callable[[LoadRequest], int]
    wait: Callable[[int], wire.Frame]
    allowed: bool = False
    _sent: dict[str, int] = field(default_factory=dict)

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes whose requests wait."""
        return tuple(self._sent)

    def add(self, request: LoadRequest) -> bool:
        """Send a request if the agent may hold it, and return whether it is sent."""
        may = self.allowed and len(request.model) <= _MOST_MODEL_BYTES and not request.reveal
        if may and len(self._sent) < MOST_PUTS:
            self._sent[request.probe] = self.send(request)
        return request.probe in self._sent

    def answer(self, request: LoadRequest) -> wire.Frame:
        """Return the answer to a request, which is sent now if it was not before."""
        self.finish(request.probe)
        sent = self._sent.pop(request.probe, None)
        return self.wait(self.send(request) if sent is None else sent)

    def finish(self, until: str = "") -> None:
        """Wait for all answers, or for those before the answer to a probe, and discard them."""
        while self._sent and (first := next(iter(self._sent))) != until:
            with contextlib.suppress(BackendError):  # a refusal of a probe that is not wanted
                self.wait(self._sent.pop(first))
