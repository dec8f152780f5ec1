"""The table that a command uses: the one that is named, the newest one of the device, or else a published one."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.arguments import Rule, checked
from harness.device.variant import NO_VARIANT, Variant
from harness.errors import DamagedFileWarning, LutMismatch, LutNotFound
from harness.latency.method_names import COMPARISON_METHODS
from harness.lut.table import IMPORT, Lut
from harness.lut.table_files import MANIFEST, of_device, read_lut, read_part
from harness.text import is_safe_name
from harness.workspace import AnyWorkspace, Workspace, as_workspace, find_workspace

PUBLISHED = Path(__file__).resolve().parent / "published"
"""The package's tables of emulated devices, which are the same on every machine: `<device>/<table>/`, as in the folder
`lut/` of a workspace. `make published` measures them; `benchmarks/published.py` describes how."""
_FOLDER_NAME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}-[a-z-]+-[0-9a-f]{8}")
TableReference = Lut | str | os.PathLike[str] | None
"""A table that is open, its folder or name, or None for the newest one of a device."""
_TABLE = Rule("a Lut, the folder of a table or its name", lambda lut: lut if isinstance(lut, Lut | None) else Path(lut))


def is_published(table: Lut) -> bool:
    """Return whether a table is one of the package."""
    return table.path.resolve().is_relative_to(PUBLISHED)


@checked(lut=_TABLE)
def open_lut(
    device: str | None = None,
    *,
    lut: TableReference = None,
    workspace: AnyWorkspace = None,
    batch: int | None = None,
    threads: int | None = None,
) -> Lut:
    """Open the newest table of `device` for this batch and these threads, or the table `lut`.

    `lut` is the folder of a table, its name `<device>/<folder>` in the workspace, or an open `Lut`, which is returned.
    Open a table once to estimate many networks. Raises LutNotFound, LutCorrupt, and LutMismatch if it belongs to
    another device.
    """
    variant = Variant(batch, threads)
    if isinstance(lut, Lut):
        return _with_threads(of_device(lut, device, lut.name), variant)
    return open_table(device, None if lut is None else Path(lut), as_workspace(workspace), variant)


def open_table(
    device: str | None, folder: Path | None, workspace: Workspace | None = None, variant: Variant = NO_VARIANT
) -> Lut:
    """Return the table in `folder`, which must be of `device`, or else the newest one of `device`.

    Without `device`, that is the workspace's default.
    Tables of comparison methods are only used by name. For a device without a table in the workspace, the table that
    the package holds of it is used.

    Without a folder, the table must have been measured with the batch and threads of `variant`; with one, with its
    threads if it has any. `folder` may also be a table's name, `<device>/<folder>`. Raises UnknownDevice for a device
    with neither a table nor a line in the inventory, and the errors of `read_lut`.
    """
    workspace = workspace or find_workspace()
    if folder is not None:
        places = (folder, workspace.lut / folder, PUBLISHED / folder)
        return _with_threads(read_lut(next(filter(Path.exists, places), places[1]), device), variant)
    name = workspace.default_device if device is None else device
    if not is_safe_name(name) or not ((workspace.lut / name).is_dir() or table_folders(PUBLISHED, name)):
        from harness.device.inventory import find_device, load_inventory

        find_device(load_inventory(workspace.devices), name)
    return read_lut(default_table(workspace, name, variant), name)


def default_table(workspace: Workspace, device: str, variant: Variant = NO_VARIANT) -> Path:
    """Return the folder of the newest table of a device, of the package if the workspace has none.

    Raises LutNotFound.
    """
    published = bool(_tables(PUBLISHED, device, variant)) and not _tables(workspace.lut, device, variant)
    if published:
        _warn_of_damaged(workspace.lut, device)
    return latest_lut(PUBLISHED if published else workspace.lut, device, variant)


def published_lut(device: str, variant: Variant = NO_VARIANT) -> Lut | None:
    """Return the table of a device that the package holds, also where the workspace has one; None if there is none."""
    return read_lut(latest_lut(PUBLISHED, device, variant), device) if _tables(PUBLISHED, device, variant) else None


def _with_threads(table: Lut, variant: Variant) -> Lut:
    """Return the table; raises LutMismatch if it was measured with a different number of threads."""
    measured = table.fingerprint.get("threads")
    if variant.threads is not None and measured != str(variant.threads):
        why = f"It was measured with {f'--threads {measured}' if measured else 'the thread count in devices.toml'}"
        step = f"Build one: harness lut build --device {table.device}{variant.options()}"
        raise LutMismatch(f"{table.name} is not for {variant.threads} threads", why=why, next_step=step)
    return table


def latest_lut(root: Path, device: str, variant: Variant = NO_VARIANT) -> Path:
    """Return the folder of a device's newest table for this batch and these threads; raises LutNotFound.

    Tables of comparison methods do not count, and imported ones only if there is none that was measured. A newer folder
    without a manifest is skipped with a DamagedFileWarning.
    """
    made = _tables(root, device, variant)
    usable = [path for path, one in made.items() if one.method not in COMPARISON_METHODS]
    if not usable:
        _warn_of_damaged(root, device)
        asked = variant.options()
        step = f"Build one: harness profile --device {device}{asked}, then harness lut build --device {device}{asked}"
        what = f"There is no table for {device}{f' with{asked}' if asked else ''} in this workspace"
        if not made:
            batch = f"use --dim NAME={variant.batch} to change only the batch of this network"
            why = f"--batch selects tables that were measured with this batch; {batch}"
            raise LutNotFound(what, why=why if variant.batch else "", next_step=step)
        what = f"No table for {device}{f' with{asked}' if asked else ''} was made by the default method"
        newest = max(made, key=lambda path: (path.name[:10], made[path].created, path.name))
        why = f"{newest.name} was made for comparison, with --method {made[newest].method}"
        step = f"Build one without --method: harness lut build --device {device}{asked}; or give --lut"
        raise LutNotFound(what, why=why, next_step=step)
    measured = [path for path in usable if made[path].method != IMPORT]
    newest = max(measured or usable, key=lambda path: (path.name[:10], made[path].created, path.name))
    _warn_of_damaged(root, device, newest.name[:10])
    return newest


def _warn_of_damaged(root: Path, device: str, since: str = "") -> None:
    """Warn of folders of tables of this date or later that lack their manifest."""
    folders = (root / device).glob("*-*") if (root / device).is_dir() else ()
    damaged = [one.name for one in folders if _FOLDER_NAME.fullmatch(one.name) and not (one / MANIFEST).is_file()]
    for name in sorted(damaged):
        if name[:10] >= since:
            text = f"{device}/{name} is not used: it has no {MANIFEST}. Restore it from a copy, or remove the folder"
            warnings.warn(text, DamagedFileWarning, stacklevel=2)


def table_folders(root: Path, device: str = "*") -> list[Path]:
    """Return the folders of a device's tables, or of all tables, sorted by name."""
    devices = (path for path in root.iterdir() if device in ("*", path.name)) if root.is_dir() else ()
    folders = (path for held in devices if held.is_dir() for path in held.iterdir())
    return sorted(path for path in folders if not path.name.startswith(".") and (path / MANIFEST).is_file())


class ManifestSummary(NamedTuple):
    """Time, method, fingerprint and number of entries in a table's manifest."""

    created: str
    method: str
    fingerprint: Mapping[str, str] | None
    entries: int = 0


def _tables(root: Path, device: str, variant: Variant) -> dict[Path, ManifestSummary]:
    """Return the tables of a device for this batch and these threads, and what their manifests say."""
    made = {path: made_of(path) for path in table_folders(root, device)}
    return {path: one for path, one in made.items() if one.fingerprint is None or variant.is_of(one.fingerprint)}


def made_of(folder: Path) -> ManifestSummary:
    """Return what a table's manifest says; nothing of one that is damaged, which `read_lut` reports, or was removed."""
    try:
        manifest = json.loads(read_part(folder / MANIFEST))
        fingerprint, entries = dict(manifest["fingerprint"]), int(manifest["entries"])
        return ManifestSummary(str(manifest["created"]), str(manifest["method"]), fingerprint, entries)
    except (ValueError, KeyError, TypeError, RecursionError, LutNotFound):
        return ManifestSummary("", "", None)
