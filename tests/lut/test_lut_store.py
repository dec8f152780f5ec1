"""Tables on disk: immutable, complete or absent, and refused after any change."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from harness.cli.app import main
from harness.errors import DamagedFileWarning, HarnessError, LutCorrupt, LutError, LutMismatch, LutNotFound
from harness.latency.method_names import COMPARISON_METHODS, METHODS, LatencyMethod
from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.table import Entry, Lut
from harness.lut.table_choice import latest_lut, open_table, table_folders
from harness.lut.table_files import ENTRIES, MANIFEST, publish, read_lut
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.probe.overhead_terms import LATER_TERMS

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=30)
CONTEXTS = st.lists(st.sampled_from(["outside", "map", "chip"]), min_size=1, max_size=3).map(",".join)
SECONDS = st.floats(1e-12, 1e4)
# Publishes tables of 1,000 entries until it is killed.
WRITER = """
import dataclasses, itertools, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_lut_store import entry, table
from harness.lut.table_files import publish
entries = [entry(f"layer {n}") for n in range(1000)]
for number in itertools.count():
    publish(table(entries, created=f"2026-01-01T00:00:00+00:00 {sys.argv[3]} {number}"), Path(sys.argv[1]))
    print("published", flush=True)
"""


def entry(signature: str, **changed: Any) -> Entry:
    """Return an entry of a layer with this signature."""
    key = hashlib.sha256(signature.encode()).hexdigest()[:16]
    plain = Entry(
        key, "chip", "Conv+Relu", 1.25e-4, 1e-6, 10, True, "cold", "", "", 1, "p", "", signature, 1.25e-4, 1e-6
    )
    return dataclasses.replace(plain, **changed)


def table(entries: list[Entry] | tuple[Entry, ...] = (), **changed: Any) -> Lut:
    """Return an unpublished table."""
    coefficients = {name: Coefficient(1e-9, 1e-11, 0.98e-9, 1.02e-9) for name in COLUMNS}
    covariance = tuple(tuple(1e-22 * (i == j) for j in range(len(COLUMNS))) for i in range(len(COLUMNS)))
    overhead = Overhead(coefficients, covariance, {"runs": 1e-4}, 0.99, 0.98, 12.0, 0.01, 25)
    plain = Lut(
        path=Path(),
        device="board",
        created="2026-01-02T03:04:05+00:00",
        clock="device",
        method="joint",
        fingerprint={"cpu": "x"},
        overhead=overhead,
        rules=DEFAULT_RULES,
        entries=tuple(entries),
    )
    return dataclasses.replace(plain, **changed)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Draw entries of different layers or contexts, with any text in them."""
    places = draw(st.lists(st.tuples(TEXT, CONTEXTS), unique=True, max_size=8))
    return [
        entry(
            signature,
            context=context,
            op=draw(TEXT),
            latency_s=draw(SECONDS),
            stderr_s=draw(st.one_of(st.just(0.0), SECONDS)),
            remainder_s=draw(st.one_of(SECONDS, SECONDS.map(lambda value: -value))),
            samples=draw(st.integers(1, 10**6)),
            resolved=draw(st.booleans()),
            probe=draw(TEXT),
            baseline=draw(TEXT),
        )
        for signature, context in places
    ]


@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(
    entries(),
    st.sampled_from(METHODS),
    st.sampled_from(["cpu", "wall", "device"]),
    st.dictionaries(TEXT, TEXT, max_size=3),
)
def test_what_is_published_is_read_back(
    rows: list[Entry], method: str, clock: str, fingerprint: dict[str, str]
) -> None:
    """Any entries, with commas, quotes and line ends in their texts, are read back to seven digits."""
    draft = table(rows, method=method, clock=clock, fingerprint=fingerprint)
    with tempfile.TemporaryDirectory() as root:
        published = publish(draft, Path(root))
        assert published == read_lut(published.path, "board")
    assert len(published.entries) == len(rows)
    for one, other in zip(published.entries, rows, strict=True):
        assert one.latency_s == pytest.approx(other.latency_s, rel=1e-6)
        assert one.stderr_s == pytest.approx(other.stderr_s, rel=1e-6)
        assert one.remainder_s == pytest.approx(other.remainder_s, rel=1e-6)
        times = {"latency_s": 1, "stderr_s": 1, "remainder_s": 1}
        assert dataclasses.replace(one, **times) == dataclasses.replace(other, **times)
    assert dataclasses.replace(published, path=draft.path, entries=draft.entries) == draft


def test_a_carriage_return_in_a_text_is_read_back(tmp_path: Path) -> None:
    """A lone carriage return, which some CSV writers leave unquoted, is read back."""
    rows = (entry("a\rb"), entry("c", op="d\re", baseline="\r"))
    assert publish(table(rows), tmp_path).entries == rows


