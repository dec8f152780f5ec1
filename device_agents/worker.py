"""The worker process: it holds the runtime and runs visits; the supervisor survives its crash."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from device_agents import fingerprint, wire
from device_agents.backends import Backend, HasOracle, LoadsSideBySide, PreparesProbes, Refused, ReportsLoading, create
from device_agents.child_processes import end_with_parent
from device_agents.messages import LoadRequest, Revealed, Sample
from device_agents.resource_errors import disk_error, is_out_of_memory

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

ORACLE, PREPARE = "oracle", "prepare"
_FLUSH_S = 0.5
_ENDING_S = 5
"""How long a worker without memory goes on with the loads that were requested before the one that failed."""
_LOOK_S = 0.01
"""How often a run checks whether it was cancelled and whether samples are due."""
_MOST_ON_CPU, _LONGEST_NAME = 200, 100
"""The maximum number of names of nodes in a header, and of characters of each."""
_FILE_BYTES = 4 << 30
_OPEN_FILES = 1024
CPU_S = 3600 * (os.cpu_count() or 1)
"""CPU time that the worker may use between two frames to its supervisor: an hour of every core.

It stops a runtime whose threads spin between requests, and one whose supervisor is stopped; deadlines in wall time
catch neither. A limit for the whole process would end long campaigns, so every frame renews it.
"""
_Visited = Tuple[int, str, List[Sample]]
"""The number of a visit, the probe and its samples."""
_STATUS, _CLEAR_REFS = "/proc/self/status", "/proc/self/clear_refs"
_RESET_PEAK = "5"


class Worker:
    """Serves requests of the supervisor on a socket, one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = wire.Decoder()
        self._queue: List[wire.Frame] = []
        self._writer = wire.FrameWriter(connection.sendall)
        self._backend: Backend
        self._payloads: Dict[str, str] = {}
        self._loaders: Optional[ThreadPoolExecutor] = None

    def serve(self) -> int:
        """Serve until the supervisor closes the socket."""
        for frame in self._frames():
            _allow_cpu()
            if frame.type == "put":
                self._put_all([frame, *self._waiting_puts()])
            else:
                self._guarded(frame, partial(self._handle, frame))
        return 0

    def _guarded(self, frame: wire.Frame, answer: Callable[[], None]) -> None:
        """Answer a frame; an error of the runtime or of the request is the answer."""
        try:
            answer()
        except Refused as refused:
            trouble = disk_error(refused)
            code, message = ("system", "%s; %s" % (trouble, refused)) if trouble else ("backend", str(refused))
            self._writer.write("error", frame.id, code=code, message=message[:4000])
        except (KeyError, TypeError, ValueError) as error:
            message = f"{frame.type}: {type(error).__name__}: {error}"
            self._writer.write("error", frame.id, code="bad-request", message=message[:4000])

    def _frames(self) -> Iterator[wire.Frame]:
        while True:
            while self._queue:
                yield self._queue.pop(0)
            self._queue.extend(self._received())

    def _received(self) -> List[wire.Frame]:
        """Return the frames of the bytes that have arrived; ends the process if the supervisor is gone."""
        data = self._connection.recv(wire.READ_BYTES)
        if not data:
            raise SystemExit(0)
        return list(self._decoder.feed(data))

    def _handle(self, frame: wire.Frame) -> None:
        if frame.type == "start":
            self._backend = create(frame.fields["backend"], frame.fields.get("options", {}))
            if isinstance(self._backend, LoadsSideBySide) and self._backend.loads_at_once() > 1:
                from concurrent.futures import ThreadPoolExecutor

                self._loaders = ThreadPoolExecutor(self._backend.loads_at_once())
            facts = {**fingerprint.hardware(), **self._backend.fingerprint()}
            further = ((PREPARE, PreparesProbes), (ORACLE, HasOracle))
            reveals = [*self._backend.reveals, *(word for word, kind in further if isinstance(self._backend, kind))]
            gc.freeze()  # the garbage collector skips what is loaded by now
            self._writer.write("ready", frame.id, fingerprint=facts, clock=self._backend.clock, reveals=reveals)
        elif frame.type == "drop":
            for probe in frame.fields["probes"]:
                self._backend.unload(probe)
                self._payloads.pop(probe, None)
            gc.collect()
            self._writer.write("drop", frame.id)
        elif frame.type == "run":
            self._run(frame)
        elif frame.type == ORACLE:
            self._send_truth(frame)
        elif frame.type == PREPARE:
            self._prepare(frame)
        elif frame.type != "cancel":  # a cancel that arrives after its run has no effect
            raise ValueError("unknown request")

    def _waiting_puts(self) -> List[wire.Frame]:
        """Take the requests to load probes that have arrived, up to the first one of another kind."""
        if not self._queue and select.select([self._connection], [], [], 0)[0]:
            self._queue.extend(self._received())
        count = next((at for at, one in enumerate(self._queue) if one.type != "put"), len(self._queue))
        puts, self._queue = self._queue[:count], self._queue[count:]
        return puts

    def _put_all(self, frames: Sequence[wire.Frame]) -> None:
        """Load probes and answer in order; side by side where the backend allows it and reveals no graph."""
        alone = self._loaders is None or len(frames) == 1 or any(one.fields.get("reveal") for one in frames)
        loads: List[Callable[[], Optional[Revealed]]] = [partial(self._load, one) for one in frames]
        if self._loaders is not None and not alone:
            try:
                loads = [self._loaders.submit(load).result for load in loads]
            except RuntimeError as error:  # no thread can be started
                raise _ending("out of memory or threads: %s" % error) from error
        for at, frame in enumerate(frames):
            self._guarded(frame, partial(self._answer_put, frame, loads[at], LoadMemory() if alone else None))

    def _answer_put(
        self, frame: wire.Frame, load: Callable[[], Optional[Revealed]], memory: Optional[LoadMemory]
    ) -> None:
        """Answer with what `load` reveals; `memory` is that of the process before, None for parallel loads."""
        revealed = load()
        fields: Dict[str, Any] = {} if revealed is None else {"format": revealed.format}
        if isinstance(self._backend, ReportsLoading):
            report = self._backend.load_report(frame.fields["probe"])
            on_cpu = [name[:_LONGEST_NAME] for name in report.on_cpu[:_MOST_ON_CPU]]
            fields.update(compile_s=report.compile_s, on_cpu=on_cpu, first_run_s=report.first_run_s)
            fields.update(memory.fields() if memory is not None else {})
        self._writer.write("put", frame.id, b"" if revealed is None else revealed.content, **fields)

    def _load(self, frame: wire.Frame) -> Optional[Revealed]:
        """Load a probe. A worker that runs out of memory ends, so that the next one tries with empty memory.

        A second copy of a loaded probe is refused instead: the probe itself is loaded.
        """
        request, payload = _load_request(frame), frame.fields["sha256"]
        try:
            revealed = self._backend.load(request)
        except (Refused, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if payload in self._payloads.values():
                raise Refused("not enough memory for another copy: %s" % error) from error
            raise _ending("out of memory while loading %s: %s" % (request.probe, error)) from error
        self._payloads[request.probe] = payload
        return revealed

    def _prepare(self, frame: wire.Frame) -> None:
        if not isinstance(self._backend, PreparesProbes):
            raise Refused("the backend %r prepares no probes" % self._backend.name)
        _check_hash(frame)
        rest, models = frame.payload, []
        for size in map(int, frame.fields["model_bytes"]):
            if not 0 <= size <= len(rest):
                raise ValueError("the models are longer than the payload")
            models.append(rest[:size])
            rest = rest[size:]
        self._backend.prepare(models)
        self._writer.write(PREPARE, frame.id)

    def _send_truth(self, frame: wire.Frame) -> None:
        probe = frame.fields["probe"]
        if not isinstance(self._backend, HasOracle):
            raise Refused("the backend %r has no oracle" % self._backend.name)
        truth = {"probe": probe, **asdict(self._backend.oracle(probe))}
        self._writer.write(ORACLE, frame.id, json.dumps(truth, allow_nan=False).encode())

    def _run(self, frame: wire.Frame) -> None:
        """Run visits in order. Little happens between them, because it would change what the caches hold."""
        visits = frame.fields["visits"]
        digest, count, cancelled = hashlib.sha256(), 0, False
        pending: List[_Visited] = []
        gc.disable()
        looked = flushed = time.monotonic()
        try:
            for index, (probe, warmup, runs) in enumerate(visits):
                pending.append((index, probe, self._visit(probe, warmup, runs)))
                count += runs
                now = time.monotonic()
                if now - looked < _LOOK_S and index + 1 < len(visits):
                    continue
                looked = now
                if now - flushed > _FLUSH_S:
                    self._flush(frame.id, pending, digest)
                    flushed = time.monotonic()
                cancelled = self._is_cancelled(frame.id)
                if cancelled:
                    break
        finally:
            gc.enable()
            self._flush(frame.id, pending, digest)
        self._writer.write("end", frame.id, count=count, hash=digest.hexdigest(), cancelled=cancelled)

    def _visit(self, probe: str, warmup: int, runs: int) -> List[Sample]:
        for _ in range(warmup):
            self._backend.run(probe)
        return [self._backend.run(probe) for _ in range(runs)]

    def _flush(self, request: int, pending: List[_Visited], digest: Any) -> None:
        if pending:
            series = [
                {
                    "visit": index,
                    "probe": probe,
                    "samples": [[one.wall_ns, one.cpu_ns, one.device_ns, one.preemptions] for one in samples],
                }
                for index, probe, samples in pending
            ]
            payload = json.dumps({"series": series, "state": fingerprint.state()}).encode()
            digest.update(payload)
            self._writer.write("samples", request, payload)
            _allow_cpu()
            pending.clear()

    def _is_cancelled(self, request: int) -> bool:
        """Return whether the host cancelled the run; frames that have arrived are queued."""
        if not select.select([self._connection], [], [], 0)[0]:
            return False
        frames = self._received()
        self._queue.extend(frames)  # a cancel has no effect after its run
        return any((frame.type, frame.id) == ("cancel", request) for frame in frames)


def _ending(why: str) -> SystemExit:
    """Say why the worker ends: in a few seconds, even if a load in another thread, which lacks memory, never does."""
    signal.alarm(_ENDING_S)
    sys.stderr.write(why + "\n")
    return SystemExit(1)


def _load_request(frame: wire.Frame) -> LoadRequest:
    size = int(frame.fields["model_bytes"])
    model, spec = frame.payload[:size], frame.payload[size:]
    _check_hash(frame)
    lists = wire.strict_json(spec)
    return LoadRequest(
        probe=str(frame.fields["probe"]),
        model=model,
        weights=lists["weights"],
        inputs=lists["inputs"],
        output_bytes=int(frame.fields["output_bytes"]),
        reveal=bool(frame.fields["reveal"]),
        runs=bool(frame.fields.get("runs", True)),
    )


def _check_hash(frame: wire.Frame) -> None:
    if hashlib.sha256(frame.payload).hexdigest() != frame.fields["sha256"]:
        raise ValueError("the payload does not have the hash of its header")


def _limit(memory_bytes: int) -> None:
    """Limit memory, files and core dumps of a runtime, and end this process with its supervisor."""
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_DATA, memory_bytes),
    )
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY or value <= hard:
            resource.setrlimit(kind, (value, hard))
    end_with_parent()


