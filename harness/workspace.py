"""The workspace: the folder whose journal, tables and reports a command works on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigurationError
from harness.settings import invalid_key, read_toml

MARKER = "harness.toml"


@dataclass(frozen=True)
class Workspace:
    """Paths of one workspace; nothing is ever written outside `root`."""

    root: Path

    @property
    def devices(self) -> Path:
        """Inventory of devices beside the built-in ones; optional."""
        return self.root / "devices.toml"

    @property
    def journal(self) -> Path:
        """SQLite file of all samples."""
        return self.root / ".harness" / "journal.sqlite"

    @property
    def fleet(self) -> Path:
        """SQLite file of the devices' health and of nights."""
        return self.root / ".harness" / "fleet.sqlite"

    @property
    def lut(self) -> Path:
        """Lookup tables, `lut/<device>/<date>-<hash>/`."""
        return self.root / "lut"

    @property
    def reports(self) -> Path:
        """Reports written by commands."""
        return self.root / "reports"


AnyWorkspace = Workspace | str | os.PathLike[str] | None


def as_workspace(given: AnyWorkspace) -> Workspace:
    """Return the workspace in a folder, or the one around the current folder for None; raises ConfigurationError."""
    return given if isinstance(given, Workspace) else find_workspace(None if given is None else Path(given))


def find_workspace(start: Path | None = None) -> Workspace:
    """`start` or the current folder, or the nearest parent that holds a harness.toml.

    Raises ConfigurationError where that file is not valid or `start` is not a folder.
    """
    try:
        folder = (start or Path.cwd()).resolve()
        is_folder = folder.is_dir()
    except (OSError, ValueError) as error:
        raise ConfigurationError("The workspace is not a folder", why=str(error)) from error
    if not is_folder:
        raise ConfigurationError(f"The workspace {folder} is not a folder", next_step="Create it")
    if start is None:
        folder = next((parent for parent in (folder, *folder.parents) if (parent / MARKER).exists()), folder)
    marker = folder / MARKER
    if marker.exists():
        settings = read_toml(marker)
        if settings:
            step = "Remove it: the file only marks the workspace and stays empty"
            raise invalid_key(marker, repr(next(iter(settings))), "is unknown", step)
    return Workspace(folder)
