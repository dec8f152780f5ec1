"""SSH servers that attack their client, in a process of their own.

`python hostile_sshd.py HOST_KEY` prints the port of each case, and serves until its standard input ends. The cases of
RAW see the bare connection; those of SETUP an encrypted one; those of AGENT the channel of a started agent; those
of SFTP a channel with that subsystem.
"""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import (
    cMSG_CHANNEL_DATA,
    cMSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_WINDOW_ADJUST,
    cMSG_DEBUG,
    cMSG_EXT_INFO,
    cMSG_GLOBAL_REQUEST,
    cMSG_USERAUTH_BANNER,
)
from sshd_server import Sshd, make_key

PIECE = b"A" * 32_000
MANY = (1 << 32) - 1
TICK_S = 0.02
VERSION = b"SSH-2.0-board\r\n"


def message(kind: bytes, *parts: Any) -> paramiko.Message:
    """Return a packet; numbers are written as 32 bits, booleans as a byte, texts with their length."""
    packet = paramiko.Message()
    packet.add_byte(kind)
    for part in parts:
        if isinstance(part, bool):
            packet.add_boolean(part)
        elif isinstance(part, int):
            packet.add_int(part)
        else:
            packet.add_string(part)
    return packet


# --- before any key is agreed on ------------------------------------------------------------------------------------


def banner_without_end(stream: socket.socket) -> None:
    """A banner that has no end of line."""
    while True:
        stream.sendall(PIECE)


def banner_of_many_lines(stream: socket.socket) -> None:
    """Lines before the banner, without end."""
    while True:
        stream.sendall(b"Welcome\r\n" * 1000)


def banner_that_drips(stream: socket.socket) -> None:
    """A banner of which one byte arrives now and then."""
    while True:
        stream.sendall(b"A")
        time.sleep(TICK_S)


def packet_of_four_gigabytes(stream: socket.socket) -> None:
    """A first packet that announces 4 GB, and bytes without end."""
    stream.sendall(VERSION + struct.pack(">I", MANY - 11))
    while True:
        stream.sendall(PIECE)


def packets_before_the_keys(stream: socket.socket) -> None:
    """Messages to ignore instead of the exchange of keys, without end."""
    stream.sendall(VERSION)
    packet = struct.pack(">IBB", 32 * 1024 - 4, 4, 2) + bytes(32 * 1024 - 6)
    while True:
        stream.sendall(packet)


def keys_that_drip(stream: socket.socket) -> None:
    """A packet of the key exchange of which one byte arrives now and then."""
    stream.sendall(VERSION + struct.pack(">IB", 2_044, 4))
    while True:
        stream.sendall(b"\x14")
        time.sleep(TICK_S)


RAW: dict[str, Callable[[socket.socket], None]] = {
    one.__name__: one
    for one in (
        banner_without_end,
        banner_of_many_lines,
        banner_that_drips,
        packet_of_four_gigabytes,
        packets_before_the_keys,
        keys_that_drip,
    )
}


# --- before the user is authenticated -------------------------------------------------------------------------------


def banners_of_authentication(transport: paramiko.Transport) -> None:
    """Texts to show to the user, without end."""
    while True:
        transport._send_message(message(cMSG_USERAUTH_BANNER, PIECE, b"en"))


def extensions_without_end(transport: paramiko.Transport) -> None:
    """A list of 2^32 extensions in a packet of five bytes."""
    transport._send_message(message(cMSG_EXT_INFO, MANY))


def authentication_that_does_not_answer(_: paramiko.Transport) -> None:
    """No answer to the identity."""
    time.sleep(60)


SETUP: dict[str, Callable[[paramiko.Transport], None]] = {
    one.__name__: one
    for one in (banners_of_authentication, extensions_without_end, authentication_that_does_not_answer)
}


# --- in place of an agent -------------------------------------------------------------------------------------------


def data_beyond_the_window(channel: paramiko.Channel) -> None:
    """Standard output that does not wait for the window."""
    while True:
        channel.transport._send_message(message(cMSG_CHANNEL_DATA, channel.remote_chanid, bytes(32_000)))


def errors_beyond_the_window(channel: paramiko.Channel) -> None:
    """Standard error that does not wait for the window."""
    while True:
        channel.transport._send_message(message(cMSG_CHANNEL_EXTENDED_DATA, channel.remote_chanid, 1, PIECE))


def errors_without_end(channel: paramiko.Channel) -> None:
    """Standard error without end, as fast as it is read."""
    while True:
        channel.sendall_stderr(PIECE)


