"""`harness lut list`, `lut prune` and `compare`, and the default device of a workspace."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Harness

from harness import RepeatPolicy, benchmark, build_lut, open_lut, profile, validate
from harness.lut.table_files import publish, read_lut

TIMES, ERRORS = ("latency_s", "remainder_s"), ("stderr_s", "remainder_stderr_s")


@pytest.fixture
def shelf(profiled: Harness, tmp_path: Path) -> Harness:
    """A copy of the profiled workspace with three more tables of its device, each a day older than the one before."""
    harness = Harness.in_folder(tmp_path / "shelf")
    shutil.copytree(profiled.workspace, harness.workspace, dirs_exist_ok=True)
    newest = read_lut(profiled.table, "null01")
    for day in (1, 2, 3):
        publish(replace(newest, created=f"2026-01-0{day}T00:00:00.000+00:00"), harness.workspace / "lut")
    return harness


def names(harness: Harness) -> list[str]:
    """The names of the listed tables of null01."""
    return [one["name"] for one in harness("lut", "list", "--device", "null01", "--json").data["tables"]]


def test_tables_are_listed_newest_first_and_one_is_the_default(shelf: Harness) -> None:
    """The list has every table once, with its entries, and marks the one that commands use."""
    tables = shelf("lut", "list", "--device", "null01", "--json").data["tables"]
    assert [one["created"] for one in tables] == sorted((one["created"] for one in tables), reverse=True)
    assert [one["default"] for one in tables] == [True, False, False, False]
    assert {one["entries"] for one in tables} == {3} and all(one["bytes"] > 0 for one in tables)
    assert not any(one["published"] for one in tables)
    shown = shelf("lut", "list", "--device", "null01").assert_ok().stdout
    assert shown.count("default") == 1 and all(one["name"] in shown for one in tables)


def test_tables_of_the_package_are_listed_and_never_removed(shelf: Harness, harness: Harness) -> None:
    """An empty workspace lists the published table of npu01 as the default; `lut prune` leaves it alone."""
    (only,) = harness("lut", "list", "--json").data["tables"]
    assert (only["device"], only["default"], only["published"]) == ("npu01", True, True)
    assert "package" in harness("lut", "list").assert_ok().stdout
    harness("lut", "prune", "--keep", "1", "--device", "npu01").assert_refused(3)
    assert shelf("lut", "prune", "--keep", "1", "--json").data["kept"] == 1
    assert {one["device"] for one in shelf("lut", "list", "--json").data["tables"]} == {"null01", "npu01"}


def test_pruning_keeps_the_newest_tables(shelf: Harness) -> None:
    """All but the N newest tables are removed; a dry run removes nothing and says the same."""
    before = names(shelf)
    planned = shelf("lut", "prune", "--keep", "2", "--dry-run", "--json").data
    assert planned["removed"] == before[2:] and names(shelf) == before
    done = shelf("lut", "prune", "--keep", "2", "--json").data
    assert done == {**planned, "dry_run": False}
    assert names(shelf) == before[:2]
    shelf("lut", "check").assert_ok()


def test_damaged_tables_are_left_alone(shelf: Harness) -> None:
    """A table whose manifest cannot be read is listed and not removed: `lut check` reports it."""
    damaged = names(shelf)[-1]
    (shelf.workspace / "lut" / damaged / "manifest.json").write_text("{")
    shelf("lut", "prune", "--keep", "1").assert_ok()
    assert damaged in names(shelf)


def test_pruning_says_what_it_needs(shelf: Harness) -> None:
    """Without a number, or for a device without tables, nothing is removed."""
    before = names(shelf)
    assert shelf("lut", "prune").code == 2
    shelf("lut", "prune", "--keep", "0").assert_refused(2)
    shelf("lut", "prune", "--keep", "1", "--device", "none").assert_refused(3, mentions=("none",))
    assert names(shelf) == before


def test_a_table_compared_with_itself_has_no_winner(shelf: Harness, small_network: Path) -> None:
    """Networks, layers and operators of equal tables have a ratio of one, and neither side is faster."""
    newest, oldest = names(shelf)[0], names(shelf)[-1]
    found = shelf("compare", newest, oldest, small_network, "--json").data
    assert [one["ratio"] for one in found["networks"]] == [1.0]
    assert {one["faster"] for one in (*found["networks"], *found["layers"])} == {"neither"}
    assert sum(one["layers"] for one in found["operators"]) == len(found["layers"]) == 3
    assert (found["only_a"], found["only_b"]) == (0, 0)


def test_the_faster_table_wins_where_it_is_faster(shelf: Harness, small_network: Path) -> None:
    """A table whose layers take half the time is faster on the network, on each layer and for each operator."""
    table = read_lut(shelf.workspace / "lut" / names(shelf)[0], "null01")
    for device, factor in (("null02", 1.0), ("null03", 0.5)):
        entries = [
            replace(one, **dict.fromkeys(TIMES, factor * one.latency_s), **dict.fromkeys(ERRORS, one.latency_s / 1000))
            for one in table.entries
        ]
        entries.append(replace(entries[0], context=f"{entries[0].context.partition('@')[0]}@00000000"))
        sure = {"entries": entries, "predictor": b"", "correlations": b"", "repeatability": 0.0, "sum_error": 0.0}
        publish(replace(table, device=device, **sure), shelf.workspace / "lut")
    found = shelf("compare", "null02", "null03", small_network, "--json").data
    assert {one["faster"] for one in found["layers"]} == {"b"}
    assert [one["ratio"] for one in found["layers"]] == pytest.approx([0.5] * 4)
    assert sum(one["b_faster"] for one in found["operators"]) == 4
    shown = shelf("compare", "null02", "null03", small_network).assert_ok().stdout
    assert "A: null02    B: null03" in shown and "A is faster on 0, B on 4" in shown
    wide = shelf("compare", "null02", "null03", small_network, "--wide").assert_ok().stdout
    examples = [one["example"] for one in found["layers"]]
    assert len({*examples}) == 3  # a layer in two contexts: once by default
    assert [text.count(entries[0].key) for text in (shown, wide)] == [0, 2]
    assert all(shown.count(f"{one} ") == 1 for one in examples)


def test_networks_of_both_tables_are_found_in_the_workspace(shelf: Harness, small_network: Path) -> None:
    """Without networks, those that both tables were measured with are compared if their files are there.

    What has the name of a network and cannot be read is passed over: nobody named it.
    """
    newest, oldest = names(shelf)[0], names(shelf)[-1]
    (shelf.workspace / "folder.onnx").mkdir()
    (shelf.workspace / "dangling.onnx").symlink_to("nowhere.onnx")
    shutil.copy(small_network, shelf.workspace / "mine.onnx")
    found = shelf("compare", newest, oldest, "--json").data
    assert len(found["networks"]) == 1 and found["unnamed"] == []


def test_uncovered_networks_end_the_comparison_with_their_exit_code(shelf: Harness) -> None:
    """A network with layers that a table lacks is listed, and the exit code is that of missing coverage."""
    newest = names(shelf)[0]
    found = shelf("compare", newest, newest, "builtin:dscnn", "--json")
    assert found.code == 6 and [one["ratio"] for one in found.json["networks"]] == [None]
    (network,) = found.json["networks"]
    lacking = network["a_unknown"]
    assert lacking == network["b_unknown"] and f"lacks {len(lacking)} layers of dscnn" in found.stderr
    assert newest in found.stderr and lacking[0] in found.stderr and "; B lacks" in found.stderr
    shelf("compare", newest, "null01/none").assert_refused(3, mentions=("null01/none",))


def test_a_workspace_names_the_device_of_those_that_name_none(shelf: Harness, small_network: Path) -> None:
    """`[defaults]` in harness.toml sets the device of commands and Python functions; other keys are refused."""
    settings = shelf.workspace / "harness.toml"
    settings.write_text('[defaults]\ndevice = "null01"\n')
    assert shelf("lut", "show", "--json").data["device"] == "null01"
    place = shelf.workspace
    policy = RepeatPolicy(runs=4)
    assert profile([small_network], workspace=place, policy=policy).device == "null01"
    assert build_lut(workspace=place).device == open_lut(workspace=place).device == "null01"
    assert validate([small_network], workspace=place, processes=1).device == "null01"
    assert benchmark([small_network], workspace=place, runs=2).device == "null01"
    settings.write_text('[defaults]\ncolour = "red"\n')
    shelf("lut", "show").assert_refused(3, mentions=("colour", "harness.toml"))
    settings.write_text('[defaults]\ndevice = "a b"\n')
    shelf("lut", "show").assert_refused(3, mentions=("defaults.device",))


def test_layers_are_sorted_and_cut_as_asked(shelf: Harness) -> None:
    """The table shows the first layers of the order, and JSON has the work of each layer."""
    found = shelf("lut", "show", "--device", "null01", "--json").data["entries"]
    assert all(one["moved_bytes"] > 0 for one in found)
    most = max(found, key=lambda one: one["macs"] or 0)
    shown = shelf("lut", "show", "--device", "null01", "--sort", "macs", "--top", "1", "--wide").assert_ok().stdout
    assert most["key"] in shown and "and 2 more layers" in shown
    assert not any(one["key"] in shown for one in found if one is not most and one["key"] != most["key"])


def test_a_small_table_does_not_hide_the_published_one(shelf: Harness) -> None:
    """Where a table of the workspace lacks layers that the published one has, the error names that one; it has them."""
    newest = read_lut(shelf.workspace / "lut" / names(shelf)[0], "null01")
    publish(replace(newest, device="npu01", predictor=b""), shelf.workspace / "lut")
    published = next(one["name"] for one in shelf("lut", "list", "--json").data["tables"] if one["published"])
    words = ("estimate", "builtin:squeezenet", "--device", "npu01")
    refused = shelf(*words)
    assert refused.code == 6 and f"next: Give --lut {published}" in refused.stderr
    assert f"Give --lut {published}" in shelf(*words, "--allow-partial").assert_ok().stderr
    named = shelf(*words, "--lut", published).assert_ok()
    assert published in named.stdout and "has no table" not in named.stderr
    assert "published" not in shelf("estimate", "builtin:dscnn", "--device", "null01").stderr
