"""docs/security.md promises no test that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`([a-z_/]*test_[a-z_]+\.py)?::(test_\w+)`")


def test_every_test_that_is_named_exists() -> None:
    """Each `path::name` of the page, `::name` being in the file named before it, is a test of that file."""
    rows = [row for row in (ROOT / "docs" / "security.md").read_text().splitlines() if row.startswith("| ")]
    found = 0
    for row in rows:
        path = ""
        for named, test in _NAMED.findall(row):
            path = named or path
            assert f"\ndef {test}(" in (ROOT / "tests" / path).read_text(), f"{path}::{test}"
            found += 1
    assert found > 30


def test_every_point_has_something_that_shows_it() -> None:
    """No row of the table of points is without a test or a rule."""
    text = (ROOT / "docs" / "security.md").read_text()
    table = text.partition("| point | shown by |")[2].partition("\n\n")[0]
    rows = table.strip().splitlines()[1:]
    assert len(rows) > 20
    assert all(_NAMED.search(row) for row in rows)
