"""The targets by name, and their common limits."""

import importlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz.outcome import Outcome

NAMES = ("networks", "answers", "frames", "revealed", "tables", "devices", "journal")
MAX_INPUT_BYTES = 1 << 18
HANG_S = 10
"""The processor time that an input may take."""
STUCK_S = 60
"""The wall time after which an input is given up, on a machine that does other work, too."""
RSS_LIMIT_MB = 2048


def memory_folder() -> Path | None:
    """Return a folder in memory, where journals do not wait for a disk; None on a system without."""
    folder = Path("/dev/shm")  # noqa: S108 - folders of its own are made there
    return folder if os.access(folder, os.W_OK) else None


@dataclass(frozen=True)
class Target:
    """One reader: `read` takes an input and a folder for its own files.

    `isolated` reads a file in a process with limits, as the program does, for a reader that the program isolates.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[bytes, Path], Outcome]
    isolated: Callable[[Path], Outcome] | None = None


def target(name: str) -> Target:
    """Import the module of a target and the reader that it uses; return the target."""
    module = importlib.import_module(f"fuzz.{name}")
    return Target(name, module.seeds, module.mutate, module.read, getattr(module, "isolated", None))