def unknown_stream(channel: paramiko.Channel) -> None:
    """Data of a kind that no client reads, without end."""
    while True:
        channel.transport._send_message(message(cMSG_CHANNEL_EXTENDED_DATA, channel.remote_chanid, 7, PIECE))


def debug_messages_without_end(channel: paramiko.Channel) -> None:
    """Messages for the log, without end."""
    while True:
        channel.transport._send_message(message(cMSG_DEBUG, False, PIECE, b""))


def requests_without_end(channel: paramiko.Channel) -> None:
    """Requests that want an answer, from a server that reads none."""
    channel.transport.packetizer.read_message = lambda: time.sleep(60)
    while True:
        channel.transport._send_message(message(cMSG_GLOBAL_REQUEST, b"keepalive@openssh.com", True))


def keys_that_never_change(channel: paramiko.Channel) -> None:
    """A new exchange of keys that is begun and never answered."""
    transport = channel.transport
    transport._parse_kex_init = lambda _: time.sleep(60)
    transport._send_kex_init()
    time.sleep(60)


def reads_nothing(channel: paramiko.Channel) -> None:
    """A channel with a large window, of whose connection nothing is read."""
    channel.transport.packetizer.read_message = lambda: time.sleep(60)
    time.sleep(60)


def takes_single_bytes(channel: paramiko.Channel) -> None:
    """A window that begins with nothing and grows by single bytes."""
    while True:
        channel.transport._send_message(message(cMSG_CHANNEL_WINDOW_ADJUST, channel.remote_chanid, 1))
        time.sleep(TICK_S)


def ends_with_errors(channel: paramiko.Channel) -> None:
    """Gigabytes of errors at the end of the session."""
    while channel.recv(65536):
        pass
    while True:
        channel.sendall_stderr(PIECE)


def ends_with_output(channel: paramiko.Channel) -> None:
    """Gigabytes of output at the end of the session."""
    while channel.recv(65536):
        pass
    while True:
        channel.sendall(PIECE)


AGENT: dict[str, Callable[[paramiko.Channel], None]] = {
    one.__name__: one
    for one in (
        data_beyond_the_window,
        errors_beyond_the_window,
        errors_without_end,
        unknown_stream,
        debug_messages_without_end,
        requests_without_end,
        keys_that_never_change,
        reads_nothing,
        takes_single_bytes,
        ends_with_errors,
        ends_with_output,
    )
}


# --- in place of an SFTP server -------------------------------------------------------------------------------------

_INIT, _OPEN, _READ, _WRITE, _OPENDIR, _READDIR, _STAT = 1, 3, 5, 6, 11, 12, 17
_STATUS, _HANDLE, _NAME, _ATTRIBUTES, _DATA = 101, 102, 104, 105, 103


def answer(channel: paramiko.Channel, kind: int, *parts: bytes | int) -> None:
    """Send a packet of SFTP; numbers are written as 32 bits, bytes as they are."""
    body = b"".join(part if isinstance(part, bytes) else struct.pack(">I", part) for part in parts)
    channel.sendall(struct.pack(">IB", len(body) + 1, kind) + body)


def sftp_requests(channel: paramiko.Channel) -> Iterator[tuple[int, int, bytes]]:
    """Answer the greeting and yield kind and number of each request, and what follows."""
    with channel.makefile("rb") as source:
        while len(head := source.read(5)) == 5:
            size, kind = struct.unpack(">IB", head)
            body = source.read(size - 1)
            if kind == _INIT:
                answer(channel, 2, 3)
            else:
                yield kind, int.from_bytes(body[:4], "big"), body[4:]


def attributes_without_end(channel: paramiko.Channel) -> None:
    """The size of a file with 2^32 extended attributes."""
    for _, number, _ in sftp_requests(channel):
        answer(channel, _ATTRIBUTES, number, 0x80000000, MANY)


def answers_to_nobody(channel: paramiko.Channel) -> None:
    """Answers to requests that were never sent, without end."""
    for _ in sftp_requests(channel):
        while True:
            answer(channel, _STATUS, MANY, 0)


def answer_of_sixteen_megabytes(channel: paramiko.Channel) -> None:
    """An answer of 16 MB to each request."""
    for _, number, _ in sftp_requests(channel):
        answer(channel, _DATA, number, bytes((1 << 24) - 16))


