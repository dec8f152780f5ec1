"""Tables that were edited, damaged, forged or made for another device, and layers that no table holds."""

import csv
import dataclasses
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Harness, Outcome
from system_networks import convolutions, save, single

Rows = list[dict[str, str]]


@pytest.fixture
def table(profiled: Harness, tmp_path: Path) -> Path:
    """A copy of the table, to be damaged."""
    copy = tmp_path / "tables" / profiled.table.name
    shutil.copytree(profiled.table, copy)
    return copy


def _use(harness: Harness, table: Path, network: Path, *extra: str) -> Outcome:
    return harness("estimate", network, "--lut", table, *extra, memory_bytes=6 << 30)


def _edit(table: Path) -> None:
    content = (table / "entries.csv").read_bytes()
    assert b"e-" in content
    (table / "entries.csv").write_bytes(content.replace(b"e-", b"e-1"))


def test_a_damaged_table_is_refused_by_any_process(unchanged: Harness, table: Path, small_network: Path) -> None:
    """A damaged table is named with exit 3, by a command in a process of its own with the same words as in this one."""
    (table / "manifest.json").write_bytes(b"[" * 100_000)
    refused = unchanged.assert_processes_agree("estimate", small_network, "--lut", table)
    refused.assert_refused(3, mentions=(table.name,))


def test_check_finds_damage_in_the_workspace(harness: Harness, profiled: Harness) -> None:
    """`lut check` passes a published table, and names an edited one with exit 3."""
    shutil.copytree(profiled.workspace / "lut", harness.workspace / "lut")
    harness("lut", "check").assert_ok()
    _edit(harness.table)
    outcome = harness("lut", "check")
    outcome.assert_plain()
    assert outcome.code == 3, str(outcome)
    assert harness.table.name in outcome.stdout + outcome.stderr


def test_show_export_diff_and_validate_refuse_damage(unchanged: Harness, table: Path, small_network: Path) -> None:
    """Every command that reads a table refuses an edited one."""
    _edit(table)
    written = table.parent / "out.csv"
    unchanged("lut", "show", table).assert_refused(3)
    unchanged("lut", "export", written, "--lut", table).assert_refused(3)
    unchanged("lut", "diff", unchanged.table, table).assert_refused(3)
    unchanged("validate", small_network, "--device", "null01", "--lut", table).assert_refused(3)
    assert not written.exists()


def test_linked_folder_is_the_table(unchanged: Harness, table: Path, small_network: Path) -> None:
    """A link to a table is that table."""
    link = table.with_name("newest")
    link.symlink_to(table)
    _use(unchanged, link, small_network).assert_ok()


@pytest.mark.parametrize("place", ["nowhere", "/dev/null", "/", "no\x1b[31mwhere", "n" * 5000, "nul\udcff"])
def test_what_is_no_table_is_refused(place: str, unchanged: Harness, small_network: Path) -> None:
    """`--lut` with a path that is no table is refused."""
    _use(unchanged, Path(place), small_network).assert_refused(2, 3)


def test_other_devices_table_is_refused(unchanged: Harness, table: Path, small_network: Path) -> None:
    """The table of one device answers for no other, and the error names both."""
    outcome = _use(unchanged, table, small_network, "--device", "cpu01")
    outcome.assert_refused(3, mentions=("null01", "cpu01"))
    unchanged("validate", small_network, "--device", "cpu01", "--lut", table).assert_refused(3, mentions=("null01",))


def test_table_filed_under_another_device_is_refused(harness: Harness, profiled: Harness, small_network: Path) -> None:
    """A table that was moved to another device's folder is not used for that device."""
    shutil.copytree(profiled.workspace / "lut" / "null01", harness.workspace / "lut" / "cpu01")
    harness("estimate", small_network, "--device", "cpu01").assert_refused(3, mentions=("null01", "cpu01"))


# Tables whose hashes are right and whose content is not ---------------------------------------------------------


def _sign(table: Path) -> Path:
    """Makes hashes and folder name fit the content again, as a forger would."""
    manifest = json.loads((table / "manifest.json").read_bytes())
    parts = [path for path in table.iterdir() if path.name != "manifest.json"]
    manifest["sha256"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in parts}
    content = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    (table / "manifest.json").write_bytes(content)
    return table.rename(table.with_name(f"{table.name[:10]}-{hashlib.sha256(content).hexdigest()[:8]}"))


