"""The tables of a workspace: a list of them, and the removal of old ones."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device.variant import Variant
from harness.errors import ConfigurationError, LutNotFound, reason_of
from harness.lut.table_choice import PUBLISHED, default_table, made_of, table_folders
from harness.text import whole_number
from harness.workspace import Workspace

_DIGITS = 6


@dataclass(frozen=True)
class StoredTable:
    """A table as its manifest describes it; `created` is empty for one whose manifest cannot be read.

    `variant` has the options of its batch and threads. `is_default` is whether commands use it for its device and
    variant unless --lut names another. `is_published` tables are those of the package.
    """

    path: Path
    created: str
    method: str
    variant: Variant
    entries: int
    size_bytes: int
    is_default: bool
    is_published: bool

    @property
    def device(self) -> str:
        """The device that the table describes."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """`<device>/<folder>`."""
        return f"{self.device}/{self.path.name}"


@dataclass(frozen=True)
class Pruning:
    """The tables to remove, and how many of the workspace stay."""

    removed: tuple[StoredTable, ...]
    kept: int


def list_tables(workspace: Workspace, device: str | None = None) -> tuple[StoredTable, ...]:
    """Return the tables of a workspace and of the package, or of one device: by device, the newest first."""
    wanted = "*" if device is None else device
    own, package = table_folders(workspace.lut, wanted), table_folders(PUBLISHED, wanted)
    names = {folder.name for folder in own}
    folders = (*own, *(folder for folder in package if folder.name not in names))
    found = [_stored(workspace, folder) for folder in folders]
    newest = sorted(found, key=lambda one: (one.created or one.path.name, one.path.name), reverse=True)
    return tuple(sorted(newest, key=lambda one: one.device))


def plan_pruning(workspace: Workspace, keep: int, device: str | None = None) -> Pruning:
    """Return which tables to remove so that the `keep` newest of each device, method, batch and threads stay.

    The default of a device stays as well, and so does a table whose manifest cannot be read.
    """
    groups: defaultdict[tuple[str, str, Variant], list[StoredTable]] = defaultdict(list)
    tables = [one for one in list_tables(workspace, device) if not one.is_published]
    for table in tables:
        groups[table.device, table.method, table.variant].append(table)
    removed = [one for group in groups.values() for one in group[keep:] if one.created and not one.is_default]
    return Pruning(tuple(removed), len(tables) - len(removed))


def remove_tables(tables: Sequence[StoredTable]) -> None:
    """Remove the folders of tables; readers see each whole or not at all. Raises ConfigurationError."""
    for table in tables:
        aside = table.path.with_name(f".removing-{table.path.name}")
        try:
            table.path.rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            step = "Correct the permissions and run the same command again"
            raise ConfigurationError(f"{table.path} cannot be removed", why=reason_of(error), next_step=step) from error


def _stored(workspace: Workspace, folder: Path) -> StoredTable:
    made = made_of(folder)
    facts = made.fingerprint or {}
    batch, threads = (whole_number(facts.get(name, ""), _DIGITS) for name in ("batch", "threads"))
    variant = Variant(batch or None, (threads or None) if "threads" in facts else None)
    size_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    is_default = made.fingerprint is not None and _default(workspace, folder.parent.name, variant) == folder
    published = folder.is_relative_to(PUBLISHED)
    return StoredTable(folder, made.created, made.method, variant, made.entries, size_bytes, is_default, published)


def _default(workspace: Workspace, device: str, variant: Variant) -> Path | None:
    try:
        return default_table(workspace, device, variant)
    except LutNotFound:
        return None
