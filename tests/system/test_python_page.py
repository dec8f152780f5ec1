"""docs/python.md: its example runs, and it documents exactly the names that the package exports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import harness

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The code of the page, pasted into an empty folder, measures and estimates a network, and lists devices."""
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(code, "python.md", "exec"), {"harness": harness})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    (error,) = re.findall(r"error ([+-][0-9.]+) ?%", printed)
    assert abs(float(error)) < 10
    assert "tiny: " in printed and "npu01 emulated-npu" in printed


def test_the_page_documents_every_exported_name() -> None:
    """The first column of its tables, and the text about errors, name what `harness.__all__` lists and no more."""
    documented = set(re.findall(r"^\| `(\w+)", PAGE, flags=re.MULTILINE))
    assert documented | {"HarnessError", "errors"} == set(harness.__all__)
    assert all(f"`{name}`" in PAGE or f"harness.{name}" in PAGE for name in ("HarnessError", "errors"))


def test_exported_names_are_there_and_no_other() -> None:
    """Every exported name can be imported, `dir` lists it, and another name is an AttributeError."""
    assert all(hasattr(harness, name) and name in dir(harness) for name in harness.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        harness.nothing  # noqa: B018 - the access is what is tested
