"""The worker process on a device: its private folder and its limits."""

import hashlib
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import workers

from device_agents import wire
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, open_session

DEADLINE_S = 300.0
ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import sys
from device_agents import worker
worker.CPU_S = int(sys.argv[2])
sys.exit(worker.work(int(sys.argv[1])))
"""


@pytest.fixture
def session() -> Iterator[AgentSession]:
    """Return a session with a local agent that has a worker."""
    with open_session(BUILT_IN["null01"]) as opened:
        yield opened


def test_worker_has_a_private_folder(session: AgentSession, runtime_folder: Path) -> None:
    """The worker runs in a private folder that holds its temporary files and that no other user can read."""
    (worker,) = workers(runtime_folder)
    folder = Path(os.readlink(f"/proc/{worker}/cwd"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    environment = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    assert b"TMPDIR=" + os.fsencode(folder) in environment
    session.close()
    assert not folder.exists()


@pytest.mark.usefixtures("session")
def test_worker_has_limits(runtime_folder: Path) -> None:
    """Memory, CPU time, size and number of files, and core dumps of the worker are bounded."""
    (worker,) = workers(runtime_folder)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for kind, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, 2 * 3600 * (os.cpu_count() or 1)),
        (resource.RLIMIT_FSIZE, 4 << 30),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_CORE, 0),
    ):
        soft, _ = resource.prlimit(worker, kind)
        assert soft != resource.RLIM_INFINITY and soft <= most


@pytest.fixture
def start_worker() -> Iterator[Callable[[int], tuple[subprocess.Popen[bytes], Any, wire.FrameWriter]]]:
    """Start a worker with a null backend and this limit of CPU time between two messages."""
    started = []

    def start(cpu_s: int) -> tuple[subprocess.Popen[bytes], Any, wire.FrameWriter]:
        ours, theirs = socket.socketpair()
        ours.settimeout(DEADLINE_S)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER, str(theirs.fileno()), str(cpu_s)],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        theirs.close()
        started.append((process, ours))
        writer = wire.FrameWriter(ours.sendall)
        writer.write("start", 1, backend="null", options={})
        spec = b'{"weights": [], "inputs": []}'
        facts = {"probe": "p", "model_bytes": 0, "output_bytes": 4, "reveal": False}
        writer.write("put", 2, spec, sha256=hashlib.sha256(spec).hexdigest(), **facts)
        return process, ours, writer

    yield start
    for process, ours in started:
        ours.close()
        process.kill()
        process.wait(DEADLINE_S)


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def test_worker_that_spins_without_a_word_is_ended(start_worker: Any) -> None:
    """A worker that uses up its CPU time without a message ends, with or without a supervisor."""
    process, stream, writer = start_worker(1)
    writer.write("run", 3, visits=[["p", 10**9, 1]])
    while stream.recv(wire.READ_BYTES):
        pass
    assert process.wait(DEADLINE_S) == -signal.SIGXCPU


def test_words_begin_the_cpu_time_anew(start_worker: Any) -> None:
    """A run of more CPU time continues while its samples arrive, until it is cancelled."""
    process, stream, writer = start_worker(1)
    writer.write("run", 3, visits=[["p", 2_000, 1]] * 3000)
    decoder = wire.Decoder()
    frames: list[wire.Frame] = []
    while not frames or frames[-1].type != "end":
        frames += decoder.feed(stream.recv(wire.READ_BYTES))
        if cpu_s(process.pid) > 2.2:
            writer.write("cancel", 3)
    assert cpu_s(process.pid) > 2.2
    assert process.poll() is None
