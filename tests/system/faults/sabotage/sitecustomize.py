"""Planted faults of a device: its Python imports this file if PYTHONPATH points here; HARNESS_SABOTAGE lists them.

Agent and worker are the real ones; one of their parts is replaced before they start.
"""

import json
import os
import signal
import sys

_FAULTS = json.loads(os.environ.get("HARNESS_SABOTAGE", "{}"))
_WORDS = sys.orig_argv
_IS_WORKER = "worker" in _WORDS
_IS_AGENT = "device_agents" in _WORDS and not _IS_WORKER


def _another_major(major: int) -> None:
    from device_agents import wire

    wire.PROTOCOL_MAJOR = major


def _shift_the_wall_clock(seconds: float) -> None:
    import time

    real = time.time
    time.time = lambda: real() + seconds


def _let_the_wall_clock_jump(seconds: float) -> None:
    import random
    import time

    real, jump = time.time, random.Random(2)
    time.time = lambda: real() + jump.uniform(-seconds, seconds)


def _refuse(operator: str, reason: str, loads: int) -> None:
    from device_agents.backends import Refused
    from device_agents.backends.null import NullBackend

    load, loaded = NullBackend.load, [0]

    def refusing(self, request):  # type: ignore[no-untyped-def]
        loaded[0] += 1
        if operator.encode() in request.model and loaded[0] > loads:
            raise Refused(reason)
        return load(self, request)

    NullBackend.load = refusing  # type: ignore[method-assign]


def _hoard(size_bytes: int) -> None:
    from device_agents.backends.null import NullBackend

    load, hoard = NullBackend.load, []

    def hoarding(self, request):  # type: ignore[no-untyped-def]
        hoard.append(bytearray(size_bytes))
        return load(self, request)

    NullBackend.load = hoarding  # type: ignore[method-assign]


def _hang(operator: str) -> None:
    import threading

    from device_agents.backends.null import NullBackend

    load = NullBackend.load

    def hanging(self, request):  # type: ignore[no-untyped-def]
        if operator.encode() in request.model:
            threading.Event().wait()
        return load(self, request)

    NullBackend.load = hanging  # type: ignore[method-assign]
    NullBackend.loads_at_once = lambda _: 2  # type: ignore[attr-defined]


def _limit_loaders(most: int) -> None:
    import threading

    start, started = threading.Thread.start, [0]

    def starting(self):  # type: ignore[no-untyped-def]
        started[0] += self.name.startswith("ThreadPoolExecutor")
        if started[0] > most:
            raise RuntimeError("can't start new thread")
        start(self)

    threading.Thread.start = starting  # type: ignore[method-assign]


def _distort(kind: str) -> None:
    import random

    from device_agents.backends.null import NullBackend
    from device_agents.messages import Sample

    run, chance, runs = NullBackend.run, random.Random(3), [0]

    def distorted(self, probe):  # type: ignore[no-untyped-def]
        runs[0] += 1
        sample = run(self, probe)
        factor = {
            "throttling": 1 + min(0.3, runs[0] / 1000),
            "frequency step": 1.0 if runs[0] < 230 else 1.25,  # half of the campaign
            "bimodal": chance.choice((1.0, 1.4)),
        }[kind]
        return Sample(wall_ns=sample.wall_ns, device_ns=round(sample.device_ns * factor))

    NullBackend.run = distorted  # type: ignore[method-assign]


def _stop_after(runs: int) -> None:
    from device_agents.backends.null import NullBackend

    run, done = NullBackend.run, [0]

    def stopping(self, probe):  # type: ignore[no-untyped-def]
        done[0] += 1
        if done[0] == runs:
            os.kill(os.getpid(), signal.SIGSTOP)
        return run(self, probe)

    NullBackend.run = stopping  # type: ignore[method-assign]


if _IS_AGENT and "major" in _FAULTS:
    _another_major(_FAULTS["major"])
if _IS_AGENT and "wall_clock_s" in _FAULTS:
    _shift_the_wall_clock(_FAULTS["wall_clock_s"])
if _IS_AGENT and "wall_clock_jumps_s" in _FAULTS:
    _let_the_wall_clock_jump(_FAULTS["wall_clock_jumps_s"])
if _IS_WORKER and _FAULTS.get("leaves_on_signal"):
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
if _IS_WORKER and "refuses" in _FAULTS:
    _refuse(_FAULTS["refuses"], _FAULTS["reason"], _FAULTS.get("after_loads", 0))
if _IS_WORKER and "hoards_bytes" in _FAULTS:
    _hoard(_FAULTS["hoards_bytes"])
if _IS_WORKER and "hangs" in _FAULTS:
    _hang(_FAULTS["hangs"])
if _IS_WORKER and "loaders" in _FAULTS:
    _limit_loaders(_FAULTS["loaders"])
if _IS_WORKER and "stops_after" in _FAULTS:
    _stop_after(_FAULTS["stops_after"])
if _IS_WORKER and "distorts" in _FAULTS:
    _distort(_FAULTS["distorts"])
