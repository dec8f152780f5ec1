"""Requests to load probes that a session sends before their turn, so that neither side waits for the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from device_agents import wire
from device_agents.messages import MOST_PUT_AHEAD_BYTES, MOST_PUTS, LoadRequest
from harness.errors import BackendError

FIRST_MINOR = 5
"""The first minor version of the protocol whose agents hold further requests behind the one that they work on."""
_MOST_MODEL_BYTES = MOST_PUT_AHEAD_BYTES // 2
"""The specifications of its weights and inputs come behind the model."""


@dataclass
class PutsAhead:
    """The requests of a session that were sent and not waited for, in order; the agent answers in the same order.

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
