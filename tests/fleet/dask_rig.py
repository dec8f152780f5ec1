"""A Dask scheduler and workers as separate processes on this machine."""

import contextlib
import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import processes
import psutil
from dask_threads import end_dask_threads
from sshd_server import free_port

import device_agents
from harness.device.inventory import find_device, load_inventory
from harness.device.session import open_session
from harness.errors import DeviceBusy, EngineError
from harness.fleet.cluster.access import TlsFiles
from harness.fleet.cluster.dask_engine import DaskEngine
from harness.fleet.profile_outcome import ProfileOutcome
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

HOSTS = {"one": "left", "two": "right"}
PATIENCE_S = 300.0
"""Bound on every wait; on a loaded machine a process of Dask takes seconds to start."""
wait_until = functools.partial(processes.wait_until, seconds=PATIENCE_S)


@dataclass
class Lab:
    """Workspaces of hosts under `root`, and the processes that serve them."""

    root: Path
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    tls: TlsFiles | None = None

    @property
    def scheduler(self) -> str:
        """Address of the scheduler."""
        return f"{'tls' if self.tls else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def _tls_words(self) -> list[str]:
        """The options of scheduler and workers for their TLS files."""
        if self.tls is None:
            return []
        named = {"ca-file": self.tls.authority, "cert": self.tls.certificate, "key": self.tls.key}
        return [word for name, path in named.items() for word in (f"--tls-{name}", str(path))]

    @property
    def environment(self) -> dict[str, str]:
        """Both hosts are this one: they share its leases.

        Agents run from a copy: their hash is part of a fingerprint, and an edit meanwhile would make another device.
        """
        agents = self.root / "agents"
        if not agents.exists():
            compiled = shutil.ignore_patterns("__pycache__")  # other processes write there
            shutil.copytree(Path(device_agents.__file__).parent, agents / "device_agents", ignore=compiled)
        own = {
            "HARNESS_RUNTIME_FOLDER": str(self.root / "leases"),
            "PYTHONPATH": str(agents),
            "OPENBLAS_NUM_THREADS": "1",
            "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
        }
        return {**os.environ, **own}

    def workspace(self, host: str) -> Workspace:
        """The workspace of a host."""
        return Workspace(self.root / host)

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        return (self.root / f"{name}.log").read_text(errors="replace")

    def start_scheduler(self) -> None:
        """Starts the scheduler, at the port of the one before."""
        words = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--no-dashboard",
            "--dashboard-address",
            "127.0.0.1:0",
            *(["--protocol", "tls"] if self.tls else []),
            *self._tls_words,
        ]
        self._start("scheduler", [sys.executable, "-m", "distributed.cli.dask_scheduler", *words])
        wait_until(lambda: "Scheduler at" in self.log("scheduler"), "the scheduler")

    def start_workers(self, hosts: Sequence[str] = tuple(HOSTS)) -> None:
        """Starts workers of hosts that offer a device each, and one that both reach; waits until they do."""
        for host in hosts:
            self._start_worker(host, [HOSTS[host], "both"])
        for host in hosts:
            wait_until(lambda host=host: "Registered to" in self.log(host), host)  # type: ignore[misc]

    def _start_worker(self, host: str, devices: Sequence[str]) -> None:
        home = self.root / host
        home.mkdir(exist_ok=True)
        tables = (
            f'[devices.{name}]\nbackend = "null"\nresource = "{name}"\nexclusive = true\n'
            for name in (*HOSTS.values(), "both")
        )
        (home / "devices.toml").write_text("".join(tables))
        words = [self.scheduler, "--device", ",".join(devices), "--workspace", str(home), *self._tls_words]
        self._start(host, [sys.executable, "-m", "harness", "worker", *words])

    def child(self, host: str) -> int:
        """The process that runs the jobs of a host: its nanny's child with a working Dask worker."""
        children = psutil.Process(self.processes[host].pid).children()
        return next(one.pid for one in children if "spawn_main" in " ".join(one.cmdline()))

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Sends a process a signal and waits for its end; returns the exit status."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        return process.wait(PATIENCE_S)

    def series(self, host: str, job: str) -> list[tuple[int, ...]]:
        """Return the slots of one job in the journal of a host, with their campaign."""
        path = self.workspace(host).journal
        if not path.exists():
            return []
        query = (
            "SELECT campaign, batch, round, position FROM series JOIN campaigns ON campaigns.id=campaign"
            " WHERE json_extract(settings, '$.job')=? ORDER BY 1, 2, 3, 4"
        )
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as db:
            try:
                return db.execute(query, (job,)).fetchall()
            except sqlite3.OperationalError:  # not created yet
                return []

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.root / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )


class Running(threading.Thread):
    """Jobs on their way in another thread, with their outcomes or the error."""

    def __init__(self, runner: DaskEngine, *jobs: ProfileRequest) -> None:
        super().__init__()
        self.runner, self.jobs, self.stop = runner, jobs, threading.Event()
        self.outcomes: list[ProfileOutcome] = []
        self.error: EngineError | None = None
        self.start()

    def run(self) -> None:
        """Reads all outcomes."""
        try:
            self.outcomes.extend(self.runner.run(self.jobs, self.stop))
        except EngineError as error:
            self.error = error

    def end(self) -> list[ProfileOutcome]:
        """Waits for the last outcome."""
        self.join(300)
        assert not self.is_alive()
        return self.outcomes


def is_free(rig: Lab, host: str, device: str) -> bool:
    """Return whether the lease of a device is free."""
    try:
        with open_session(find_device(load_inventory(rig.workspace(host).devices), device)) as session:
            session.acquire("test")
    except DeviceBusy:
        return False
    return True


@contextlib.contextmanager
def lab(root: Path, tls: TlsFiles | None = None) -> Iterator[Lab]:
    """A lab whose processes are ended after the test."""
    rig = Lab(root, tls=tls)
    try:
        yield rig
    finally:
        for process in rig.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a group of its own, nothing of anybody else's
            process.wait(PATIENCE_S)
        end_dask_threads()
