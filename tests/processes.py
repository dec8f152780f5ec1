"""Find the agents and workers of one test by the runtime folder in their environment, and wait for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def agents(runtime_folder: Path) -> list[int]:
    """The agents that use this runtime folder, local or started over SSH."""
    return [pid for pid, words in _device_processes(runtime_folder) if "worker" not in words]


def workers(runtime_folder: Path) -> list[int]:
    """The workers of agents that use this runtime folder."""
    return [pid for pid, words in _device_processes(runtime_folder) if "worker" in words]


def runs(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Waits until the condition is true; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.02)


def _device_processes(runtime_folder: Path) -> list[tuple[int, list[str]]]:
    """Pid and command line of each process of `device_agents`; shells that started one are left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_python = bool(words) and "python" in words[0] and "device_agents" in words
            if is_python and process.environ().get("HARNESS_RUNTIME_FOLDER") == str(runtime_folder):
                found.append((process.pid, words))
    return found
