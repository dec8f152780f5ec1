"""A hostile device behind a real sshd, and one that never stops sending: replies stay data and are bounded."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from nullbench import build_network
from sshd_server import REPOSITORY, Sshd

from device_agents import wire
from harness import build_lut, estimate, profile
from harness.device.inventory import BUILT_IN, load_inventory
from harness.device.session import AgentSession, Visit
from harness.errors import ConfigurationError, HarnessError, ProtocolError
from harness.measure.policy import RepeatPolicy
from harness.workspace import Workspace

MARK = "planted"
HOSTILE_AGENT = """
import sys
from device_agents import agent, backends, fingerprint, worker
from device_agents.__main__ import main

NAMES = {NAMES!r}
plain = fingerprint.hardware
fingerprint.hardware = lambda: {{**plain(), **{{f"fact{{i}}": name for i, name in enumerate(NAMES)}}}}
if sys.argv[1:2] != ["worker"]:
    from device_agents import worker_process as child
    child.sys = type(sys)("sys")
    child.sys.executable = {PROGRAM!r}
sys.exit(main())
"""


@pytest.fixture
def workspace(tmp_path: Path, sshd: Sshd) -> Workspace:
    """Return a workspace with the sshd as device `board`."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    device = sshd.device().transport
    (folder / "devices.toml").write_text(
        '[devices.board]\nbackend = "null"\ntransport = "ssh"\nhost = "127.0.0.1"\nresource = "board"\n'
        f'port = {sshd.port}\nuser = "{device.user}"\n'
        f'identity = "{sshd.identity}"\nknown_hosts = "{sshd.known_hosts}"\n'
    )
    return Workspace(folder)


def files_below(folder: Path) -> dict[str, bytes]:
    """Return every file with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hostile_names(tmp_path: Path) -> list[str]:
    """Return paths that a careless host would write to or read from."""
    return [f"../../{MARK}", str(tmp_path / MARK), f"~/{MARK}", f"C:\\{MARK}", f"{MARK}/../../{MARK}", f"{MARK}\0x"]


def test_names_of_a_device_are_no_paths(workspace: Workspace, sshd: Sshd, tmp_path: Path) -> None:
    """Facts that look like paths pass through campaign, table and estimate as text: no file is created or read."""
    program = tmp_path / "agent.py"
    interpreter = tmp_path / "python"
    program.write_text(HOSTILE_AGENT.format(NAMES=hostile_names(tmp_path), PROGRAM=str(interpreter)))
    # The supervisor starts its worker by `INTERPRETER -m device_agents worker FD`; the hostile one hands on the words.
    interpreter.write_text(f'#!/bin/sh\nshift 2\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
    interpreter.chmod(0o700)
    path = f"PYTHONPATH={shlex.quote(str(REPOSITORY))}"
    sshd.force(f"env {path} {shlex.quote(sys.executable)} {shlex.quote(str(program))}")
    network = build_network(tmp_path / "chain.onnx", (8, 16), 8, 16)
    profile([str(network)], device="board", workspace=workspace, policy=RepeatPolicy(runs=5))
    table = build_lut("board", workspace=workspace)
    estimate([str(network)], lut=table.path)
    assert any(MARK in value for value in table.fingerprint.values()), "the hostile facts did not arrive"
    assert not [path for path in tmp_path.parent.rglob("*") if MARK in path.name]
    assert not [path for path in (Path.home() / MARK, Path.cwd() / MARK, Path("/tmp") / MARK) if path.exists()]


def test_private_key_is_in_no_file_or_log(
    workspace: Workspace, sshd: Sshd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a campaign over SSH, no file of the workspace and no log record contains a line of the key."""
    lines = [line.encode() for line in sshd.identity.read_text().splitlines()[1:-1]]
    assert len(lines) > 2
    network = build_network(tmp_path / "chain.onnx", (8, 16), 8, 16)
    with caplog.at_level(logging.DEBUG):
        profile([str(network)], device="board", workspace=workspace, policy=RepeatPolicy(runs=5))
    assert any(record.name.startswith("paramiko") for record in caplog.records)
    contents = [*files_below(workspace.root).values(), caplog.text.encode()]
    assert not [line for line in lines if any(line in content for content in contents)]


def test_errors_about_a_key_do_not_tell_it(workspace: Workspace, sshd: Sshd) -> None:
    """The error for a damaged private key does not contain its content."""
    first, *middle, last = sshd.identity.read_text().splitlines()
    for lines in ([first, *middle[1:], last], [first, *middle], middle, [first, *reversed(middle), last]):
        sshd.identity.write_text("\n".join(lines))
        with pytest.raises(HarnessError) as refused:
            profile(["builtin:dscnn"], device="board", workspace=workspace)
        texts = "".join(str(part) for part in (refused.value, refused.value.__cause__, refused.value.__context__))
        assert not [line for line in middle if line in texts]


