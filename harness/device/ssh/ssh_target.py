"""The SSH servers on the way to a device: its own, and the bastions before it.

A setting of devices.toml counts; ~/.ssh/config fills in what devices.toml leaves open.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.device.inventory import Ssh
from harness.errors import ConfigurationError, HostKeyError, reason_of
from harness.files import in_home, read_file
from harness.text import last_part

if TYPE_CHECKING:
    import paramiko

DEFAULT_PORT = 22
_MOST_HOPS = 8
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:\s\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?\Z")
_MOST_BYTES = 1 << 20
_DEEPEST = 16
_MATCHED = ("all", "canonical", "final", "host", "originalhost", "user", "localuser")
"""The keywords of Match that are understood; the first three have no argument."""
_REFUSED = "harnessrefuses"
"""A setting put into blocks with other keywords: whoever looks up a host that they may concern finds it."""
_SETTING = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)\s*\Z")


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
    return HostKeyError(f"{what}: {shown}", why=why, next_step=f"{compare}; if they agree, {remedy}: {line}")


@dataclass(frozen=True)
class HostSettings:
    """The settings for one alias; `host` is the alias itself unless HostName replaces it, None is not set.

    `jump` is the text of ProxyJump, and `runs_command` is true if there is a ProxyCommand in its place.
    """

    host: str
    port: int | None = None
    user: str | None = None
    identity: Path | None = None
    jump: str | None = None
    runs_command: bool = False


class SshConfig:
    """A configuration file of OpenSSH, with the files that it includes; empty if there is none."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; raises ConfigurationError if it cannot be used."""
        import paramiko

        self.path = path
        self._config = paramiko.SSHConfig()
        if path is None or not path.exists():
            return
        try:
            self._config.parse(iter(_lines(path, path.parent)))
        except (paramiko.SSHException, ValueError) as error:
            raise _wrong(path, str(error)) from None

    def lookup(self, alias: str) -> HostSettings:
        """Return the settings for a host; raises ConfigurationError if one of them is wrong."""
        import paramiko

        if self.path is None:
            return HostSettings(alias)
        try:
            found = self._config.lookup(alias)
        except (paramiko.SSHException, ValueError, KeyError) as error:
            raise _wrong(self.path, str(error)) from None
        if _REFUSED in found:
            raise _wrong(self.path, f"`Match {found[_REFUSED]}` may concern {alias}, and harness does not evaluate it")
        identity = next((one for one in found.get("identityfile", ()) if one.lower() != "none"), None)
        jump = found.get("proxyjump")
        return HostSettings(
            host=found["hostname"],
            port=self._port(alias, found),
            user=found.get("user"),
            identity=None if identity is None else in_home(identity),
            jump=jump,
            runs_command=jump is None and found.get("proxycommand") is not None,
        )

    def _port(self, alias: str, settings: paramiko.SSHConfigDict) -> int | None:
        text = settings.get("port")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 1 << 16):
            raise _wrong(self.path, f"the Port of {alias} is not a number from 1 to 65535")
        return int(text)


def _lines(path: Path, folder: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a file with those of its Includes in their places; relative Includes start at `folder`."""
    if depth > _DEEPEST:
        raise _wrong(path, f"Includes are nested deeper than {_DEEPEST}")
    block = "Host *"
    yield block
    for line in _read(path).splitlines():
        found = _SETTING.match(line)
        key = found[1].lower() if found and not line.lstrip().startswith("#") else ""
        if key not in ("host", "match", "include"):
            yield line
            continue
        assert found is not None  # noqa: S101 - it has a key
        if key != "include":
            block = line
            yield from _match(found[2]) if key == "match" else (line,)
            continue
        if block.split()[1:] not in (["*"], ["all"]):
            raise _wrong(path, f"an Include inside of `{block.strip()[:60]}` is not supported; move it to the top")
        for included in _included(found[2], folder):
            yield from _lines(included, folder, depth + 1)
        yield block


def _match(text: str) -> Iterator[str]:
    """A Match line without the keywords that are not understood, and after it a mark that there were some."""
    words, kept, refused = shlex.split(text), [], ""
    while words:
        keyword = words.pop(0)
        plain = keyword.lower().removeprefix("!")
        own = [keyword] if plain in _MATCHED[:3] else [keyword, *words[:1]]
        del words[: len(own) - 1]
        if plain in _MATCHED:
            kept += own
        else:
            refused = refused or plain
    yield f"Match {shlex.join(kept)}" if kept else "Host *"
    if refused:
        yield f"{_REFUSED} {refused}"


def _included(text: str, folder: Path) -> Iterator[Path]:
    for word in text.split():
        pattern = in_home(word.strip('"'))
        absolute = pattern if pattern.is_absolute() else folder / pattern
        root = Path(absolute.anchor)
        yield from sorted(one for one in root.glob(str(absolute.relative_to(root))) if one.is_file())


def _read(path: Path) -> str:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o022:
            what = f"{path} can be changed by other users"
            raise ConfigurationError(what, why="OpenSSH also refuses such a file", next_step=f"chmod go-w {path}")
        return read_file(path, _MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise _wrong(path, "it is not UTF-8 text") from None
    except OSError as error:
        raise _wrong(path, reason_of(error)) from error


def _wrong(path: Path | None, why: str) -> ConfigurationError:
    step = 'Correct it, or set ssh_config = "none" for the device and give all settings in devices.toml'
    return ConfigurationError(f"{path} cannot be used", why=last_part(why, 200), next_step=step)
