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
    """The paths of one workspace; nothing is written outside `root`."""

    root: Path

    @property
    def devices(self) -> Path:
        """The inventory of devices besides the built-in ones; optional."""
        return self.root / "devices.toml"

    @property
    def journal(self) -> Path:
        """The SQLite file of all samples."""
        return self.root / ".harness" / "journal.sqlite"

    @property
    def fleet(self) -> Path:
        """The SQLite file of devices' health and of nights."""
        return self.root / ".harness" / "fleet.sqlite"

    @property
    def lut(self) -> Path:
        """The folder of lookup tables, `lut/<device>/<date>-<hash>/`."""
        return self.root / "lut"

    @property
    def reports(self) -> Path:
        """The folder of reports."""
        return self.root / "reports"


AnyWorkspace = Workspace | str | os.PathLike[str] | None


def as_workspace(given: AnyWorkspace) -> Workspace:
    """Return the workspace in a folder, or the one around the current folder for None; raises ConfigurationError."""
    return given if isinstance(given, Workspace) else find_workspace(given)


def find_workspace(start: str | os.PathLike[str] | None = None) -> Workspace:
    """Return the workspace in `start`; by default the current folder or its nearest parent with a harness.toml.

    Raises ConfigurationError if `start` is not a folder or the harness.toml is invalid.
    """
    try:
        folder = (Path.cwd() if start is None else Path(start)).resolve()
        is_folder = folder.is_dir()
    except (OSError, ValueError) as error:
        raise ConfigurationError("The workspace is not a folder", why=str(error)) from error
    if not is_folder:
        raise ConfigurationError(
            f"The workspace {folder} is not a folder", next_step="Create it, or name another folder"
        )
    if start is None:
        folder = next((parent for parent in (folder, *folder.parents) if (parent / MARKER).exists()), folder)
    marker = folder / MARKER
    if marker.exists():
        settings = read_toml(marker)
        if settings:
            step = "Remove it: the file only marks the workspace and stays empty"
            raise invalid_key(marker, repr(next(iter(settings))), "is unknown", step)
    return Workspace(folder)