def test_the_same_content_is_the_same_folder(tmp_path: Path) -> None:
    """Publishing twice gives one unchanged folder; other content gives another folder."""
    first = publish(table([entry("a")]), tmp_path)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in first.path.iterdir()}
    assert publish(table([entry("a")]), tmp_path).path == first.path
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in first.path.iterdir()} == before
    other = publish(table([entry("a", latency_s=2e-4)]), tmp_path)
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == sorted([first.path.name, other.path.name])
    assert set(before) == {ENTRIES, MANIFEST}


def test_the_folder_is_named_by_date_and_content(tmp_path: Path) -> None:
    """The folder is `<device>/<date>-<method>-<hash>`; the hash is that of the manifest, which has the entries'."""
    folder = publish(table([entry("a")]), tmp_path).path
    manifest = (folder / MANIFEST).read_bytes()
    assert folder == tmp_path / "board" / f"2026-01-02-joint-{hashlib.sha256(manifest).hexdigest()[:8]}"
    assert json.loads(manifest)["sha256"][ENTRIES] == hashlib.sha256((folder / ENTRIES).read_bytes()).hexdigest()
    assert json.loads(manifest)["schema_version"] == 6


def test_many_publish_the_same_content_at_once(tmp_path: Path) -> None:
    """Concurrent writers of the same table all succeed with one folder."""
    failures: list[BaseException] = []
    for number in range(25):
        draft = table([entry("a")], created=f"2026-01-02T00:00:{number:02}+00:00")
        barrier = threading.Barrier(6)

        def write(draft: Lut = draft, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                publish(draft, tmp_path)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(list((tmp_path / "board").iterdir())) == 25


def test_a_table_that_is_removed_meanwhile_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for the newest table finds it while another command removes an older one."""
    older, newer = (publish(table([entry("a")], created=f"2026-01-0{day}T00:00:00+00:00"), tmp_path) for day in (1, 2))

    def listed(root: Path, device: str) -> list[Path]:
        found = table_folders(root, device)
        shutil.rmtree(older.path)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("harness.lut.table_choice.table_folders", listed)
        assert latest_lut(tmp_path, "board") == newer.path


def test_a_killed_writer_leaves_no_half_table(tmp_path: Path) -> None:
    """After a kill at any moment, every table that readers see is complete."""
    draw, here = random.Random(os.urandom(8)), str(Path(__file__).parent)
    for attempt in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path), here, str(attempt)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "published\n"
            time.sleep(draw.uniform(0.0, 0.3))
            os.kill(writer.pid, signal.SIGKILL)
        folder = tmp_path / "board"
        seen = [path for path in folder.iterdir() if not path.name.startswith(".")]
        assert all(len(read_lut(path).entries) == 1000 for path in seen)
        assert latest_lut(tmp_path, "board") in seen


def test_half_written_tables_are_not_the_latest(tmp_path: Path) -> None:
    """A temporary folder of a killed writer is not a table, nor is anything else beside the tables."""
    aside = tmp_path / "board" / ".writing-abc"
    aside.mkdir(parents=True)
    (aside / ENTRIES).write_text("key")
    (aside / MANIFEST).write_text("{}")
    (tmp_path / "board" / "nothing").mkdir()
    (tmp_path / "board" / "README.txt").write_text("not a table")
    with pytest.raises(LutNotFound):
        latest_lut(tmp_path, "board")
    published = publish(table(), tmp_path)
    assert latest_lut(tmp_path, "board") == published.path


def test_a_newer_table_without_a_manifest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next older table is used, and a warning, in a command a line, names the one that lacks its manifest."""
    older = publish(table(created="2026-01-01T00:00:00+00:00"), tmp_path / "lut")
    newer = publish(table(created="2026-01-02T00:00:00+00:00"), tmp_path / "lut")
    (newer.path / MANIFEST).unlink()
    with pytest.warns(DamagedFileWarning, match=newer.path.name):
        assert latest_lut(tmp_path / "lut", "board") == older.path
    with pytest.raises(SystemExit) as end:
        main(["lut", "show", "--device", "board", "--json", "--workspace", str(tmp_path)])
    assert not end.value.code
    printed = capsys.readouterr()
    assert json.loads(printed.out)["lut"] == str(older.path)
    assert printed.err.count(f"{newer.path.name} is not used: it has no manifest.json") == 1


@pytest.mark.parametrize("method", COMPARISON_METHODS)
def test_a_table_of_a_comparison_method_is_only_used_by_name(tmp_path: Path, method: LatencyMethod) -> None:
    """It is never the latest, however new, and a device with no other table has none; its folder names the method."""
    compared = publish(table([entry("a")], method=method, created="2026-02-01T00:00:00+00:00"), tmp_path)
    assert compared.path.name.startswith(f"2026-02-01-{method}-") and read_lut(compared.path).method == method
    with pytest.raises(LutNotFound, match=rf"made for comparison, with --method {method}.*--lut"):
        latest_lut(tmp_path, "board")
    older = publish(table([entry("a")], created="2026-01-01T00:00:00+00:00"), tmp_path)
    assert latest_lut(tmp_path, "board") == older.path
    assert open_table(None, compared.path).is_comparison and not older.is_comparison


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_latest_table_is_the_one_created_last(tmp_path: Path, order: tuple[int, ...]) -> None:
    """The newest table is the last by its manifest, also within one day and whatever the file times."""
    times = ["2026-01-01T23:00:00+00:00", "2026-01-02T01:00:00+00:00", "2026-01-02T09:00:00+00:00"]
    folders = [publish(table([entry("a")], created=created), tmp_path).path for created in times]
    for moment, index in enumerate(order):
        for path in (folders[index], *folders[index].iterdir()):
            os.utime(path, (1_700_000_000 + moment, 1_700_000_000 + moment))
    assert latest_lut(tmp_path, "board") == folders[2]


def test_tables_of_other_devices_are_not_mixed_up(tmp_path: Path) -> None:
    """A table of another device is refused, and each device has its own latest table."""
    board, stick = publish(table(), tmp_path), publish(table(device="stick"), tmp_path)
    assert latest_lut(tmp_path, "stick") == stick.path
    with pytest.raises(LutMismatch, match="board"):
        read_lut(board.path, "stick")
    assert read_lut(board.path).device == "board"
    with pytest.raises(LutNotFound):
        latest_lut(tmp_path, "nobody")


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


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0, -1e-6])
def test_an_impossible_latency_is_never_published(tmp_path: Path, value: float) -> None:
    """A table that could not be read is not written, and leaves no folder behind."""
    with pytest.raises((HarnessError, ValueError)):
        publish(table([entry("a", latency_s=value)]), tmp_path)
    with pytest.raises(LutNotFound):
        latest_lut(tmp_path, "board")


