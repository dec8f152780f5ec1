"""Processes of tests: agents and workers by the runtime folder in their environment, and calls of another user."""

import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import psutil

OTHER = 12345
"""A user without rights of its own."""
_SABOTAGE = Path(__file__).parent / "system" / "faults" / "sabotage"


def sabotaged(**faults: object) -> dict[str, str]:
    """Return the environment in which agents and workers have planted faults."""
    return {"PYTHONPATH": str(_SABOTAGE), "HARNESS_SABOTAGE": json.dumps(faults)}


def agents(runtime_folder: Path) -> list[int]:
    """The agents that use this runtime folder, local or started over SSH."""
    return [pid for pid, words in _device_processes(runtime_folder) if "worker" not in words]


def workers(runtime_folder: Path) -> list[int]:
    """The workers of agents that use this runtime folder."""
    return [pid for pid, words in _device_processes(runtime_folder) if "worker" in words]


def is_stopped(pid: int) -> bool:
    """Whether the process exists and a signal stopped it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def runs(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    """Waits until the condition is true; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.02)


def as_other(act: Callable[[], object], *groups: int) -> str:
    """Return what a call returns, or its error, as text, if another user makes it."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # newer Pythons warn of threads, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(OTHER)
            os.setuid(OTHER)
            answer = repr(act())
        except BaseException as error:  # the parent compares it
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(sending, answer.encode())
            os._exit(0)
    os.close(sending)
    with open(receiving, encoding="utf-8") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer


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
