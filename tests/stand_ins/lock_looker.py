"""A process that looks at a lock for long, on a clock of its own."""

import fcntl
import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest


def look_at(path: Path, monkeypatch: pytest.MonkeyPatch, then: Mapping[int, int]) -> int:
    """Hold a lock as those who look at it do, and return the handle; each look at the clock takes 0.02 s.

    `then` are the operations on the lock that follow, by the number of the pause of the other process.
    """
    looking, pauses, clock = os.open(path, os.O_RDONLY), itertools.count(), itertools.count()
    fcntl.flock(looking, fcntl.LOCK_SH)

    def pause(_: float) -> None:
        if (kind := then.get(next(pauses))) is not None:
            fcntl.flock(looking, kind)

    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.02)
    return looking
