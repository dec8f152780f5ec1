"""The supervisor's side of its worker: the process, the frames to and from it, and the requests that it works on."""

from __future__ import annotations

import selectors
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Optional

from device_agents import wire
from device_agents.messages import MOST_PUT_AHEAD_BYTES, MOST_PUTS
from device_agents.worker_process import WorkerProcess

_ENDING_S = 2.0


class Rejected(Exception):
    """A request that is answered by an error frame with these fields."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields: Dict[str, Any] = {"code": code, "message": message, **fields}


@dataclass
class Pending:
    """A request that the worker works on; each frame of the worker postpones the deadline by `silence_s`."""

    id: int
    type: str
    silence_s: float
    deadline: float

    def postpone(self) -> None:
        """Allow the worker another `silence_s` without a frame."""
        self.deadline = time.monotonic() + self.silence_s


class WorkerLink:
    """A worker process with frames in and out.

    The worker answers requests in order: further ones may be queued after a `put`. Replies go to `answer`. A worker
    that ends, falls silent or sends garbage is not replaced: `problem` is then the error of all pending requests, which
    goes to `fail`, and of every later request.
    """

    def __init__(self, answer: Callable[[wire.Frame], None], fail: Callable[[int, Rejected], None]) -> None:
        """Start the worker; raises OSError."""
        self._process = WorkerProcess()
        self._answer, self._fail = answer, fail
        self._decoder = wire.Decoder()
        self._outbox = bytearray()
        self._writer = wire.FrameWriter(self._outbox.extend)
        self._queue: Deque[Pending] = deque()
        self.problem: Optional[Rejected] = None

    @property
    def pending(self) -> Optional[Pending]:
        """The request that the worker works on."""
        return self._queue[0] if self._queue else None

    @property
    def handle(self) -> int:
        """File descriptor of the socket to the worker."""
        return self._process.socket.fileno()

    def wanted_events(self, read: bool) -> int:
        """Return the events of the socket to wait for; `read` is False while the host cannot take more replies."""
        if self.problem is not None:
            return 0
        return (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if self._outbox else 0)

    def request(self, frame: wire.Frame, silence_s: float, type: str = "", **fields: Any) -> None:
        """Send a request of the host to the worker; raises Rejected."""
        if self.problem is not None:
            raise self.problem
        if not self._may_wait(frame):
            self.check_idle()
        self._process.trim()
        self._writer.write(type or frame.type, frame.id, frame.payload, **fields)
        self._queue.append(Pending(frame.id, frame.type, silence_s, time.monotonic() + silence_s))

    def _may_wait(self, frame: wire.Frame) -> bool:
        """Return whether a request may be queued: a small `put` after others of its kind."""
        if len(self._queue) >= MOST_PUTS or len(frame.payload) > MOST_PUT_AHEAD_BYTES:
            return False
        return frame.type == "put" and all(one.type == "put" for one in self._queue)

    def check_idle(self) -> None:
        """Raise Rejected if a request is pending."""
        if self.pending is not None:
            raise Rejected("bad-request", "the worker is busy with request %d" % self.pending.id)

    def cancel(self, request: int) -> None:
        """Stop a pending run after its present visit; a cancel that comes late has no effect."""
        if self.pending is not None and (self.pending.id, self.pending.type) == (request, "run"):
            self._writer.write("cancel", request)

    def on_events(self, events: int) -> None:
        """Send what the socket accepts, and read what has arrived."""
        if self.problem is not None:
            return
        try:
            if events & selectors.EVENT_WRITE and self._outbox:
                del self._outbox[: self._process.socket.send(self._outbox[: 4 * wire.READ_BYTES])]
                if self.pending is not None:
                    self.pending.postpone()
            if not events & selectors.EVENT_READ:
                return
            data = self._process.socket.recv(wire.READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                raise Rejected("worker-died", "the worker ended")
            for frame in self._decoder.feed(data):
                self._on_reply(frame)
        except wire.FrameError as error:
            self._bury("the worker sent a malformed frame: %s" % error)
        except Rejected as problem:
            self._bury(str(problem))

    def check_silence(self) -> None:
        """Kill the worker if it sent no frame for as long as the pending request allows."""
        pending = self.pending
        if pending is not None and time.monotonic() >= pending.deadline:
            self.kill()
            message = "the worker sent no frame for %g s during %s" % (pending.silence_s, pending.type)
            self._lose(Rejected("worker-silent", message, tail=self._process.tail()))

    def kill(self) -> None:
        """Kill the worker and wait a moment for its end."""
        self._process.kill_now()
        self._process.wait(_ENDING_S)

    def dispose(self) -> None:
        """Kill and reap the worker, and remove its folder."""
        self._process.dispose()

    def _on_reply(self, frame: wire.Frame) -> None:
        if self.pending is None or frame.id != self.pending.id:
            raise Rejected("worker-died", "the worker answered request %d, which is not pending" % frame.id)
        self.pending.postpone()
        if frame.type != "samples":
            self._queue.popleft()
            if self.pending is not None:
                self.pending.postpone()
        self._answer(frame)

    def _bury(self, message: str) -> None:
        if not self._process.wait(_ENDING_S):
            self.kill()
        ending = self._process.ending()
        fields = {"ending": ending, "tail": self._process.tail()}
        self._lose(Rejected("worker-died", "%s: %s" % (message, ending), **fields))

    def _lose(self, problem: Rejected) -> None:
        self.problem = problem
        self._outbox.clear()
        while self._queue:
            self._fail(self._queue.popleft().id, problem)
