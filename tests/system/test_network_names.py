"""Hostile names of networks, nodes and files: they reach no terminal, sheet or page raw."""

import csv
import html.parser
import os
from pathlib import Path

import pytest
from command_line import Harness
from onnx import ModelProto
from system_networks import chain, convolutions, save, single

BELL = "\x1b[31m\x07red\x9b2J"
NAMES = {
    "slash": "a/b/c",
    "parent": "../../../../tmp/evil",
    "newline": "line\nerror: forged\r\n",
    "escape": BELL,
    "bidi": "\u202egnp.exe",
    "html": "<script>alert('x')</script><img src=x onerror=alert(1)>\"&amp;",
    "formula": '=HYPERLINK("http://evil","x")',
    "plus": "+1+cmd|' /C calc'!A0",
    "tabbed formula": "\t=1+1",
    "quote": '"a","b"\n"c"',
    "percent": "%s%n{0}{name}",
    "markup": "[red]x[/red][/]",
    "long": "n" * 10_000,
    "semicolon": "x;y:z|k1",
    "dot axis": "x.0",
    "nul": "a\0b",
    "emoji": "🦆 ü",
}


class _Tags(html.parser.HTMLParser):
    """Collects what a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[str] = []
        self.inline: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        if tag == "img" or any(name.startswith("on") for name, _ in attrs):
            self.images.append(tag)

    def handle_data(self, data: str) -> None:
        if self._script:
            self.inline.append(data)
        self._script = False


def _assert_report_harmless(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert not tags.images, f"{tags.images} in the report"
    assert not [script for script in tags.inline if script.strip() == "alert('x')"], "a name became a script"
    assert not any(ord(character) < 32 and character not in "\n\t\r" for character in text.split("<script")[0])


def _assert_sheet_harmless(sheet: Path, rows: int) -> None:
    with sheet.open(newline="", encoding="utf-8") as file:
        found = list(csv.reader(file))
    assert len(found) == 1 + rows
    for cell in (cell for row in found for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), f"{cell[:60]!r} is a formula"
        assert "\x1b" not in cell and "\0" not in cell and "\x07" not in cell, f"{cell[:60]!r} holds control characters"


def _named(name: str) -> ModelProto:
    """Return a network that has the name in every place."""
    names = [name, f"r{name}", name, name, f"p{name}"]
    built = convolutions(x=f"{name}x", a=f"{name}a", y=f"{name}y", w1=f"{name}w", names=names)
    built.graph.name = built.doc_string = built.producer_name = name
    return built


def test_names_reach_nothing_raw(unchanged: Harness, tmp_path: Path) -> None:
    """Networks with hostile names in their files, and of their files, are estimated; none is shown raw anywhere.

    Neither a terminal nor a sheet nor a page holds a name that does something.
    """
    files = {"newline", "escape", "bidi", "html", "formula", "tabbed formula", "quote", "markup"}
    networks = [
        save(_named(name), tmp_path / f"{name.replace('/', '_') if case in files else at}.onnx")
        for at, (case, name) in enumerate(NAMES.items())
    ]
    page, sheet = tmp_path / "page.html", tmp_path / "sheet.csv"
    words = ("estimate", *networks, "--device", "null01", "--layers", "--html", page, "--csv", sheet)
    outcome = unchanged(*words).assert_ok()
    _assert_report_harmless(page)
    _assert_sheet_harmless(sheet, rows=3 * len(NAMES))
    assert "\nerror: forged" not in outcome.stdout + outcome.stderr


def test_file_name_that_is_not_text_works(unchanged: Harness, tmp_path: Path) -> None:
    """A file name that is not valid UTF-8 is estimated, in text, JSON, CSV and HTML."""
    network = save(convolutions(), Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.onnx")))
    page, sheet = tmp_path / "page.html", tmp_path / "sheet.csv"
    unchanged("estimate", network, "--device", "null01", "--html", page, "--csv", sheet, "--layers").assert_ok()
    assert unchanged("estimate", network, "--device", "null01", "--json").assert_ok().json["networks"]


@pytest.mark.parametrize("case", ["escape", "formula", "long"])
def test_names_survive_a_campaign(case: str, harness: Harness, tmp_path: Path) -> None:
    """A network whose names are hostile is profiled, built into a table, shown and exported, and nothing leaks."""
    name = NAMES[case]
    built = convolutions(x=f"{name}x", a=f"{name}a", y=f"{name}y", w1=f"{name}w", names=[name] * 5)
    network = save(built, tmp_path / "net.onnx")
    before = sorted(path.name for path in tmp_path.iterdir())
    outcome = harness("profile", network, "--device", "null01", "--runs", "3")
    if outcome.code != 0:
        outcome.assert_refused(3)
        return
    outcome.assert_ok()
    harness("lut", "build", "--device", "null01").assert_ok()
    harness("lut", "show", "--device", "null01").assert_ok()
    harness("lut", "export", tmp_path / "export.csv", "--device", "null01").assert_ok()
    _assert_sheet_harmless(harness.table / "entries.csv", rows=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "export.csv"])


def test_long_names_are_cut_in_messages(unchanged: Harness, tmp_path: Path) -> None:
    """An error about a node of a very long name stays readable."""
    long = "n" * 10_000
    network = save(chain(("Frobnicate", ["x"], ["y"])), tmp_path / "net.onnx")
    changed = single("Frobnicate", [1, 8])
    changed.graph.node[0].name = changed.graph.node[0].op_type = long
    save(changed, network)
    outcome = unchanged("estimate", network, "--device", "null01").assert_refused(3)
    assert len(outcome.stderr) < 2000


@pytest.mark.parametrize("case", ["escape", "newline", "bidi"])
def test_names_in_errors_are_cleaned(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """Names that reach an error message arrive on its line and without control characters."""
    name = NAMES[case]
    for built in (single(f"Op{name}", [1, 8]), convolutions(batch=f"b{name}"), chain(("Add", ["x", name], ["y"]))):
        network = save(built, tmp_path / "net.onnx")
        unchanged("estimate", network, "--device", "null01").assert_refused(3)
    missing = tmp_path / f"no{name}.onnx"
    unchanged("estimate", missing, "--device", "null01").assert_refused(3)
