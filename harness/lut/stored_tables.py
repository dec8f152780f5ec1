"""The tables of a workspace: a list of them, and the removal of those that nothing refers to."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device.variant import Variant
from harness.errors import ConfigurationError, LutNotFound, reason_of
from harness.lut.table_choice import PUBLISHED, default_table, made_of, table_folders
from harness.text import whole_number
from harness.workspace import Workspace

_HIDDEN = (".harness", ".github")
"""Hidden folders whose files may name a table: the results of nights, and workflows."""
_FOREIGN = "pyvenv.cfg"
"""A folder with this file is a virtual environment, which names no table."""
_CHUNK_BYTES = 1 << 20
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
    """The tables to remove, and those that would be removed if no file referred to them, with these files."""

    removed: tuple[StoredTable, ...]
    referred: tuple[tuple[StoredTable, tuple[Path, ...]], ...]
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

    These stay: the default of a device, a table whose manifest cannot be read, and one that a file of the workspace
    names. Such a file is a report, the results of nights that later nights are compared with, or a settings file.
    """
    groups: defaultdict[tuple[str, str, Variant], list[StoredTable]] = defaultdict(list)
    tables = [one for one in list_tables(workspace, device) if not one.is_published]
    for table in tables:
        groups[table.device, table.method, table.variant].append(table)
    old = [one for group in groups.values() for one in group[keep:] if one.created and not one.is_default]
    found = _references(workspace, old)
    removed = tuple(one for one in old if not found[one.path.name])
    referred = tuple((one, tuple(found[one.path.name])) for one in old if found[one.path.name])
    return Pruning(removed, referred, len(tables) - len(removed))


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


def _references(workspace: Workspace, tables: Sequence[StoredTable]) -> dict[str, list[Path]]:
    """Return by the name of a table's folder the files of the workspace that contain it."""
    found: dict[str, list[Path]] = {table.path.name: [] for table in tables}
    for path in _files(workspace) if found else ():
        held = _names_in(path, list(found))
        for name in held:
            found[name].append(path)
    return found


def _files(workspace: Workspace) -> Iterator[Path]:
    """Yield the files of a workspace that may name a table: not the tables themselves, and not the samples."""
    journal = workspace.journal.name
    for folder, names, files in os.walk(workspace.root):
        here = Path(folder)
        names[:] = sorted(
            name
            for name in names
            if (not name.startswith(".") or name in _HIDDEN)
            and here / name != workspace.lut
            and not (here / name / _FOREIGN).exists()
        )
        yield from (here / name for name in sorted(files) if not name.startswith(journal) and (here / name).is_file())


def _names_in(path: Path, names: Sequence[str]) -> list[str]:
    """Return the names that a file contains; raises ConfigurationError for one that cannot be read."""
    wanted = {name.encode(): name for name in names}
    longest = max(map(len, wanted))
    found: dict[str, None] = {}
    try:
        with path.open("rb") as file:
            tail = b""
            while chunk := file.read(_CHUNK_BYTES):
                text = tail + chunk
                found |= {name: None for encoded, name in wanted.items() if encoded in text}
                tail = text[-longest:]
    except FileNotFoundError:  # a temporary file of a command at work
        return []
    except OSError as error:
        step = "It may refer to a table; make it readable, or move it out of the workspace"
        raise ConfigurationError(f"{path} cannot be read", why=reason_of(error), next_step=step) from error
    return list(found)
