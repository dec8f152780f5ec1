"""Keys in a key agent that the user names: one socket, and exactly one of its keys."""

import base64
import binascii
import contextlib
import os
import shlex
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko
from paramiko.agent import SSH2_AGENT_IDENTITIES_ANSWER, AgentSSH

from harness.device.inventory import KEY_AGENT_OF_SESSION
from harness.device.ssh.ssh_target import SshTarget
from harness.errors import ConfigurationError, reason_of
from harness.files import read_file
from harness.text import last_part

_MOST_BYTES = 1 << 16
_ANSWER_BYTES = 256 << 10
_MOST_KEYS = 1000
"""Bounds of an answer of the agent: those of OpenSSH's own agent, and more keys than anyone has."""


@contextlib.contextmanager
def agent_key(target: SshTarget) -> Iterator[paramiko.PKey]:
    """Yield the target's identity as the key agent holds it; only the agent ever sees the private key.

    Raises ConfigurationError if the agent does not answer or lacks the key.
    """
    path = _socket_path(target)
    with socket.socket(socket.AF_UNIX) as stream:
        # The agent may ask its user to confirm.
        yield _chosen(target, path, _keys(stream, path, target.settings.auth_timeout_s))


def _socket_path(target: SshTarget) -> Path:
    path = target.settings.key_agent
    assert path is not None  # noqa: S101 - the caller asks for an agent
    if path != KEY_AGENT_OF_SESSION:
        return path
    named = os.environ.get("SSH_AUTH_SOCK")
    if not named:
        what, why = f"{target.title} has no key agent", "The environment variable SSH_AUTH_SOCK is not set"
        step = "Run `eval $(ssh-agent)` and `ssh-add`, or name the agent's socket with key_agent in devices.toml"
        raise ConfigurationError(what, why=why, next_step=step)
    return Path(named)


class _BoundedAgent(AgentSSH):  # type: ignore[misc]
    """An agent by its socket, with bounds on its answers; paramiko's class takes that of the environment only."""

    def __init__(self, stream: socket.socket, timeout_s: float) -> None:
        super().__init__()
        self._stream, self._timeout_s = stream, timeout_s
        self._ends_s = 0.0
        self._connect(stream)

    def _send_message(self, msg: object) -> tuple[int, paramiko.Message]:
        self._ends_s = time.monotonic() + self._timeout_s
        kind, answer = super()._send_message(msg)
        if kind == SSH2_AGENT_IDENTITIES_ANSWER and int.from_bytes(answer.asbytes()[1:5], "big") > _MOST_KEYS:
            raise paramiko.SSHException(f"it lists more than {_MOST_KEYS} keys")
        return kind, answer

    def _read_all(self, wanted: int) -> bytes:
        if wanted > _ANSWER_BYTES:
            raise paramiko.SSHException(f"it announced an answer of {wanted} bytes")
        found = b""
        while len(found) < wanted:
            self._stream.settimeout(max(0.001, self._ends_s - time.monotonic()))
            data = self._stream.recv(wanted - len(found))
            if not data:
                raise paramiko.SSHException("it closed the connection")
            found += data
        return found


def _keys(stream: socket.socket, path: Path, timeout_s: float) -> Sequence[paramiko.AgentKey]:
    try:
        stream.settimeout(timeout_s)
        stream.connect(str(path))
        keys = tuple(_BoundedAgent(stream, timeout_s).get_keys())
        if not all(key.blob for key in keys):
            raise ValueError("its list of keys ends early")
        return keys
    except (OSError, EOFError, ValueError, IndexError, TypeError, struct.error, paramiko.SSHException) as error:
        socket_path = shlex.quote(str(path))
        step = f"Start it with `ssh-agent -a {socket_path}` and add the key with `SSH_AUTH_SOCK={socket_path} ssh-add`"
        why = reason_of(error) if isinstance(error, OSError) else f"It is not a key agent: {last_part(str(error), 100)}"
        raise ConfigurationError(f"The key agent at {path} does not answer", why=why, next_step=step) from None


def _chosen(target: SshTarget, path: Path, keys: Sequence[paramiko.AgentKey]) -> paramiko.PKey:
    held = f"It holds {len(keys)} key{'' if len(keys) == 1 else 's'}"
    if target.identity is None:
        if len(keys) == 1:
            return keys[0]
        step = "Name the key with identity in devices.toml: the file of its public half"
        if not keys:
            step = f"Add one with `SSH_AUTH_SOCK={shlex.quote(str(path))} ssh-add KEY`"
        raise ConfigurationError(f"The key agent at {path} does not hold exactly one key", why=held, next_step=step)
    wanted = _public_blob(target.identity)
    found = next((key for key in keys if key.blob == wanted), None)
    if found is None:
        step = f"Add it with `SSH_AUTH_SOCK={shlex.quote(str(path))} ssh-add {shlex.quote(str(target.identity))}`"
        what = f"The key agent at {path} does not hold the identity of {target.title}, {target.identity}"
        raise ConfigurationError(what, why=held, next_step=step)
    return found


def _public_blob(identity: Path) -> bytes:
    """The public key of an identity: of the file itself if it is public, else of the file next to it."""
    path = identity if identity.suffix == ".pub" else identity.with_name(f"{identity.name}.pub")
    private = shlex.quote(str(identity))
    step = f"Write it with `ssh-keygen -y -f {private} > {shlex.quote(str(path))}`"
    try:
        words = read_file(path, _MOST_BYTES).split()
        return base64.b64decode(words[1], validate=True)
    except OSError as error:
        why = f"{path}: {reason_of(error)}"
        raise ConfigurationError(f"The public half of {identity} cannot be read", why=why, next_step=step) from None
    except (IndexError, binascii.Error, ValueError):
        raise ConfigurationError(f"{path} is not a public key", next_step=step) from None
