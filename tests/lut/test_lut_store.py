"""Tables on disk: immutable, complete or absent, and refused after any change."""

import dataclasses
import hashlib
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
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings, strategies as st
from made_tables import entry, table

from harness.cli.app import main
from harness.errors import DamagedFileWarning, HarnessError, LutCorrupt, LutMismatch, LutNotFound
from harness.latency.method_names import COMPARISON_METHODS, METHODS, LatencyMethod
from harness.lut.table import Entry, Lut
from harness.lut.table_choice import latest_lut, open_table, table_folders
from harness.lut.table_files import ENTRIES, MANIFEST, publish, read_lut

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=30)
CONTEXTS = st.lists(st.sampled_from(["outside", "map", "chip"]), min_size=1, max_size=3).map(",".join)
SECONDS = st.floats(1e-12, 1e4)
# Publishes tables of 1,000 entries until it is killed.
WRITER = """
import dataclasses, itertools, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from made_tables import entry, table
from harness.lut.table_files import publish
entries = [entry(f"layer {n}") for n in range(1000)]
for number in itertools.count():
    publish(table(entries, created=f"2026-01-01T00:00:00+00:00 {sys.argv[3]} {number}"), Path(sys.argv[1]))
    print("published", flush=True)
"""


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


def test_a_table_is_read_once_until_a_file_of_it_changes(tmp_path: Path) -> None:
    """Opening a table again returns the same value; once a byte of a file differs, it is refused."""
    made = publish(table([entry("layer")]), tmp_path)
    (made.path / ".#entries.csv").symlink_to("an editor's lock")
    assert read_lut(made.path) is read_lut(made.path)
    file = made.path / ENTRIES
    file.write_bytes(file.read_bytes().replace(b"layer", b"lazer"))
    with pytest.raises(LutCorrupt):
        read_lut(made.path)
