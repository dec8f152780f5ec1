"""The SSH servers on the way to a device: its own, and the bastions before it.

A setting of devices.toml counts; ~/.ssh/config fills in what devices.toml leaves open.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from harness.device.inventory import Ssh
from harness.device.ssh.ssh_config import HostSettings, SshConfig
from harness.errors import ConfigurationError, HostKeyError

DEFAULT_PORT = 22
_MOST_HOPS = 8
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:\s\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?\Z")


@dataclass(frozen=True)
class SshTarget:
    """One SSH server, with everything that a connection to it needs.

    `title` names it in messages: as `device`, or as a bastion of that. `identity` None selects the only key of the key
    agent; `identity_from` is the setting that gives it. `settings` are those of the device: host keys, key agent and
    deadlines. `via` are the bastions, in order.
    """

    device: str
    title: str
    host: str
    port: int
    user: str
    identity: Path | None
    identity_from: str
    settings: Ssh
    via: tuple[SshTarget, ...] = ()

    @property
    def known_name(self) -> str:
        """Its name in known_hosts."""
        return self.host if self.port == DEFAULT_PORT else f"[{self.host}]:{self.port}"

    @property
    def address(self) -> str:
        """Host and port, and the bastions before them."""
        through = "".join(f" through {hop.host}:{hop.port}" for hop in self.via)
        return f"{self.host}:{self.port}{through}"


def resolve(name: str, settings: Ssh) -> SshTarget:
    """Return the server of a device and its bastions; raises ConfigurationError if a setting is missing or wrong."""
    config = SshConfig(settings.ssh_config)
    found = config.lookup(settings.host)
    jump = settings.proxy_jump or found.jump
    if settings.proxy_jump is None:
        _refuse_command(name, settings.host, found, config)
    identity = settings.identity or found.identity
    if identity is None and settings.key_agent is None:
        raise _missing("identity", name, settings.host, "IdentityFile", config)
    hops = _chain(name, jump, config)
    return SshTarget(
        device=name,
        title=name,
        host=found.host,
        port=settings.port or found.port or DEFAULT_PORT,
        user=_user(name, settings.host, settings.user or found.user, config),
        identity=identity,
        identity_from=_identity_from(name, settings.host, config, own=settings.identity is not None),
        settings=settings,
        via=tuple(_bastion(name, settings, hop, config) for hop in hops),
    )


@dataclass(frozen=True)
class _Hop:
    """One bastion as ProxyJump writes it; None is left to the configuration file."""

    alias: str
    user: str | None
    port: int | None


def _chain(name: str, jump: str | None, config: SshConfig, seen: Sequence[str] = ()) -> tuple[_Hop, ...]:
    """The hops of a ProxyJump in the order of the connections; the first one may have its own ProxyJump."""
    if jump is None or jump.lower() == "none":
        return ()
    hops = tuple(_hop(name, text) for text in jump.split(","))
    first = hops[0].alias
    if first in seen or len(seen) + len(hops) > _MOST_HOPS:
        why = f"{' goes through '.join((*seen, first))}"
        raise ConfigurationError(f"ProxyJump of {name} forms a loop or has too many hops", why=why)
    found = config.lookup(first)
    _refuse_command(name, first, found, config)
    return (*_chain(name, found.jump, config, (*seen, first)), *hops)


def _hop(name: str, text: str) -> _Hop:
    found = _HOP.match(text.strip())
    if found is None or found["host"].startswith("-") or int(found["port"] or 1) not in range(1, 1 << 16):
        what = f"The ProxyJump of {name} has {text.strip()[:80]!r}, which is not a host"
        raise ConfigurationError(what, next_step="Write [USER@]HOST[:PORT], several with commas between them")
    return _Hop(found["host"].strip("[]"), found["user"], int(found["port"]) if found["port"] else None)


def _bastion(name: str, settings: Ssh, hop: _Hop, config: SshConfig) -> SshTarget:
    found = config.lookup(hop.alias)
    title = f"the bastion {hop.alias} of {name}"
    if found.identity is None and settings.identity is None and settings.key_agent is None:
        raise _missing("identity", title, hop.alias, "IdentityFile", config)
    return SshTarget(
        device=name,
        title=title,
        host=found.host,
        port=hop.port or found.port or DEFAULT_PORT,
        user=_user(title, hop.alias, hop.user or found.user, config),
        identity=found.identity or settings.identity,
        identity_from=_identity_from(name, hop.alias, config, own=found.identity is None),
        settings=settings,
    )


def _user(title: str, alias: str, user: str | None, config: SshConfig) -> str:
    if user is None:
        raise _missing("user", title, alias, "User", config)
    return user


def _identity_from(name: str, alias: str, config: SshConfig, *, own: bool) -> str:
    return f"devices.{name}.identity" if own else f"the IdentityFile of {alias} in {config.path}"


def _missing(key: str, title: str, alias: str, setting: str, config: SshConfig) -> ConfigurationError:
    where = f"{config.path} sets no {setting} for {alias}" if config.path else "no ssh_config is read"
    step = f"Add {key} to the device in devices.toml, or {setting} to `Host {alias}` there"
    return ConfigurationError(f"The {key} of {title} is missing", why=where, next_step=step)


def _refuse_command(name: str, alias: str, settings: HostSettings, config: SshConfig) -> None:
    if settings.runs_command:
        what = f"{config.path} gives {alias} a ProxyCommand, which harness does not run"
        step = f'Use ProxyJump there, or set proxy_jump = "none" for {name} in devices.toml to connect directly'
        raise ConfigurationError(what, why="A ProxyCommand is text for a shell", next_step=step)


def known_keys(settings: Ssh) -> paramiko.HostKeys:
    """Return the keys in the device's known_hosts file; none if the file is missing."""
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
    why = f"{listed} lists a different key: the device was reinstalled, or the connection is intercepted"
    remedy = f"run `ssh-keygen -R {host} -f {file}` and add this line"
    return _error(f"The host key of {target.title} has changed", why, remedy, target, key)


@dataclass(frozen=True)
class RefuseUnknown:
    """paramiko's policy for unknown keys: refuses them like its RejectPolicy, with an error that shows the key."""

    target: SshTarget

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Raise HostKeyError."""
        raise unknown_key(self.target, key)


def _error(what: str, why: str, remedy: str, target: SshTarget, key: paramiko.PKey) -> HostKeyError:
    kind = next((kind for kind in ("ed25519", "ecdsa", "rsa") if kind in key.get_name()), "ed25519")
    compare = f"Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` on that machine"
    line = f"{target.known_name} {key.get_name()} {key.get_base64()}"
    shown = f"{key.get_name()} {key.fingerprint}"  # as OpenSSH prints it
    return HostKeyError(f"{what}: {shown}", why=why, next_step=f"{compare}; if they agree, {remedy}: `{line}`")
