"""The documentation names nothing that does not exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
_NAMED = re.compile(r"`([a-z_/]*test_\w+\.py)?::(test_\w+)`")
_TEST_FILE = re.compile(r"`((?:tests/)?[a-z_/]*test_\w+\.py)`")
_TEST_NAME = re.compile(r"`(test_\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
_HEADERS = {"header", "head", "_HEADER", "_SUMMARY", "_GROUPS"}
_LISTS = ("bullet_list_open", "ordered_list_open")
_MODULE = re.compile(r"`((?:harness|device_agents|benchmarks|tests|fuzz)/[\w/]*(?:\.\w+)?)`")


def _tests() -> dict[str, set[str]]:
    """The names of all test functions by file, with the path below tests/."""
    return {
        str(path.relative_to(ROOT / "tests")): set(re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")))
        for path in (ROOT / "tests").rglob("test_*.py")
    }


def test_every_test_that_security_names_exists() -> None:
    """Each `path::name` of the pages on security is a test of that file; `::name` is in the file named before it."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("security.md", "hostile_input.md")]
    rows = [row for page in pages for row in page.splitlines() if row.startswith("| ")]
    found, tests = 0, _tests()
    for row in rows:
        path = ""
        for named, test in _NAMED.findall(row):
            path = named or path
            assert test in tests[path], f"{path}::{test}"
            found += 1
    assert found > 30


def test_every_defence_has_a_test_or_a_rule() -> None:
    """No row of the table of defences is without a test."""
    text = (ROOT / "docs" / "security.md").read_text()
    table = text.partition("| defence | shown by |")[2].partition("\n\n")[0]
    rows = table.strip().splitlines()[1:]
    assert len(rows) > 20
    assert all(_NAMED.search(row) for row in rows)


def test_every_requirement_resolves_to_tests() -> None:
    """Each row of docs/requirements.md names a test file, and every file and test that the page names exists."""
    text = (ROOT / "docs" / "requirements.md").read_text()
    tests = _tests()
    by_basename = {Path(path).name: names for path, names in tests.items()}
    rows = [row for row in text.splitlines() if re.match(r"\| S\d\.\d+ \|", row)]
    assert len(rows) == 37
    assert all(_TEST_FILE.search(row) for row in rows)
    for row in text.splitlines():
        names: set[str] = set()
        for part in re.findall(r"`[^`]+`", row):
            if _TEST_FILE.fullmatch(part):
                path = part.strip("`")
                if path.startswith("tests/"):
                    assert path.removeprefix("tests/") in tests, path
                assert Path(path).name in by_basename, path
                names |= by_basename[Path(path).name]
            elif _TEST_NAME.fullmatch(part):
                assert part.strip("`") in names, f"{part} in: {row[:60]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    """Every relative link of a page and every source path that it names leads to a file of the repository."""
    text = page.read_text(encoding="utf-8")
    missing = [link for link, _ in _LINK.findall(text) if link and not (page.parent / link).exists()]
    missing += [path for path in _MODULE.findall(text) if "*" not in path and not (ROOT / path).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_list_or_quote_begins_inside_a_paragraph(page: Path) -> None:
    """Lists follow an empty line, code spans are closed, and no line is a quote, which pages do not have."""
    text = page.read_text(encoding="utf-8")
    before, tokens = ["", *text.splitlines()], MarkdownIt("commonmark").enable("table").parse(text)
    begins = [before[token.map[0]] for token in tokens if token.map and token.type in _LISTS]
    words = [word.content for token in tokens for word in token.children or () if word.type == "text"]
    assert words
    assert [line for line in begins if line.strip()] == []
    assert [word for word in words if "`" in word] == []
    assert [token.map for token in tokens if token.type == "blockquote_open"] == []


def _heads() -> Iterator[str]:
    """The texts in the headers of all tables that commands print."""
    for path in (ROOT / "harness").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "report" in path.parts or not re.search(r"\b(Table|print_table|_Column|figures_table)\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            header: ast.AST | None = None
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Table", "print_table", "_Column"):
                header = node.args[0]
            elif isinstance(node, ast.Assign | ast.AugAssign):
                names = node.targets if isinstance(node, ast.Assign) else [node.target]
                header = node.value if _HEADERS & set(map(ast.unparse, names)) else None
            parts = (
                [header, *(one for found in ast.walk(header) for one in getattr(found, "elts", ()))] if header else []
            )
            yield from (one.value for one in parts if isinstance(one, ast.Constant) and one.value)


def test_every_column_is_explained() -> None:
    """A page explains each head of the tables that commands print."""
    page = (ROOT / "docs" / "columns.md").read_text()
    explained = "\n".join(re.findall(r"(?m)^\| ([^|]+) \|", page))
    heads = set(_heads())
    assert len(heads) > 90
    assert [one for one in sorted(heads) if not re.search(rf"(?m)(?:^|, ){re.escape(one)}(?:, |$)", explained)] == []
