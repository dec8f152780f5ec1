"""Tables on disk: an immutable folder, written under a temporary name and renamed; and entries for other tools.

A folder holds `entries.csv`, `manifest.json` with the sha256 of the other files, and, if the table has them,
`correlation.bin`, `predictor.bin` and `chains.csv`. The manifest's own digest ends the folder's name, so edits are
detected.
"""

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from harness.errors import LutCorrupt, LutError, LutMismatch, LutNotFound, UsageError, reason_of
from harness.files import may_hold, read_file, read_large, spreadsheet_cell, sync_folder, write_synced, write_whole
from harness.latency.overhead import COLUMNS, Overhead, complete
from harness.lut.chain_rows import read_rows, write_rows
from harness.lut.entry_rows import Content, entries_of, write_entries
from harness.lut.error_correlations import check
from harness.lut.table import MOST_S, Lut, TableMethod
from harness.network.fusion.fusion_rules import FusionRule
from harness.samples import Clock
from harness.strict_model import StrictModel
from harness.version import VERSION

SCHEMA_VERSION = 6
ENTRIES, MANIFEST, CHAINS = "entries.csv", "manifest.json", "chains.csv"
CORRELATION, PREDICTOR = "correlation.bin", "predictor.bin"
MAX_FILE_BYTES = 1 << 28
MAX_PATTERN = 1 << 18
"""Characters of a fusion rule."""
MAX_RULES = 2000
"""The most patterns of a table: each is searched in every network that is estimated."""
_Read = TypeVar("_Read")
_Amount = Annotated[float, Field(ge=0, le=MOST_S)]
FORMATS = (".csv", ".json", ".parquet")


class _Manifest(StrictModel):
    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: Literal[6]
    tool_version: str
    device: str
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT[0-9A-Za-z:.+ -]{8,40}$")]
    clock: Clock
    method: TableMethod
    additivity: _Amount | None
    sum_error: _Amount
    network_errors: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")], _Amount]
    fingerprint: dict[str, str]
    overhead: Overhead
    other_overhead: Overhead | None
    repeatability: _Amount
    machine: Annotated[str, Field(max_length=400)]
    reference_s: Annotated[float, Field(gt=0, le=MOST_S)] | None
    interruptions: _Amount
    rules: tuple[FusionRule, ...]
    entries: int
    sha256: dict[str, str]


_FACTS = tuple(
    name for name in _Manifest.model_fields if name not in ("schema_version", "tool_version", "entries", "sha256")
)
"""The facts that the manifest and the table name alike."""


def check_place(root: Path) -> None:
    """Raise LutError if no table can be written below `root`; building one takes a while."""
    if not may_hold(root):
        raise _unwritable(root, "This user may not write there, or a file is in the way")


def publish(lut: Lut, root: Path) -> Lut:
    """Write a table under `root/<device>/` and return it with its path; readers never see a part of it."""
    entries = write_entries(lut.entries)
    held = {CORRELATION: lut.correlations, PREDICTOR: lut.predictor, CHAINS: write_rows(lut.chains)}
    others = {name: content for name, content in held.items() if content}
    files = {ENTRIES: entries, **others}
    manifest = _manifest_json(lut, files)
    folder = root / lut.device / f"{lut.created[:10]}-{lut.method}-{hashlib.sha256(manifest).hexdigest()[:8]}"
    checked = _parse(folder, manifest, entries, others)
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
        raise _unwritable(folder, reason_of(error)) from error
    return checked


def _unwritable(folder: Path, why: str) -> LutError:
    step = "Check the disk and the permissions of the folder"
    return LutError(f"{folder} cannot be written", why=why, next_step=step)


