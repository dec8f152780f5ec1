"""The agent on another machine, over SSH."""

import contextlib
import shlex
import time
from collections.abc import Iterator

import paramiko

from harness.device.bundle import build_bundle
from harness.device.inventory import Ssh
from harness.device.ssh.install import push_agent
from harness.device.ssh.ssh_client import CHANNEL_S, SshLink, connect, time_limit
from harness.device.transport import CLOSE_S, SEND_STALL_S, ErrorOutput, SendDeadline
from harness.errors import DeviceUnreachable
from harness.text import last_part

# With a forced command the device ignores this text; without one the shell reports that no such program exists.
FORCED_COMMAND = "harness-agent"
_READ_BYTES = 64 * 1024
_SEND_BYTES = 32 * 1024
_SLICE_S = 0.2
_DRAINED_BYTES = 4 << 20
"""How much unexpected data is read in one call; the window of a channel has 2 MiB."""


class SshConnection:
    """An agent on a channel of a separate SSH connection."""

    def __init__(self, client: SshLink, channel: paramiko.Channel) -> None:
        self._client = client
        self._channel = channel
        self._errors = ErrorOutput()
        channel.settimeout(_SLICE_S)  # a sender that waits for the window would wait for ever otherwise

    def send(self, data: bytes, stall_s: float = SEND_STALL_S) -> None:
        """Send all bytes; raises TimeoutError if the agent takes too few of them, OSError if it has ended."""
        rest, deadline = memoryview(data), SendDeadline(stall_s)
        while rest:
            deadline.left_s()
            try:
                # A receiving thread sets the timeout of the channel, and it is short.
                with _as_os_error():
                    sent = self._channel.send(bytes(rest[:_SEND_BYTES]))
            except TimeoutError:
                continue
            if sent == 0:
                raise ConnectionResetError("the channel is closed")
            deadline.took(sent)
            rest = rest[sent:]

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end of the stream; raises TimeoutError and TooManyErrors."""
        with _as_os_error():
            self._drain_errors()  # unread errors would fill the window that standard output needs
            self._errors.check()
            self._channel.settimeout(timeout_s)
            return bytes(self._channel.recv(_READ_BYTES))

    def close(self) -> None:
        """End the agent by end of input and wait a few seconds for it."""
        with contextlib.suppress(OSError, EOFError), time_limit(self._client, CLOSE_S), _as_os_error():
            self._channel.shutdown_write()
            deadline = time.monotonic() + CLOSE_S
            while not self._channel.status_event.wait(0.05) and time.monotonic() < deadline:
                self._drain_output()  # a full window would keep the agent from ending
                self._drain_errors()
        self._client.close()

    def diagnosis(self) -> str:
        """Return the end of the agent's standard error, and its exit status or why the connection broke."""
        # recv_exit_status() might wait forever; a connection that was reset has the status -1.
        self._channel.status_event.wait(0.5)
        with contextlib.suppress(OSError, EOFError), _as_os_error():
            self._drain_errors()
        parts = []
        if not self._channel.exit_status_ready() or self._channel.exit_status == -1:
            transport = self._client.get_transport()
            error = transport.get_exception() if transport is not None else None
            parts.append(f"the connection broke ({str(error or '') or 'no exit status'})")
        else:
            parts.append(f"the agent ended with status {self._channel.exit_status}")
        return ": ".join(filter(None, (*parts, self._errors.text)))

    def _drain_errors(self) -> None:
        """Read the standard error that has arrived, at most _DRAINED_BYTES of an endless one."""
        for _ in range(_DRAINED_BYTES // _READ_BYTES):
            if not self._channel.recv_stderr_ready():
                break
            self._errors.add(self._channel.recv_stderr(_READ_BYTES))

    def _drain_output(self) -> None:
        for _ in range(_DRAINED_BYTES // _READ_BYTES):
            if not self._channel.recv_ready():
                break
            self._channel.recv(_READ_BYTES)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn paramiko's own errors, for example of a new key exchange that does not end, into OSError."""
    try:
        yield
    except paramiko.SSHException as error:
        raise ConnectionAbortedError(str(error)) from error


def start_over_ssh(name: str, settings: Ssh) -> SshConnection:
    """Connect to a device, push the agent if it has `agent = "push"`, and start it; raises a DeviceError."""
    client = connect(name, settings)
    try:
        command = FORCED_COMMAND
        if settings.agent == "push":
            bundle = build_bundle()
            push_agent(name, client, bundle)
            command = shlex.join([settings.python, bundle.path])
        return SshConnection(client, _execute(name, client, command))
    except BaseException:
        client.close()
        raise


def _execute(name: str, client: SshLink, command: str) -> paramiko.Channel:
    transport = client.get_transport()
    try:
        with time_limit(client, CHANNEL_S):
            channel = transport.open_session(timeout=CHANNEL_S)
            channel.exec_command(command)
    except (paramiko.SSHException, OSError, EOFError) as error:
        why = last_part(str(error), 200) or type(error).__name__
        raise DeviceUnreachable(f"{name} does not start the agent", why=why) from None
    return channel
