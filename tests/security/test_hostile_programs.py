"""Programs between the host and a device that flood, stall or drip: adb, what it runs, and key agents."""

import contextlib
import os
import shlex
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostile_sshd import little_memory
from sshd_server import make_key

from harness.device import local, transport
from harness.device.bundle import build_bundle
from harness.device.inventory import Adb, Device, Ssh
from harness.device.local import LocalConnection, start_process
from harness.device.session import open_session, start_agent
from harness.device.ssh.install import authorized_keys_line
from harness.device.transport import TooManyErrors
from harness.errors import ConfigurationError, DeviceUnreachable, ProtocolError

BOUND_BYTES = 32 << 20
ENDLESS = "import sys\nwhile True: sys.{}.write('A' * 65536)"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make closing short, and the budget of errors one that is reached soon."""
    monkeypatch.setattr(local, "CLOSE_S", 0.5)
    monkeypatch.setattr(transport, "ERROR_BYTES", 2 << 20)


def _program(code: str) -> LocalConnection:
    return start_process("The program", [sys.executable, "-I", "-S", "-c", code])


@pytest.fixture
def program() -> Iterator[Callable[[str], LocalConnection]]:
    """Return a function that runs Python code in the place of an agent."""
    with contextlib.ExitStack() as ending:

        def start(code: str) -> LocalConnection:
            connection = _program(code)
            ending.callback(connection.close)
            return connection

        yield start


def test_errors_of_an_agent_fill_neither_memory_nor_disk(program: Callable[[str], LocalConnection]) -> None:
    """Standard error goes to no file, is read while the host waits, and ends the session beyond its budget."""
    connection = program(ENDLESS.format("stderr"))
    with little_memory(BOUND_BYTES), pytest.raises(TooManyErrors, match="2 MiB"):
        while True:
            with contextlib.suppress(TimeoutError):
                connection.recv(0.5)
    assert connection.diagnosis().startswith("the agent still runs: AAA")


def test_an_agent_that_waits_for_its_errors_to_be_read_still_takes_requests(
    program: Callable[[str], LocalConnection],
) -> None:
    """A megabyte of errors before the first read does not keep the host from sending."""
    code = "import sys; sys.stderr.write('A' * (1 << 20)); sys.stdout.write(str(len(sys.stdin.buffer.read(1 << 20))))"
    connection = program(code)
    connection.send(bytes(1 << 20), 30.0)
    assert connection.recv(30.0) == b"1048576"


@pytest.mark.parametrize(
    "code",
    ["import time; time.sleep(60)", "import os, time\nwhile os.read(0, 1): time.sleep(0.01)"],
    ids=["nothing", "single bytes"],
)
def test_what_an_agent_does_not_take_is_an_error(code: str, program: Callable[[str], LocalConnection]) -> None:
    """An agent that reads nothing, or a byte now and then, holds no sender."""
    with pytest.raises(TimeoutError, match=r"took [0-9]+ bytes within 0.5 s"):
        program(code).send(bytes(1 << 20), 0.5)


def test_a_slow_agent_is_served_as_long_as_it_takes_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to send begins anew with every 256 KiB, and with no fewer bytes."""
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(transport, "time", clock)
    deadline = transport.SendDeadline(30.0)
    for _ in range(1000):
        clock.now_s += 29.0
        deadline.took(256 << 10)
        assert deadline.left_s() == 30.0
    for _ in range(2):
        clock.now_s += 14.0
        deadline.took((128 << 10) - 1)
    assert deadline.left_s() == 2.0
    clock.now_s += 2.0
    with pytest.raises(TimeoutError, match="took 262142 bytes within 30 s"):
        deadline.left_s()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closing_a_program_that_never_stops_has_an_end(stream: str) -> None:
    """A program that goes on writing after the end of its input is killed, and little of it is kept."""
    with little_memory(BOUND_BYTES):
        connection = _program(ENDLESS.format(stream))
        connection.close()
    assert "SIGKILL" in connection.diagnosis() or "-9" in connection.diagnosis()