def test_a_layer_is_found_in_its_context_or_else_in_another() -> None:
    """A layer is found in the first given context, else between on-chip neighbours, else in any."""
    chip, outside = entry("a", context="chip", latency_s=1.0), entry("a", context="outside", latency_s=2.0)
    lone = entry("b", context="outside")
    lut = table([outside, chip, lone])
    assert lut.find(chip.key, ["chip@00000000", "chip"]) == chip
    assert lut.find(chip.key, ["outside"]) == outside
    near = entry("a", context="chip@00000000", latency_s=3.0)
    assert table([outside, chip, near]).find(chip.key, ["chip@00000000", "chip"]) == near
    assert lut.find(chip.key, ["chip,chip"]) == chip
    assert lut.find(lone.key, ["chip"]) == lone
    assert lut.find("0" * 16, ["chip"]) is None


def test_the_interval_of_an_entry_is_never_negative() -> None:
    """The interval of an uncertain entry begins at zero."""
    assert entry("a", latency_s=1e-6, stderr_s=1e-5).interval_s[0] == 0.0
    low, high = entry("a", latency_s=1e-3, stderr_s=1e-5).interval_s
    assert (low, high) == pytest.approx((1e-3 - 1.96e-5, 1e-3 + 1.96e-5), rel=1e-4)


@pytest.mark.parametrize("lacking", [LATER_TERMS, ("input_pairs",)])
def test_terms_that_a_table_of_an_earlier_version_lacks_are_zero(tmp_path: Path, lacking: tuple[str, ...]) -> None:
    """A table without the later terms of the overhead is read, and they cost nothing."""
    folder = publish(table([entry("a")]), tmp_path).path
    manifest = json.loads((folder / MANIFEST).read_bytes())
    kept = len(COLUMNS) - len(lacking)
    overhead = manifest["overhead"]
    overhead["covariance"] = [row[:kept] for row in overhead["covariance"][:kept]]
    for name in lacking:
        del overhead["coefficients"][name]
    with (folder / ENTRIES).open(newline="") as text:
        found = read_lut(sign(folder, list(csv.DictReader(text)), manifest)).overhead
    assert found.of((1.0,) * len(COLUMNS)) == pytest.approx((kept * 1e-9, kept * 1e-22))


def test_a_table_is_read_once_until_a_file_of_it_changes(tmp_path: Path) -> None:
    """Opening a table again returns the same value; once a byte of a file differs, it is refused."""
    made = publish(table([entry("layer")]), tmp_path)
    (made.path / ".#entries.csv").symlink_to("an editor's lock")
    assert read_lut(made.path) is read_lut(made.path)
    file = made.path / ENTRIES
    file.write_bytes(file.read_bytes().replace(b"layer", b"lazer"))
    with pytest.raises(LutCorrupt):
        read_lut(made.path)
