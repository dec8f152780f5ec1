"""The probes that a device holds between the passes over a campaign's batches.

A batch that fits together with those before it stays loaded, so that later passes need not load it again. The others
are loaded for each pass. Further probes are on their way while the device loads one, so that neither side waits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from harness.device.session import AgentSession
from harness.errors import Interrupted
from harness.measure.progress import Observer, steps_of
from harness.network.effort import compile_effort, side_by_side
from harness.probe.probe import Probe

KEPT = "kept"
"""The word in `reveals` of devices whose probes take about twice their weights of the memory that they report."""
_SHARE = 0.5
"""The part of the available memory that kept probes may take."""
_COPIES = 2
"""A runtime packs weights for its kernels and may keep both."""
_STRUCTURES_BYTES = 300 << 10
"""The memory of a session of ONNX Runtime without weights: 270 KB in the mean over 396 probes of three networks."""


_AHEAD_BYTES = 128 << 20
"""Weights of the probes that are sent ahead: a device may load them side by side, and makes their weights for that."""
_MODELS, _BYTES = 64, 2 << 20
"""How many models, and how many bytes of them, go into one request: some networks, or windows of them.

That is seconds of work, during which a stop waits. A larger network is sent by itself, so that a request takes no
longer than the `put` of one model may.
"""


@dataclass
class LoadedProbes:
    """The loads of one session, of which batches with at most `room_bytes` together stay from pass to pass.

    `weight_bytes` is the size of a load's weights. `send` sends a load ahead and returns whether the device takes it.
    """

    session: AgentSession
    weight_bytes: Callable[[str], int]
    send: Callable[[str], bool]
    room_bytes: float = 0.0
    _kept: set[str] = field(default_factory=set)
    _kept_bytes: int = 0

    @classmethod
    def of(cls, session: AgentSession, weight_bytes: Callable[[str], int], send: Callable[[str], bool]) -> Self:
        """Return the probes of a session before any is loaded, with the room that its device reports."""
        if KEPT not in session.hello.reveals:
            return cls(session, weight_bytes, send)
        memory_bytes = session.status()["state"].get("memory_available_bytes", 0.0)
        return cls(session, weight_bytes, send, _SHARE * memory_bytes)

    def load(self, loads: Collection[str], load: Callable[[str], bool]) -> set[str]:
        """Load with `load` what the device did not keep of `loads`; return those that it then holds."""
        missing = list(dict.fromkeys(one for one in loads if one not in self._kept))
        bytes_to = [0, *itertools.accumulate(map(self.weight_bytes, missing))]
        held, sent = set(loads) & self._kept, 0
        for at, one in enumerate(missing):
            sent = max(sent, at)
            while sent < len(missing) and (sent == at or bytes_to[sent + 1] - bytes_to[at] <= _AHEAD_BYTES):
                if not self.send(missing[sent]):
                    break
                sent += 1
            if load(one):
                held.add(one)
        return held

    def has_room(self, loads: Iterable[str]) -> bool:
        """Return whether the device can keep all these loads, before it keeps any."""
        return self._bytes(loads) <= self.room_bytes

    def end_batch(self, loads: Iterable[str]) -> None:
        """Keep the loads of a batch if there is room for all, and drop those that are not kept."""
        new = sorted(set(loads) - self._kept)
        size = self._bytes(new)
        if self._kept_bytes + size <= self.room_bytes:
            self._kept.update(new)
            self._kept_bytes += size
        elif new:
            self.session.drop(new)

    def holds(self, loads: Iterable[str]) -> bool:
        """Return whether all these loads stay for the next pass."""
        return self._kept.issuperset(loads)

    def drop(self) -> None:
        """Drop all that is kept."""
        if self._kept:
            self.session.drop(sorted(self._kept))
        self._kept, self._kept_bytes = set(), 0

    def _bytes(self, loads: Iterable[str]) -> int:
        """Return the memory that a device needs to keep these loads."""
        return sum(_COPIES * self.weight_bytes(load) + _STRUCTURES_BYTES for load in loads)


def prepare(session: AgentSession, probes: Iterable[Probe], observe: Observer, stop: threading.Event) -> None:
    """Send the models of probes to a device that prepares them; raises a DeviceError, and Interrupted when stopped."""
    efforts = {probe.model.content: compile_effort(probe.model.products) for probe in probes}
    requests = list(_requests(session.unprepared(efforts)))
    if not requests:
        return
    step = steps_of(observe, "compiling", [side_by_side(map(efforts.__getitem__, models)) for models in requests])
    for number, models in enumerate(requests, start=1):
        if stop.is_set():
            again = "Run the same command again; what was compiled is kept"
            raise Interrupted("Stopped on request", why="Probes were being compiled", next_step=again)
        session.prepare(models)
        step(number, len(requests))


def _requests(models: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the models of each request."""
    request: list[bytes] = []
    for model in models:
        if request and (len(request) == _MODELS or sum(map(len, request)) + len(model) > _BYTES):
            yield request
            request = []
        request.append(model)
    if request:
        yield request