def _forge_entries(table: Path, change: Callable[[Rows], None]) -> Path:
    with (table / "entries.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0])
    change(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (table / "entries.csv").write_bytes(text.getvalue().encode())
    return _forge_manifest(table, lambda manifest: manifest.update(entries=len(rows)))


def _forge_manifest(table: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    manifest = json.loads((table / "manifest.json").read_bytes())
    change(manifest)
    (table / "manifest.json").write_text(json.dumps(manifest))
    return _sign(table)


def _set(column: str, text: str) -> Callable[[Rows], None]:
    return lambda rows: rows[0].update({column: text})


@pytest.mark.parametrize("text", ["\x1b[31mred\x07", "<script>alert('x')</script>", "=1+1", "a\nb", "\u202ex"])
def test_text_of_a_table_reaches_nothing_raw(text: str, unchanged: Harness, table: Path, small_network: Path) -> None:
    """Text in a foreign table reaches no terminal, sheet or page raw."""

    def change(manifest: dict[str, Any]) -> None:
        manifest.update(created=f"{manifest['created'][:10]}{text}", visit=text, tool_version=text)
        manifest["fingerprint"] = {**manifest["fingerprint"], "cpu": text, text: text}

    forged = _forge_manifest(_forge_entries(table, _set("op", text)), change)
    page, sheet = table.parent / "page.html", table.parent / "sheet.csv"
    outcome = unchanged("lut", "show", forged)
    outcome.assert_plain()
    assert outcome.code in (0, 3), str(outcome)
    shown = unchanged("estimate", small_network, "--lut", forged, "--layers", "--html", page, "--csv", sheet)
    shown.assert_plain()
    assert shown.code in (0, 3), str(shown)
    exported = unchanged("lut", "export", table.parent / "export.csv", "--lut", forged)
    exported.assert_plain()
    for path in (sheet, table.parent / "export.csv"):
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                for cell in (cell for row in csv.reader(file) for cell in row):
                    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), f"{cell[:50]!r} is a formula"
                    assert cell.isprintable(), f"{cell[:50]!r} holds control characters"
    if page.exists():
        assert "<script>alert('x')" not in page.read_text(encoding="utf-8")


def test_names_of_folders_and_devices_reach_no_terminal_raw(unchanged: Harness, table: Path) -> None:
    """A table in a folder with control characters in its name, of a device with such a name, is shown without them."""
    text = "a\x1b]0;title\x07\x1b[31mred\u202e"
    forged = _forge_manifest(table, lambda manifest: manifest.update(device=text))
    folder = forged.parent / text
    folder.mkdir()
    inside = forged.rename(folder / forged.name)
    written = folder / "layers.csv"
    unchanged("lut", "check", inside).assert_ok()
    unchanged("lut", "show", inside).assert_ok()
    unchanged("lut", "diff", inside, inside).assert_ok()
    unchanged("lut", "export", written, "--lut", inside).assert_ok()
    assert written.exists()
    unchanged("lut", "export", written, "--lut", inside, "--device", "null01").assert_refused(3)
    _edit(inside)
    unchanged("lut", "check", inside).assert_refused(3)
    unchanged("lut", "show", folder).assert_refused(3)
    unchanged("lut", "check", "--workspace", folder).assert_refused(3)


@pytest.mark.parametrize("device", ["../../evil", "..", "/tmp", "null01\x1b[31m", ""])
def test_device_of_a_table_is_no_path(device: str, unchanged: Harness, table: Path, small_network: Path) -> None:
    """The device that a foreign table names is neither a path nor printed raw."""
    forged = _forge_manifest(table, lambda manifest: manifest.update(device=device))
    outcome = unchanged("estimate", small_network, "--lut", forged, "--json")
    outcome.assert_plain()
    assert outcome.code in (0, 3), str(outcome)
    unchanged("estimate", small_network, "--lut", forged, "--device", "null01").assert_refused(3)


# Layers that the table does not hold -----------------------------------------------------------------------------


def test_unknown_layer_is_listed(unchanged: Harness, tmp_path: Path) -> None:
    """A network with layers outside the table ends with exit 6, and each of them is listed by name."""
    network = save(convolutions(names=["one", "r1", "two", "r2", "three"], size=20), tmp_path / "other.onnx")
    outcome = unchanged("estimate", network, "--device", "null01")
    outcome.assert_plain()
    assert outcome.code == 6, str(outcome)
    for name in ("one", "two", "three", "--allow-partial"):
        assert name in outcome.stderr, str(outcome)


def test_partial_estimate_is_marked(unchanged: Harness, tmp_path: Path) -> None:
    """With --allow-partial the latency is null, the covered latency positive, and unknown layers carry null."""
    built = convolutions()
    built.graph.node.append(single("Tanh", [1, 48, 8, 8]).graph.node[0])
    built.graph.node[-1].input[0], built.graph.node[-1].output[0] = "y", "z"
    built.graph.output[0].name = "z"
    network = save(built, tmp_path / "other.onnx")
    (found,) = (
        unchanged("estimate", network, "--device", "null01", "--allow-partial", "--json").assert_ok().json["networks"]
    )
    assert found["latency_s"] is None and found["interval_s"] is None
    assert found["covered_latency_s"] > 0
    assert found["coverage"]["measured"] == 3 and found["coverage"]["unknown"] == 1
    unknown = [layer for layer in found["layers"] if layer["source"] == "unknown"]
    assert [layer["latency_s"] for layer in unknown] == [None]
    refused = unchanged("estimate", network, "--device", "null01", "--json")
    assert refused.code == 6 and refused.json["networks"][0]["latency_s"] is None


def test_unknown_layers_are_not_validated(unchanged: Harness, tmp_path: Path) -> None:
    """Validation of a network that the table does not cover ends with exit 6 and not with a made-up error."""
    network = save(convolutions(size=20), tmp_path / "other.onnx")
    outcome = unchanged("validate", network, "--device", "null01")
    outcome.assert_plain()
    assert outcome.code == 6, str(outcome)


def test_two_workspaces_do_not_mix(harness: Harness, profiled: Harness, small_network: Path) -> None:
    """The tables of one workspace are not seen from another."""
    outcome = harness("estimate", small_network, "--device", "null01")
    outcome.assert_refused(3, mentions=("null01", "harness profile"))
    other = dataclasses.replace(harness, workspace=profiled.workspace)
    other("estimate", small_network, "--device", "null01").assert_ok()
