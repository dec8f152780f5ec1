"""Tables on disk: an immutable folder, written under a temporary name and renamed.

A folder holds `entries.csv`, `manifest.json` with the sha256 of the other files, and, if the table has them,
`correlation.bin`, `predictor.onnx` and `chains.csv`. The manifest's own digest ends the folder's name, so edits are
detected.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

from harness.device.inventory import find_device, load_inventory
from harness.device.overrides import NO_VARIANT, Variant
from harness.errors import LutCorrupt, LutError, LutMismatch, LutNotFound, reason_of
from harness.files import read_file, sync_folder, write_synced
from harness.latency.overhead import COLUMNS, Overhead
from harness.lut.chain_rows import read_rows, write_rows
from harness.lut.entry_rows import read_entries, write_entries
from harness.lut.error_correlations import check
from harness.lut.table import IMPORT, Lut, TableMethod
from harness.network.fusion_rules import FusionRule
from harness.samples import Clock
from harness.settings import DEFAULT_DEVICE
from harness.strict_model import StrictModel
from harness.version import VERSION
from harness.workspace import Workspace, find_workspace

SCHEMA_VERSION = 4
ENTRIES, MANIFEST, CORRELATION, PREDICTOR = "entries.csv", "manifest.json", "correlation.bin", "predictor.onnx"
CHAINS = "chains.csv"
"""Since schema version 4."""
MAX_FILE_BYTES = 1 << 28
MAX_PATTERN = 1 << 18
"""Characters of a fusion rule."""
_Amount = Annotated[float, Field(ge=0)]


class _Manifest(StrictModel):
    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: Literal[2, 3, 4]
    tool_version: str
    device: str
    created: str
    clock: Clock
    method: TableMethod
    additivity: _Amount | None
    sum_error: _Amount
    network_errors: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")], _Amount] = Field(default_factory=dict)
    fingerprint: dict[str, str]
    overhead: Overhead
    rules: tuple[FusionRule, ...]
    entries: int
    sha256: dict[str, str]


def publish(lut: Lut, root: Path) -> Lut:
    """Write a table under `root/<device>/` and return it with its path; readers never see a part of it."""
    files = {ENTRIES: write_entries(lut.entries), CORRELATION: lut.correlations, PREDICTOR: lut.predictor}
    files[CHAINS] = write_rows(lut.chains)
    files = {name: content for name, content in files.items() if content}
    manifest = _manifest_json(lut, files)
    kind = f"{IMPORT}-" if lut.is_imported else ""
    folder = root / lut.device / f"{lut.created[:10]}-{kind}{hashlib.sha256(manifest).hexdigest()[:8]}"
    checked = _parse(folder, manifest, files)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
        try:
            for name, content in (*files.items(), (MANIFEST, manifest)):
                write_synced(aside / name, content)
            aside.chmod(0o755)
            _rename(aside, folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        step = "Check the disk and the permissions of the folder"
        raise LutError(f"{folder} cannot be written", why=reason_of(error), next_step=step) from error
    return checked


def _rename(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not (folder / MANIFEST).is_file():  # else another writer published the same content
            raise


def open_table(
    device: str | None, folder: Path | None, workspace: Workspace | None = None, variant: Variant = NO_VARIANT
) -> Lut:
    """Return the table in `folder`, which must be of `device`, or else the newest one of `device` (default cpu01).

    Without a folder, the table must have been measured with the batch and threads of `variant`; with one, with its
    threads if it has any. `folder` may also be a table's name in the workspace, `<device>/<folder>`. Raises
    UnknownDevice for a device with neither a table nor a line in the inventory, and the errors of `read_lut`.
    """
    workspace = workspace or find_workspace()
    if folder is not None:
        return _with_threads(read_lut(folder if folder.exists() else workspace.lut / folder, device), variant)
    name = DEFAULT_DEVICE if device is None else device
    if not name or not (workspace.lut / name).is_dir():
        find_device(load_inventory(workspace.devices), name)
    return read_lut(latest_lut(workspace.lut, name, variant), name)


def _with_threads(table: Lut, variant: Variant) -> Lut:
    """Return the table; raises LutMismatch if it was measured with another number of threads than is asked for."""
    measured = table.fingerprint.get("threads")
    if variant.threads is not None and measured != str(variant.threads):
        why = f"It was measured with {f'--threads {measured}' if measured else 'the threads of the inventory'}"
        step = f"Build one: harness lut build --device {table.device}{variant.options()}"
        raise LutMismatch(f"{table.name} is not for {variant.threads} threads", why=why, next_step=step)
    return table


def latest_lut(root: Path, device: str, variant: Variant = NO_VARIANT) -> Path:
    """Return the folder of a device's newest table for this batch and these threads; raises LutNotFound.

    An imported table is returned only if there is none that was measured.
    """
    folder = root / device
    tables = [path for path in folder.iterdir() if (path / MANIFEST).is_file()] if folder.is_dir() else []
    tables = [path for path in tables if not path.name.startswith(".")]
    made = {path: _made(path) for path in tables}
    tables = [path for path in tables if (known := made[path].fingerprint) is None or variant.is_of(known)]
    if not tables:
        asked = variant.options()
        step = f"Build one: harness profile --device {device}{asked}, then harness lut build --device {device}{asked}"
        what = f"There is no table for {device}{f' with{asked}' if asked else ''} in this workspace"
        raise LutNotFound(what, next_step=step)
    measured = [path for path in tables if made[path].method != IMPORT]
    return max(measured or tables, key=lambda path: (path.name[:10], made[path].created, path.name))


@dataclass(frozen=True)
class _Made:
    """What the manifest of a table says of its making; empty if it cannot be read, which `read_lut` reports."""

    created: str = ""
    method: str = ""
    fingerprint: Mapping[str, str] | None = None


def _made(folder: Path) -> _Made:
    try:
        manifest = json.loads(_read(folder / MANIFEST))
        return _Made(str(manifest["created"]), str(manifest["method"]), dict(manifest["fingerprint"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Made()


def read_lut(folder: Path, device: str | None = None) -> Lut:
    """Read and check a table; raises LutNotFound, LutCorrupt, and LutMismatch if it belongs to another device."""
    held = (CORRELATION, PREDICTOR, CHAINS)
    files = {name: _read(folder / name) for name in (ENTRIES, *(name for name in held if (folder / name).exists()))}
    table = _parse(folder, _read(folder / MANIFEST), files)
    if device is not None and table.device != device:
        step = f"Give --device {table.device}, or the table of {device}"
        raise LutMismatch(f"{folder} is the table of {table.device}, not of {device}", next_step=step)
    return table


def _parse(folder: Path, manifest_bytes: bytes, files: Mapping[str, bytes]) -> Lut:
    """Return the table that these files hold; raises LutCorrupt."""
    manifest = _parse_manifest(folder, manifest_bytes)
    digest = hashlib.sha256(manifest_bytes).hexdigest()[:8]
    if not folder.resolve().name.endswith(f"-{digest}"):
        raise _corrupt(folder, f"{MANIFEST} does not match the folder's name")
    hashes = _hashes(files)
    for name in sorted({*hashes, *manifest.sha256}):
        if hashes.get(name) != manifest.sha256.get(name):
            raise _corrupt(folder, f"{name} does not have the hash that {MANIFEST} states")
    try:
        entries = read_entries(files[ENTRIES])
    except ValueError as error:
        raise _corrupt(folder, f"{ENTRIES} {error}") from error
    if len(entries) != manifest.entries:
        raise _corrupt(folder, f"it holds {len(entries)} entries, {MANIFEST} states {manifest.entries}")
    correlations = files.get(CORRELATION, b"")
    try:
        if correlations:
            check(correlations, len(entries))
    except ValueError as error:
        raise _corrupt(folder, f"{CORRELATION}: {error}") from error
    try:
        chains = read_rows(files[CHAINS], {entry.place for entry in entries}) if CHAINS in files else ()
    except ValueError as error:
        raise _corrupt(folder, f"{CHAINS}: {error}") from error
    _check_overhead(folder, manifest.overhead)
    _check_rules(folder, manifest.rules)
    return Lut(
        path=folder,
        device=manifest.device,
        created=manifest.created,
        clock=manifest.clock,
        method=manifest.method,
        fingerprint=manifest.fingerprint,
        overhead=manifest.overhead,
        rules=manifest.rules,
        entries=entries,
        additivity=manifest.additivity,
        sum_error=manifest.sum_error,
        network_errors=manifest.network_errors,
        correlations=correlations,
        predictor=files.get(PREDICTOR, b""),
        chains=chains,
    )


def _check_overhead(folder: Path, overhead: Overhead) -> None:
    lengths = {len(overhead.covariance), *map(len, overhead.covariance)}
    if set(overhead.coefficients) != set(COLUMNS) or lengths != {len(COLUMNS)}:
        raise _corrupt(folder, "its overhead does not have the expected terms")
    if not set(overhead.least_squares) <= set(COLUMNS):
        raise _corrupt(folder, "its least-squares fit does not have the expected terms")
    if any(row[at] < 0 for at, row in enumerate(overhead.covariance)):
        raise _corrupt(folder, "its overhead has a negative variance")
    coefficients = [amount for one in overhead.coefficients.values() for amount in astuple(one)]
    amounts = [overhead.scatter, overhead.misfit, overhead.misfit_p, 1 - overhead.misfit_p, overhead.drift]
    if min(*coefficients, *amounts) < 0:
        raise _corrupt(folder, "its overhead has a number out of range")


def _check_rules(folder: Path, rules: Sequence[FusionRule]) -> None:
    for rule in rules:
        try:
            _ = rule.nodes
        except ValueError as error:
            raise _corrupt(folder, str(error)) from error
        if len(rule.pattern) > MAX_PATTERN or not 0 <= (rule.p_value or 0.0) <= 1:
            raise _corrupt(folder, "a fusion rule is out of range")


def _hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _manifest_json(lut: Lut, files: Mapping[str, bytes]) -> bytes:
    content = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": VERSION,
        **{name: getattr(lut, name) for name in ("device", "created", "clock", "method", "additivity", "sum_error")},
        "network_errors": dict(lut.network_errors),
        "fingerprint": dict(lut.fingerprint),
        "overhead": asdict(lut.overhead),
        "rules": [asdict(rule) for rule in lut.rules],
        "entries": len(lut.entries),
        "sha256": _hashes(files),
    }
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except FileNotFoundError as error:
        step = "Name the folder of a table; `harness lut check` lists them"
        raise LutNotFound(f"{path.parent} is not a table", why=f"It has no {path.name}", next_step=step) from error
    except OSError as error:
        raise _corrupt(path.parent, f"{path.name}: {error.strerror}") from error


def _corrupt(folder: Path, why: str) -> LutCorrupt:
    step = "Build a new table with `harness lut build`; tables are never edited"
    return LutCorrupt(f"The table {folder} was changed or damaged", why=why, next_step=step)


def _parse_manifest(folder: Path, content: bytes) -> _Manifest:
    try:
        return _Manifest.model_validate_json(content)
    except (ValueError, RecursionError) as error:
        detail = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else {"msg": str(error)}
        keys = ".".join(str(part) for part in detail.get("loc", ()))
        raise _corrupt(folder, f"{MANIFEST} {keys}: {detail['msg']}"[:300]) from error
