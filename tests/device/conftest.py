"""Sessions with scripted agents."""

import socket
from typing import Any

import pytest
from scripted_peer import Peer, Stream

from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, Deadlines


@pytest.fixture
def meet() -> Any:
    """Makes sessions with scripted agents and closes them."""
    sessions = []

    def make(deadlines: Deadlines | None = None, **script: Any) -> tuple[AgentSession, Peer]:
        ours, theirs = socket.socketpair()
        peer = Peer(theirs, script)
        sessions.append((AgentSession(Stream(ours), BUILT_IN["null01"], deadlines), peer))
        return sessions[-1]

    yield make
    for session, peer in sessions:
        session.close()
        peer.thread.join(300)
        peer.stream.close()