def folder_without_end(channel: paramiko.Channel) -> None:
    """A folder that always has more files; every other request is served from one file in memory."""
    name, content = struct.pack(">I", 6) + b"a.part", bytearray()
    for kind, number, body in sftp_requests(channel):
        if kind == _READDIR:
            answer(channel, _NAME, number, 2000, (name + bytes(4) + bytes(4)) * 2000)
        elif kind == _STAT:
            answer(channel, _ATTRIBUTES, number, 0)
        elif kind in (_OPEN, _OPENDIR):
            answer(channel, _HANDLE, number, 1, b"h")
        elif kind == _WRITE:
            content[int.from_bytes(body[5:13], "big") :] = body[17:]
            answer(channel, _STATUS, number, 0, 0, 0)
        elif kind == _READ and (part := content[(at := int.from_bytes(body[5:13], "big")) : at + 32_000]):
            answer(channel, _DATA, number, len(part), bytes(part))
        else:
            answer(channel, _STATUS, number, 1 if kind == _READ else 0, 0, 0)


def sftp_that_says_nothing(_: paramiko.Channel) -> None:
    """No answer at all."""
    time.sleep(60)


def sftp_that_drips(channel: paramiko.Channel) -> None:
    """An answer of which one byte arrives now and then."""
    for _ in sftp_requests(channel):
        channel.sendall(struct.pack(">IB", 60_000, _ATTRIBUTES))
        while True:
            channel.sendall(b"\0")
            time.sleep(TICK_S)


SFTP: dict[str, Callable[[paramiko.Channel], None]] = {
    one.__name__: one
    for one in (
        attributes_without_end,
        answers_to_nobody,
        answer_of_sixteen_megabytes,
        folder_without_end,
        sftp_that_says_nothing,
        sftp_that_drips,
    )
}


# --- the server -----------------------------------------------------------------------------------------------------


_WINDOWS = {takes_single_bytes.__name__: 0, reads_nothing.__name__: 1 << 28}


class _Welcoming(paramiko.ServerInterface):
    """Lets everybody in who has a key, and remembers the channel that was asked for an agent or for SFTP."""

    def __init__(self, case: str) -> None:
        self.case = case
        self.is_ready = threading.Event()
        self.transport: paramiko.Transport | None = None

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        if self.case in SETUP:
            assert self.transport is not None
            SETUP[self.case](self.transport)
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:  # noqa: ARG002
        self.is_ready.set()
        return True

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:  # noqa: ARG002
        self.is_ready.set()
        return True


def _serve(stream: socket.socket, case: str, key: paramiko.PKey) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException), stream:
        if case in RAW:
            RAW[case](stream)
        transport, server = paramiko.Transport(stream), _Welcoming(case)
        server.transport = transport
        transport.default_window_size = _WINDOWS.get(case, transport.default_window_size)
        transport.add_server_key(key)
        transport.start_server(server=server)
        channel = transport.accept(60)
        if channel is None or not server.is_ready.wait(300):
            return
        time.sleep(TICK_S)  # so that the answer to the request is on its way
        {**AGENT, **SFTP}[case](channel)


def main(host_key: str) -> None:
    """Serve all cases, each on a port of its own, until standard input ends."""
    key = paramiko.PKey.from_path(host_key)

    def accept(server: socket.socket, case: str) -> None:
        while True:
            stream, _ = server.accept()
            threading.Thread(target=_serve, args=(stream, case, key), daemon=True).start()

    servers = {case: socket.create_server(("127.0.0.1", 0)) for case in (*RAW, *SETUP, *AGENT, *SFTP)}
    for case, server in servers.items():
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read fills the way soon
        threading.Thread(target=accept, args=(server, case), daemon=True).start()
    print(json.dumps({case: server.getsockname()[1] for case, server in servers.items()}), flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def hostile_sshds(folder: Path) -> Iterator[dict[str, Sshd]]:
    """Yield a server for each case; all have one host key, which their known_hosts file lists."""
    folder.mkdir(mode=0o700)
    make_key(folder / "host_key")
    make_key(folder / "identity")
    words = [sys.executable, str(Path(__file__)), str(folder / "host_key")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            ports = json.loads(process.stdout.readline())
            servers = {case: Sshd(port, folder, folder) for case, port in ports.items()}
            for server in servers.values():
                server.trust(server.port)
            yield servers
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:  # busy with an attack
                process.kill()


@contextlib.contextmanager
def little_memory(most_bytes: int) -> Iterator[None]:
    """Fail if the memory of this process grows by more inside; skip where the kernel does not show the peak."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        pytest.skip("the kernel does not reset the peak of the memory")
    before = _kilobytes("VmRSS")
    yield
    assert (_kilobytes("VmHWM") - before) * 1024 < most_bytes


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


if __name__ == "__main__":
    main(*sys.argv[1:])
