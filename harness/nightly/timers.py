"""Start the nightly automatically: a systemd service with a timer, or a line of a crontab.

Paths in units are quoted, and characters that systemd interprets are escaped: `%` (specifiers), `$` (variables), quotes
and backslashes. Paths with control characters are refused: neither format can hold them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path

from harness.errors import ConfigurationError, UsageError, reason_of
from harness.files import in_home, write_whole
from harness.settings import NIGHT_DELAY, NIGHT_STARTS_AT
from harness.text import duration_s
from harness.workspace import Workspace

_STARTS_AT, _DELAY_S = time.fromisoformat(NIGHT_STARTS_AT), duration_s(NIGHT_DELAY)
LONGEST_S = 20 * 3600
"""A longer night is stopped before the next one begins, and reports what it measured."""
ENDING_S = 300
"""After SIGINT jobs finish their current visit; then tables are built and the report is written."""
ACCURACY_S = 60.0
"""The most by which systemd starts a timer late (its AccuracySec)."""
RUNTIME_FOLDER = "HARNESS_RUNTIME_FOLDER"


@dataclass(frozen=True)
class NightlyTimer:
    """What runs every night: an interpreter, a workspace, and a plan (None: the workspace's nightly.toml)."""

    workspace: Workspace
    plan: Path | None = None
    at: time = _STARTS_AT
    delay_s: float = _DELAY_S
    python: Path = Path(sys.executable)

    @property
    def name(self) -> str:
        """The name of the units, unique to the workspace."""
        return f"harness-nightly-{hashlib.sha256(os.fsencode(self.workspace.root.absolute())).hexdigest()[:8]}"

    @property
    def command(self) -> tuple[str, ...]:
        """The command; raises ConfigurationError for a path that no unit can hold."""
        command = ("-m", "harness", "nightly", "run", "--workspace")
        words = [str(self.python), *command, str(self.workspace.root.absolute())]
        words += ["--plan", str(self.plan.absolute())] if self.plan else []
        return tuple(map(_checked, words))


def check_time(installation: NightlyTimer, day_begins: time) -> None:
    """Raise UsageError if random delays could put one start before the time at which nights begin and another after.

    Two starts would then belong to the same night, and one night would not be measured.
    """
    start, begins = (datetime.combine(datetime.min, at) for at in (installation.at, day_begins))
    until_s = (begins - start).total_seconds() % timedelta(days=1).total_seconds()
    if until_s <= installation.delay_s + ACCURACY_S:
        latest = start + timedelta(seconds=installation.delay_s)
        why = f"day_begins is {day_begins:%H:%M}; earlier starts belong to the night before"
        what = f"Starts between {start:%H:%M} and {latest:%H:%M} would belong to different nights"
        step = "Change --time, --randomised-delay, or day_begins in the plan"
        raise UsageError(what, why=why, next_step=step)


def _runtime() -> str | None:
    """Return the folder of leases that this shell sets, which the nightly must share; None for the default."""
    folder = os.environ.get(RUNTIME_FOLDER)
    return _checked(str(Path(folder).absolute())) if folder else None


def _checked(word: str) -> str:
    """Return the word itself; raise ConfigurationError if units and crontabs cannot hold it."""
    if not word.isprintable():  # nor are lone surrogates, which represent bytes that are not UTF-8
        why = f"{word!r} has a control character or is not UTF-8 text"
        step = "Move it to a folder with a plain name"
        raise ConfigurationError("A unit or a crontab cannot contain this path", why=why, next_step=step)
    return word


def service_unit(installation: NightlyTimer, user: str | None = None) -> str:
    """Return the service unit; the system's manager needs `user`, or it runs the service as root."""
    program, *arguments = installation.command
    runtime = _runtime()
    shared = [f"-{runtime}"] if runtime else []
    root, caches = installation.workspace.root.absolute(), in_home("~/.cache")
    writable = [str(root), "-/run/lock", "-/tmp", *shared, f"-{caches}"]
    paths = " ".join(_quoted(text) for text in dict.fromkeys(writable))
    run_by = f"User={user}\n" if user else ""
    setting = "Environment=" + _quoted(f"{RUNTIME_FOLDER}={runtime}") + "\n" if runtime else ""
    return f"""\
[Unit]
Description=Nightly measurements of a lab of devices (harness)
Documentation=man:systemd.timer(5)
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
{run_by}ExecStart={_quoted(program)} {" ".join(_quoted(word).replace("$", "$$") for word in arguments)}
# Exit code 7: something became slower. The night itself succeeded; its report lists the slow-downs.
SuccessExitStatus=7
TimeoutStartSec={LONGEST_S}
TimeoutStopSec={ENDING_S}
KillMode=mixed
KillSignal=SIGINT
Environment=PYTHONUNBUFFERED=1
{setting}NoNewPrivileges=yes
ProtectSystem=strict
# Tables and samples; leases of devices, which all users of this host share; caches.
ReadWritePaths={paths}
# A private /tmp would hide leases from other users of this host.
PrivateTmp=no
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
"""


def timer_unit(installation: NightlyTimer) -> str:
    """Return the timer unit: it starts every night, or as soon as the host is on again."""
    return f"""\
[Unit]
Description=Nightly measurements of a lab of devices (harness), every night

[Timer]
OnCalendar=*-*-* {installation.at:%H:%M}:00
RandomizedDelaySec={installation.delay_s:.0f}
Persistent=true
Unit={installation.name}.service

[Install]
WantedBy=timers.target
"""


def crontab_line(installation: NightlyTimer) -> str:
    """Return a line of a crontab; cron has no random delay, so each workspace gets its own fixed delay."""
    minutes = int(installation.delay_s // 60)
    offset = int(installation.name.rpartition("-")[2], 16) % (minutes + 1)
    at = datetime.combine(datetime.min, installation.at) + timedelta(days=1, minutes=offset)
    runtime = _runtime()
    setting = f"{RUNTIME_FOLDER}={shlex.quote(runtime)} " if runtime else ""
    command = (setting + shlex.join(installation.command)).replace("%", r"\%")  # cron ends the command at a bare one
    return f"{at.minute} {at.hour} * * * {command}"


def unit_folder() -> Path:
    """Return the folder of the user's units."""
    return in_home(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "systemd" / "user"


def write_units(installation: NightlyTimer, folder: Path, user: str | None = None) -> tuple[Path, Path]:
    """Write the service and the timer and return their paths; raise ConfigurationError."""
    service_text, timer_text = service_unit(installation, user), timer_unit(installation)
    service, timer = (folder / f"{installation.name}{suffix}" for suffix in (".service", ".timer"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        step = "Name another folder with --output, or print the units with --print"
        why = reason_of(error)
        raise ConfigurationError(f"Units cannot be written to {folder}", why=why, next_step=step) from error
    write_whole(service, service_text.encode())
    write_whole(timer, timer_text.encode())
    return service, timer


def _quoted(word: str) -> str:
    """Return a word quoted for a unit; the caller doubles `$` in arguments of a command."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def enable(installation: NightlyTimer) -> None:
    """Enable and start the timer in the user's manager; raise ConfigurationError if that fails."""
    for words in (["daemon-reload"], ["enable", "--now", f"{installation.name}.timer"]):
        command = ["systemctl", "--user", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            why = done.stderr.strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            step = "The units are written; enable them in a session with a user's systemd, or use --cron"
            raise ConfigurationError(f"{' '.join(command)} failed", why=why[:300], next_step=step)
