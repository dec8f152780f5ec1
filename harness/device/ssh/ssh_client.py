"""An authenticated SSH connection (paramiko), through bastions if the way to the device has some.

The host key of every server must be in the project's own known_hosts file. One identity is tried, once: that of
devices.toml, or of ~/.ssh/config if devices.toml names none. A key agent is used only if devices.toml names it.
Nothing is forwarded but connections through bastions, and a refused host key or identity is never tried again.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shlex
import socket
import threading
import time
from collections.abc import Iterator

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from harness.device.inventory import Ssh
from harness.device.ssh.key_agent import agent_key
from harness.device.ssh.ssh_target import RefuseUnknown, SshTarget, changed_key, known_keys, resolve
from harness.device.ssh.ssh_transport import STRONG, bounded_transport
from harness.device.transport import SEND_STALL_S
from harness.errors import AuthenticationError, ConfigurationError, DeviceError, DeviceUnreachable
from harness.text import last_part

CHANNEL_S = 20.0
_ATTEMPTS = 3
_PAUSE_S = (0.2, 1.0)
_CONNECTS = threading.BoundedSemaphore(4)  # sshd drops bursts (MaxStartups)
_KEEPALIVE_S = 15
_BANNER_ERROR = "Error reading SSH protocol banner"
_REFUSED_TO_SIGN = "cannot be used for signing"
"""What paramiko says when an agent refuses."""


class _ResetError(Exception):
    """The peer accepted and dropped the connection before its banner; a later attempt may succeed."""


class SshLink:
    """A connection to a server, and the one to the bastion that it passes through."""

    def __init__(self, client: paramiko.SSHClient, via: SshLink | None) -> None:
        self._client = client
        self._via = via

    def get_transport(self) -> paramiko.Transport:
        """Return the transport of the connection."""
        return self._client.get_transport()

    def close(self) -> None:
        """Close the connection, then those before it; a second call does nothing."""
        self._client.close()
        if self._via is not None:
            self._via.close()


def connect(name: str, settings: Ssh) -> SshLink:
    """Return an authenticated connection; raises a DeviceError or ConfigurationError."""
    # Without a handler, paramiko prints tracebacks to the terminal.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    target = resolve(name, settings)
    link: SshLink | None = None
    with _CONNECTS:
        for hop in (*target.via, target):
            try:
                link = _connect_retrying(hop, link)
            except BaseException:
                if link is not None:
                    link.close()
                raise
    assert link is not None  # noqa: S101 - the target itself is a hop
    return link


def _connect_retrying(target: SshTarget, via: SshLink | None) -> SshLink:
    with identity_key(target) as identity:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return _connect_once(target, via, identity)
            except _ResetError as error:
                if attempt == _ATTEMPTS:
                    next_step = "Read the log of sshd on the device: it may limit MaxStartups, or crash"
                    raise _unreachable(target, f"{error}, {attempt} times", next_step) from None
                time.sleep(random.uniform(*_PAUSE_S) * attempt)  # noqa: S311 - no secret
    raise AssertionError("the loop returns or raises")


@contextlib.contextmanager
def identity_key(target: SshTarget) -> Iterator[paramiko.PKey]:
    """Yield the key of a server, from the key agent that devices.toml names, else from a file.

    Raises ConfigurationError.
    """
    if target.settings.key_agent is None:
        yield _load_key(target)
    else:
        with agent_key(target) as key:
            yield key


def _load_key(target: SshTarget) -> paramiko.PKey:
    path = target.identity
    assert path is not None  # noqa: S101 - without a key agent there is one
    where = target.identity_from
    try:
        if path.stat().st_mode & 0o077:
            next_step = f"chmod 600 {shlex.quote(str(path))}"
            raise ConfigurationError(f"{where} names a private key that others can read: {path}", next_step=next_step)
        return paramiko.PKey.from_path(path)
    except OSError as error:
        next_step = f"Create it with `ssh-keygen -t ed25519 -N '' -f {shlex.quote(str(path))}`"
        what, why = f"{where}: {path} cannot be read", error.strerror or ""
        raise ConfigurationError(what, why=why, next_step=next_step) from None
    except (ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.UnknownKeyType) as error:
        why = last_part(str(error), 200) or "It is not a private key"
        next_step = (
            "Use an ed25519 key without a passphrase, bound to a forced command on the device, or add the key to a key"
            " agent and name the agent's socket with key_agent in devices.toml"
        )
        raise ConfigurationError(f"{where}: {path} cannot be used", why=why, next_step=next_step) from None


def _connect_once(target: SshTarget, via: SshLink | None, identity: paramiko.PKey) -> SshLink:

    settings = target.settings
    client = paramiko.SSHClient()
    client.get_host_keys().update(known_keys(settings))
    client.set_missing_host_key_policy(RefuseUnknown(target))
    stream = _reach(target) if via is None else _reach_through(target, via)
    try:
        client.connect(
            target.host,
            target.port,
            target.user,
            pkey=identity,
            sock=stream,
            timeout=settings.connect_timeout_s + settings.banner_timeout_s,
            banner_timeout=settings.banner_timeout_s,
            auth_timeout=settings.auth_timeout_s,
            channel_timeout=CHANNEL_S,
            allow_agent=False,
            look_for_keys=False,
            transport_factory=bounded_transport,
        )
        client.get_transport().sock.trust()
        client.get_transport().set_keepalive(_KEEPALIVE_S)
        return SshLink(client, via)
    except BaseException as error:
        client.close()
        stream.close()
        raise _connect_error(target, error) from None


def _connect_error(target: SshTarget, error: BaseException) -> BaseException:
    """The error for a connection that was reached and then failed."""

    # paramiko adds the cause without a space.
    text = last_part(str(error).replace(_BANNER_ERROR, f"{_BANNER_ERROR}: ").removesuffix(": "), 200)
    if isinstance(error, DeviceError):  # of the host-key policy
        return error
    if isinstance(error, paramiko.BadHostKeyException):
        return changed_key(target, error.key)
    if isinstance(error, paramiko.AuthenticationException):
        if "timeout" in str(error).lower() or "shut down" in str(error):
            return _unreachable(target, f"the connection ended during authentication: {text}")
        key = target.identity or f"the key in {target.settings.key_agent}"
        next_step = f"Add the public key of {key} to ~{target.user}/.ssh/authorized_keys there"
        if target.title == target.device:
            next_step += f", then restrict it to the line that `harness agent install {target.device}` prints"
        what = f"{target.title} refused the identity of {target.user}@{target.host}"
        return AuthenticationError(what, why=text, next_step=next_step)
    if _REFUSED_TO_SIGN in text:
        step = "Confirm the use of the key if the agent asks for it, or add the key again with `ssh-add`"
        return AuthenticationError(f"The key agent does not sign for {target.title}", why=text, next_step=step)
    if isinstance(error, paramiko.IncompatiblePeer):
        step = f"Update sshd there, or permit in its sshd_config one of the {STRONG}"
        return _unreachable(target, f"it offers weak or unknown algorithms only: {text}", step)
    if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
        why = "it does not speak SSH, or the connection ended" + (f": {text}" if text else "")
        return _unreachable(target, why)
    return error


def _reach(target: SshTarget) -> socket.socket:
    """Return a TCP connection on which the peer has sent its first bytes."""
    settings = target.settings
    try:
        stream = socket.create_connection((target.host, target.port), settings.connect_timeout_s)
    except ConnectionResetError:
        raise _ResetError("it reset the connection immediately") from None
    except ConnectionRefusedError:
        next_step = "Check that sshd runs on the device and listens on this port"
        raise _unreachable(target, "the port is closed", next_step) from None
    except TimeoutError:
        why = f"no answer within {settings.connect_timeout_s:g} s"
        raise _unreachable(target, why, "Check that the device is on and connected to this network") from None
    except (OSError, UnicodeError) as error:
        raise _unreachable(target, str(error), "Check host and network") from None
    try:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # paramiko writes without a deadline
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_STALL_S * 1000))
        stream.settimeout(settings.banner_timeout_s)
        first = stream.recv(256, socket.MSG_PEEK)
    except TimeoutError:
        stream.close()
        why = f"it accepted the connection but sent no SSH banner within {settings.banner_timeout_s:g} s"
        raise _unreachable(target, why, "Check that an sshd listens on this port") from None
    except OSError:
        first = b""
    if not first or first.startswith(b"Exceeded MaxStartups"):
        stream.close()
        raise _ResetError("it dropped the connection before the SSH banner")
    return stream


def _reach_through(target: SshTarget, via: SshLink) -> paramiko.Channel:
    """Return a connection that the bastion before the server makes."""
    address = (target.host, target.port)
    try:
        return via.get_transport().open_channel(
            "direct-tcpip", address, ("127.0.0.1", 0), timeout=target.settings.connect_timeout_s
        )
    except paramiko.ChannelException as error:
        prohibited = error.code == 1
        why = "the bastion before it forbids forwarding" if prohibited else "the bastion before it cannot connect to it"
        step = "Check that host and port are those that the bastion sees, and that sshd runs there"
        if prohibited:
            step = "Allow TCP forwarding for this key on the bastion: authorized_keys with restrict,port-forwarding"
        raise _unreachable(target, why, step) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        why = f"the bastion before it does not answer: {last_part(str(error), 200) or type(error).__name__}"
        raise _unreachable(target, why) from None


def _unreachable(
    target: SshTarget, why: str, next_step: str = "Check host and port, and read the log of sshd there"
) -> DeviceUnreachable:
    return DeviceUnreachable(
        f"{target.title} ({target.host}:{target.port}) is not reachable", why=why, next_step=next_step
    )


@contextlib.contextmanager
def time_limit(client: SshLink, seconds: float) -> Iterator[None]:
    """Close the connection after `seconds`, because several calls of paramiko wait without a deadline."""
    timer = threading.Timer(seconds, client.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
