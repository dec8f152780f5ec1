"""What the user's ~/.ssh/config says about a host: HostName, Port, User, IdentityFile and ProxyJump.

Nothing in it runs: a host for which ProxyCommand or `Match exec` counts is refused, because they start a shell.
"""

import re
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from harness.errors import ConfigurationError, reason_of
from harness.files import in_home, read_file
from harness.text import last_part

_MOST_BYTES = 1 << 20
_DEEPEST = 16
_MATCHED = ("all", "canonical", "final", "host", "originalhost", "user", "localuser")
"""The keywords of Match that are understood; the first three have no argument."""
_REFUSED = "harnessrefuses"
"""A setting put into blocks with other keywords: whoever looks up a host that they may concern finds it."""
_SETTING = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)\s*\Z")


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
