"""Host keys: only those in the project's own known_hosts file are trusted."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.device.inventory import Ssh
from harness.device.ssh.ssh_target import SshTarget
from harness.errors import ConfigurationError, HostKeyError

if TYPE_CHECKING:
    import paramiko


def known_keys(settings: Ssh) -> paramiko.HostKeys:
    """Return the keys in the device's known_hosts file; none if the file is missing."""
    import paramiko

    keys = paramiko.HostKeys()
    try:
        keys.load(str(settings.known_hosts))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, paramiko.SSHException, paramiko.hostkeys.InvalidHostKey) as error:
        what = f"{settings.known_hosts} cannot be read as a known_hosts file"
        raise ConfigurationError(what, why=str(error)[:200], next_step="Correct or remove the line") from None
    return keys


def unknown_key(target: SshTarget, key: paramiko.PKey) -> HostKeyError:
    """Return the error for a device or bastion whose key is not listed, with the line to add."""
    file = target.settings.known_hosts
    why = f"{file} lists no key of {target.known_name}"
    return _error(f"The host key of {target.title} is unknown", why, f"add this line to {file}", target, key)


def changed_key(target: SshTarget, key: paramiko.PKey) -> HostKeyError:
    """Return the error for a device or bastion whose key differs from the listed one."""
    host, file = shlex.quote(target.known_name), shlex.quote(str(target.settings.known_hosts))
    listed = target.settings.known_hosts
    why = f"{listed} lists another key: the device was set up anew, or the connection is intercepted"
    mend = f"run `ssh-keygen -R {host} -f {file}` and add this line"
    return _error(f"The host key of {target.title} has changed", why, mend, target, key)


@dataclass(frozen=True)
class RefuseUnknown:
    """paramiko's policy for unknown keys: refuses them like its RejectPolicy, with an error that shows the key."""

    target: SshTarget

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Raise HostKeyError."""
        raise unknown_key(self.target, key)


def _error(what: str, why: str, mend: str, target: SshTarget, key: paramiko.PKey) -> HostKeyError:
    kind = next((kind for kind in ("ed25519", "ecdsa", "rsa") if kind in key.get_name()), "ed25519")
    compare = f"Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` on that machine"
    line = f"{target.known_name} {key.get_name()} {key.get_base64()}"
    shown = f"{key.get_name()} {key.fingerprint}"  # as OpenSSH prints it
    return HostKeyError(f"{what}: {shown}", why=why, next_step=f"{compare}; if they agree, {mend}: {line}")