def _allow_cpu() -> None:
    """Allow CPU_S more CPU time; beyond it the kernel ends the process with SIGXCPU."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    end_s = math.ceil(time.process_time()) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (end_s if hard == resource.RLIM_INFINITY else min(end_s, hard), hard))


def work(handle: int) -> int:
    """Serve the supervisor on the inherited socket `handle`; the entry point of the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the controller
    _limit(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 9 // 10)
    _allow_cpu()
    connection = socket.socket(fileno=handle)
    return Worker(connection).serve()


class LoadMemory:
    """The resident set of this process before, during and after a probe is loaded and run for the first time."""

    def __init__(self) -> None:
        self._before = _status_bytes().get("VmRSS")
        self._has_peak = _reset_peak()

    def fields(self) -> Dict[str, int]:
        """Return `before_bytes`, `loaded_bytes` and `peak_bytes` if the system reports them."""
        now = _status_bytes()
        found = {
            "before_bytes": self._before,
            "loaded_bytes": now.get("VmRSS"),
            "peak_bytes": now.get("VmHWM") if self._has_peak else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def _reset_peak() -> bool:
    """Let the kernel count the peak anew; return whether it does."""
    try:
        with open(_CLEAR_REFS, "w", encoding="ascii") as file:
            file.write(_RESET_PEAK)
    except OSError:
        return False
    return True


def _status_bytes() -> Dict[str, Optional[int]]:
    try:
        with open(_STATUS, encoding="ascii", errors="replace") as lines:
            rows = [line.split() for line in lines if line.startswith(("VmRSS:", "VmHWM:"))]
        return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}
    except (OSError, ValueError, IndexError):
        return {}
