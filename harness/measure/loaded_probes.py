"""The probes that a device holds between the passes over a campaign's batches.

A batch that fits beside those before it stays loaded, so that later passes need not load it again. The others are
loaded for each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from harness.device.session import AgentSession

KEPT = "kept"
"""The word in `reveals` of devices whose probes take about twice their weights of the memory that they report."""
_SHARE = 0.5
"""The part of the available memory that kept probes may take."""
_COPIES = 2
"""A runtime packs weights for its kernels and may keep both."""
_STRUCTURES_BYTES = 300 << 10
"""What a session of ONNX Runtime takes besides weights: 270 KB in the mean over 396 probes of three networks."""


@dataclass
class LoadedProbes:
    """The loads of one session, of which batches with at most `room_bytes` together stay from pass to pass."""

    session: AgentSession
    room_bytes: float = 0.0
    _kept: set[str] = field(default_factory=set)
    _kept_bytes: int = 0

    @classmethod
    def of(cls, session: AgentSession) -> Self:
        """Return the probes of a session before any is loaded, with the room that its device reports."""
        if KEPT not in session.hello.reveals:
            return cls(session)
        return cls(session, _SHARE * session.status()["state"].get("memory_available_bytes", 0.0))

    def load(self, loads: Iterable[str], load: Callable[[str], bool]) -> set[str]:
        """Return those of `loads` that the device holds, after loading with `load` those that it did not keep."""
        return {one for one in loads if one in self._kept or load(one)}

    def end_batch(self, loads: Iterable[str], weight_bytes: Callable[[str], int]) -> None:
        """Keep the loads of a batch if there is room for all, and drop those that are not kept."""
        new = sorted(set(loads) - self._kept)
        size = sum(_COPIES * weight_bytes(load) + _STRUCTURES_BYTES for load in new)
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