@pytest.mark.parametrize("key", ["password", "passphrase", "private_key", "token"])
def test_configuration_takes_no_secret(key: str, tmp_path: Path) -> None:
    """devices.toml has no key for a secret, and the error for one does not repeat it."""
    path = tmp_path / "devices.toml"
    path.write_text(f'[devices.a]\ntransport = "ssh"\nhost = "h"\nuser = "u"\nidentity = "k"\n{key} = "hunter2"\n')
    with pytest.raises(ConfigurationError) as refused:
        load_inventory(path)
    assert key in str(refused.value) and "hunter2" not in str(refused.value)


# --- a device that never stops --------------------------------------------------------------------------------------


class Pipe:
    """A connection over a socket pair; the test plays the device at the other end."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.received = 0

    def send(self, data: bytes, _stall_s: float = 30.0) -> None:
        """Send all bytes."""
        self.stream.settimeout(10)
        self.stream.sendall(data)

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end."""
        self.stream.settimeout(timeout_s)
        data = self.stream.recv(wire.READ_BYTES)
        self.received += len(data)
        return data

    def close(self) -> None:
        """Close the connection."""
        self.stream.close()

    def diagnosis(self) -> str:
        """Return no diagnosis."""
        return ""


Flood = Callable[[wire.FrameWriter, int], None]
VISITS = [Visit("p", 0, 3)] * 200
BOUND_BYTES = 16 << 20


def series(visit: int, *, padding: int = 0) -> bytes:
    """Return a valid payload of samples, with spaces that JSON permits."""
    text = json.dumps({"series": [{"visit": visit, "probe": "p", "samples": [[1, 1, 1, 0]] * 3}], "state": {}})
    return text.encode() + b" " * padding


def _repeat_a_visit(writer: wire.FrameWriter, request: int) -> None:
    for visit in itertools.chain(range(200), itertools.repeat(0)):
        writer.write("samples", request, series(visit))


def _pad_with_spaces(writer: wire.FrameWriter, request: int) -> None:
    for visit in range(200):
        writer.write("samples", request, series(visit, padding=1 << 20))


def _beat_without_end(writer: wire.FrameWriter, request: int) -> None:
    for beat in itertools.count(request + 1):
        writer.write("heartbeat", beat, busy=True)


def _samples_without_series(writer: wire.FrameWriter, request: int) -> None:
    while True:
        writer.write("samples", request, b'{"series": [], "state": {}}')


def _more_samples_than_asked(writer: wire.FrameWriter, request: int) -> None:
    rows = [[1, 1, 1, 0]] * 100_000
    writer.write("samples", request, json.dumps({"series": [{"visit": 0, "probe": "p", "samples": rows}]}).encode())
    _repeat_a_visit(writer, request)


FLOODS: dict[str, Flood] = {
    "a visit again and again": _repeat_a_visit,
    "spaces": _pad_with_spaces,
    "heartbeats": _beat_without_end,
    "empty frames": _samples_without_series,
    "more samples than asked": _more_samples_than_asked,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_endless_valid_frames_are_cut_off(flood: Flood) -> None:
    """A device that keeps sending valid frames after its samples is refused after a bounded number of bytes."""
    ours, theirs = socket.socketpair()

    def device() -> None:
        decoder, writer = wire.Decoder(), wire.FrameWriter(theirs.sendall)
        hello = {"major": 2, "minor": 0, "agent_version": "1", "backend": "null", "fingerprint": {}, "reveals": []}
        try:
            while data := theirs.recv(wire.READ_BYTES):
                for frame in decoder.feed(data):
                    if frame.type == "hello":
                        writer.write("hello", frame.id, clock="device", **hello)
                    elif frame.type == "lease":
                        writer.write("lease", frame.id, token=7, ttl_s=60.0)
                    elif frame.type == "run":
                        flood(writer, frame.id)
        except OSError:
            pass  # the host has hung up

    thread = threading.Thread(target=device, daemon=True)
    thread.start()
    pipe = Pipe(ours)
    session = AgentSession(pipe, BUILT_IN["null01"])
    try:
        session.greet()
        session.acquire("the test")
        with pytest.raises(ProtocolError):
            list(session.run(VISITS))
        assert pipe.received < BOUND_BYTES
    finally:
        session.close()
        theirs.close()
        thread.join(10)
    assert not thread.is_alive()


def test_proper_samples_fit_under_the_cap() -> None:
    """The largest numbers, the longest names and a full state are accepted."""
    from harness.device.replies import EndReply, RunCheck

    probe, most, events = "\u20ac" * 200, 86_400 * 10**9, 2**31 - 1
    check = RunCheck("device", [Visit(probe, 0, 50)] * 3, 0, "device")
    digest = hashlib.sha256()
    for visit in range(3):
        rows = [[most, most, most, events]] * 50
        state = {f"{index:064d}": -1.2345678901234567e-300 for index in range(64)}
        reply = {"series": [{"visit": visit, "probe": probe, "samples": rows}], "state": state}
        payload = json.dumps(reply, indent=None).encode()
        digest.update(payload)
        check.samples(payload)
    check.end(EndReply(count=150, hash=digest.hexdigest(), cancelled=False), False)
