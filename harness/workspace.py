"""The workspace: the folder whose journal, tables and reports a command works on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigurationError
from harness.settings import DEFAULT_DEVICE, invalid_key, read_toml
from harness.text import SAFE_NAME_RULE, is_safe_name

MARKER = "harness.toml"


@dataclass(frozen=True)
class Workspace:
    """The paths of one workspace; nothing is written outside `root`.

    `default_device` is the device of commands that name none, as `harness.toml` sets it.
    """

    root: Path
    default_device: str = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())

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
    def validations(self) -> Path:
        """The folder with the last validation on each device, `DEVICE.json`."""
        return self.root / ".harness" / "validations"

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
    step = "Create it, or name another folder"
    try:
        folder = (Path.cwd() if start is None else Path(start)).resolve()
        is_folder = folder.is_dir()
    except (OSError, TypeError, ValueError) as error:
        if start is None and isinstance(error, FileNotFoundError):
            step = "Change to a folder that exists"
            raise ConfigurationError("The current folder was removed", next_step=step) from error
        raise ConfigurationError("The workspace is not a folder", why=str(error), next_step=step) from error
    if not is_folder:
        raise ConfigurationError(f"The workspace {folder} is not a folder", next_step=step)
    if start is None:
        folder = next((parent for parent in (folder, *folder.parents) if (parent / MARKER).exists()), folder)
    marker = folder / MARKER
    return Workspace(folder, _default_device(marker) if marker.exists() else DEFAULT_DEVICE)


def _default_device(marker: Path) -> str:
    """Return the device of `[defaults]` in a harness.toml; raises ConfigurationError for an invalid file."""
    settings = read_toml(marker)
    defaults = settings.get("defaults", {})
    if not isinstance(defaults, dict):
        raise invalid_key(marker, "defaults", "must be a table", 'Write [defaults], then device = "NAME"')
    unknown = [name for name in settings if name != "defaults"] + [name for name in defaults if name != "device"]
    if unknown:
        step = 'Remove it: the file is empty, or holds [defaults] with device = "NAME"'
        raise invalid_key(marker, repr(unknown[0]), "is unknown", step)
    device = defaults.get("device", DEFAULT_DEVICE)
    if not isinstance(device, str) or not is_safe_name(device):
        raise invalid_key(marker, "defaults.device", SAFE_NAME_RULE)
    return device
