"""An authenticated SSH connection (paramiko).

The host key must be in the project's own known_hosts file, the only identity is the one in devices.toml, nothing is
forwarded, and a refused host key or identity is never tried again.
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
from typing import TYPE_CHECKING

from harness.device.hostkeys import RefuseUnknown, changed_key, known_keys
from harness.device.inventory import Ssh
from harness.device.transport import SEND_STALL_S
from harness.errors import AuthenticationError, ConfigurationError, DeviceError, DeviceUnreachable
from harness.text import last_part

if TYPE_CHECKING:
    import paramiko

CHANNEL_S = 20.0
_ATTEMPTS = 3
_PAUSE_S = (0.2, 1.0)
_CONNECTS = threading.BoundedSemaphore(4)  # sshd drops bursts (MaxStartups)
_KEEPALIVE_S = 15


class _ResetError(Exception):
    """The peer accepted and dropped the connection before its banner; a later attempt may succeed."""


def connect(name: str, settings: Ssh) -> paramiko.SSHClient:
    """Return an authenticated connection; raises a DeviceError."""
    import paramiko

    # Without a handler, paramiko prints tracebacks to the terminal.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    identity = load_identity(name, settings)
    keys = known_keys(settings)
    with _CONNECTS:
        for attempt in range(1, _ATTEMPTS + 1):
            client = paramiko.SSHClient()
            client.get_host_keys().update(keys)
            client.set_missing_host_key_policy(RefuseUnknown(name, settings))
            try:
                _connect_once(name, settings, client, identity)
                return client
            except _ResetError as error:
                client.close()
                if attempt == _ATTEMPTS:
                    next_step = "Read the log of sshd on the device: it may limit MaxStartups, or crash"
                    raise _unreachable(name, settings, f"{error}, {attempt} times", next_step) from None
                time.sleep(random.uniform(*_PAUSE_S) * attempt)  # noqa: S311 - no secret
            except BaseException:
                client.close()
                raise
    raise AssertionError("the loop returns or raises")


def load_identity(name: str, settings: Ssh) -> paramiko.PKey:
    """Load the private key of devices.toml; raises ConfigurationError."""
    import paramiko
    from cryptography.exceptions import UnsupportedAlgorithm

    path = settings.identity
    where = f"devices.{name}.identity"
    try:
        if path.stat().st_mode & 0o077:
            what = f"{where} names a private key that others can read: {path}"
            raise ConfigurationError(what, next_step=f"chmod 600 {shlex.quote(str(path))}")
        return paramiko.PKey.from_path(path)
    except OSError as error:
        what, why = f"{where}: {path} cannot be read", error.strerror or ""
        next_step = f"Create it with `ssh-keygen -t ed25519 -N '' -f {shlex.quote(str(path))}`"
        raise ConfigurationError(what, why=why, next_step=next_step) from None
    except (ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.UnknownKeyType) as error:
        why = last_part(str(error), 200) or "It is not a private key"
        next_step = "Use an ed25519 key without a passphrase, bound to a forced command on the device"
        raise ConfigurationError(f"{where}: {path} cannot be used", why=why, next_step=next_step) from None


def _connect_once(name: str, settings: Ssh, client: paramiko.SSHClient, identity: paramiko.PKey) -> None:
    import paramiko

    stream = _reach(name, settings)
    try:
        client.connect(
            settings.host,
            settings.port,
            settings.user,
            pkey=identity,
            sock=stream,
            timeout=settings.connect_timeout_s + settings.banner_timeout_s,
            banner_timeout=settings.banner_timeout_s,
            auth_timeout=settings.auth_timeout_s,
            channel_timeout=CHANNEL_S,
            allow_agent=False,
            look_for_keys=False,
        )
        transport = client.get_transport()
        transport.set_keepalive(_KEEPALIVE_S)
    except DeviceError:  # of the host-key policy
        raise
    except paramiko.BadHostKeyException as error:
        raise changed_key(name, settings, error.key) from None
    except paramiko.AuthenticationException as error:
        if "timeout" in str(error).lower() or "shut down" in str(error):
            why = f"the connection ended during authentication: {last_part(str(error), 200)}"
            raise _unreachable(name, settings, why) from None
        next_step = (
            f"Add the public key of {settings.identity} to ~{settings.user}/.ssh/authorized_keys on the device; "
            f"`harness agent install {name}` prints the line"
        )
        what = f"{name} refused the identity of {settings.user}@{settings.host}"
        raise AuthenticationError(what, why=last_part(str(error), 200), next_step=next_step) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        why = f"it does not speak SSH, or the connection ended: {last_part(str(error), 200) or type(error).__name__}"
        raise _unreachable(name, settings, why) from None
    finally:
        if client.get_transport() is None:
            stream.close()


def _reach(name: str, settings: Ssh) -> socket.socket:
    """Return a TCP connection on which the peer has sent its first bytes."""
    try:
        stream = socket.create_connection((settings.host, settings.port), settings.connect_timeout_s)
    except ConnectionResetError:
        raise _ResetError("it reset the connection at once") from None
    except ConnectionRefusedError:
        next_step = "Check that sshd runs on the device and listens on this port"
        raise _unreachable(name, settings, "the port is closed", next_step) from None
    except TimeoutError:
        why = f"no answer within {settings.connect_timeout_s:g} s"
        raise _unreachable(name, settings, why, "Check that the device is on and connected to this network") from None
    except (OSError, UnicodeError) as error:
        raise _unreachable(name, settings, str(error), "Check host and network") from None
    try:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # paramiko writes without a deadline
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_STALL_S * 1000))
        stream.settimeout(settings.banner_timeout_s)
        first = stream.recv(256, socket.MSG_PEEK)
    except TimeoutError:
        stream.close()
        why = f"it accepted the connection but sent no SSH banner within {settings.banner_timeout_s:g} s"
        raise _unreachable(name, settings, why, "Check that an sshd listens on this port") from None
    except OSError:
        first = b""
    if not first or first.startswith(b"Exceeded MaxStartups"):
        stream.close()
        raise _ResetError("it dropped the connection before the SSH banner")
    return stream


def _unreachable(name: str, settings: Ssh, why: str, next_step: str = "") -> DeviceUnreachable:
    next_step = next_step or f"Find the cause with `harness devices check {name}`"
    return DeviceUnreachable(f"{name} ({settings.host}:{settings.port}) is not reachable", why=why, next_step=next_step)


@contextlib.contextmanager
def time_limit(client: paramiko.SSHClient, seconds: float) -> Iterator[None]:
    """Close the connection after `seconds`, because several calls of paramiko wait without a deadline."""
    timer = threading.Timer(seconds, client.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
