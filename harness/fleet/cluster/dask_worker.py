"""A worker that offers the devices of its host to a Dask scheduler, and runs jobs in its own workspace."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import Nanny, Worker, WorkerPlugin, get_worker
from distributed.comm.addressing import get_address_host, unparse_host_port
from distributed.utils import get_ip

from harness.device.inventory import find_device, load_inventory
from harness.errors import EngineError, HarnessError
from harness.fleet.cluster.access import TlsFiles, resource_of, security_of
from harness.fleet.cluster.job_archive import unpack, write_outcome
from harness.fleet.connections import turn
from harness.fleet.execution import run_request
from harness.fleet.profile_outcome import ProfileOutcome
from harness.fleet.store import now
from harness.measure.journal.journal import Journal
from harness.measure.journal.merge import hold_out, merge
from harness.measure.journal.transfer import extract
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

if TYPE_CHECKING:
    from distributed.worker_state_machine import TaskStateState

PLUGIN = "harness-lab"
_CONNECTING_S = 60.0
_CLOSING_S = 20.0
"""How long a worker that ends waits for its jobs to finish their current visit."""


class LabPlugin(WorkerPlugin):
    """The state of a worker: its workspace, and the running jobs with their stop events.

    A job stops after its current visit if it was cancelled, if its controller or the scheduler is gone, or if the
    worker ends.
    """

    name = PLUGIN

    def __init__(self, root: str) -> None:
        self.root = root

    def setup(self, worker: Worker) -> None:  # noqa: ARG002 - Dask's interface
        """Called on the worker: locks cannot be pickled, so they are created here."""
        self._guard = threading.Lock()
        self._wanted: set[str] = set()
        self._stops: dict[str, threading.Event] = {}
        self._boards: dict[str, threading.Semaphore] = {}

    def transition(self, key: Any, start: TaskStateState, finish: TaskStateState, **_: Any) -> None:  # noqa: ARG002
        """Called for every change of a task."""
        with self._guard:
            if finish == "executing":
                self._wanted.add(str(key))
            else:
                self._forget(str(key))

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002
        """Called before the worker waits for its threads: stops all jobs."""
        with self._guard:
            for key in list(self._wanted):
                self._forget(key)

    def _forget(self, key: str) -> None:
        self._wanted.discard(key)
        if key in self._stops:
            self._stops[key].set()

    @contextlib.contextmanager
    def running(self, key: str) -> Iterator[threading.Event]:
        """Yield an event that is set when the task of that key must stop."""
        stop = threading.Event()
        with self._guard:
            self._stops[key] = stop
            if key not in self._wanted:  # cancelled in the meantime
                stop.set()
        try:
            yield stop
        finally:
            with self._guard:
                del self._stops[key]

    def board(self, name: str, stop: threading.Event) -> contextlib.AbstractContextManager[None]:
        """Wait for a board and hold it for one job; raises Interrupted if a stop is requested before."""
        with self._guard:
            return turn(self._boards.setdefault(name, threading.Semaphore()), stop)


def run_here(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run a packed job on this worker; returns its outcome, and everything that the journal here holds of the job."""
    started = now()
    try:
        worker = get_worker()
        lab = worker.plugins.get(PLUGIN)
        if not isinstance(lab, LabPlugin):
            step = "Start the workers with `harness worker SCHEDULER`"
            raise EngineError("The Dask worker was not started by harness", next_step=step)
        workspace = Workspace(Path(lab.root))
        job = unpack(payload, workspace.journal.parent / "cluster")
        request = job.request
        device = find_device(load_inventory(workspace.devices), request.device)
        with lab.running(str(worker.get_current_task())) as stop, lab.board(device.board, stop):
            with Journal(workspace.journal) as journal:  # record what the controller's journal holds of it
                hold_out(journal, job.held_out, job=request.name, device=request.device)
                if job.earlier is not None:
                    merge(journal, job.earlier[1], job=job.earlier[0], device=request.device)
            outcome = run_request(request, workspace, stop=stop, wait=job.wait)
        outcome = replace(outcome, request=ProfileRequest(request.device, name=request.name))  # no paths of this host
        return {"outcome": write_outcome(outcome), "extract": extract(workspace.journal, request.name)}
    except HarnessError as error:
        failed = ProfileOutcome.failed(ProfileRequest(""), error, started)
        return {"outcome": write_outcome(failed), "extract": b""}


def serve(scheduler: str, workspace: Workspace, devices: Sequence[str], *, tls: TlsFiles | None = None) -> None:
    """Offer devices to a scheduler until SIGINT or SIGTERM, with a thread for each; jobs run in the workspace.

    A worker process that dies is restarted. Raises EngineError if no scheduler answers, and when it disappears.
    """
    # Dask's profiler samples threads a hundred times a second, and its loops wake up fifty times, which would disturb
    # measurements.
    quiet = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "500ms"}
    dask.config.set({**quiet, "distributed.worker.http.routes": []})
    try:
        ended = asyncio.run(_serve(scheduler, workspace, devices, tls))
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError, AssertionError) as error:  # as Dask raises
        why, step = f"{type(error).__name__}: {error}", f"Start it, or check the address and TLS: {scheduler}"
        raise EngineError(f"No scheduler answers at {scheduler}", why=why[:300], next_step=step) from error
    if not ended:
        raise EngineError(
            f"The scheduler at {scheduler} is gone", next_step="Run the same command again when it is back"
        )


async def _serve(scheduler: str, workspace: Workspace, devices: Sequence[str], tls: TlsFiles | None) -> bool:
    """Serve until a signal or until the scheduler is gone; returns whether it was a signal."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    # By default a worker listens on every interface of its host.
    host = unparse_host_port(get_ip(get_address_host(scheduler)))  # type: ignore[no-untyped-call]
    async with Nanny(
        scheduler,
        host=host,
        nthreads=len(devices),
        resources={resource_of(device): 1.0 for device in devices},
        memory_limit=0,  # no spilling and no killing: a job holds a network, not data
        local_directory=str(workspace.journal.parent / "dask"),
        death_timeout=_CONNECTING_S,
        security=security_of(scheduler, tls, "worker"),
        plugins=(LabPlugin(str(workspace.root)),),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    ) as nanny:
        waiting = [asyncio.create_task(ended.wait()), asyncio.create_task(nanny.finished())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if ended.is_set():
            await nanny.close(timeout=_CLOSING_S, reason="signal")
    return ended.is_set()
