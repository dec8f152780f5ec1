"""A real agent process, with frames sent and received one by one, and a small network for real runtimes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from nullbench import build_network

from device_agents import wire
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import load_network

REPOSITORY = Path(__file__).resolve().parents[2]
INPUT = {"name": "x", "shape": [1, 1000], "dtype": "float32", "distribution": "normal", "seed": 1}
DEADLINE_S = 300.0


class AgentProcess:
    """`python -m device_agents` with frames in and out."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "device_agents"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            start_new_session=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.writer = wire.FrameWriter(self.stdin.write)
        self.decoder = wire.Decoder()
        self.frames: list[wire.Frame] = []
        self.requests = 0
        self.token = 0

    def send(self, type: str, payload: bytes = b"", id: int | None = None, **fields: Any) -> int:
        """Sends a request and returns its id."""
        self.requests += 1
        request = self.requests if id is None else id
        self.writer.write(type, request, payload, **fields)
        return request

    def receive(self) -> wire.Frame | None:
        """The next frame, or None at the end of the stream."""
        while not self.frames:
            assert select.select([self.stdout], [], [], DEADLINE_S)[0], "the agent says nothing"
            data = os.read(self.stdout.fileno(), wire.READ_BYTES)
            if not data:
                return None
            self.frames.extend(self.decoder.feed(data))
        return self.frames.pop(0)

    def ask(self, type: str, payload: bytes = b"", **fields: Any) -> wire.Frame:
        """Sends a request and returns the next frame, which must answer it."""
        request = self.send(type, payload, **fields)
        frame = self.receive()
        assert frame is not None and frame.id == request
        return frame

    def greet(self, backend: str | None = "null", **options: Any) -> wire.Frame:
        """Sends hello."""
        return self.ask("hello", major=wire.PROTOCOL_MAJOR, minor=0, backend=backend, options=options)

    def lease(self, resource: str = "bench", ttl_s: float = 30.0, holder: str = "the test") -> wire.Frame:
        """Takes the lease and remembers its token."""
        frame = self.ask("lease", resource=resource, ttl_s=ttl_s, holder=holder)
        self.token = frame.fields.get("token", 0)
        return frame

    def put(self, probe: str = "p") -> wire.Frame:
        """Loads a probe into the null backend."""
        model = b"model"
        content = model + json.dumps({"weights": [], "inputs": [INPUT]}).encode()
        facts = {"probe": probe, "model_bytes": len(model), "output_bytes": 4, "reveal": False}
        return self.ask("put", content, token=self.token, sha256=hashlib.sha256(content).hexdigest(), **facts)

    def ready(self, **lease: Any) -> AgentProcess:
        """Greeted, leased, one probe loaded."""
        assert self.greet().type == "hello"
        assert self.lease(**lease).type == "lease"
        assert self.put().type == "put"
        return self

    def start_long_run(self, silence_s: float = 60.0) -> int:
        """A run of many visits of about a tenth of a second each; returns its id."""
        visits = [["p", 100_000, 1]] * 1000
        return self.send("run", token=self.token, visits=visits, silence_s=silence_s)

    @property
    def worker(self) -> int:
        """Process id of the worker."""
        (pid,) = (child.pid for child in psutil.Process(self.process.pid).children())
        return pid

    def end(self) -> int:
        """Closes the agent's input and returns its exit code."""
        self.stdin.close()
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def start_agent() -> Iterator[Callable[[], AgentProcess]]:
    """Starts agents, and ends at the end of the test those that still run."""
    agents: list[AgentProcess] = []

    def start() -> AgentProcess:
        agents.append(AgentProcess())
        return agents[-1]

    yield start
    for agent in agents:
        agent.stdin.close()
        try:
            agent.process.wait(10)
        except subprocess.TimeoutExpired:
            agent.process.kill()
            agent.process.wait()
        for stream in (agent.process.stdin, agent.process.stdout, agent.process.stderr):
            assert stream is not None
            stream.close()


class _SignalStack(ctypes.Structure):
    """`stack_t` of the C library."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t))


@pytest.fixture(autouse=True)
def signal_stack() -> Iterator[None]:
    """Keep the stack on which this process handles signals.

    OpenVINO replaces the stack of the thread that loads it. If another thread frees OpenVINO, the first one keeps the
    address of a freed stack, and the next signal, in whatever test, ends the process without a word.
    """
    library, stack = ctypes.CDLL(None), _SignalStack()
    library.sigaltstack(None, ctypes.byref(stack))
    yield
    library.sigaltstack(ctypes.byref(stack), None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> AssembledModel:
    """A small network as it is sent to a device."""
    path = build_network(tmp_path_factory.mktemp("model") / "chain.onnx")
    return assemble_network(load_network(str(path)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's private folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
