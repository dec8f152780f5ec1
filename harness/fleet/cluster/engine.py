"""The engine of several hosts: jobs as tasks of a Dask scheduler, each on a worker that offers its device.

A worker runs a job in a workspace of its own, so that whatever ends it leaves the samples there; what its journal
holds of the job comes back with the outcome and is merged place by place. The same job may thus run any number of
times, here and there, and counts once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.errors import EngineError, HarnessError, Interrupted
from harness.fleet.cluster.access import VERSIONS, TlsFiles, check_extra, resource_of, security_of
from harness.fleet.cluster.job_archive import Earlier, Order, pack, read_files, read_outcome
from harness.fleet.cluster.task import run_task
from harness.fleet.execution import Patience
from harness.fleet.health import adopt_health
from harness.fleet.job import Failure, Job, JobOutcome
from harness.fleet.store import FleetStore, now
from harness.fleet.watching import watches
from harness.measure.extract import extract
from harness.measure.journal import Journal
from harness.measure.merge import held_out, merge
from harness.text import printable
from harness.workspace import Workspace

_SLICE_S = 0.25
_LOOK_EVERY_S = 2.0
_FETCH_S = 60.0
_RETRIES = 2
_INTERRUPTIONS = 5
_RESUME = "Run the same command again: what workers have measured is in their journals, and not measured again"


@dataclass(frozen=True)
class DaskEngine:
    """Runs jobs on the workers of the Dask scheduler at an address like tcp://HOST:8786.

    A job whose device no worker offers fails after `absent_s`; `connect_s` bounds how long the scheduler may take to
    answer.
    """

    scheduler: str
    workspace: Workspace
    patience: Patience = field(default_factory=Patience)
    tls: TlsFiles | None = None
    absent_s: float = 120.0
    connect_s: float = 15.0

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[JobOutcome]:
        """Outcomes in the order in which jobs end; a job without a name gets one that the same job gets again.

        Whoever stops reading, or asks for a stop, gives the jobs up: workers end them after the visit they are at.
        Raises ConfigurationError without the extra `cluster`, and EngineError where the scheduler does not answer or is
        lost; outcomes until then stand, and running the jobs again goes on.
        """
        check_extra()
        with self._client() as client:
            yield from _Run(self, client, stop).outcomes(jobs)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        import dask.config
        import distributed

        # What it logs of a lost scheduler, with tracebacks, is told as an EngineError.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        library: Any = distributed
        security = security_of(self.scheduler, self.tls, "client")
        # Networks travel within their jobs: a job that moves to another worker must not need the first one for them.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"}):
            try:
                client = library.Client(self.scheduler, timeout=self.connect_s, security=security, set_as_default=False)
            except (OSError, TimeoutError, ValueError, RuntimeError, TypeError, ImportError) as error:
                why = printable(f"{type(error).__name__}: {error}", 300)
                step = "Start it, or check the address and the TLS files"
                raise EngineError(f"No scheduler answers at {self.scheduler}", why=why, next_step=step) from error
            try:
                yield client
            finally:
                client.close(timeout=_SLICE_S if client.status != "running" else self.connect_s)


@dataclass
class _Task:
    """A job on its way: `job` as it was asked for, `named` as it travels."""

    job: Job
    named: Job
    payload: Mapping[str, Any]
    future: Any
    interruptions: int = 0
    absent_since_s: float | None = None


@dataclass
class _Run:
    """Jobs of one device travel one after the other: the scheduler keeps what travels in memory."""

    engine: DaskEngine
    client: Any  # distributed annotates few of its functions
    stop: threading.Event
    _tasks: dict[str, _Task] = field(default_factory=dict)
    _ended: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _looked_s: float = 0.0

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[JobOutcome]:
        waiting: dict[str, deque[Job]] = {}
        for job in jobs:
            waiting.setdefault(job.device, deque()).append(job)
        while self._tasks or any(waiting.values()):
            if self.stop.is_set():
                yield from self._give_up(waiting)
                return
            for device, queue_ in waiting.items():
                if queue_ and device not in {task.job.device for task in self._tasks.values()}:
                    yield from self._start(queue_.popleft())
            yield from self._next()
            yield from self._absent()

    def _start(self, job: Job) -> Iterator[JobOutcome]:
        """Sends a job on its way; yields its outcome where that fails."""
        try:
            files = read_files(job)
            named = job if job.name else replace(job, name=self._name(job, files))
            payload = pack(self._order(named), files)
        except HarnessError as error:
            yield _failed(job, error)
            return
        self._tasks[named.name] = _Task(job, named, payload, self._submit(named, payload, named.name))

    def _order(self, named: Job) -> Order:
        """A job with what our journal knows that a worker's may not."""
        path, earlier = self.engine.workspace.journal, None
        with Journal(path) as journal:
            reasons = held_out(journal, job=named.name, device=named.device)
            known = watches(journal, named) if named.watch_level is not None else []
        if known:
            name = str(known[-1].settings["job"])
            earlier = Earlier(name, extract(path, name, known[-1].id))
        return Order(named, self.engine.patience, reasons, earlier)

    def _name(self, job: Job, files: Mapping[str, bytes]) -> str:
        """A name that the same job gets again until it is done, so that it goes on where it stopped."""
        facts = asdict(replace(job, policy=replace(job.policy, budget_s=None)))
        hashes = sorted(hashlib.sha256(content).hexdigest() for content in files.values())
        told = json.dumps([facts, hashes, uuid.uuid4().hex if job.fresh else ""], sort_keys=True)
        prefix = f"once/{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        with Journal(self.engine.workspace.journal) as journal:
            known = [one for one in journal.campaigns(job.device) if one.complete]
        done = {name for one in known if (name := str(one.settings.get("job", ""))).startswith(prefix)}
        return f"{prefix}/{len(done)}"

    def _submit(self, named: Job, payload: Mapping[str, Any], key: str) -> Any:
        future = self.client.submit(
            run_task, payload, key=key, resources={resource_of(named.device): 1}, retries=_RETRIES, pure=False
        )
        future.add_done_callback(lambda _: self._ended.put(named.name))
        return future

    def _next(self) -> Iterator[JobOutcome]:
        """The outcome of the next job that ends within a moment."""
        try:
            task = self._tasks[self._ended.get(timeout=_SLICE_S)]
        except (queue.Empty, KeyError):  # nothing, or one that was given up
            return
        from distributed import CancelledError

        try:
            outcome = self._outcome(task)
        except CancelledError as error:
            raise self._lost(str(error)) from error
        except HarnessError as error:
            outcome = _failed(task.job, error)
        if outcome is None:
            return
        if outcome.failure is not None and outcome.failure.kind == Interrupted.__name__:  # its worker was told to end
            if task.interruptions < _INTERRUPTIONS:
                task.interruptions += 1
                task.future = self._submit(task.named, task.payload, f"{task.named.name} ({task.interruptions})")
                return
            what = f"The worker that offers {task.job.device} was stopped again and again"
            why = f"{task.interruptions + 1} times while it ran the job {printable(task.named.name, 80)!r}"
            outcome = replace(outcome, failure=Failure.of(EngineError(what, why=why, next_step=_RESUME)))
        del self._tasks[task.named.name]
        yield outcome

    def _outcome(self, task: _Task) -> JobOutcome | None:
        """What came back, merged; None where it went missing on the way and is made again."""
        name, future = task.named.name, task.future
        try:
            if future.status == "error":
                why = printable(str(future.exception(timeout=_FETCH_S)), 600)
                step = f"Look at the worker that offers {task.job.device}; then run the same command again"
                raise EngineError(f"Nothing came back of the job {printable(name, 80)!r}", why=why, next_step=step)
            reply = future.result(timeout=_FETCH_S)
        except TimeoutError:  # the worker that held the answer is gone; another finds it in the journal
            future.add_done_callback(lambda _: self._ended.put(name))
            return None
        if tuple(reply["versions"]) != VERSIONS:
            theirs, ours = (f"{version}, journal {schema}" for version, schema in (reply["versions"], VERSIONS))
            what = f"The worker that offers {task.job.device} is of another version than this harness"
            raise EngineError(what, why=f"{theirs} there; {ours} here", next_step="Install the same version on both")
        numbers: Mapping[int, int] = {}
        if reply["extract"]:
            with Journal(self.engine.workspace.journal) as journal:
                numbers = merge(journal, reply["extract"], job=name, device=task.job.device)
        outcome = read_outcome(reply["outcome"], task.job, numbers)
        with FleetStore(self.engine.workspace.fleet) as store:
            adopt_health(store, outcome)
        return outcome

    def _absent(self) -> Iterator[JobOutcome]:
        """Outcomes of jobs whose devices no worker has offered for too long."""
        if time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        offered = self._offered()
        now_s = self._looked_s = time.monotonic()
        for name, task in list(self._tasks.items()):
            if resource_of(task.job.device) in offered:
                task.absent_since_s = None
                continue
            if task.absent_since_s is None:
                task.absent_since_s = now_s
            if now_s - task.absent_since_s >= self.engine.absent_s:
                del self._tasks[name]
                task.future.cancel()
                known = ", ".join(sorted(one.removeprefix(resource_of("")) for one in offered)[:20])
                what = f"No worker has offered {task.job.device} for {self.engine.absent_s:g} s"
                step = f"On its host: harness worker {self.engine.scheduler} --device {task.job.device}"
                why = f"Offered are: {printable(known) or 'none'}"
                yield _failed(task.job, EngineError(what, why=why, next_step=step))

    def _offered(self) -> set[str]:
        """The resources that workers offer; raises EngineError where the scheduler does not tell in time."""
        try:
            told = self.client.sync(
                self.client.scheduler.identity, n_workers=-1, callback_timeout=self.engine.connect_s
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise self._lost(f"{type(error).__name__}: {error}") from error
        return {resource for worker in told["workers"].values() for resource in worker["resources"]}

    def _give_up(self, waiting: Mapping[str, deque[Job]]) -> Iterator[JobOutcome]:
        for task in self._tasks.values():
            task.future.cancel()
        for job in (*(task.job for task in self._tasks.values()), *(job for one in waiting.values() for job in one)):
            yield _failed(job, Interrupted("Stopped on request", why="Workers keep their samples", next_step=_RESUME))

    def _lost(self, why: str) -> EngineError:
        what = f"The connection to the scheduler {self.engine.scheduler} is lost"
        return EngineError(what, why=printable(" ".join(why.split()), 300), next_step=_RESUME)


def _failed(job: Job, error: HarnessError) -> JobOutcome:
    at = now()
    return JobOutcome(job, at, at, 0, failure=Failure.of(error))
