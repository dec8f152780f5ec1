"""The engine of several hosts: named requests as tasks of a Dask scheduler, each on a worker that offers its device.

A worker runs a request in its own workspace, so its samples survive whatever ends it. The part of its journal that
belongs to the request returns with the outcome and is merged slot by slot. A request can therefore run any number of
times, on any worker, and counts once.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.errors import EngineError, ExtractRefused, HarnessError, Interrupted, JournalError
from harness.fleet.cluster.access import VERSIONS, TlsFiles, check_extra, resource_of, security_of
from harness.fleet.cluster.job_archive import (
    DetachedRequest,
    WorkerJob,
    detach_models,
    pack,
    read_outcome,
    with_refusals,
)
from harness.fleet.execution import WaitPolicy
from harness.fleet.health import adopt_health
from harness.fleet.profile_outcome import Failure, ProfileOutcome
from harness.fleet.store import FleetStore
from harness.fleet.watch_campaign import watches
from harness.measure.journal.journal import Journal
from harness.measure.journal.merge import held_out, merge
from harness.measure.journal.transfer import extract
from harness.measure.progress import DONE, FAILED, Observer, begin, ignore
from harness.measure.request import ProfileRequest, SpaceRequest
from harness.text import printable
from harness.workspace import Workspace

_SLICE_S = 0.25
_LOOK_EVERY_S = 2.0
_FETCH_S = 60.0
_RETRIES = 2
_INTERRUPTIONS = 5
_RESUME = "Run the same command again: the samples are in the journals of the workers, and it continues from there"


@dataclass(frozen=True)
class DaskEngine:
    """Runs requests on the workers of the Dask scheduler at an address like tcp://HOST:8786.

    A request whose device no worker offers fails after `absent_s`; `connect_s` bounds the scheduler's time to answer.
    `observer` returns the observer of each request, which learns when it is sent and when it has ended.
    """

    scheduler: str
    workspace: Workspace
    wait: WaitPolicy = field(default_factory=WaitPolicy)
    tls: TlsFiles | None = None
    absent_s: float = 120.0
    connect_s: float = 15.0
    observer: Callable[[ProfileRequest], Observer] = lambda _: ignore

    def run(self, requests: Sequence[ProfileRequest], stop: threading.Event) -> Iterator[ProfileOutcome]:
        """Yield the outcome of each request as it ends; equal requests without a name get equal names.

        Closing the iterator or setting `stop` cancels the requests; workers end them after their current visit. Raises
        ConfigurationError without the extra `cluster`, and EngineError if the scheduler does not answer or is lost;
        running the requests again then continues them.
        """
        check_extra()
        with self._client() as client:
            yield from _Run(self, client, stop).outcomes(requests)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        import dask.config
        import distributed

        # A lost scheduler is reported as an EngineError, not by tracebacks in the log.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        library: Any = distributed
        security = security_of(self.scheduler, self.tls, "client")
        # Networks are sent within their requests: another worker must not need the first one to read them.
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
                with contextlib.suppress(TimeoutError):  # the error before it is the one to report
                    client.close(timeout=self.connect_s)


@dataclass
class _Task:
    """A request on its way: `request` as the caller gave it, `named` as it is sent."""

    request: ProfileRequest
    named: ProfileRequest
    sent: DetachedRequest
    payload: Mapping[str, Any]
    future: Any
    observe: Observer
    interruptions: int = 0
    refusals: int = 0
    absent_since_s: float | None = None


@dataclass
class _Run:
    """Requests for one device are sent one after the other: the scheduler keeps their files in memory."""

    engine: DaskEngine
    client: Any  # distributed annotates few of its functions
    stop: threading.Event
    _tasks: dict[str, _Task] = field(default_factory=dict)
    _ended: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _looked_s: float = 0.0
    _given_up: dict[str, ProfileOutcome] = field(default_factory=dict)

    def outcomes(self, requests: Sequence[ProfileRequest]) -> Iterator[ProfileOutcome]:
        waiting: dict[str, deque[ProfileRequest]] = {}
        for request in requests:
            waiting.setdefault(request.device, deque()).append(request)
        while self._tasks or any(waiting.values()):
            if self.stop.is_set():
                for task in self._tasks.values():
                    task.future.cancel()
                stopped = Interrupted("Stopped on request", why="Workers keep their samples", next_step=_RESUME)
                unsent = (request for queue_ in waiting.values() for request in queue_)
                for request in (*(task.request for task in self._tasks.values()), *unsent):
                    yield ProfileOutcome.failed(request, stopped)
                return
            for device, queue_ in waiting.items():
                if queue_ and device not in {task.request.device for task in self._tasks.values()}:
                    yield from self._start(queue_.popleft())
            yield from self._next()
            yield from self._absent()

    def _start(self, request: ProfileRequest) -> Iterator[ProfileOutcome]:
        """Send a request; yields its outcome if that fails, or if its device did not finish another one in time."""
        if request.device in self._given_up:
            yield self._given_up[request.device].not_started(request)
            return
        try:
            sent = detach_models(request)
            named = sent.request if request.name else replace(sent.request, name=self._name(sent.request, sent.files))
            payload = pack(self._job(named), sent.files)
        except HarnessError as error:
            yield ProfileOutcome.failed(request, error)
            return
        observe = self.engine.observer(request)
        begin(observe, f"measured by a worker of {self.engine.scheduler}")
        future = self._submit(named, payload, named.name)
        self._tasks[named.name] = _Task(request, named, sent, payload, future, observe)

    def _job(self, named: ProfileRequest) -> WorkerJob:
        """The request together with the parts of our journal that the worker may not have."""
        path, earlier = self.engine.workspace.journal, None
        with Journal(path) as journal:
            reasons = held_out(journal, job=named.name, device=named.device)
            known = watches(journal, named) if named.watch_level is not None else []
        if known:
            earlier = (known[-1].job, extract(path, known[-1].job, known[-1].id))
        return WorkerJob(named, self.engine.wait, reasons, earlier)

    def _name(self, request: ProfileRequest, files: Mapping[str, bytes]) -> str:
        """The name of a request: an equal request gets the same name until one is done, and so resumes it."""
        hashes = sorted(hashlib.sha256(content).hexdigest() for content in files.values())
        content = json.dumps([_named_facts(request), hashes, uuid.uuid4().hex if request.fresh else ""], sort_keys=True)
        prefix = f"once/{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        with Journal(self.engine.workspace.journal) as journal:
            done = {one.job for one in journal.campaigns(request.device) if one.complete and one.job.startswith(prefix)}
        return f"{prefix}/{len(done)}"

    def _submit(self, named: ProfileRequest, payload: Mapping[str, Any], key: str) -> Any:
        future = self.client.submit(
            run_task, payload, key=key, resources={resource_of(named.device): 1}, retries=_RETRIES, pure=False
        )
        future.add_done_callback(lambda _: self._ended.put(named.name))
        return future

    def _repeat(self, task: _Task) -> None:
        """Send a request again: its worker returns what it holds, and measures the rest."""
        key = f"{task.named.name} ({task.interruptions + task.refusals})"
        task.future = self._submit(task.named, task.payload, key)

    def _next(self) -> Iterator[ProfileOutcome]:
        """The outcome of the next request that ends within a moment."""
        try:
            task = self._tasks[self._ended.get(timeout=_SLICE_S)]
        except (queue.Empty, KeyError):  # nothing yet, or a request that was abandoned
            return
        from distributed import CancelledError

        try:
            outcome = self._outcome(task)
        except CancelledError as error:
            raise self._lost(str(error)) from error
        except ExtractRefused as error:  # perhaps altered on the way
            if task.refusals < _RETRIES:
                task.refusals += 1
                self._repeat(task)
                return
            outcome = ProfileOutcome.failed(task.request, error)
        except HarnessError as error:
            outcome = ProfileOutcome.failed(task.request, error)
        if outcome is None:
            return
        if outcome.failure is not None and outcome.failure.kind == Interrupted.__name__:  # its worker was stopped
            if task.interruptions < _INTERRUPTIONS:
                task.interruptions += 1
                self._repeat(task)
                return
            what = f"The worker that offers {task.request.device} was stopped repeatedly"
            why = f"{task.interruptions + 1} times while it ran the job {printable(task.named.name, 80)!r}"
            outcome = replace(outcome, failure=Failure.of(EngineError(what, why=why, next_step=_RESUME)))
        self._tasks.pop(task.named.name).observe(DONE if outcome.failure is None else FAILED)
        if outcome.gives_up_device:
            self._given_up[task.request.device] = outcome
        yield outcome

    def _outcome(self, task: _Task) -> ProfileOutcome | None:
        """The outcome with its samples merged; None if it was lost on the way and is computed again."""
        name, future = task.named.name, task.future
        try:
            if future.status == "error":
                why = printable(str(future.exception(timeout=_FETCH_S)), 600)
                step = f"Check the worker that offers {task.request.device}; then run the same command again"
                raise EngineError(f"The job {printable(name, 80)!r} returned nothing", why=why, next_step=step)
            reply = future.result(timeout=_FETCH_S)
        except TimeoutError:  # the worker that held the outcome is gone; another finds it in the journal
            future.add_done_callback(lambda _: self._ended.put(name))
            return None
        if tuple(reply["versions"]) != VERSIONS:
            theirs, ours = (f"{version}, journal {formats}" for version, formats in (reply["versions"], VERSIONS))
            what = f"The worker that offers {task.request.device} has a different version of harness"
            raise EngineError(what, why=f"{theirs} there; {ours} here", next_step="Install the same version on both")
        numbers: Mapping[int, int] = {}
        if reply["extract"]:
            with Journal(self.engine.workspace.journal) as journal:
                numbers = merge(journal, reply["extract"], job=name, device=task.request.device)
        outcome = with_refusals(read_outcome(reply["outcome"], task.request, numbers), task.sent)
        outcome = _with_host(outcome, task.request.device)
        with FleetStore(self.engine.workspace.fleet) as store:
            adopt_health(store, outcome)
        return outcome

    def _absent(self) -> Iterator[ProfileOutcome]:
        """Outcomes of requests whose devices no worker has offered for too long."""
        if time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        offered = self._offered()
        now_s = self._looked_s = time.monotonic()
        for name, task in list(self._tasks.items()):
            if resource_of(task.request.device) in offered:
                task.absent_since_s = None
                continue
            if task.absent_since_s is None:
                task.absent_since_s = now_s
            if now_s - task.absent_since_s >= self.engine.absent_s:
                self._tasks.pop(name).observe(FAILED)
                task.future.cancel()
                known = ", ".join(sorted(one.removeprefix(resource_of("")) for one in offered)[:20])
                what = f"No worker has offered {task.request.device} for {self.engine.absent_s:g} s"
                step = f"On its host: harness worker {self.engine.scheduler} --device {task.request.device}"
                why = f"Workers offer: {printable(known) or 'none'}"
                yield ProfileOutcome.failed(task.request, EngineError(what, why=why, next_step=step))

    def _offered(self) -> set[str]:
        """The resources that workers offer; raises EngineError if the scheduler does not answer in time."""
        try:
            reply = self.client.sync(
                self.client.scheduler.identity, n_workers=-1, callback_timeout=self.engine.connect_s
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise self._lost(f"{type(error).__name__}: {error}") from error
        return {resource for worker in reply["workers"].values() for resource in worker["resources"]}

    def _lost(self, why: str) -> EngineError:
        what = f"The connection to the scheduler {self.engine.scheduler} is lost"
        return EngineError(what, why=printable(" ".join(why.split()), 300), next_step=_RESUME)


def _with_host(outcome: ProfileOutcome, device: str) -> ProfileOutcome:
    """The outcome; an error about a journal says whose it is."""
    failure = outcome.failure
    if failure is None or failure.kind != JournalError.__name__:
        return outcome
    what = f"On the host of the worker that offers {device}: {failure.what}"
    return replace(outcome, failure=replace(failure, what=what))


def _named_facts(request: ProfileRequest) -> dict[str, Any]:
    """The content of a request that its name is computed from; names in journals rest on these keys."""
    space = request.space or SpaceRequest("")
    return {
        "device": request.device,
        "models": request.models,
        "space": request.space and request.space.reference,
        "count": space.count,
        "target": space.target,
        "name": request.name,
        "policy": {**asdict(request.policy), "budget_s": None, "wall_s": None},
        "auxiliary": request.auxiliary,
        "dims": dict(request.dims or {}),
        "seed": request.seed,
        "fresh": request.fresh,
        "watch_level": request.watch_level,
        **request.variant.facts,
    }


def run_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Run a packed job on a worker; for another version, return only the versions here."""
    if tuple(payload["versions"]) != VERSIONS:
        return {"versions": VERSIONS}
    from harness.fleet.cluster.dask_worker import run_here

    return {"versions": VERSIONS, **run_here(payload)}
