"""Let a device compile probes side by side before it loads them one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from harness.device.session import PREPARE, AgentSession
from harness.errors import Interrupted
from harness.measure.progress import Observer, Progress
from harness.probe.probe import Probe

_MODELS, _BYTES = 64, 1 << 20
"""How many models, and how many bytes of them, go into one request: some networks, or windows of them.

It is seconds of work, after which a stop counts. A larger network goes alone, so that a request takes no longer than
the `put` of one model may.
"""


def prepare(session: AgentSession, probes: Iterable[Probe], observe: Observer, stop: threading.Event) -> None:
    """Send the models of probes to a device that prepares them; raises a DeviceError, and Interrupted when stopped."""
    if PREPARE not in session.hello.reveals:
        return
    models = list(dict.fromkeys(probe.model.content for probe in probes))
    sent = 0
    while sent < len(models):
        if stop.is_set():
            step = "Run the same command again; what was compiled is kept"
            raise Interrupted("Stopped on request", why="Probes were being compiled", next_step=step)
        count, size = 1, len(models[sent])
        while sent + count < len(models) and count < _MODELS and size + len(models[sent + count]) <= _BYTES:
            size += len(models[sent + count])
            count += 1
        observe(Progress("compiling", sent, len(models)))
        session.prepare(models[sent : sent + count])
        sent += count
