"""The nightly on its own: a systemd service with a timer, or a line of a crontab.

Paths go into units quoted and with every character escaped that systemd would read: `%` (specifiers), `$` (variables),
quotes and backslashes. A path with a control character has no place in either, and is refused.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path

from harness.errors import ConfigurationError, UsageError, reason_of
from harness.files import write_whole
from harness.workspace import Workspace

NIGHT_AT = time(2, 30)
DELAY_S = 1200.0
LONGEST_S = 20 * 3600
"""A night that takes longer is stopped before the next one begins, and reported with what it has."""
ENDING_S = 300
"""After SIGINT jobs end with the visit they are at; then complete tables are built and the report is written."""
ACCURACY_S = 60.0
"""How much later than told systemd starts a timer, at most (its AccuracySec)."""
RUNTIME_FOLDER = "HARNESS_RUNTIME_FOLDER"


@dataclass(frozen=True)
class Installation:
    """What is to run every night: this interpreter, on this workspace and, unless it is the default one, this plan."""

    workspace: Workspace
    plan: Path | None = None
    at: time = NIGHT_AT
    delay_s: float = DELAY_S
    python: Path = Path(sys.executable)

    @property
    def name(self) -> str:
        """The name of the units; another one for each workspace."""
        return f"harness-nightly-{hashlib.sha256(os.fsencode(self.workspace.root.absolute())).hexdigest()[:8]}"

    @property
    def command(self) -> tuple[str, ...]:
        """What is run; raises ConfigurationError for a path that no unit can hold."""
        words = [
            str(self.python),
            "-m",
            "harness",
            "nightly",
            "run",
            "--workspace",
            str(self.workspace.root.absolute()),
        ]
        words += ["--plan", str(self.plan.absolute())] if self.plan else []
        return tuple(map(_holdable, words))


def check_time(installation: Installation, day_begins: time) -> None:
    """Raises UsageError where one start may be before the hour at which a night begins, and the next one after it.

    Both would then count as one night, and one night would be measured by nobody.
    """
    start, begins = (datetime.combine(datetime.min, at) for at in (installation.at, day_begins))
    until_s = (begins - start).total_seconds() % timedelta(days=1).total_seconds()
    if until_s <= installation.delay_s + ACCURACY_S:
        latest = start + timedelta(seconds=installation.delay_s)
        why = f"day_begins is {day_begins:%H:%M}: what starts before belongs to another night than what starts after"
        what = f"Starts from {start:%H:%M} to {latest:%H:%M} would not all be of one night"
        step = "Give another --time or a shorter --randomised-delay, or another day_begins in the plan"
        raise UsageError(what, why=why, next_step=step)


def _runtime() -> str | None:
    """Where this shell has leases, unless it is where everybody has them: the nightly is to have them there, too."""
    folder = os.environ.get(RUNTIME_FOLDER)
    return _holdable(str(Path(folder).absolute())) if folder else None


def _holdable(word: str) -> str:
    """The word itself; raises ConfigurationError where no unit and no crontab can hold it."""
    if not word.isprintable():  # lone surrogates, which stand for bytes that are no text, are not either
        why = f"{word!r} holds a control character or is no valid text"
        step = "Move it to a folder with a plain name"
        raise ConfigurationError("This path cannot stand in a unit or a crontab", why=why, next_step=step)
    return word


def service_unit(installation: Installation, user: str | None = None) -> str:
    """The service; `user` runs it where the system's manager starts it, which otherwise would be root."""
    program, *arguments = installation.command
    writable = [str(installation.workspace.root.absolute()), "-/run/lock", "-/tmp"]
    runtime = _runtime()
    writable += [f"-{runtime}"] if runtime else []
    writable.append(f"-{Path.home() / '.cache'}")
    paths = " ".join(_quoted(text) for text in dict.fromkeys(writable))
    return "\n".join(
        (
            "[Unit]",
            "Description=Nightly measurements of a lab of devices (harness)",
            "Documentation=man:systemd.timer(5)",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            "Type=oneshot",
            *([f"User={user}"] if user else []),
            f"ExecStart={_quoted(program)} {' '.join(_quoted(word).replace('$', '$$') for word in arguments)}",
            "# 7: something became slower. The night went well; its report tells.",
            "SuccessExitStatus=7",
            f"TimeoutStartSec={LONGEST_S}",
            f"TimeoutStopSec={ENDING_S}",
            "KillMode=mixed",
            "KillSignal=SIGINT",
            "Environment=PYTHONUNBUFFERED=1",
            *([f"Environment={_quoted(f'{RUNTIME_FOLDER}={runtime}')}"] if runtime else []),
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "# Tables and samples; leases of devices, which all users of this host share; caches.",
            f"ReadWritePaths={paths}",
            "# A private /tmp would hide leases from other users of this host.",
            "PrivateTmp=no",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
            "",
        )
    )


def timer_unit(installation: Installation) -> str:
    """The timer: every night, and after the host was off at that time as soon as it is on again."""
    return "\n".join(
        (
            "[Unit]",
            "Description=Nightly measurements of a lab of devices (harness), every night",
            "",
            "[Timer]",
            f"OnCalendar=*-*-* {installation.at:%H:%M}:00",
            f"RandomizedDelaySec={installation.delay_s:.0f}",
            "Persistent=true",
            f"Unit={installation.name}.service",
            "",
            "[Install]",
            "WantedBy=timers.target",
            "",
        )
    )


def crontab_line(installation: Installation) -> str:
    """A line of a crontab; cron knows no random delay, so that each workspace has its own, always the same."""
    minutes = int(installation.delay_s // 60)
    offset = int(installation.name.rpartition("-")[2], 16) % (minutes + 1)
    at = datetime.combine(datetime.min, installation.at) + timedelta(days=1, minutes=offset)
    runtime = _runtime()
    setting = f"{RUNTIME_FOLDER}={shlex.quote(runtime)} " if runtime else ""
    command = (setting + shlex.join(installation.command)).replace("%", r"\%")  # cron ends the line at a bare one
    return f"{at.minute} {at.hour} * * * {command}"


def unit_folder() -> Path:
    """Where the user's own units lie."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def current_user() -> str:
    """The name of who runs this."""
    return getpass.getuser()


def write_units(installation: Installation, folder: Path, user: str | None = None) -> tuple[Path, Path]:
    """Writes service and timer, each whole; returns their paths. Raises ConfigurationError."""
    units = {".service": service_unit(installation, user), ".timer": timer_unit(installation)}
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in units.items():
            path = folder / f"{installation.name}{suffix}"
            write_whole(path, text.encode())
            written.append(path)
    except OSError as error:
        step = "Name another folder by --output, or print the units by --print"
        why = reason_of(error)
        raise ConfigurationError(f"Units cannot be written to {folder}", why=why, next_step=step) from error
    return written[0], written[1]


def _quoted(word: str) -> str:
    """One word of a unit, whatever is in it; of a command's arguments `$` is to be doubled, too."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def enable(installation: Installation) -> None:
    """Has the user's manager start the timer from now on; raises ConfigurationError where it does not."""
    for words in (["daemon-reload"], ["enable", "--now", f"{installation.name}.timer"]):
        command = ["systemctl", "--user", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            why = done.stderr.strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            step = "The units are written; enable them where a user's systemd runs, or use --cron"
            raise ConfigurationError(f"{' '.join(command)} failed", why=why[:300], next_step=step)
