"""Find agents and workers among the processes of this machine, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def agent_below(parent: int, known: set[int]) -> int | None:
    """Return the process of an agent or a worker whose parent is `parent`, or None.

    Processes with another parent are added to `known`, and skipped by later calls.
    """
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in known:
            continue
        with contextlib.suppress(OSError, IndexError):
            stat = Path("/proc", name, "stat").read_text(errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) != parent:
                known.add(int(name))
            elif b"device_agents" in Path("/proc", name, "cmdline").read_bytes():
                return int(name)
    return None


def agents_here() -> list[int]:
    """Return agents and workers that use the lease folder of this process."""
    wanted = b"HARNESS_RUNTIME_FOLDER=%s\0" % os.fsencode(os.environ["HARNESS_RUNTIME_FOLDER"])
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            folder = Path("/proc", name)
            if name.isdigit() and b"\0device_agents" in (folder / "cmdline").read_bytes():
                found += [int(name)] if wanted in (folder / "environ").read_bytes() else []
    return found