def _rename(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not (folder / MANIFEST).is_file():  # else another writer published the same content
            raise


def read_lut(folder: Path, device: str | None = None) -> Lut:
    """Read and check a table; raises LutNotFound, LutCorrupt, and LutMismatch if it belongs to another device.

    The tables read last are held, so that a loop of estimates reads each once; a changed file is read again.
    """
    return of_device(_read_folder(folder, _file_states(folder)), device, str(folder))


def _file_states(folder: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Return what changes with any file of a table; None for one that is not there, which reading it reports."""
    return tuple(map(_state, (folder / name for name in (MANIFEST, ENTRIES, CORRELATION, PREDICTOR, CHAINS))))


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        at = path.stat()
    except OSError:
        return None
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns


@functools.lru_cache(maxsize=2)
def _read_folder(folder: Path, _states: tuple[tuple[int, ...] | None, ...]) -> Lut:
    held = (CORRELATION, PREDICTOR, CHAINS)
    entries = _read_part(folder / ENTRIES, read_large)
    others = {name: read_part(folder / name) for name in held if (folder / name).exists()}
    return _parse(folder, read_part(folder / MANIFEST), entries, others)


def of_device(table: Lut, device: str | None, name: str) -> Lut:
    """Return the table; raises LutMismatch, which names it, if it belongs to another device than this one."""
    if device is not None and table.device != device:
        step = f"Give --device {table.device}, or the table of {device}"
        raise LutMismatch(f"{name} is the table of {table.device}, not of {device}", next_step=step)
    return table


def _parse(folder: Path, manifest_bytes: bytes, rows: Content, files: Mapping[str, bytes]) -> Lut:
    """Return the table that these files hold, with the `rows` of its entries; raises LutCorrupt."""
    manifest = _parse_manifest(folder, manifest_bytes)
    digest = hashlib.sha256(manifest_bytes).hexdigest()[:8]
    if not os.path.realpath(folder).endswith(f"-{digest}"):  # unlike Path.resolve, it takes a loop of links
        raise _corrupt(folder, f"{MANIFEST} does not match the folder's name")
    hashes = _hashes({ENTRIES: rows, **files})
    for name in sorted({*hashes, *manifest.sha256}):
        if hashes.get(name) != manifest.sha256.get(name):
            raise _corrupt(folder, f"{name} does not have the hash that {MANIFEST} states")
    try:
        entries = entries_of(rows, hashes[ENTRIES])
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
    facts: dict[str, Any] = {name: getattr(manifest, name) for name in _FACTS}
    for name in ("overhead", "other_overhead"):
        if facts[name] is not None:
            facts[name] = complete(facts[name])
            _check_overhead(folder, facts[name])
    _check_rules(folder, manifest.rules)
    table = Lut(folder, entries=entries, correlations=correlations, predictor=files.get(PREDICTOR, b""), **facts)
    try:
        chains = read_rows(files[CHAINS], lambda place: table.at(*place) is not None) if CHAINS in files else ()
    except ValueError as error:
        raise _corrupt(folder, f"{CHAINS} {error}") from error
    return replace(table, chains=chains)


def _check_overhead(folder: Path, overhead: Overhead) -> None:
    lengths = {len(overhead.covariance), *map(len, overhead.covariance)}
    if set(overhead.coefficients) != set(COLUMNS) or lengths != {len(COLUMNS)}:
        raise _corrupt(folder, "its overhead does not have the expected terms")
    if not set(overhead.least_squares) <= set(COLUMNS):
        raise _corrupt(folder, "its least-squares fit does not have the expected terms")
    if any(row[at] < 0 for at, row in enumerate(overhead.covariance)):
        raise _corrupt(folder, "its overhead has a negative variance")
    coefficients = [one.stderr for one in overhead.coefficients.values()]
    if overhead.model != "plain":  # nothing bounds plain least squares
        coefficients += [amount for one in overhead.coefficients.values() for amount in astuple(one)]
    amounts = [overhead.scatter, overhead.misfit, overhead.misfit_p, 1 - overhead.misfit_p, overhead.drift]
    numbers = [number for one in overhead.coefficients.values() for number in astuple(one)]
    squares = [abs(number) for row in overhead.covariance for number in row]
    if min(*coefficients, *amounts) < 0 or max(*map(abs, numbers), *amounts) > MOST_S or max(squares) > MOST_S**2:
        raise _corrupt(folder, "its overhead has a number out of range")


def _check_rules(folder: Path, rules: Sequence[FusionRule]) -> None:
    patterns = {rule.pattern for rule in rules}
    if len(patterns) < len(rules):
        raise _corrupt(folder, "it has a fusion rule twice")
    if sum(1 for rule in rules if rule.exact_groups is None) > MAX_RULES:
        raise _corrupt(folder, f"it has more than {MAX_RULES:,} fusion rules")
    for rule in rules:
        try:
            _ = rule.nodes
        except ValueError as error:
            raise _corrupt(folder, str(error)) from error
        if len(rule.pattern) > MAX_PATTERN or not 0 <= (rule.p_value or 0.0) <= 1:
            raise _corrupt(folder, "a fusion rule is out of range")


def _hashes(files: Mapping[str, Content]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _manifest_json(lut: Lut, files: Mapping[str, Content]) -> bytes:
    content = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": VERSION,
        **{name: _plain(getattr(lut, name)) for name in _FACTS},
        "entries": len(lut.entries),
        "sha256": _hashes(files),
    }
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Return a fact of a table as JSON data."""
    if isinstance(value, Overhead | FusionRule):
        return asdict(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def read_part(path: Path) -> bytes:
    """Return a file of a table; raises LutNotFound and LutCorrupt."""
    return _read_part(path, read_file)


def _read_part(path: Path, read: Callable[[Path, int], _Read]) -> _Read:
    try:
        return read(path, MAX_FILE_BYTES)
    except FileNotFoundError as error:
        step = "Name the folder of a table; `harness lut list` lists them"
        why = f"It has no {path.name}" if path.parent.is_dir() else "There is no such folder"
        raise LutNotFound(f"{path.parent} is not a table", why=why, next_step=step) from error
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
        if keys == "schema_version":
            what = f"The table {folder} is of another version of harness"
            why = f"It does not have schema {SCHEMA_VERSION}"
            step = "Build it again with `harness lut build`, or use the version that built it"
            raise LutCorrupt(what, why=why, next_step=step) from error
        raise _corrupt(folder, f"{MANIFEST} {keys}: {detail['msg']}"[:300]) from error


def export_entries(table: Lut, path: Path) -> None:
    """Write the entries for other tools; the file name's ending selects CSV, JSON (a list of records) or Parquet.

    pandas cannot write Parquet without pyarrow: raises UsageError, which names the extra.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"{path} has an unknown ending", next_step=f"Choose from {', '.join(FORMATS)}")
    frame = table.to_pandas()
    try:
        if path.suffix == ".csv":
            content = frame.map(spreadsheet_cell).to_csv(index=False).encode()
        elif path.suffix == ".json":
            content = (json.dumps(frame.to_dict("records"), indent=1) + "\n").encode()
        else:
            content = frame.to_parquet(index=False)
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow", next_step="pip install 'harness[parquet]'") from error
    write_whole(path, content)
