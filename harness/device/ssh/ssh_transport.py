"""paramiko's transport with bounds: what a server may send, and how long a write may take.

paramiko itself reads a banner line or a packet of any length, keeps all that a server sends beyond the window of a
channel, and writes without a deadline.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import paramiko
from paramiko.channel import Channel
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA
from paramiko.packet import Packetizer

from harness.device.transport import SEND_STALL_S

SETUP_BYTES = 1 << 20
"""What a server may send until the user is authenticated: banner, keys and texts take a few kilobytes."""
PACKET_BYTES = 256 << 10
"""The longest packet of OpenSSH; the channels of harness ask for at most 32 KiB."""
SPARE_BYTES = 16 << 20
"""The total number of bytes that a server may send besides the data of channels, plus _PACKET_COST for each packet."""
_PACKET_COST = 64
_WRITE_S = SEND_STALL_S
_REKEY_S = 10.0
_EXTENSIONS = 64
_READ_BYTES = 64 * 1024
_STRONG_CIPHERS = ("aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "aes256-ctr", "aes192-ctr", "aes128-ctr")
_STRONG_MACS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
"""Without CBC, 3DES, MD5, SHA-1 and truncated codes, which paramiko offers as its last choices."""
STRONG = f"Ciphers {', '.join(_STRONG_CIPHERS)} and one of the MACs {', '.join(_STRONG_MACS)}"


class _BoundedStream:
    """A socket, or a channel through a bastion, that counts what arrives until `trust` and ends writes that last."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = SETUP_BYTES
        self._ends_s = math.inf
        self.is_late = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def trust(self) -> None:
        """Stop counting: the user is authenticated, and packets have a separate limit."""
        self._left = 0

    def recv(self, count: int) -> bytes:
        """Return some bytes."""
        data: bytes = self._stream.recv(min(count, _READ_BYTES))
        if self._left:
            self._left -= len(data)
            if self._left <= 0:
                raise paramiko.SSHException(f"it sent {SETUP_BYTES >> 20} MiB before anyone was authenticated")
        return data

    def send(self, data: bytes) -> int:
        """Send some bytes and return how many; raises ConnectionAbortedError at the end of the time."""
        if time.monotonic() > self._ends_s:
            self.is_late = True
            raise ConnectionAbortedError("the peer reads too slowly")
        return int(self._stream.send(data))

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit the time of what is sent inside."""
        self._ends_s = time.monotonic() + seconds
        try:
            yield
        finally:
            self._ends_s = math.inf


class _BoundedPacketizer(Packetizer):  # type: ignore[misc]
    """Reads packets of bounded length, and writes one within _WRITE_S or raises SSHException."""

    def __init__(self, stream: _BoundedStream) -> None:
        super().__init__(stream)
        self._stream = stream
        self._spare = SPARE_BYTES

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > PACKET_BYTES:
            raise paramiko.SSHException(f"it announced a packet of {n} bytes")
        return bytes(super().read_all(n, check_rekey))

    def read_message(self) -> tuple[int, paramiko.Message]:
        kind, message = super().read_message()
        if kind not in (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA):
            self._spare -= len(message.asbytes()) + _PACKET_COST
            if self._spare < 0:
                raise paramiko.SSHException("it does not stop sending messages that carry no data")
        return kind, message

    def write_all(self, out: bytes) -> None:
        try:
            with self._stream.within(_WRITE_S):
                super().write_all(out)
        except EOFError:
            if self._stream.is_late:
                raise paramiko.SSHException(f"it did not take a packet within {_WRITE_S:g} s") from None
            raise


def _feed(channel: Channel, message: paramiko.Message) -> None:
    channel._feed(message)
    _check_window(channel)


def _feed_extended(channel: Channel, message: paramiko.Message) -> None:
    kind = message.get_int()
    if kind != 1:  # the standard error is the only such stream; others would be read and forgotten without end
        raise paramiko.SSHException(f"it sent data of the unknown kind {kind}")
    message.rewind()
    message.get_int()  # the channel
    channel._feed_extended(message)
    _check_window(channel)


def _check_window(channel: Channel) -> None:
    if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size:
        raise paramiko.SSHException("it sent more than the window of the channel")


class _BoundedTransport(paramiko.Transport):  # type: ignore[misc]
    _channel_handler_table: ClassVar[Mapping[int, Callable[[Channel, paramiko.Message], None]]] = {
        **paramiko.Transport._channel_handler_table,
        MSG_CHANNEL_DATA: _feed,
        MSG_CHANNEL_EXTENDED_DATA: _feed_extended,
    }

    def _parse_ext_info(self, msg: paramiko.Message) -> None:
        count = msg.get_int()
        if count > _EXTENSIONS:
            raise paramiko.SSHException(f"it announced {count} extensions")
        msg.rewind()
        super()._parse_ext_info(msg)

    def _parse_debug(self, m: paramiko.Message) -> None:
        """Forget the text: paramiko would take 20 ms to clean a long one for a log that nobody reads."""


def bounded_transport(stream: Any, **settings: Any) -> paramiko.Transport:
    """Return a transport that keeps the bounds of this module and offers no weak algorithm."""
    transport = _BoundedTransport(_BoundedStream(stream), packetizer_class=_BoundedPacketizer, **settings)
    transport.clear_to_send_timeout = _REKEY_S
    offered = transport.get_security_options()
    offered.ciphers = tuple(name for name in _STRONG_CIPHERS if name in offered.ciphers)
    offered.digests = tuple(name for name in _STRONG_MACS if name in offered.digests)
    offered.kex = tuple(name for name in offered.kex if not name.endswith("sha1"))
    offered.key_types = tuple(name for name in offered.key_types if name not in ("ssh-rsa", "ssh-dss"))
    return transport