def test_closing_while_another_thread_sends_ends_that_thread(program: Callable[[str], LocalConnection]) -> None:
    """A heartbeat that nobody reads does not keep the session open."""
    connection, ended = program("import time; time.sleep(60)"), []

    def send() -> None:
        try:
            connection.send(bytes(1 << 20), 60.0)
        except OSError as error:
            ended.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    while not connection._sending.locked():
        pass
    connection.close()
    sender.join(300)
    assert [str(error) for error in ended] == ["the connection is closed"]


# --- adb ------------------------------------------------------------------------------------------------------------


def _phone(folder: Path, script: str) -> Device:
    tool = folder / "adb"
    tool.write_text(f"#!/bin/sh\n[ $1 = start-server ] && exit 0\nshift 2\n{script}\n")
    tool.chmod(0o700)
    settings = Adb(serial="x", adb=str(tool), connect_timeout_s=20.0)
    return Device(name="phone", backend="null", resource="phone", exclusive=True, transport=settings)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_tool_that_prints_without_end_is_killed(tmp_path: Path, stream: str) -> None:
    """What adb prints has a budget; the error says that it was exceeded."""
    endless = shlex.join([sys.executable, "-I", "-S", "-c", ENDLESS.format(stream)])
    with little_memory(BOUND_BYTES), pytest.raises(DeviceUnreachable, match=r"get-state.*more than 1 MiB"):
        start_agent(_phone(tmp_path, f"exec {endless}"))


def test_a_tool_that_leaves_a_process_behind_does_not_hold_the_host(tmp_path: Path) -> None:
    """The end of adb is enough, though its server keeps the pipes open."""
    with pytest.raises(DeviceUnreachable, match="shell_v2"):
        start_agent(_phone(tmp_path, "sleep 100 & echo $! >> $0.pids; echo device"))
    for pid in (tmp_path / "adb.pids").read_text().split():
        Path("/proc", pid, "stat").read_text()  # it was left alone
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_a_phone_that_writes_errors_without_end_is_left(tmp_path: Path) -> None:
    """What runs on the phone may fill its standard error as little as any other agent."""
    endless = shlex.join([sys.executable, "-I", "-S", "-c", ENDLESS.format("stderr")])
    script = f"""case "$1 $3" in
    "get-state "*) echo device;;
    "features "*) echo shell_v2;;
    *sha256sum*) echo {build_bundle().sha256};;
    *) exec {endless};;
    esac"""
    with little_memory(BOUND_BYTES), pytest.raises(ProtocolError, match=r"phone does not stop writing.*2 MiB"):
        open_session(_phone(tmp_path, script))


# --- key agents -----------------------------------------------------------------------------------------------------


def _announces_gigabytes(stream: socket.socket) -> None:
    stream.sendall(struct.pack(">I", 0xFFFFFFF0))
    while True:
        stream.sendall(bytes(65536))


def _lists_all_keys(stream: socket.socket) -> None:
    stream.sendall(struct.pack(">IBI", 5, 12, 0xFFFFFFFF))
    stream.recv(1)


def _drips(stream: socket.socket) -> None:
    stream.sendall(struct.pack(">IB", 50_000, 12))
    stream.settimeout(0.02)
    while True:
        stream.sendall(b"\0")
        with contextlib.suppress(TimeoutError):
            stream.recv(1)


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (_announces_gigabytes, "answer of 4294967280 bytes"),
        (_lists_all_keys, "more than 1000 keys"),
        (_drips, "timed out"),
    ],
)
def test_a_hostile_key_agent_is_refused(tmp_path: Path, serve: Callable[[socket.socket], None], why: str) -> None:
    """The socket that devices.toml names cannot hold the host or fill its memory."""
    make_key(tmp_path / "identity")
    path = tmp_path / "agent"
    settings = Ssh(
        host="127.0.0.1",
        user="u",
        identity=tmp_path / "identity",
        key_agent=path,
        known_hosts=tmp_path / "none",
        auth_timeout_s=0.5 if serve is _drips else 10.0,
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def accept() -> None:
            stream, _ = server.accept()
            with stream, contextlib.suppress(OSError):
                stream.recv(100)
                serve(stream)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        with little_memory(BOUND_BYTES), pytest.raises(ConfigurationError, match=f"does not answer.*{why}"):
            authorized_keys_line("board", settings)
        thread.join(300)
