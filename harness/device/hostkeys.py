"""Which host keys are trusted: those in the project's own known_hosts file, and no others."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.device.inventory import Ssh
from harness.errors import ConfigurationError, HostKeyError

if TYPE_CHECKING:
    import paramiko


def known_keys(settings: Ssh) -> paramiko.HostKeys:
    """The keys in the device's known_hosts file; none where the file is missing."""
    import paramiko

    keys = paramiko.HostKeys()
    try:
        keys.load(str(settings.known_hosts))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, paramiko.SSHException, paramiko.hostkeys.InvalidHostKey) as error:
        what = f"{settings.known_hosts} cannot be read as known_hosts file"
        raise ConfigurationError(what, why=str(error)[:200], next_step="Correct or remove the line") from None
    return keys


def host_name(settings: Ssh) -> str:
    """The name under which known_hosts lists the device."""
    return settings.host if settings.port == 22 else f"[{settings.host}]:{settings.port}"


def fingerprint(key: paramiko.PKey) -> str:
    """The fingerprint as OpenSSH prints it."""
    return f"{key.get_name()} {key.fingerprint}"


def unknown_key(name: str, settings: Ssh, key: paramiko.PKey) -> HostKeyError:
    """The error for a device whose key is not listed, with the line that would list it."""
    line = f"{host_name(settings)} {key.get_name()} {key.get_base64()}"
    return HostKeyError(
        f"The host key of {name} is unknown: {fingerprint(key)}",
        why=f"{settings.known_hosts} lists no key of {host_name(settings)}",
        next_step=f"{_compare(key)}; if it is the same, add this line to {settings.known_hosts}: {line}",
    )


def changed_key(name: str, settings: Ssh, key: paramiko.PKey) -> HostKeyError:
    """The error for a device that shows another key than the listed one."""
    host = shlex.quote(host_name(settings))
    remove = f"ssh-keygen -R {host} -f {shlex.quote(str(settings.known_hosts))}"
    line = f"{host_name(settings)} {key.get_name()} {key.get_base64()}"
    return HostKeyError(
        f"The host key of {name} has changed: {fingerprint(key)}",
        why=f"{settings.known_hosts} lists another; the device was set up anew, or somebody is in between",
        next_step=f"{_compare(key)}; if it is the same, run `{remove}` and add this line: {line}",
    )


@dataclass(frozen=True)
class RefuseUnknown:
    """paramiko's policy for keys that are not listed: refuses them, as its RejectPolicy, and tells which key."""

    name: str
    settings: Ssh

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Raises HostKeyError."""
        raise unknown_key(self.name, self.settings, key)


def _compare(key: paramiko.PKey) -> str:
    kind = next((kind for kind in ("ed25519", "ecdsa", "rsa") if kind in key.get_name()), "ed25519")
    return f"Compare it on the device by `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub`"
