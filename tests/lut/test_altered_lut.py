"""Tables that were changed, cut short or forged are refused, and tables of other versions are named."""

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_tables import entry, table

from harness.errors import LutCorrupt, LutError
from harness.latency.overhead import COLUMNS
from harness.lut.table_files import ENTRIES, MANIFEST, publish, read_lut


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a change of one file that leaves the hashes unchanged."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(edit(ENTRIES, lambda text: text.replace(b"1.250000e-04", b"1.150000e-04")), id="a latency"),
        pytest.param(edit(ENTRIES, lambda text: text[: len(text) // 2]), id="entries cut short"),
        pytest.param(edit(ENTRIES, lambda _: b""), id="entries emptied"),
        pytest.param(edit(ENTRIES, lambda text: text.replace(b"\n", b"\r\n")), id="line ends"),
        pytest.param(edit(ENTRIES, lambda text: b"\xef\xbb\xbf" + text), id="byte order mark"),
        pytest.param(edit(ENTRIES, lambda text: b"".join(text.splitlines(True)[:-1])), id="an entry removed"),
        pytest.param(edit(ENTRIES, lambda text: text.replace(b'"cold"', b'"warm"')), id="the visit policy"),
        pytest.param(edit(ENTRIES, lambda text: text + text.splitlines(True)[-1]), id="an entry appended"),
        pytest.param(edit(MANIFEST, lambda text: text + b" "), id="a space"),
        pytest.param(edit(MANIFEST, lambda text: b"\xef\xbb\xbf" + text), id="manifest with byte order mark"),
        pytest.param(edit(MANIFEST, lambda text: text.replace(b"\n", b"\r\n")), id="line ends of the manifest"),
        pytest.param(edit(MANIFEST, lambda _: b""), id="manifest emptied"),
        pytest.param(edit(MANIFEST, lambda text: text[:-20]), id="manifest cut short"),
        pytest.param(edit(MANIFEST, lambda _: b"[" * 100_000), id="manifest nested"),
        pytest.param(edit(MANIFEST, lambda _: b"\xff\xfe"), id="manifest no text"),
        pytest.param(lambda folder: folder.rename(folder.with_name("2026-01-02-00000000")), id="renamed"),
    ],
)
def test_a_table_that_was_changed_is_corrupt(tmp_path: Path, tamper: Callable[[Path], Any]) -> None:
    """A table with any byte changed in a file, or another folder name, is refused."""
    published = publish(table([entry("a"), entry("b")]), tmp_path).path
    tamper(published)
    (folder,) = (tmp_path / "board").iterdir()
    with pytest.raises(LutCorrupt):
        read_lut(folder)


@pytest.mark.parametrize("name", [ENTRIES, MANIFEST])
def test_a_table_without_one_of_its_files_is_refused(tmp_path: Path, name: str) -> None:
    """A table without one of its files is refused with a LutError."""
    folder = publish(table([entry("a")]), tmp_path).path
    (folder / name).unlink()
    with pytest.raises(LutError):
        read_lut(folder)


def sign(folder: Path, rows: list[dict[str, Any]], manifest: dict[str, Any]) -> Path:
    """Write a table whose hashes match its content, as a forger would."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    manifest["sha256"] = {ENTRIES: hashlib.sha256(text.getvalue().encode()).hexdigest()}
    content = json.dumps(manifest).encode()
    target = folder.with_name(f"2026-01-02-{hashlib.sha256(content).hexdigest()[:8]}")
    shutil.rmtree(folder)
    target.mkdir()
    (target / ENTRIES).write_text(text.getvalue())
    (target / MANIFEST).write_bytes(content)
    return target


def nested(manifest: dict[str, Any], *path: Any) -> None:
    """Set the value at a path of keys; the last item is the value, or `...` to remove it."""
    *keys, last, value = path
    for key in keys:
        manifest = manifest[key]
    if value is ...:
        del manifest[last]
    else:
        manifest[last] = value


BAD_VALUES = {
    "latency_s": ["nan", "inf", "-1e-4", "0", "", "1 ms", "1_0", "1e400", "0x1p-3", "True"],
    "stderr_s": ["-1", "nan", "inf", "", "1e400"],
    "remainder_s": ["nan", "inf", ""],
    "remainder_stderr_s": ["-1", "nan"],
    "samples": ["0", "1.5", "1_0", "many"],
    "campaign": ["-1", str(2**70)],
    "resolved": ["2"],
    "op": [""],
    "context": ["moon"],
    "key": ["0123456789abcdef", "01", "../../etc"],
    "signature": ["another layer"],
}


BAD_ROWS = [(field, value) for field, values in BAD_VALUES.items() for value in values]


BAD_MANIFESTS = [
    ("schema_version", 1),
    ("created", "2026-01-01T00:00:00+00:00" + "0" * 99),
    ("created", "../../etc"),
    ("schema_version", "2"),
    ("schema_version", ...),
    ("overhead", ...),
    ("entries", 3),
    ("entries", True),
    ("clock", "sundial"),
    ("method", "guess"),
    ("extra", 1),
    ("overhead", "extra", 1.0),
    ("overhead", "r2", float("nan")),
    ("overhead", "coefficients", {}),
    *(("overhead", "coefficients", "runs", "value", bad) for bad in (float("inf"), float("nan"), -1e-3, "1", True)),
    ("overhead", "coefficients", "runs", "stderr", -1.0),
    ("overhead", "covariance", [[1.0]]),
    ("overhead", "covariance", 0, [1.0]),
    ("overhead", "covariance", [[-1.0 * (row == at) for row in COLUMNS] for at in COLUMNS]),
    ("overhead", "scatter", -1.0),
    ("network_errors", {"0123456789abcdef": -1.0}),
    ("network_errors", {"another": 0.1}),
    ("overhead", "misfit_p", 1.5),
    *(("rules", 0, "pattern", bad) for bad in ("Conv(9)", "((((", "Conv(x0);Relu(7)")),
    ("rules", 0, "p_value", 2.0),
    ("fingerprint", ["cpu"]),
    ("device", None),
]


@pytest.mark.parametrize(("field", "value"), BAD_ROWS)
def test_impossible_values_are_corrupt_even_when_signed(tmp_path: Path, field: str, value: str) -> None:
    """A row with an impossible value is refused even if all hashes match."""
    folder = publish(table([entry("a"), entry("b")]), tmp_path).path
    with (folder / ENTRIES).open(newline="") as text:
        rows = list(csv.DictReader(text))
    rows[1][field] = value
    with pytest.raises(LutCorrupt):
        read_lut(sign(folder, rows, json.loads((folder / MANIFEST).read_bytes())))


@pytest.mark.parametrize("change", BAD_MANIFESTS, ids=str)
def test_impossible_manifests_are_corrupt_even_when_signed(tmp_path: Path, change: tuple[Any, ...]) -> None:
    """A manifest with another schema, wrong types, impossible numbers or missing terms is refused."""
    folder = publish(table([entry("a"), entry("b")]), tmp_path).path
    manifest = json.loads((folder / MANIFEST).read_bytes())
    nested(manifest, *change)
    with (folder / ENTRIES).open(newline="") as text:
        rows = list(csv.DictReader(text))
    with pytest.raises(LutCorrupt):
        read_lut(sign(folder, rows, manifest))


@pytest.mark.parametrize("version", [5, 7])
def test_a_table_of_another_version_is_named_as_such(version: int, tmp_path: Path) -> None:
    """A table with an earlier or later schema is called one of another version, not a damaged one."""
    folder = publish(table([entry("a")]), tmp_path).path
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "schema_version": version}))
    with pytest.raises(LutCorrupt, match=r"of another version of harness.*harness lut build"):
        read_lut(folder)


def test_a_signed_table_with_a_layer_twice_is_corrupt(tmp_path: Path) -> None:
    """A table with two entries for one layer and context is refused."""
    folder = publish(table([entry("a"), entry("b")]), tmp_path).path
    with (folder / ENTRIES).open(newline="") as text:
        rows = list(csv.DictReader(text))
    with pytest.raises(LutCorrupt, match="occurs twice"):
        read_lut(sign(folder, [rows[0], rows[0]], json.loads((folder / MANIFEST).read_bytes())))
