"""Host keys: only those in the project's own known_hosts file are trusted."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.device.inventory import Ssh
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


def host_name(settings: Ssh) -> str:
    """Return the name of the device in known_hosts."""
    return settings.host if settings.port == 22 else f"[{settings.host}]:{settings.port}"


def unknown_key(name: str, settings: Ssh, key: paramiko.PKey) -> HostKeyError:
    """Return the error for a device whose key is not listed, with the line to add."""
    why = f"{settings.known_hosts} lists no key of {host_name(settings)}"
    what, mend = f"The host key of {name} is unknown", f"add this line to {settings.known_hosts}"
    return _error(what, why, mend, settings, key)


def changed_key(name: str, settings: Ssh, key: paramiko.PKey) -> HostKeyError:
    """Return the error for a device whose key differs from the listed one."""
    host, file = shlex.quote(host_name(settings)), shlex.quote(str(settings.known_hosts))
    why = f"{settings.known_hosts} lists another key: the device was set up anew, or the connection is intercepted"
    mend = f"run `ssh-keygen -R {host} -f {file}` and add this line"
    return _error(f"The host key of {name} has changed", why, mend, settings, key)


@dataclass(frozen=True)
class RefuseUnknown:
    """paramiko's policy for unknown keys: refuses them like its RejectPolicy, with an error that shows the key."""

    name: str
    settings: Ssh

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Raise HostKeyError."""
        raise unknown_key(self.name, self.settings, key)


def _error(what: str, why: str, mend: str, settings: Ssh, key: paramiko.PKey) -> HostKeyError:
    kind = next((kind for kind in ("ed25519", "ecdsa", "rsa") if kind in key.get_name()), "ed25519")
    compare = f"Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` on the device"
    line = f"{host_name(settings)} {key.get_name()} {key.get_base64()}"
    shown = f"{key.get_name()} {key.fingerprint}"  # as OpenSSH prints it
    return HostKeyError(f"{what}: {shown}", why=why, next_step=f"{compare}; if they agree, {mend}: {line}")
